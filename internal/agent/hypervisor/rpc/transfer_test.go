// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/wire/libvirtwire"
)

// Procedures that a transfer calls (src/remote/remote_protocol.x in libvirt).
const (
	procOpen, procState                      = 1, 212
	procBegin, procPrepare, procPerform      = 302, 303, 305
	procFinish, procConfirm                  = 306, 307
	statusOK, statusError               byte = 0, 1
)

// script responds to the calls of a transfer, and records them.
type script struct {
	mu      sync.Mutex
	calls   map[uint32][]byte
	results map[uint32][]byte
}

// opaque is a string or bytes of the protocol.
func opaque(text string) []byte {
	out := append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...)
	return append(out, make([]byte, (4-len(text)%4)%4)...)
}

// optional is a string that may be missing.
func optional(text string) []byte { return append([]byte{0, 0, 0, 1}, opaque(text)...) }

func (s *script) serve(conn net.Conn) {
	for {
		head := make([]byte, 28)
		if _, err := io.ReadFull(conn, head); err != nil {
			return
		}
		body := make([]byte, binary.BigEndian.Uint32(head)-28)
		if _, err := io.ReadFull(conn, body); err != nil {
			return
		}
		proc := binary.BigEndian.Uint32(head[12:])
		s.mu.Lock()
		s.calls[proc] = body
		result, ok := s.results[proc]
		s.mu.Unlock()
		status := statusOK
		if !ok {
			// A code, where it comes from, and no message.
			status, result = statusError, make([]byte, 12)
		}
		binary.BigEndian.PutUint32(head, uint32(28+len(result)))
		head[19], head[27] = 1, status
		if _, err := conn.Write(slices.Concat(head, result)); err != nil {
			return
		}
	}
}

func startScript(t *testing.T, results map[uint32][]byte) (*script, *libvirtwire.Client) {
	t.Helper()
	s := &script{calls: map[uint32][]byte{}, results: results}
	s.results[procOpen] = nil
	here, there := net.Pipe()
	go s.serve(there)
	client, err := libvirtwire.Open(t.Context(), here)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return s, client
}

// A hostile launcher must not have the memory of its guest sent to an address of its choice.
func TestTargetLibvirtdDoesNotChooseMemoryAddress(t *testing.T) {
	const evil = "tcp://198.51.100.66:49152"
	state := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, uint32(libvirtwire.StateRunning)), 1)
	sourceScript, source := startScript(t,
		map[uint32][]byte{procState: state, procBegin: append(opaque("begun"), opaque("<domain/>")...), procConfirm: nil})
	targetScript, target := startScript(t, map[uint32][]byte{procPrepare: append(opaque("prepared"), optional(evil)...)})
	m := transfer{
		TransferRequest: hypervisor.TransferRequest{Domain: "ns_vm", Address: "10.244.1.7", XML: &libvirtxml.Domain{}},
		source:          source, target: target, suspendedSince: time.Now,
		onBegun: func(context.Context) error { return nil }, cancel: func(context.Context) error { return nil },
	}
	if err := m.run(t.Context()); err == nil {
		t.Fatal("the transfer succeeded though the source refused it")
	}
	performed := sourceScript.calls[procPerform]
	if !bytes.Contains(performed, []byte("tcp://10.244.1.7:49152")) || bytes.Contains(performed, []byte(evil)) {
		t.Errorf("the source was sent %q", performed)
	}
	if _, finished := targetScript.calls[procFinish]; !finished {
		t.Error("the target did not receive the cancellation of the migration")
	}
}

// A job that the target can no longer complete is canceled.
func TestTransferIsCanceledWithoutTarget(t *testing.T) {
	_, source := startScript(t, map[uint32][]byte{})
	_, target := startScript(t, map[uint32][]byte{})
	canceled := make(chan struct{}, 100)
	m := transfer{source: source, target: target,
		cancel: func(context.Context) error { canceled <- struct{}{}; return nil }}
	target.Close()
	<-target.Done()
	// The source responds at once, which may be before or after the cancellation.
	for range 100 {
		if _, err := m.perform(t.Context(), nil, nil, 0); err == nil {
			t.Fatal("the transfer succeeded though the source refused it")
		}
		select {
		case <-canceled:
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
	t.Error("the job was not canceled")
}

// A guest whose launcher reports a post-copy that was not requested is completed like any other: paused, and with a
// time limit.
func TestUnrequestedPostCopyIsNotBelieved(t *testing.T) {
	serving := binary.BigEndian.AppendUint32(nil, uint32(libvirtwire.StatePaused))
	serving = binary.BigEndian.AppendUint32(serving, uint32(libvirt.DOMAIN_PAUSED_POSTCOPY))
	for requested, want := range map[bool]libvirtwire.MigrateFlags{true: 0, false: libvirtwire.MigratePaused} {
		_, source := startScript(t, map[uint32][]byte{procState: serving, procConfirm: nil})
		targetScript, target := startScript(t, map[uint32][]byte{})
		m := transfer{
			TransferRequest: hypervisor.TransferRequest{Domain: "ns_vm", PostCopy: true}, source: source, target: target,
			postCopyRequested: func() bool { return requested },
		}
		if err := m.switchOver(t.Context(), nil, nil, 0); err == nil {
			t.Fatal("the migration succeeded though the target refused the guest")
		}
		// The request ends with the flags and whether the migration is canceled.
		finish := targetScript.calls[procFinish]
		if flags := binary.BigEndian.Uint32(finish[len(finish)-8:]); libvirtwire.MigrateFlags(flags) != want {
			t.Errorf("requested: %t, the target got flags %#x, want %#x", requested, flags, want)
		}
	}
}
