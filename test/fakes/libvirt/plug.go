// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package libvirt

import (
	"context"
	"fmt"
	"slices"

	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/domain"
)

// ChangeDisk attaches, detaches or changes a disk of the running domain. The guest releases a disk at once, unless
// HoldDisks was called.
func (l *Launcher) ChangeDisk(ctx context.Context, name string, o domain.Operation) error {
	return l.changeRunning(ctx, string(o.Action)+" "+o.Name, name, func() error {
		devices := l.domain.XML.Devices
		// Who has read the domain keeps what was read.
		devices.Disks = slices.Clone(devices.Disks)
		at := slices.IndexFunc(devices.Disks,
			func(d libvirtxml.DomainDisk) bool { return d.Alias != nil && d.Alias.Name == o.Disk.Alias.Name })
		switch {
		case o.Action == domain.Attach && at >= 0:
			return fmt.Errorf("operation failed: target %s already exists", o.Disk.Target.Dev)
		case o.Action == domain.Attach:
			devices.Disks = append(devices.Disks, o.Disk)
		case at < 0:
			return fmt.Errorf("device not found: no device found with alias %s", o.Disk.Alias.Name)
		case o.Action == domain.Change:
			devices.Disks[at] = o.Disk
		case !l.holdsDisks:
			devices.Disks = slices.Delete(devices.Disks, at, at+1)
		}
		return nil
	})
}

// HoldDisks makes the guest release no disk until ReleaseDisk.
func (l *Launcher) HoldDisks() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holdsDisks = true
}

// ReleaseDisk makes the guest release a disk that was detached.
func (l *Launcher) ReleaseDisk(name string) {
	l.change(func() {
		l.domain.XML.Devices.Disks = slices.DeleteFunc(slices.Clone(l.domain.XML.Devices.Disks),
			func(d libvirtxml.DomainDisk) bool {
				return d.Alias != nil && d.Alias.Name == domain.DiskAlias(name)
			})
	})
}
