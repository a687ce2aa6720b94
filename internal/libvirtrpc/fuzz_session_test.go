// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package libvirtrpc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"testing"
)

// FuzzSession: of what a launcher sends through the relay, only answers to the client's calls get to the client, each once, and
// events that it has registered for.
func FuzzSession(f *testing.F) {
	call := said(programRemote, procDomainLookupByName, typeCall, 7, statusOK, 12)
	reply := said(programRemote, procDomainLookupByName, typeReply, 7, statusOK, 40)
	event := said(programRemote, procEventLifecycleMessage, typeMessage, 0, statusOK, 60)
	upload := said(programRemote, procStorageVolUpload, typeCall, 9, statusOK, 12)
	f.Add(call, reply)
	f.Add(call, slices.Concat(reply, reply))
	f.Add(registering(3, eventIDLifecycle), slices.Concat(said(programRemote, procEventRegisterAny, typeReply, 3, statusOK, 4), event, event))
	f.Add(upload, slices.Concat(said(programRemote, procStorageVolUpload, typeReply, 9, statusOK, 0), said(programRemote, procStorageVolUpload, typeStream, 9, statusOK, 0)))
	f.Add([]byte{}, said(programKeepAlive, keepAlivePing, typeMessage, 0, statusOK, 0))
	f.Fuzz(func(t *testing.T, asked, answered []byte) {
		s := NewSession()
		if err := s.Calls(io.Discard, bytes.NewReader(asked)); err == nil {
			t.Fatal("the client's side did not end")
		}
		var passed bytes.Buffer
		err := s.Answers(&passed, bytes.NewReader(answered), func(Kind, int) (bool, error) { return true, nil })
		if err == nil || !bytes.HasPrefix(answered, passed.Bytes()) {
			t.Fatalf("it ended with %v, and what passed is no beginning of what was sent", err)
		}
		if errors.Is(err, io.EOF) && passed.Len() != len(answered) {
			t.Errorf("of %d bytes %d passed, and nothing was wrong with the others", len(answered), passed.Len())
		}
		expectAskedFor(t, asked, passed.Bytes())
	})
}

// words are the six words behind the length of each message.
func words(messages []byte) [][6]uint32 {
	var out [][6]uint32
	for len(messages) >= headerSize {
		var w [6]uint32
		for i := range w {
			w[i] = binary.BigEndian.Uint32(messages[4+4*i:])
		}
		out = append(out, w)
		size := int(binary.BigEndian.Uint32(messages))
		if size < headerSize {
			break
		}
		messages = messages[min(size, len(messages)):]
	}
	return out
}

// expectAskedFor compares the messages that passed with the client's, without the code under test.
func expectAskedFor(t *testing.T, asked, passed []byte) {
	t.Helper()
	type exchange struct{ program, proc, serial uint32 }
	calls, registered := map[exchange]int{}, 0
	for _, w := range words(asked) {
		if w[3] == typeCall {
			calls[exchange{w[0], w[2], w[4]}]++
		}
		if w[0] == programRemote && int32(w[2]) == procEventRegisterAny {
			registered++
		}
	}
	for _, w := range words(passed) {
		e := exchange{w[0], w[2], w[4]}
		switch {
		case w[0] == programKeepAlive && w[3] == typeMessage:
		case w[3] == typeReply:
			if calls[e]--; calls[e] < 0 {
				t.Fatalf("an answer that nobody asked for: %v", w)
			}
		case w[3] == typeStream:
			if w[5] == statusContinue {
				t.Fatalf("a piece of a stream: %v", w)
			}
		case w[3] == typeMessage && w[0] == programRemote && registered > 0:
		default:
			t.Fatalf("%v passed", w)
		}
	}
}
