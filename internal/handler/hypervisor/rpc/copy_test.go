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

	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/libvirtrpc"
)

// Procedures that a copy asks for (src/remote/remote_protocol.x in libvirt).
const (
	procOpen, procState                      = 1, 212
	procBegin, procPrepare, procPerform      = 302, 303, 305
	procFinish, procConfirm                  = 306, 307
	statusOK, statusError               byte = 0, 1
)

// script answers the calls of a copy, and keeps what was asked.
type script struct {
	mu      sync.Mutex
	asked   map[uint32][]byte
	answers map[uint32][]byte
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
		s.asked[proc] = body
		answer, ok := s.answers[proc]
		s.mu.Unlock()
		status := statusOK
		if !ok {
			// A code, where it comes from, and no message.
			status, answer = statusError, make([]byte, 12)
		}
		binary.BigEndian.PutUint32(head, uint32(28+len(answer)))
		head[19], head[27] = 1, status
		if _, err := conn.Write(slices.Concat(head, answer)); err != nil {
			return
		}
	}
}

func startScript(t *testing.T, answers map[uint32][]byte) (*script, *libvirtrpc.Client) {
	t.Helper()
	s := &script{asked: map[uint32][]byte{}, answers: answers}
	s.answers[procOpen] = nil
	here, there := net.Pipe()
	go s.serve(there)
	client, err := libvirtrpc.Open(t.Context(), here)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return s, client
}

// A launcher that was taken over must not get the memory of its guest sent to wherever it wants.
func TestTheTargetsLibvirtdDoesNotSayWhereTheMemoryGoes(t *testing.T) {
	const evil = "tcp://198.51.100.66:49152"
	state := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, uint32(libvirtrpc.StateRunning)), 1)
	sourceScript, source := startScript(t, map[uint32][]byte{procState: state, procBegin: append(opaque("begun"), opaque("<domain/>")...), procConfirm: nil})
	targetScript, target := startScript(t, map[uint32][]byte{procPrepare: append(opaque("prepared"), optional(evil)...)})
	m := copier{
		CopyRequest: hypervisor.CopyRequest{Domain: "ns_vm", Address: "10.244.1.7", XML: &libvirtxml.Domain{}},
		source:      source, target: target, since: time.Now,
		begun: func(context.Context) error { return nil }, cancel: func(context.Context) error { return nil },
	}
	if err := m.run(t.Context()); err == nil {
		t.Fatal("a source that refuses to copy has copied")
	}
	performed := sourceScript.asked[procPerform]
	if !bytes.Contains(performed, []byte("tcp://10.244.1.7:49152")) || bytes.Contains(performed, []byte(evil)) {
		t.Errorf("the source was told %q", performed)
	}
	if _, told := targetScript.asked[procFinish]; !told {
		t.Error("the target was not told that nothing comes")
	}
}

// A job that nobody can complete is not gone on with.
func TestACopyEndsWithTheWayToItsTarget(t *testing.T) {
	_, source := startScript(t, map[uint32][]byte{})
	_, target := startScript(t, map[uint32][]byte{})
	canceled := make(chan struct{}, 100)
	m := copier{source: source, target: target, cancel: func(context.Context) error { canceled <- struct{}{}; return nil }}
	target.Close()
	<-target.Done()
	// The source answers at once; it may do so before or after.
	for range 100 {
		if _, err := m.perform(t.Context(), nil, nil, 0); err == nil {
			t.Fatal("a source that refuses to copy has copied")
		}
		select {
		case <-canceled:
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
	t.Error("the job was not canceled")
}

// A guest whose launcher claims a post-copy that nobody asked for is completed like any other: paused, and in a limited time.
func TestAPostCopyIsBelievedOnlyIfItWasAskedFor(t *testing.T) {
	serving := binary.BigEndian.AppendUint32(nil, uint32(libvirtrpc.StatePaused))
	serving = binary.BigEndian.AppendUint32(serving, uint32(libvirt.DOMAIN_PAUSED_POSTCOPY))
	for asked, want := range map[bool]libvirtrpc.MigrateFlags{true: 0, false: libvirtrpc.MigratePaused} {
		_, source := startScript(t, map[uint32][]byte{procState: serving, procConfirm: nil})
		targetScript, target := startScript(t, map[uint32][]byte{})
		m := copier{
			CopyRequest: hypervisor.CopyRequest{Domain: "ns_vm", PostCopy: true}, source: source, target: target,
			postCopyAsked: func() bool { return asked },
		}
		if err := m.switchOver(t.Context(), nil, nil, 0); err == nil {
			t.Fatal("a target that refuses the guest has completed it")
		}
		// The flags and the mark of a migration that was canceled end the request.
		finish := targetScript.asked[procFinish]
		if flags := binary.BigEndian.Uint32(finish[len(finish)-8:]); libvirtrpc.MigrateFlags(flags) != want {
			t.Errorf("asked for: %t, the target was told flags %#x, want %#x", asked, flags, want)
		}
	}
}
