// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package brokerclient

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/wire/brokerapi"
)

// pair returns the two ends of a connection.
func pair(t testing.TB) (client, server *net.UnixConn) {
	t.Helper()
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: filepath.Join(t.TempDir(), "s")})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	dialed, err := net.Dial("unix", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	client, ok := dialed.(*net.UnixConn)
	if !ok {
		t.Fatal("no unix socket")
	}
	if server, err = listener.AcceptUnix(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = client.Close()
		_ = server.Close()
	})
	return client, server
}

func TestResponseWithADescriptor(t *testing.T) {
	client, server := pair(t)
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = read.Close() }()
	large := &brokerapi.Response{Result: json.RawMessage(`"` + strings.Repeat("x", 1<<20) + `"`)}
	sent := make(chan error, 1)
	go func() { sent <- errors.Join(brokerapi.WriteResponse(server, large, write), write.Close()) }()
	got, file, err := readResponse(client)
	if err := errors.Join(err, <-sent); err != nil || file == nil || len(got.Result) != len(large.Result) {
		t.Fatalf("got %v: %v", file, err)
	}
	if _, err := file.WriteString("hello"); err != nil {
		t.Fatal(err)
	}
	if flags, err := unix.FcntlInt(file.Fd(), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("the descriptor is inherited by programs: %v", err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(read); err != nil || string(text) != "hello" {
		t.Errorf("got %q, %v", text, err)
	}
	go func() { sent <- brokerapi.WriteResponse(server, &brokerapi.Response{}, nil) }()
	if _, file, err := readResponse(client); errors.Join(err, <-sent) != nil || file != nil {
		t.Errorf("without one: %v, %v", file, err)
	}
}

// A broker that is killed while it responds leaves a part of a response.
func TestPartOfAResponse(t *testing.T) {
	for _, data := range [][]byte{nil, {0, 0}, {0, 0, 0, 9}, {0, 0, 0, 9, '{'}, {0xff, 0xff, 0xff, 0xff}, {0, 0, 0, 0}} {
		client, server := pair(t)
		_, err := server.Write(data)
		if err := errors.Join(err, server.Close()); err != nil {
			t.Fatal(err)
		}
		if _, file, err := readResponse(client); err == nil || file != nil {
			t.Errorf("%v was accepted", data)
		}
	}
}

// FuzzResponse checks that a response has the size of what was received.
func FuzzResponse(f *testing.F) {
	for _, text := range []string{`{}`, `{"error":{"code":"busy","message":"x"}}`, `{"result":{"usable":true}}`, `[`} {
		f.Add(append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		client, server := pair(t)
		go func() {
			_, _ = server.Write(data)
			_ = server.Close()
		}()
		response, file, err := readResponse(client)
		if file != nil {
			t.Error("there is a descriptor")
		}
		if err == nil && len(response.Result) > len(data) {
			t.Errorf("%d bytes became %d", len(data), len(response.Result))
		}
	})
}
