// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package devices

import (
	"context"
	"errors"
	"fmt"

	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/phase"
	"github.com/vireo-project/vireo/internal/decide/resize"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/outcome"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// Reasons of the condition Synchronized when libvirt refuses to change the CPUs or the memory of the guest. KubeVirt's
// names of such failures.
const (
	ReasonHotPlugCPU    = "HotPlugCPUError"
	ReasonHotPlugMemory = "HotPlugMemoryError"
)

// errNoRoom is the error of more memory for a guest that an earlier version has started.
var errNoRoom = errors.New("the guest was started without room for more memory: restart the VM")

// guestResizer changes the CPUs and the memory of a running guest.
type guestResizer interface {
	phase.DomainReader
	// SetVCPUs plugs vCPUs into a running guest.
	SetVCPUs(ctx context.Context, domain string, count uint) error
	// AttachMemory plugs a memory device into a running guest.
	AttachMemory(ctx context.Context, domain string, device *libvirtxml.DomainMemorydev) error
	// UpdateMemory changes how much the guest is to take from its memory device.
	UpdateMemory(ctx context.Context, domain string, device *libvirtxml.DomainMemorydev) error
}

// Resize gives a running guest the CPUs and the memory of its spec, once the kubelet has given its Pod the resources
// for them. It depends on what the domain and the Pod have alone, so it also works after the agent was replaced, and
// after a migration.
func (s *Guest) Resize(ctx context.Context, guest guestResizer) error {
	if !s.Assigned || s.VMI.DeletionTimestamp != nil || s.Pod.DeletionTimestamp != nil || !s.Domain.Active() ||
		s.Domain.Transient() ||
		vmistatus.Migrating(&s.VMI.Status) {
		return nil
	}
	if s.Domain.XML.MaximumMemory == nil && resize.CanResizeMemory(s.VMI) &&
		uint64(resize.Desired(s.VMI).Memory) > s.Domain.AtBoot() {
		return &outcome.Terminal{Reason: ReasonHotPlugMemory, Err: errNoRoom}
	}
	granted := grantedTo(s.VMI, s.Domain)
	next := resize.ForGuest(resize.Desired(s.VMI), granted, s.Pod)
	if next == granted {
		return nil
	}
	if next.Sockets != granted.Sockets {
		t := TopologyOf(s.Domain.XML)
		err := s.resize(ReasonHotPlugCPU, func() error {
			return guest.SetVCPUs(ctx, s.DomainName(), uint(next.Sockets*t.Cores*t.Threads))
		})
		if err != nil {
			return err
		}
		// The new vCPUs have no priority yet.
		s.state.realtime.reset()
	}
	if next.Memory != granted.Memory {
		err := s.resize(ReasonHotPlugMemory, func() error { return s.requestMemory(ctx, guest, uint64(next.Memory)) })
		if err != nil {
			return err
		}
	}
	if err := s.ReadDomain(ctx, guest); err != nil {
		return err
	}
	return s.SetRealtime(ctx)
}

// requestMemory requests that the guest has a number of bytes of memory. A guest cannot have less than at its start.
func (s *Guest) requestMemory(ctx context.Context, guest guestResizer, bytes uint64) error {
	atBoot := s.Domain.AtBoot()
	requested := uint((bytes - min(bytes, atBoot)) >> 10)
	if attached := s.Domain.MemoryDevice(); attached != nil {
		device := *attached
		target := *attached.Target
		target.Requested = &libvirtxml.DomainMemorydevTargetRequested{Value: requested, Unit: "KiB"}
		device.Target = &target
		return guest.UpdateMemory(ctx, s.DomainName(), &device)
	}
	if requested == 0 {
		return nil
	}
	return guest.AttachMemory(ctx, s.DomainName(), domain.MemoryDevice(s.VMI, uint(atBoot>>10), requested))
}

// resize attempts to resize the guest. If libvirt refuses, a condition reports it with the reason.
func (s *Guest) resize(reason string, run func() error) error {
	return s.Attempt(reason, reason, func() error {
		if err := run(); err != nil {
			return phase.FromConnection(fmt.Errorf("the guest keeps its size: %w", err))
		}
		return nil
	})
}

// grantedTo returns what a running guest may have of that which can change. A guest takes the memory as it can.
func grantedTo(vmi *v1.VirtualMachineInstance, d *hypervisor.Domain) resize.Size {
	var size resize.Size
	if t := TopologyOf(d.XML); t != nil && resize.CanResizeCPUs(vmi) {
		size.Sockets = t.Sockets
	}
	if d.XML.MaximumMemory != nil && resize.CanResizeMemory(vmi) {
		size.Memory = int64(d.Granted())
	}
	return size
}

// TopologyOf returns the topology of the vCPUs that a running guest has, or nil if libvirt does not report one.
func TopologyOf(d *libvirtxml.Domain) *v1.CPUTopology {
	if d.CPU == nil || d.CPU.Topology == nil {
		return nil
	}
	t := &v1.CPUTopology{
		Cores: uint32(d.CPU.Topology.Cores), Sockets: uint32(d.CPU.Topology.Sockets), Threads: uint32(d.CPU.Topology.Threads),
	}
	// A domain to which none can be added has no current number.
	if perSocket := t.Cores * t.Threads; d.VCPU != nil && d.VCPU.Current > 0 && perSocket > 0 {
		t.Sockets = min(max(uint32(d.VCPU.Current)/perSocket, 1), t.Sockets)
	}
	return t
}

// realtimePriority reports whether all vCPUs of the guest have the priority that they need.
type realtimePriority struct{ set bool }

// reset makes the next reconciliation set the priority again.
func (p *realtimePriority) reset() { p.set = false }

// SetRealtime gives the vCPUs of a realtime guest their priority, once for each process of the agent.
func (s *Guest) SetRealtime(ctx context.Context) error {
	if s.VMI == nil || !s.Domain.Active() || s.state.realtime.set {
		return nil
	}
	vcpus, err := domain.RealtimeVCPUs(s.VMI)
	if err != nil {
		return &outcome.Terminal{Reason: phase.ReasonInvalidDomain, Err: err}
	}
	return s.Attempt("set realtime priority", phase.ReasonSynchronizing, func() error {
		if len(vcpus) > 0 {
			if err := s.devices.Files(s.Pod.UID).SetRealtime(ctx, vcpus); err != nil {
				return fmt.Errorf("the guest runs without realtime priority: %w", err)
			}
		}
		s.state.realtime.set = true
		return nil
	})
}
