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

// packet returns a message with a body of the given size.
func packet(program uint32, proc int32, kind, serial, status uint32, body int) []byte {
	return message(header{program, proc, kind, serial, status}, make([]byte, body))
}

// registering returns a call with which the client registers for an event.
func registering(serial uint32, event int32) []byte {
	body := binary.BigEndian.AppendUint32(nil, uint32(event))
	return message(header{programRemote, procEventRegisterAny, typeCall, serial, statusOK}, append(body, 0, 0, 0, 0))
}

func TestSessionForwardsOnlyResponsesAndEvents(t *testing.T) {
	const lookup, serial, failed = procDomainLookupByName, 7, 1
	call := packet(programRemote, lookup, typeCall, serial, statusOK, 12)
	reply := packet(programRemote, lookup, typeReply, serial, statusOK, 100<<10)
	upload := packet(programRemote, procStorageVolUpload, typeCall, serial, statusOK, 12)
	uploading := packet(programRemote, procStorageVolUpload, typeReply, serial, statusOK, 0)
	uploaded := packet(programRemote, procStorageVolUpload, typeStream, serial, statusOK, 0)
	lifecycle := packet(programRemote, procEventLifecycleMessage, typeMessage, 0, statusOK, 60)
	ping := packet(programKeepAlive, keepAlivePing, typeMessage, 0, statusOK, 0)
	withVersion := slices.Clone(reply)
	binary.BigEndian.PutUint32(withVersion[8:], 2)

	for name, tc := range map[string]struct {
		calls, responses [][]byte
		// refused reports whether the last message is refused.
		refused bool
	}{
		"a response":                       {[][]byte{call}, [][]byte{reply}, false},
		"an error":                         {[][]byte{call}, [][]byte{packet(programRemote, lookup, typeReply, serial, failed, 50)}, false},
		"a response without a call":        {nil, [][]byte{reply}, true},
		"a second response":                {[][]byte{call}, [][]byte{reply, reply}, true},
		"a response to another call":       {[][]byte{call}, [][]byte{packet(programRemote, procDomainGetState, typeReply, serial, statusOK, 8)}, true},
		"a response of another program":    {[][]byte{call}, [][]byte{packet(programQEMU, lookup, typeReply, serial, statusOK, 8)}, true},
		"a response with descriptors":      {[][]byte{call}, [][]byte{packet(programRemote, lookup, 5, serial, statusOK, 8)}, true},
		"a call":                           {[][]byte{call}, [][]byte{call}, true},
		"a response of program 0":          {nil, [][]byte{packet(0, 0, typeReply, 0, statusOK, 8)}, true},
		"another version":                  {[][]byte{call}, [][]byte{withVersion}, true},
		"a ping":                           {nil, [][]byte{ping}, false},
		"a ping with a body":               {nil, [][]byte{packet(programKeepAlive, keepAlivePing, typeMessage, 0, statusOK, 4)}, true},
		"an event":                         {[][]byte{registering(3, eventIDLifecycle)}, [][]byte{lifecycle, lifecycle}, false},
		"the guest agent's event":          {[][]byte{registering(3, 18)}, [][]byte{packet(programRemote, 348, typeMessage, 0, statusOK, 60)}, false},
		"the metadata's event":             {[][]byte{registering(3, 23)}, [][]byte{packet(programRemote, 379, typeMessage, 0, statusOK, 60)}, false},
		"the memory device's event":        {[][]byte{registering(3, 26)}, [][]byte{packet(programRemote, 438, typeMessage, 0, statusOK, 60)}, false},
		"an event without a registration":  {[][]byte{registering(3, 13)}, [][]byte{lifecycle}, true},
		"an event of the largest size":     {[][]byte{registering(3, eventIDLifecycle)}, [][]byte{packet(programRemote, procEventLifecycleMessage, typeMessage, 0, statusOK, MaxEvent)}, true},
		"the end of an upload":             {[][]byte{upload}, [][]byte{uploading, uploaded}, false},
		"an upload that fails":             {[][]byte{upload}, [][]byte{uploading, packet(programRemote, procStorageVolUpload, typeStream, serial, failed, 50)}, false},
		"two ends of an upload":            {[][]byte{upload}, [][]byte{uploading, uploaded, uploaded}, true},
		"data on an upload":                {[][]byte{upload}, [][]byte{uploading, packet(programRemote, procStorageVolUpload, typeStream, serial, statusContinue, 1<<10)}, true},
		"a stream of a call that has none": {[][]byte{call}, [][]byte{packet(programRemote, lookup, typeStream, serial, statusOK, 0)}, true},
		"a stream of an upload that was refused": {[][]byte{upload},
			[][]byte{packet(programRemote, procStorageVolUpload, typeReply, serial, failed, 50), uploaded}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := NewSession()
			requests := slices.Concat(tc.calls...)
			var sent bytes.Buffer
			if err := s.Calls(&sent, bytes.NewReader(requests)); !errors.Is(err, io.EOF) ||
				!bytes.Equal(sent.Bytes(), requests) {
				t.Fatalf("forwarded %d of %d bytes: %v", sent.Len(), len(requests), err)
			}
			wanted := slices.Concat(tc.responses...)
			if tc.refused {
				wanted = slices.Concat(tc.responses[:len(tc.responses)-1]...)
			}
			var got bytes.Buffer
			err := s.Responses(&got, bytes.NewReader(slices.Concat(tc.responses...)),
				func(Kind, int) (bool, error) { return true, nil })
			if tc.refused != errors.Is(err, ErrRefused) || !tc.refused && !errors.Is(err, io.EOF) {
				t.Errorf("ended with %v", err)
			}
			if !bytes.Equal(got.Bytes(), wanted) {
				t.Errorf("forwarded %d bytes, want %d", got.Len(), len(wanted))
			}
		})
	}
}

func TestMessageThatIsNotAdmittedIsDropped(t *testing.T) {
	s := NewSession()
	if err := s.Calls(io.Discard, bytes.NewReader(registering(1, eventIDLifecycle))); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	event := func(body int) []byte {
		return packet(programRemote, procEventLifecycleMessage, typeMessage, 0, statusOK, body)
	}
	response := packet(programRemote, procEventRegisterAny, typeReply, 1, statusOK, 4)
	var got bytes.Buffer
	admit := func(kind Kind, _ int) (bool, error) { return kind != KindEvent, nil }
	if err := s.Responses(&got, bytes.NewReader(slices.Concat(event(8), response, event(40))), admit); !errors.Is(err,
		io.EOF) {
		t.Error(err)
	}
	if !bytes.Equal(got.Bytes(), response) {
		t.Errorf("forwarded %d bytes, want the response's %d", got.Len(), len(response))
	}
}

func TestTruncatedCall(t *testing.T) {
	whole := registering(1, eventIDLifecycle)
	for _, n := range []int{headerSize - 1, headerSize, headerSize + 2, len(whole) - 1} {
		if err := NewSession().Calls(io.Discard, bytes.NewReader(whole[:n])); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}
