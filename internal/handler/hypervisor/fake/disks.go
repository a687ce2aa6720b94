// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package fake

import (
	"context"
	"fmt"
	"maps"

	"github.com/vireo-project/vireo/internal/handler/hypervisor"
)

// SetDiskSizes is how large the disks of the running domain are from now on.
func (l *Launcher) SetDiskSizes(sizes map[string]uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sizes = sizes
}

// DiskSizes is how large the disks of the running domain are.
func (l *Launcher) DiskSizes(ctx context.Context, name string) (map[string]uint64, error) {
	if _, err := l.Domain(ctx, name); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.sizes), nil
}

// GrowDisk makes a disk of the running domain larger; a device has the size that SetDeviceSize gave it.
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
		return fmt.Errorf("disk %s would not grow: it has %d bytes, and %d were asked for", target, l.sizes[target], bytes)
	}
	l.sizes[target] = bytes
	return l.answer("grow")
}

// SetDiskErrors is which disks of the running domain have failed.
func (l *Launcher) SetDiskErrors(failed map[string]hypervisor.DiskError) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.diskErrors = failed
}

// DiskErrors is which disks of the running domain have failed.
func (l *Launcher) DiskErrors(ctx context.Context, name string) (map[string]hypervisor.DiskError, error) {
	if _, err := l.Domain(ctx, name); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.diskErrors), nil
}

// Resumes counts how often a guest was resumed that an I/O error had paused.
func (l *Launcher) Resumes() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.resumes
}

// ResumeAfterIOError lets the guest go on unless its disks still fail.
func (l *Launcher) ResumeAfterIOError(ctx context.Context, _ string) error {
	if err := l.enter(ctx, "resumeAfterIOError"); err != nil {
		return err
	}
	l.change(func() {
		if l.domain == nil || l.domain.State != hypervisor.StatePaused || l.domain.Reason != hypervisor.PausedIOError {
			return
		}
		l.resumes++
		if len(l.diskErrors) == 0 {
			l.domain.State, l.domain.Reason = hypervisor.StateRunning, ""
		}
	})
	return l.answer("resumeAfterIOError")
}

// GiveHostDir lets the guest's user make files in a directory of the node that the kubelet has made.
func (l *Launcher) GiveHostDir(ctx context.Context, dir string) error {
	if err := l.enter(ctx, "giveHostDir"); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.rootDirs[dir] {
		delete(l.rootDirs, dir)
	}
	return l.answer("giveHostDir")
}

// SetRootDir makes a directory one of root's, where the guest's user may make nothing. One that was there before the Pod stays so.
func (l *Launcher) SetRootDir(dir string, before bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rootDirs = map[string]bool{dir: before}
}

// SetDeviceSize is how large the device behind a disk is.
func (l *Launcher) SetDeviceSize(target string, bytes uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.devices = map[string]uint64{target: bytes}
}
