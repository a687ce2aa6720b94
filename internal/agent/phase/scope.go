// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package phase has what the phases of a reconciliation of a guest share: what is known of the guest, the acts that
// have failed, and how errors of libvirt and of virt-broker end a phase. Package vmi runs the phases in their order.
package phase

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/outcome"
)

// MaxMessage is the limit for a message in the status in bytes, which may contain text from a launcher.
const MaxMessage = 1024

// Scope is what the phases of one reconciliation share: what was read, and what they found out. Phases change it in
// memory. Only package vmi writes the VMI's status.
type Scope struct {
	// Key is the VMI's key.
	Key types.NamespacedName
	// Now is the time of this reconciliation, the same for all phases.
	Now time.Time
	// Clock has the time after an act, from which the delay before the next attempt counts.
	Clock clock.PassiveClock
	// Config is the cluster's configuration in this reconciliation.
	Config clusterconfig.Config
	// VMI is the VMI, whose status is changed in place. It is nil if it does not exist or is not in the node's cache.
	VMI *v1.VirtualMachineInstance
	// Before is the VMI as it was read.
	Before *v1.VirtualMachineInstance
	// Incoming is set instead of VMI if the VMI is on another node and migrates to this one.
	Incoming *v1.VirtualMachineInstance
	// Unassigned is the VMI as it was read before it was assigned, when it is not in the cache; nil if it was not read.
	// Nothing that is prepared from it changes before the start.
	Unassigned *v1.VirtualMachineInstance
	// Pod is the launcher Pod on this node that has not finished.
	Pod *corev1.Pod
	// Assigned reports whether virt-controller has assigned the VMI to this agent, which may then start the domain and
	// owns the status.
	Assigned bool

	// DomainRead reports whether the domain was read from libvirtd.
	DomainRead bool
	// Domain is the domain, or nil if there is none.
	Domain *hypervisor.Domain

	// Acts are the acts of the Pod that have failed.
	Acts *Acts
	// Requeue is when to reconcile again although no event may arrive until then; 0 means never.
	Requeue time.Duration
	// Events are those of the actions of this reconciliation, in order. They are recorded even if the status cannot be
	// written.
	Events []Event
}

// Event is an event about the VMI.
type Event struct {
	// Type is one of those in package corev1.
	Type string
	// Reason and Message are the event's.
	Reason, Message string
}

// Event adds an event about an action that no later reconciliation repeats.
func (s *Scope) Event(kind, reason, message string) {
	s.Events = append(s.Events, Event{Type: kind, Reason: reason, Message: message})
}

// RequeueAfter makes the next reconciliation start after a delay, if no event triggers it earlier. It ignores a delay
// of 0 or less.
func (s *Scope) RequeueAfter(delay time.Duration) { s.Requeue = outcome.Sooner(s.Requeue, delay) }

// KnownVMI returns the VMI that the Pod was made for, or nil if it is not known.
func (s *Scope) KnownVMI() *v1.VirtualMachineInstance {
	switch {
	case s.VMI != nil:
		return s.VMI
	case s.Incoming != nil:
		return s.Incoming
	default:
		return s.Unassigned
	}
}

// DomainName follows from the key alone, because a Pod can outlive its VMI.
func (s *Scope) DomainName() string { return launcherpod.DomainName(s.Key.Namespace, s.Key.Name) }

// DiskTarget returns the name of the target of a volume's disk, or "" if the domain has no such disk.
func (s *Scope) DiskTarget(volume string) string {
	if disk := domain.FindDisk(s.Domain.XML, domain.DiskAlias(volume)); disk != nil && disk.Target != nil {
		return hypervisor.Clean(disk.Target.Dev)
	}
	return ""
}

// DomainReader reads a domain.
type DomainReader interface {
	// Domain returns the domain of a name, or an error that wraps hypervisor.ErrNoDomain.
	Domain(ctx context.Context, name string) (*hypervisor.Domain, error)
}

// ReadDomain reads the domain into the scope. A domain that ended since it was read last stays there.
func (s *Scope) ReadDomain(ctx context.Context, domains DomainReader) error {
	found, err := domains.Domain(ctx, s.DomainName())
	switch {
	case errors.Is(err, hypervisor.ErrNoDomain):
		s.DomainRead = true
		return nil
	case err != nil:
		return FromConnection(err)
	}
	s.DomainRead, s.Domain = true, found
	return nil
}
