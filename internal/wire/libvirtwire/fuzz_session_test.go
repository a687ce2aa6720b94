// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package libvirtwire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"testing"
)

// FuzzSession checks that of the messages of a launcher only responses to the client's calls, each once, and events
// that it has registered for reach the client.
func FuzzSession(f *testing.F) {
	call := packet(programRemote, procDomainLookupByName, typeCall, 7, statusOK, 12)
	reply := packet(programRemote, procDomainLookupByName, typeReply, 7, statusOK, 40)
	event := packet(programRemote, procEventLifecycleMessage, typeMessage, 0, statusOK, 60)
	upload := packet(programRemote, procStorageVolUpload, typeCall, 9, statusOK, 12)
	f.Add(call, reply)
	f.Add(call, slices.Concat(reply, reply))
	f.Add(registering(3, eventIDLifecycle),
		slices.Concat(packet(programRemote, procEventRegisterAny, typeReply, 3, statusOK, 4), event, event))
	f.Add(upload, slices.Concat(packet(programRemote, procStorageVolUpload, typeReply, 9, statusOK, 0),
		packet(programRemote, procStorageVolUpload, typeStream, 9, statusOK, 0)))
	f.Add([]byte{}, packet(programKeepAlive, keepAlivePing, typeMessage, 0, statusOK, 0))
	f.Fuzz(func(t *testing.T, requests, responses []byte) {
		s := NewSession()
		if err := s.Calls(io.Discard, bytes.NewReader(requests)); err == nil {
			t.Fatal("the client's side did not end")
		}
		var passed bytes.Buffer
		err := s.Responses(&passed, bytes.NewReader(responses), func(Kind, int) (bool, error) { return true, nil })
		if err == nil || !bytes.HasPrefix(responses, passed.Bytes()) {
			t.Fatalf("it ended with %v, and the forwarded bytes are not the first ones that were sent", err)
		}
		if errors.Is(err, io.EOF) && passed.Len() != len(responses) {
			t.Errorf("of %d bytes %d were forwarded, and the others were valid", len(responses), passed.Len())
		}
		expectRequested(t, requests, passed.Bytes())
	})
}

// words returns the six words after the length of each message.
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

// expectRequested compares the forwarded messages with the client's, without the code under test.
func expectRequested(t *testing.T, requests, passed []byte) {
	t.Helper()
	type exchange struct{ program, proc, serial uint32 }
	calls, registered := map[exchange]int{}, 0
	for _, w := range words(requests) {
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
				t.Fatalf("a response without a call: %v", w)
			}
		case w[3] == typeStream:
			if w[5] == statusContinue {
				t.Fatalf("a piece of a stream: %v", w)
			}
		case w[3] == typeMessage && w[0] == programRemote && registered > 0:
		default:
			t.Fatalf("%v was forwarded", w)
		}
	}
}
