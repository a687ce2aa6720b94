// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package fake_test

import (
	"context"
	"errors"
	"net"
	"testing"

	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/handler/hypervisor/fake"
	"github.com/vireo-project/vireo/internal/migration"
)

const domain = "default_vm"

var errBroken = errors.New("broken")

type move struct {
	from, to *fake.Launcher
	request  hypervisor.CopyRequest
}

func newMove(t *testing.T) move {
	t.Helper()
	m := move{from: fake.NewNode().Launcher("source"), to: fake.NewNode().Launcher("target")}
	definition := &libvirtxml.Domain{Name: domain, Type: "qemu"}
	if err := m.from.Start(t.Context(), definition, false); err != nil {
		t.Fatal(err)
	}
	m.request = hypervisor.CopyRequest{
		Domain: domain, XML: definition,
		Target: func(context.Context) (net.Conn, error) { return m.to.MigrationConn(), nil },
	}
	return m
}

// expect fails unless both sides are in a state.
func (m move) expect(t *testing.T, source migration.SourceDomain, job bool, target migration.TargetDomain) {
	t.Helper()
	here, err := m.from.Source(t.Context(), domain)
	if err != nil {
		t.Fatal(err)
	}
	if want := (hypervisor.SourceState{Domain: source, Job: job}); here != want {
		t.Errorf("source: got %+v, want %+v", here, want)
	}
	there, err := m.to.Target(t.Context(), domain)
	if err != nil {
		t.Fatal(err)
	}
	if there != target {
		t.Errorf("target: got %v, want %v", there, target)
	}
}

func TestCopyHandsOver(t *testing.T) {
	m := newMove(t)
	if err := m.from.Copy(t.Context(), m.request); err != nil {
		t.Fatal(err)
	}
	m.expect(t, migration.SourceHandedOver, false, migration.TargetComplete)
	if err := m.from.ResumeSource(t.Context(), domain); !errors.Is(err, hypervisor.ErrNotRunning) {
		t.Errorf("a guest that has moved was resumed: %v", err)
	}
	if err := m.to.ResumeTarget(t.Context(), domain); err != nil {
		t.Fatal(err)
	}
	m.expect(t, migration.SourceHandedOver, false, migration.TargetRunning)
}

func TestCopyFails(t *testing.T) {
	for name, c := range map[string]struct {
		fail   func(move)
		source migration.SourceDomain
		target migration.TargetDomain
	}{
		"at the beginning":            {func(m move) { m.from.Fail("begin", errBroken) }, migration.SourceRunning, migration.TargetAbsent},
		"in preparing":                {func(m move) { m.to.Fail("prepare", errBroken) }, migration.SourceRunning, migration.TargetAbsent},
		"in copying":                  {func(m move) { m.from.Fail("perform", errBroken) }, migration.SourceRunning, migration.TargetAbsent},
		"in completing":               {func(m move) { m.to.Fail("finish", errBroken) }, migration.SourceRunning, migration.TargetAbsent},
		"when the answer gets lost":   {func(m move) { m.to.LoseAnswer("finish") }, migration.SourceSuspended, migration.TargetComplete},
		"before the source is ended":  {func(m move) { m.from.Fail("confirm", errBroken) }, migration.SourceSuspended, migration.TargetComplete},
		"after the source was ended":  {func(m move) { m.from.LoseAnswer("confirm") }, migration.SourceHandedOver, migration.TargetComplete},
		"when the target is not here": {func(m move) { m.to.Unreachable(errBroken) }, migration.SourceRunning, migration.TargetAbsent},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMove(t)
			c.fail(m)
			if err := m.from.Copy(t.Context(), m.request); err == nil {
				t.Error("there is no error")
			}
			m.to.Unreachable(nil)
			m.expect(t, c.source, false, c.target)
		})
	}
}

func TestCancelCopy(t *testing.T) {
	m := newMove(t)
	reached, release := m.from.Slow("perform")
	defer release()
	done := make(chan error, 1)
	go func() { done <- m.from.Copy(context.Background(), m.request) }()
	<-reached
	m.expect(t, migration.SourceRunning, true, migration.TargetReceiving)
	if err := m.from.CancelCopy(t.Context(), domain); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil {
		t.Error("a canceled copy has no error")
	}
	m.expect(t, migration.SourceRunning, false, migration.TargetAbsent)
}

func TestAProcessThatGoesLeavesItsJob(t *testing.T) {
	m := newMove(t)
	m.from.Linger()
	reached, release := m.to.Slow("finish")
	defer release()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.from.Copy(ctx, m.request) }()
	<-reached
	cancel()
	if err := <-done; err == nil {
		t.Error("the copy of a process that goes has no error")
	}
	if state, err := m.from.Source(t.Context(), domain); err != nil || state.Domain != migration.SourceSuspended || !state.Job {
		t.Errorf("got %+v, %v", state, err)
	}
	if err := m.from.ResumeSource(t.Context(), domain); !errors.Is(err, hypervisor.ErrNotRunning) {
		t.Errorf("a guest with a job was resumed: %v", err)
	}
	m.from.Notice()
	if err := m.from.ResumeSource(t.Context(), domain); err != nil {
		t.Fatal(err)
	}
}
