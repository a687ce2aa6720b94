// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package nbd

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

// be returns values in the byte order of the protocol. Texts are as they are.
func be(values ...any) []byte {
	var out []byte
	for _, value := range values {
		if text, is := value.(string); is {
			out = append(out, text...)
			continue
		}
		out, _ = binary.Append(out, binary.BigEndian, value)
	}
	return out
}

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// optReply returns a reply to an option.
func optReply(option, kind uint32, data []byte) []byte {
	return join(be(uint64(magicReply), option, kind, uint32(len(data))), data)
}

// Parts of a handshake with an export of 1 MiB in blocks of 512 bytes.
var (
	greeting   = be(uint64(magicServer), uint64(magicOption), uint16(flagFixedNewstyle|flagNoZeroes))
	structured = optReply(optStructuredReply, repAck, nil)
	simpleOnly = optReply(optStructuredReply, repError+1, nil)
	contexts   = join(
		optReply(optSetMetaContext, repMetaContext, be(uint32(7), AllocationContext)),
		optReply(optSetMetaContext, repMetaContext, be(uint32(9), "qemu:dirty-bitmap:b")),
		optReply(optSetMetaContext, repAck, nil),
	)
	sizes    = optReply(optGo, repInfo, be(uint16(infoBlockSize), uint32(512), uint32(4096), uint32(32<<20)))
	exported = optReply(optGo, repInfo, be(uint16(infoExport), uint64(mebibyte), uint16(transmissionHasFlags)))
	entered  = join(sizes, exported, optReply(optGo, repAck, nil))
	ready    = join(greeting, structured, contexts, entered)
)

func chunk(flags, kind uint16, cookie uint64, data []byte) []byte {
	return join(be(uint32(magicStructured), flags, kind, cookie, uint32(len(data))), data)
}

func simple(code uint32, cookie uint64, data []byte) []byte {
	return join(be(uint32(magicSimple), code, cookie), data)
}

// script is a connection whose peer says the same in any case.
type script struct {
	io.Reader
	net.Conn
	written bytes.Buffer
}

func (s *script) Read(p []byte) (int, error)     { return s.Reader.Read(p) }
func (s *script) Write(p []byte) (int, error)    { return s.written.Write(p) }
func (*script) Close() error                     { return nil }
func (*script) SetDeadline(time.Time) error      { return nil }
func says(parts ...[]byte) *script               { return &script{Reader: bytes.NewReader(join(parts...))} }
func open(t *testing.T, parts ...[]byte) *Client { t.Helper(); return opened(t, says(parts...)) }

var both = Options{Export: "root", Contexts: []string{AllocationContext, BitmapContext("b")}}

func opened(t *testing.T, conn net.Conn) *Client {
	t.Helper()
	c, err := Open(conn, both)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func expect(t *testing.T, what string, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("%s: %v", what, err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("%s: the error is %v, not %q", what, err, want)
	}
}

func TestHandshake(t *testing.T) {
	long := strings.Repeat("x", maxOptionReply+1)
	for name, tc := range map[string]struct {
		server []byte
		want   string
	}{
		"all is well":              {ready, ""},
		"nothing":                  {nil, "EOF"},
		"another protocol":         {[]byte("HTTP/1.1 400 Bad Request\r\n"), "no NBD server"},
		"the old style":            {be(uint64(magicServer), uint64(magicOption), uint16(0)), "too old"},
		"a reply to another":       {join(greeting, optReply(optGo, repAck, nil)), "that was not sent"},
		"a wrong magic number":     {join(greeting, be(uint64(1), uint32(optStructuredReply), uint32(repAck), uint32(0))), "magic number"},
		"a long reply":             {join(greeting, optReply(optStructuredReply, repAck, be(long))), "at most"},
		"replies without an end":   {join(greeting, bytes.Repeat(optReply(optStructuredReply, repInfo, nil), maxOptionReplies+1)), "more than"},
		"no contexts":              {join(greeting, structured, optReply(optSetMetaContext, repAck, nil)), ErrNoExport.Error()},
		"another context":          {join(greeting, structured, optReply(optSetMetaContext, repMetaContext, be(uint32(7), "other"))), "not requested"},
		"a context twice":          {join(greeting, structured, bytes.Repeat(optReply(optSetMetaContext, repMetaContext, be(uint32(7), AllocationContext)), 2)), "twice"},
		"a context without an ID":  {join(greeting, structured, optReply(optSetMetaContext, repMetaContext, nil)), "not replied with a context"},
		"no such export":           {join(greeting, structured, contexts, optReply(optGo, repErrUnknown, nil)), ErrNoExport.Error()},
		"a refusal":                {join(greeting, structured, contexts, optReply(optGo, repError+2, be("no"))), "error 2: no"},
		"no size":                  {join(greeting, structured, contexts, optReply(optGo, repAck, nil)), "size of the export"},
		"a negative size":          {join(greeting, structured, contexts, optReply(optGo, repInfo, be(uint16(infoExport), uint64(1<<63), uint16(1)))), "not valid"},
		"blocks of three bytes":    {join(greeting, structured, contexts, optReply(optGo, repInfo, be(uint16(infoBlockSize), uint32(3), uint32(9), uint32(9)))), "not valid"},
		"requests below one block": {join(greeting, structured, contexts, optReply(optGo, repInfo, be(uint16(infoBlockSize), uint32(512), uint32(512), uint32(1)))), "not valid"},
		"an empty information":     {join(greeting, structured, contexts, optReply(optGo, repInfo, nil)), "information about the export"},
		"no structured replies":    {join(greeting, simpleOnly, contexts, entered), ""},
	} {
		_, err := Open(says(tc.server), both)
		expect(t, name, err, tc.want)
	}
}

func TestRead(t *testing.T) {
	data := strings.Repeat("d", 512)
	for name, tc := range map[string]struct {
		server []byte
		want   string
	}{
		"a simple reply":            {simple(0, 1, be(data, data)), ""},
		"two chunks, not in order":  {join(chunk(0, chunkData, 1, be(uint64(1024), data)), chunk(chunkDone, chunkData, 1, be(uint64(512), data))), ""},
		"an empty chunk at the end": {join(chunk(0, chunkData, 1, be(uint64(512), data, data)), chunk(chunkDone, chunkNone, 1, nil)), ""},
		"a simple error":            {simple(5, 1, nil), "error 5"},
		"an error":                  {chunk(chunkDone, chunkError+1, 1, be(uint32(5), uint16(2), "no")), "error 5: no"},
		"an error after data":       {join(chunk(0, chunkData, 1, be(uint64(512), data)), chunk(chunkDone, chunkError+2, 1, be(uint32(5), uint16(0), uint64(1024)))), "error 5"},
		"an error without a code":   {chunk(chunkDone, chunkError+1, 1, be(uint32(0), uint16(0))), "not valid"},
		"an error that is cut off":  {chunk(chunkDone, chunkError+1, 1, be(uint32(5), uint16(9), "no")), "not valid"},
		"a long error":              {chunk(chunkDone, chunkError+1, 1, be(uint32(5), uint16(9), strings.Repeat("x", 2*maxError))), "an error has"},
		"another cookie":            {simple(0, 2, be(data, data)), "not that to the last request"},
		"a wrong magic number":      {be(uint32(1), uint32(0), uint64(1)), "magic number"},
		"an end in the middle":      {simple(0, 1, be(data)), "EOF"},
		"half of it":                {chunk(chunkDone, chunkData, 1, be(uint64(512), data)), "lacks 512 bytes"},
		"nothing":                   {chunk(chunkDone, chunkNone, 1, nil), "lacks 1024 bytes"},
		"bytes twice":               {join(chunk(0, chunkData, 1, be(uint64(512), data)), chunk(chunkDone, chunkData, 1, be(uint64(600), data))), "the same bytes"},
		"bytes before it":           {chunk(chunkDone, chunkData, 1, be(uint64(0), data)), "not requested"},
		"bytes behind it":           {chunk(chunkDone, chunkData, 1, be(uint64(1536), data)), "not requested"},
		"a hole that is too long":   {chunk(chunkDone, chunkHole, 1, be(uint64(512), uint32(1<<31))), "not requested"},
		"a hole with data":          {chunk(chunkDone, chunkHole, 1, be(uint64(512), uint32(1024), data)), "has no data"},
		"another type":              {chunk(chunkDone, chunkBlockStatus, 1, be(uint64(512), data)), "has no data"},
		"an empty chunk with data":  {chunk(chunkDone, chunkNone, 1, be(data)), "empty chunk"},
		"both kinds of replies":     {join(chunk(0, chunkData, 1, be(uint64(512), data)), simple(0, 1, be(data, data))), "follows the chunk"},
		"chunks without an end":     {join(bytes.Repeat(chunk(0, chunkError+1, 1, be(uint32(5), uint16(0))), maxChunks)), "more than"},
	} {
		buffer := bytes.Repeat([]byte{1}, 1024)
		err := open(t, ready, tc.server).Read(buffer, 512)
		expect(t, name, err, tc.want)
		if err == nil && string(buffer) != data+data {
			t.Errorf("%s: the bytes are wrong", name)
		}
	}
	hole := bytes.Repeat([]byte{1}, 1024)
	if err := open(t, ready, chunk(chunkDone, chunkHole, 1, be(uint64(512), uint32(1024)))).Read(hole, 512); err != nil ||
		!bytes.Equal(hole, make([]byte, 1024)) {
		t.Errorf("a hole is not zeros: %v", err)
	}
}

func TestRequestsOutsideOfTheExport(t *testing.T) {
	c := open(t, ready)
	for name, tc := range map[string]struct {
		length int
		offset uint64
	}{
		"nothing": {0, 0}, "no blocks": {100, 0}, "not at a block": {512, 100}, "behind the end": {1024, mebibyte - 512}, "far behind": {512, 1<<64 - 512},
	} {
		if err := c.Read(make([]byte, tc.length), tc.offset); err == nil {
			t.Errorf("%s is read", name)
		}
	}
	if err := c.Read(make([]byte, 2*maxRead), 0); err == nil {
		t.Error("more than the limit is read")
	}
	if _, err := open(t, greeting, simpleOnly, contexts, entered).Status(0, 512); err == nil {
		t.Error("a server without structured replies has a status")
	}
}

func TestStatus(t *testing.T) {
	allocation := be(uint32(7), uint32(512), uint32(0), uint32(1024), Zero)
	changed := be(uint32(9), uint32(4096), Dirty)
	for name, tc := range map[string]struct {
		server []byte
		want   string
	}{
		"both":                      {join(chunk(0, chunkBlockStatus, 1, allocation), chunk(chunkDone, chunkBlockStatus, 1, changed)), ""},
		"an error":                  {chunk(chunkDone, chunkError+1, 1, be(uint32(22), uint16(0))), "error 22"},
		"a simple reply":            {simple(0, 1, nil), "has none"},
		"one":                       {chunk(chunkDone, chunkBlockStatus, 1, allocation), "lacks"},
		"one twice":                 {join(chunk(0, chunkBlockStatus, 1, allocation), chunk(chunkDone, chunkBlockStatus, 1, allocation)), "twice"},
		"another":                   {chunk(chunkDone, chunkBlockStatus, 1, be(uint32(1), uint32(512), uint32(0))), "not requested"},
		"no extents":                {chunk(chunkDone, chunkBlockStatus, 1, be(uint32(7))), "no status"},
		"half an extent":            {chunk(chunkDone, chunkBlockStatus, 1, be(uint32(7), uint32(512), uint32(0), uint32(1))), "no status"},
		"too many extents":          {be(uint32(magicStructured), uint16(chunkDone), uint16(chunkBlockStatus), uint64(1), uint32(4+8*(maxExtents+1))), "no status"},
		"an extent without length":  {chunk(chunkDone, chunkBlockStatus, 1, be(uint32(7), uint32(0), uint32(0))), "no blocks"},
		"an extent without a block": {chunk(chunkDone, chunkBlockStatus, 1, be(uint32(7), uint32(100), uint32(0))), "no blocks"},
		"data":                      {chunk(chunkDone, chunkData, 1, be(uint64(0), "data")), "no status"},
	} {
		status, err := open(t, ready, tc.server).Status(0, 2048)
		expect(t, name, err, tc.want)
		if err != nil {
			continue
		}
		if got := status[AllocationContext]; len(got) != 2 || got[0] != (Extent{512, 0}) || got[1] != (Extent{1024, Zero}) {
			t.Errorf("%s: allocated are %v", name, got)
		}
		if got := status[BitmapContext("b")]; len(got) != 1 || got[0] != (Extent{2048, Dirty}) {
			t.Errorf("%s: changed are %v", name, got)
		}
	}
}

func TestErrorsOfTheServerDoNotEndTheSession(t *testing.T) {
	c := open(t, ready, simple(5, 1, nil), simple(0, 2, make([]byte, 512)))
	var refused *ServerError
	if err := c.Read(make([]byte, 512), 0); !errors.As(err, &refused) {
		t.Errorf("the error is %v", err)
	}
	if err := c.Read(make([]byte, 512), 0); err != nil {
		t.Error(err)
	}
}

func TestTimeout(t *testing.T) {
	near, far := net.Pipe()
	defer func() { _ = far.Close() }()
	if _, err := Open(near, Options{Timeout: 10 * time.Millisecond}); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the error is %v", err)
	}
}
