// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package libvirt

import (
	"context"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
)

// dumping is a launcher's state of memory dumps.
type dumping struct {
	// active is the path of the dump that is being written, or empty. files are the complete ones.
	active string
	files  map[string]bool
	begun  int
}

// EndDump ends the running memory dump: with success, or as libvirt does after an error, without a file.
func (l *Launcher) EndDump(success bool) {
	l.change(func() {
		if success {
			l.dumps.files[l.dumps.active] = true
		}
		l.dumps.active = ""
	})
}

// DumpsBegun returns how many memory dumps were begun.
func (l *Launcher) DumpsBegun() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dumps.begun
}

// Dumps returns the paths of the memory dumps.
func (l *Launcher) Dumps() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.dumps.files))
}

// BeginMemoryDump removes earlier dumps and begins one.
func (l *Launcher) BeginMemoryDump(ctx context.Context, name, dir, file string) error {
	if err := l.running(ctx, "dump", name); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dumps.files == nil {
		l.dumps.files = map[string]bool{}
	}
	maps.DeleteFunc(l.dumps.files, func(earlier string, _ bool) bool { return strings.HasPrefix(earlier, dir+"/") })
	l.dumps.active = path.Join(dir, file)
	l.dumps.begun++
	return l.respond("dump")
}

// MemoryDump returns how far a dump is.
func (l *Launcher) MemoryDump(ctx context.Context, name, dir, file string) (hypervisor.DumpState, error) {
	if err := l.running(ctx, "domain", name); err != nil {
		return hypervisor.DumpAbsent, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.dumps.active != "":
		return hypervisor.DumpActive, nil
	case l.dumps.files[path.Join(dir, file)]:
		return hypervisor.DumpDone, nil
	default:
		return hypervisor.DumpAbsent, nil
	}
}
