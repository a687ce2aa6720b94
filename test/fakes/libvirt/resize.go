// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package libvirt

import (
	"context"
	"fmt"

	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
)

// SetVCPUs plugs vCPUs into the running domain.
func (l *Launcher) SetVCPUs(ctx context.Context, name string, count uint) error {
	if err := l.enter(ctx, "vcpus"); err != nil {
		return err
	}
	if _, err := l.Domain(ctx, name); err != nil {
		return err
	}
	var err error
	l.change(func() {
		vcpu := l.domain.XML.VCPU
		if !l.domain.Active() || vcpu == nil || count > vcpu.Value {
			err = fmt.Errorf("invalid argument: requested vcpus is greater than max allowable vcpus for the live domain: %d > %d", count, vcpu.Value)
			return
		}
		vcpu.Current = count
	})
	return err
}

// AttachMemory plugs a memory device into the running domain. The guest takes what is requested, unless HoldMemory was
// called.
func (l *Launcher) AttachMemory(ctx context.Context, name string, device *libvirtxml.DomainMemorydev) error {
	return l.setMemory(ctx, name, device, func(d *libvirtxml.Domain) error {
		if len(d.Devices.Memorydevs) > 0 {
			return fmt.Errorf("invalid argument: a memory device with alias '%s' exists", device.Alias.Name)
		}
		if d.MaximumMemory == nil || d.Memory.Value+device.Target.Size.Value > d.MaximumMemory.Value {
			return fmt.Errorf("operation failed: attaching memory device with size '%dKiB' would exceed domain's maxMemory config", device.Target.Size.Value)
		}
		d.Devices.Memorydevs = []libvirtxml.DomainMemorydev{*device}
		d.Memory.Value += device.Target.Size.Value
		return nil
	})
}

// UpdateMemory changes what is requested of the domain's memory device.
func (l *Launcher) UpdateMemory(ctx context.Context, name string, device *libvirtxml.DomainMemorydev) error {
	return l.setMemory(ctx, name, device, func(d *libvirtxml.Domain) error {
		if len(d.Devices.Memorydevs) == 0 {
			return fmt.Errorf("operation failed: the domain has no memory device")
		}
		d.Devices.Memorydevs[0] = *device
		return nil
	})
}

func (l *Launcher) setMemory(
	ctx context.Context, name string, device *libvirtxml.DomainMemorydev, do func(*libvirtxml.Domain) error,
) error {
	return l.changeRunning(ctx, "memory", name, func() error {
		err := do(l.domain.XML)
		if err == nil && !l.holdsMemory {
			l.domain.Plugged = uint64(device.Target.Requested.Value) << 10
		}
		return err
	})
}

// changeRunning changes the running domain.
func (l *Launcher) changeRunning(ctx context.Context, call, name string, do func() error) error {
	if err := l.enter(ctx, call); err != nil {
		return err
	}
	if _, err := l.Domain(ctx, name); err != nil {
		return err
	}
	var err error
	l.change(func() {
		if !l.domain.Active() {
			err = hypervisor.ErrNotRunning
			return
		}
		err = do()
	})
	return err
}

// HoldMemory makes the guest neither take nor return memory until PlugMemory.
func (l *Launcher) HoldMemory() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holdsMemory = true
}

// PlugMemory sets how many bytes the guest has taken from its memory device.
func (l *Launcher) PlugMemory(bytes uint64) {
	l.change(func() { l.domain.Plugged = bytes })
}
