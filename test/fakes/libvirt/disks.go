// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package libvirt

import (
	"context"
	"fmt"
	"maps"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
)

// SetDiskSizes sets the sizes of the running domain's disks.
func (l *Launcher) SetDiskSizes(sizes map[string]uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sizes = sizes
}

// DiskSizes returns the sizes of the running domain's disks.
func (l *Launcher) DiskSizes(ctx context.Context, name string) (map[string]uint64, error) {
	if _, err := l.Domain(ctx, name); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.sizes), nil
}

// GrowDisk grows a disk of the running domain; the size of a device is set with SetDeviceSize.
func (l *Launcher) GrowDisk(ctx context.Context, name, target string, bytes uint64) error {
	if err := l.enter(ctx, "grow"); err != nil {
		return err
	}
	if _, err := l.Domain(ctx, name); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if bytes == 0 {
		bytes = l.devices[target]
	}
	if bytes <= l.sizes[target] {
		return fmt.Errorf("disk %s would not grow: it has %d bytes, and %d were requested", target, l.sizes[target], bytes)
	}
	l.sizes[target] = bytes
	return l.respond("grow")
}

// SetDiskErrors sets which disks of the running domain have failed.
func (l *Launcher) SetDiskErrors(failed map[string]hypervisor.DiskError) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.diskErrors = failed
}

// DiskErrors returns which disks of the running domain have failed.
func (l *Launcher) DiskErrors(ctx context.Context, name string) (map[string]hypervisor.DiskError, error) {
	if _, err := l.Domain(ctx, name); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.diskErrors), nil
}

// Resumes returns how often resuming the guest after a pause that no user requested was tried.
func (l *Launcher) Resumes() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.resumes
}

// ResumeAfter resumes the guest if it is paused for the reason, unless its disks still fail.
func (l *Launcher) ResumeAfter(ctx context.Context, _, reason string) error {
	if found := l.Snapshot(); found != nil && found.State == hypervisor.StatePaused && found.Reason == reason {
		l.change(func() { l.resumes++ })
	}
	if err := l.enter(ctx, "resumeAfter"); err != nil {
		return err
	}
	l.change(func() {
		if l.domain == nil || l.domain.State != hypervisor.StatePaused || l.domain.Reason != reason || len(l.diskErrors) > 0 {
			return
		}
		l.domain.State, l.domain.Reason = hypervisor.StateRunning, ""
	})
	return l.respond("resumeAfter")
}

// GiveHostDir lets the guest's user create files in a directory of the node that the kubelet created for the Pod.
func (l *Launcher) GiveHostDir(ctx context.Context, dir string) error {
	if err := l.enter(ctx, "giveHostDir"); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.rootDirs[dir] {
		delete(l.rootDirs, dir)
	}
	return l.respond("giveHostDir")
}

// SetRootDir makes root the owner of a directory, where the guest's user may create nothing. GiveHostDir does not
// change one that existed before the Pod.
func (l *Launcher) SetRootDir(dir string, before bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rootDirs = map[string]bool{dir: before}
}

// SetDeviceSize sets the size of a disk's block device.
func (l *Launcher) SetDeviceSize(target string, bytes uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.devices = map[string]uint64{target: bytes}
}
