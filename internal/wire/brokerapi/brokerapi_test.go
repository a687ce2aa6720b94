// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package brokerapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRequestGoesThroughAConnection(t *testing.T) {
	var buffer bytes.Buffer
	sent := &Request{Verb: Inspect, Pod: "uid", Arguments: json.RawMessage(`{"path":"/dev/kvm"}`)}
	if err := WriteRequest(&buffer, sent); err != nil {
		t.Fatal(err)
	}
	got, err := ReadRequest(&buffer, func(uint32) error { return nil })
	if err != nil || got.Verb != sent.Verb || got.Pod != sent.Pod || string(got.Arguments) != string(sent.Arguments) {
		t.Errorf("got %+v, %v", got, err)
	}
	large := &Request{Arguments: json.RawMessage(`"` + strings.Repeat("x", MaxRequest) + `"`)}
	if err := WriteRequest(&buffer, large); !errors.Is(err, ErrLength) {
		t.Errorf("a request that is too long: %v", err)
	}
	refused := errors.New("not now")
	if err := WriteRequest(&buffer, sent); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadRequest(&buffer, func(uint32) error { return refused }); !errors.Is(err, refused) {
		t.Errorf("a request that is not admitted: %v", err)
	}
}

// virt-handler must not take a verb that all programs serve for one of virt-broker.
func TestVerbsOfAllProgramsAreOfNone(t *testing.T) {
	for verb, want := range map[Verb]Program{Ping: "", WatchProgram: "", OpenSocket: Broker, OpenRouter: NetworkBroker,
		CPUPolicy: DevicePlugin} {
		if got := verb.Program(); got != want {
			t.Errorf("%s is served by %q, want %q", verb, got, want)
		}
	}
}

// What a program receives of another has a frame, too.
func TestReadResponse(t *testing.T) {
	for text, want := range map[string]error{"": io.EOF, "\x00\x00": io.ErrUnexpectedEOF,
		"\x00\x00\x00\x03{}": io.ErrUnexpectedEOF, "\xff\xff\xff\xff{}": ErrLength} {
		if _, err := ReadResponse(strings.NewReader(text)); !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", text, err, want)
		}
	}
	got, err := ReadResponse(strings.NewReader("\x00\x00\x00\x1c" + `{"error":{"message":"no it"}}`[:28]))
	if err == nil {
		t.Errorf("a text that is cut was accepted: %+v", got)
	}
	got, err = ReadResponse(strings.NewReader("\x00\x00\x00\x1d" + `{"error":{"message":"no it"}}`))
	if err != nil || got.Error == nil || got.Error.Message != "no it" {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestErrorsKeepTheirMeaning(t *testing.T) {
	for err, want := range map[error]struct {
		code Code
		is   error
	}{
		fmt.Errorf("open: %w", fs.ErrNotExist):          {CodeNotFound, fs.ErrNotExist},
		fmt.Errorf("connect: %w", unix.ECONNREFUSED):    {CodeNoListener, unix.ECONNREFUSED},
		fmt.Errorf("check: %w", Refused("no %s", "it")): {CodeRefused, nil},
		errors.New("other"):                             {CodeFailed, nil},
		&Error{Code: CodeUnreachable, Message: "gone"}:  {CodeUnreachable, ErrUnreachable},
	} {
		text, failed := json.Marshal(FromError(err))
		if failed != nil {
			t.Fatal(failed)
		}
		got := &Error{}
		if failed := json.Unmarshal(text, got); failed != nil {
			t.Fatal(failed)
		}
		if got.Code != want.code || CodeOf(fmt.Errorf("x: %w", got)) != want.code || got.Message != err.Error() {
			t.Errorf("%v became %+v", err, got)
		}
		for _, is := range []error{fs.ErrNotExist, unix.ECONNREFUSED, ErrUnreachable} {
			if errors.Is(got, is) != (is == want.is) { //nolint:errorlint // the same error
				t.Errorf("%v is %v: %t", got, is, errors.Is(got, is))
			}
		}
	}
	if long := FromError(errors.New(strings.Repeat("x", 2*maxMessage))); len(long.Message) != maxMessage {
		t.Errorf("a message has %d bytes", len(long.Message))
	}
}
