// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package brokerapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
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

func TestErrorsKeepTheirMeaning(t *testing.T) {
	for err, want := range map[error]struct {
		code Code
		is   error
	}{
		fmt.Errorf("open: %w", fs.ErrNotExist):          {CodeNotFound, fs.ErrNotExist},
		fmt.Errorf("connect: %w", unix.ECONNREFUSED):    {CodeNoListener, unix.ECONNREFUSED},
		fmt.Errorf("check: %w", Refused("no %s", "it")): {CodeRefused, nil},
		errors.New("other"):                             {CodeFailed, nil},
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
		for _, is := range []error{fs.ErrNotExist, unix.ECONNREFUSED} {
			if errors.Is(got, is) != (is == want.is) { //nolint:errorlint // the same error
				t.Errorf("%v is %v: %t", got, is, errors.Is(got, is))
			}
		}
	}
	if long := FromError(errors.New(strings.Repeat("x", 2*maxMessage))); len(long.Message) != maxMessage {
		t.Errorf("a message has %d bytes", len(long.Message))
	}
}
