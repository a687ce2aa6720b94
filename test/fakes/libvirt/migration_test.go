// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package libvirt_test

import (
	"context"
	"errors"
	"net"
	"testing"

	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/decide/migration/protocol"
	"github.com/vireo-project/vireo/test/fakes/libvirt"
)

const domain = "default_vm"

var errBroken = errors.New("broken")

type move struct {
	from, to *libvirt.Launcher
	request  hypervisor.TransferRequest
}

func newMove(t *testing.T) move {
	t.Helper()
	m := move{from: libvirt.NewNode().Launcher("source"), to: libvirt.NewNode().Launcher("target")}
	definition := &libvirtxml.Domain{Name: domain, Type: "qemu"}
	if err := m.from.Start(t.Context(), definition, false); err != nil {
		t.Fatal(err)
	}
	m.request = hypervisor.TransferRequest{
		Domain: domain, XML: definition,
		DialTarget: func(context.Context) (net.Conn, error) { return m.to.MigrationConn(), nil },
	}
	return m
}

// expect fails unless both sides are in a state.
func (m move) expect(t *testing.T, source protocol.SourceDomain, job bool, target protocol.TargetDomain) {
	t.Helper()
	here, err := m.from.SourceState(t.Context(), domain)
	if err != nil {
		t.Fatal(err)
	}
	if want := (hypervisor.SourceState{Domain: source, Job: job}); here != want {
		t.Errorf("source: got %+v, want %+v", here, want)
	}
	there, err := m.to.TargetState(t.Context(), domain)
	if err != nil {
		t.Fatal(err)
	}
	if there != target {
		t.Errorf("target: got %v, want %v", there, target)
	}
}

func TestTransfer(t *testing.T) {
	m := newMove(t)
	if err := m.from.Transfer(t.Context(), m.request); err != nil {
		t.Fatal(err)
	}
	m.expect(t, protocol.SourceMigrated, false, protocol.TargetComplete)
	if err := m.from.ResumeSource(t.Context(), domain); !errors.Is(err, hypervisor.ErrNotRunning) {
		t.Errorf("a guest that has migrated was resumed: %v", err)
	}
	if err := m.to.ResumeTarget(t.Context(), domain); err != nil {
		t.Fatal(err)
	}
	m.expect(t, protocol.SourceMigrated, false, protocol.TargetRunning)
}

func TestTransferFails(t *testing.T) {
	for name, c := range map[string]struct {
		fail   func(move)
		source protocol.SourceDomain
		target protocol.TargetDomain
	}{
		"in starting":                 {func(m move) { m.from.Fail("begin", errBroken) }, protocol.SourceRunning, protocol.TargetAbsent},
		"in preparing":                {func(m move) { m.to.Fail("prepare", errBroken) }, protocol.SourceRunning, protocol.TargetAbsent},
		"in transferring":             {func(m move) { m.from.Fail("perform", errBroken) }, protocol.SourceRunning, protocol.TargetAbsent},
		"in completing":               {func(m move) { m.to.Fail("finish", errBroken) }, protocol.SourceRunning, protocol.TargetAbsent},
		"when the response gets lost": {func(m move) { m.to.LoseResponse("finish") }, protocol.SourceSuspended, protocol.TargetComplete},
		"before the source is ended":  {func(m move) { m.from.Fail("confirm", errBroken) }, protocol.SourceSuspended, protocol.TargetComplete},
		"after the source was ended":  {func(m move) { m.from.LoseResponse("confirm") }, protocol.SourceMigrated, protocol.TargetComplete},
		"when the target is not here": {func(m move) { m.to.Unreachable(errBroken) }, protocol.SourceRunning, protocol.TargetAbsent},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMove(t)
			c.fail(m)
			if err := m.from.Transfer(t.Context(), m.request); err == nil {
				t.Error("there is no error")
			}
			m.to.Unreachable(nil)
			m.expect(t, c.source, false, c.target)
		})
	}
}

func TestCancelTransfer(t *testing.T) {
	m := newMove(t)
	reached, release := m.from.Slow("perform")
	defer release()
	done := make(chan error, 1)
	go func() { done <- m.from.Transfer(context.Background(), m.request) }()
	<-reached
	m.expect(t, protocol.SourceRunning, true, protocol.TargetReceiving)
	if err := m.from.CancelTransfer(t.Context(), domain); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil {
		t.Error("a canceled transfer has no error")
	}
	m.expect(t, protocol.SourceRunning, false, protocol.TargetAbsent)
}

func TestJobOfExitedProcessRemains(t *testing.T) {
	m := newMove(t)
	m.from.KeepJob()
	reached, release := m.to.Slow("finish")
	defer release()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.from.Transfer(ctx, m.request) }()
	<-reached
	cancel()
	if err := <-done; err == nil {
		t.Error("the transfer of a process that exits has no error")
	}
	if state, err := m.from.SourceState(t.Context(), domain); err != nil || state.Domain != protocol.SourceSuspended ||
		!state.Job {
		t.Errorf("got %+v, %v", state, err)
	}
	if err := m.from.ResumeSource(t.Context(), domain); !errors.Is(err, hypervisor.ErrNotRunning) {
		t.Errorf("a guest with a job was resumed: %v", err)
	}
	m.from.EndJob()
	if err := m.from.ResumeSource(t.Context(), domain); err != nil {
		t.Fatal(err)
	}
}
