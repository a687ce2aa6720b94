// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package brokerclient

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vireo-project/vireo/internal/wire/brokerapi"
)

// hanging are programs that accept connections, and respond unless one of them hangs.
type hanging struct {
	program atomic.Value
	// alsoAtFirst means that the program that hangs does not respond to what watches it either.
	alsoAtFirst atomic.Bool
}

func (h *hanging) serve(t *testing.T, dir string, program brokerapi.Program) {
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
			go h.respond(conn, program)
		}
	}()
}

// respond responds to a request, and waits until the client closes the connection.
func (h *hanging) respond(conn *net.UnixConn, program brokerapi.Program) {
	defer func() { _ = conn.Close() }()
	request, err := brokerapi.ReadRequest(conn, func(uint32) error { return nil })
	if err != nil {
		return
	}
	if h.program.Load() != program || request.Verb != brokerapi.Ping && !h.alsoAtFirst.Load() {
		_ = brokerapi.WriteResponse(conn, &brokerapi.Response{Result: []byte("{}")}, nil)
	}
	_, _ = conn.Read(make([]byte, 1))
}

// virt-handler is not ready while a program hangs, which keeps its connections: neither if that begins after
// virt-handler has reached it nor if it did before.
func TestNotReadyWhileAProgramHangs(t *testing.T) {
	for _, program := range brokerapi.Programs {
		dir, err := os.MkdirTemp("", "b")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		h := &hanging{}
		h.program.Store(brokerapi.Program(""))
		for _, each := range brokerapi.Programs {
			h.serve(t, dir, each)
		}
		d := NewDevices(New(dir), func() {})
		d.pingEvery, d.pingTimeout = 10*time.Millisecond, 200*time.Millisecond
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- d.Start(ctx) }()
		expect := func(ready bool) {
			t.Helper()
			for deadline := time.Now().Add(20 * time.Second); (d.Ready(nil) == nil) != ready; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("%s hangs: ready %t", program, !ready)
				}
			}
		}
		expect(true)
		h.program.Store(program)
		expect(false)
		h.alsoAtFirst.Store(true)
		time.Sleep(3 * d.pingTimeout)
		expect(false)
		h.program.Store(brokerapi.Program(""))
		expect(true)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
