// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package brokerclient

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/vireo-project/vireo/internal/wire/brokerapi"
)

// A busy broker has not said that there is no such file.
func TestInspectionsOfABusyBrokerFail(t *testing.T) {
	dir, err := os.MkdirTemp("", "b")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	for code, fails := range map[brokerapi.Code]bool{brokerapi.CodeBusy: true, brokerapi.CodeNotFound: false} {
		answer := &brokerapi.Response{Error: &brokerapi.Error{Code: code, Message: "because"}}
		files := New(filepath.Join(dir, string(code))).Files("pod")
		for _, program := range brokerapi.Programs {
			respondWith(t, filepath.Join(dir, string(code)), program, answer)
		}
		if bytes, err := files.DeviceBytes(t.Context(), "/dev/v"); bytes != 0 || (err != nil) != fails {
			t.Errorf("%s: got %d, %v", code, bytes, err)
		}
		if direct, err := files.DirectIO(t.Context(), "/v"); direct || (err != nil) != fails {
			t.Errorf("%s: got %t, %v", code, direct, err)
		}
	}
}

func TestSELinuxContext(t *testing.T) {
	const context = "system_u:object_r:container_file_t:s0:c1,c2"
	for answer, want := range map[string]string{
		context: context, "u:r:t:s0-s15:c0.c1023": "u:r:t:s0-s15:c0.c1023", brokerapi.NoSELinux: brokerapi.NoSELinux, "": "",
		"u:r:t": "", "u:r:t:": "", "u:r:t:s0 x": "", context + "\n": "", "u:r:t:s0{}": "",
	} {
		dir, err := os.MkdirTemp("", "b")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		result, err := json.Marshal(brokerapi.InspectResult{SELinuxContext: answer})
		if err != nil {
			t.Fatal(err)
		}
		respondWith(t, dir, brokerapi.Broker, &brokerapi.Response{Result: result})
		if got, err := New(dir).Files("pod").SELinuxContext(t.Context()); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: got %q, %v", answer, got, err)
		}
	}
}

// respondWith runs a program that gives the same answer to each request.
func respondWith(t *testing.T, dir string, program brokerapi.Program, answer *brokerapi.Response) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(program.Socket(dir)), 0o755); err != nil {
		t.Fatal(err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: program.Socket(dir)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.AcceptUnix()
			if err != nil {
				return
			}
			if _, err := brokerapi.ReadRequest(conn, func(uint32) error { return nil }); err == nil {
				_ = brokerapi.WriteResponse(conn, answer, nil)
			}
			_ = conn.Close()
		}
	}()
}
