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

// said is the header of a message with a body of that many bytes.
func said(program uint32, proc int32, kind, serial, status uint32, body int) []byte {
	return message(header{program, proc, kind, serial, status}, make([]byte, body))
}

// registering is a call by which the client registers for an event.
func registering(serial uint32, event int32) []byte {
	body := binary.BigEndian.AppendUint32(nil, uint32(event))
	return message(header{programRemote, procEventRegisterAny, typeCall, serial, statusOK}, append(body, 0, 0, 0, 0))
}

func TestOnlyWhatTheClientAskedForReachesIt(t *testing.T) {
	const lookup, serial, failed = procDomainLookupByName, 7, 1
	call := said(programRemote, lookup, typeCall, serial, statusOK, 12)
	reply := said(programRemote, lookup, typeReply, serial, statusOK, 100<<10)
	upload := said(programRemote, procStorageVolUpload, typeCall, serial, statusOK, 12)
	uploading := said(programRemote, procStorageVolUpload, typeReply, serial, statusOK, 0)
	uploaded := said(programRemote, procStorageVolUpload, typeStream, serial, statusOK, 0)
	lifecycle := said(programRemote, procEventLifecycleMessage, typeMessage, 0, statusOK, 60)
	ping := said(programKeepAlive, keepAlivePing, typeMessage, 0, statusOK, 0)
	withVersion := slices.Clone(reply)
	binary.BigEndian.PutUint32(withVersion[8:], 2)

	for name, tc := range map[string]struct {
		asked, answered [][]byte
		// refused says that the last answer is.
		refused bool
	}{
		"an answer":                            {[][]byte{call}, [][]byte{reply}, false},
		"an error":                             {[][]byte{call}, [][]byte{said(programRemote, lookup, typeReply, serial, failed, 50)}, false},
		"an answer that nobody asked for":      {nil, [][]byte{reply}, true},
		"a second answer":                      {[][]byte{call}, [][]byte{reply, reply}, true},
		"an answer to another call":            {[][]byte{call}, [][]byte{said(programRemote, procDomainGetState, typeReply, serial, statusOK, 8)}, true},
		"an answer of another program":         {[][]byte{call}, [][]byte{said(programQEMU, lookup, typeReply, serial, statusOK, 8)}, true},
		"an answer with descriptors":           {[][]byte{call}, [][]byte{said(programRemote, lookup, 5, serial, statusOK, 8)}, true},
		"a call":                               {[][]byte{call}, [][]byte{call}, true},
		"an answer of program 0":               {nil, [][]byte{said(0, 0, typeReply, 0, statusOK, 8)}, true},
		"another version":                      {[][]byte{call}, [][]byte{withVersion}, true},
		"a sign of life":                       {nil, [][]byte{ping}, false},
		"a sign of life with something to say": {nil, [][]byte{said(programKeepAlive, keepAlivePing, typeMessage, 0, statusOK, 4)}, true},
		"an event":                             {[][]byte{registering(3, eventIDLifecycle)}, [][]byte{lifecycle, lifecycle}, false},
		"the guest agent's event":              {[][]byte{registering(3, 18)}, [][]byte{said(programRemote, 348, typeMessage, 0, statusOK, 60)}, false},
		"the metadata's event":                 {[][]byte{registering(3, 23)}, [][]byte{said(programRemote, 379, typeMessage, 0, statusOK, 60)}, false},
		"an event that nobody registered for":  {[][]byte{registering(3, 13)}, [][]byte{lifecycle}, true},
		"an event as long as it wants":         {[][]byte{registering(3, eventIDLifecycle)}, [][]byte{said(programRemote, procEventLifecycleMessage, typeMessage, 0, statusOK, MaxEvent)}, true},
		"the end of an upload":                 {[][]byte{upload}, [][]byte{uploading, uploaded}, false},
		"an upload that fails":                 {[][]byte{upload}, [][]byte{uploading, said(programRemote, procStorageVolUpload, typeStream, serial, failed, 50)}, false},
		"two ends of an upload":                {[][]byte{upload}, [][]byte{uploading, uploaded, uploaded}, true},
		"data on an upload":                    {[][]byte{upload}, [][]byte{uploading, said(programRemote, procStorageVolUpload, typeStream, serial, statusContinue, 1<<10)}, true},
		"a stream of a call that has none":     {[][]byte{call}, [][]byte{said(programRemote, lookup, typeStream, serial, statusOK, 0)}, true},
		"a stream of an upload that was refused": {[][]byte{upload},
			[][]byte{said(programRemote, procStorageVolUpload, typeReply, serial, failed, 50), uploaded}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := NewSession()
			asked := slices.Concat(tc.asked...)
			var sent bytes.Buffer
			if err := s.Calls(&sent, bytes.NewReader(asked)); !errors.Is(err, io.EOF) || !bytes.Equal(sent.Bytes(), asked) {
				t.Fatalf("passed on %d of %d bytes: %v", sent.Len(), len(asked), err)
			}
			wanted := slices.Concat(tc.answered...)
			if tc.refused {
				wanted = slices.Concat(tc.answered[:len(tc.answered)-1]...)
			}
			var got bytes.Buffer
			err := s.Answers(&got, bytes.NewReader(slices.Concat(tc.answered...)), func(Kind, int) (bool, error) { return true, nil })
			if tc.refused != errors.Is(err, ErrRefused) || !tc.refused && !errors.Is(err, io.EOF) {
				t.Errorf("ended with %v", err)
			}
			if !bytes.Equal(got.Bytes(), wanted) {
				t.Errorf("passed on %d bytes, want %d", got.Len(), len(wanted))
			}
		})
	}
}

func TestWhatIsNotAdmittedIsDropped(t *testing.T) {
	s := NewSession()
	if err := s.Calls(io.Discard, bytes.NewReader(registering(1, eventIDLifecycle))); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	event := func(body int) []byte {
		return said(programRemote, procEventLifecycleMessage, typeMessage, 0, statusOK, body)
	}
	answer := said(programRemote, procEventRegisterAny, typeReply, 1, statusOK, 4)
	var got bytes.Buffer
	admit := func(kind Kind, _ int) (bool, error) { return kind != KindEvent, nil }
	if err := s.Answers(&got, bytes.NewReader(slices.Concat(event(8), answer, event(40))), admit); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	if !bytes.Equal(got.Bytes(), answer) {
		t.Errorf("passed on %d bytes, want the answer's %d", got.Len(), len(answer))
	}
}

func TestACallThatEndsHalfway(t *testing.T) {
	whole := registering(1, eventIDLifecycle)
	for _, n := range []int{headerSize - 1, headerSize, headerSize + 2, len(whole) - 1} {
		if err := NewSession().Calls(io.Discard, bytes.NewReader(whole[:n])); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}
