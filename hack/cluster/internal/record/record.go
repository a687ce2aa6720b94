// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package record records everything that the cluster has created on the host.
// An entry is written before the resource is created, so that a crash in
// between leaves at worst an entry of a resource that does not exist.
package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// Process is a started process. The start time distinguishes it from a later
// process with the same id.
type Process struct {
	PID int `json:"pid"`
	// Start is field 22 of /proc/<pid>/stat: clock ticks since boot.
	Start uint64 `json:"start"`
}

// Record contains everything that was created.
type Record struct {
	// Clone is the clone from which the cluster was made, for messages and for its kubeconfig.
	Clone string `json:"clone"`
	// Nodes is how many nodes it has, Shape a digest of all of its configuration.
	Nodes int    `json:"nodes"`
	Shape string `json:"shape"`
	// Options are those with which it was created, as its Options' JSON.
	Options json.RawMessage `json:"options,omitempty"`
	// BootID is the boot in which it was created: processes, interfaces,
	// cgroups, loop devices and sysctls do not survive a reboot.
	BootID string `json:"bootID"`
	// Cgroup is the root of our control groups in each hierarchy.
	Cgroup string `json:"cgroup,omitempty"`
	// SubtreeControl are the controllers that we had to enable at the root of cgroup v2.
	SubtreeControl []string `json:"subtreeControl,omitempty"`
	// Links are network interfaces of the machine.
	Links []string `json:"links,omitempty"`
	// Directories were created on the machine as mount points for nodes.
	Directories []string `json:"directories,omitempty"`
	// Sysctls are those that the kubelet sets for the whole machine, with their former values.
	Sysctls map[string]string `json:"sysctls,omitempty"`
	// Processes are the processes by component.
	Processes map[string]Process `json:"processes,omitempty"`
	// Namespaces are the namespaces by node, as /proc/<pid>/ns shows them.
	Namespaces map[string][]string `json:"namespaces,omitempty"`
}

// File is a record on disk. Change and Process may be used from many goroutines.
type File struct {
	Record
	path  string
	guard sync.Mutex
}

// Load reads the record. If it does not exist, the result is empty.
func Load(path string) (*File, error) {
	f := &File{path: path}
	data, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("read the record of what was made: %w", err)
	default:
		if err := json.Unmarshal(data, &f.Record); err != nil {
			return nil, fmt.Errorf("the record %s is damaged: %w", path, err)
		}
	}
	if f.Processes == nil {
		f.Processes = map[string]Process{}
	}
	if f.Sysctls == nil {
		f.Sysctls = map[string]string{}
	}
	if f.Namespaces == nil {
		f.Namespaces = map[string][]string{}
	}
	return f, nil
}

// Empty reports whether nothing was created.
func (f *File) Empty() bool {
	return f.Cgroup == "" && len(f.Links) == 0 && len(f.Processes) == 0 && len(f.Directories) == 0 && len(f.Sysctls) == 0
}

// Change applies a change and writes the record. It is on disk before Change returns.
func (f *File) Change(change func(*Record)) error {
	f.guard.Lock()
	defer f.guard.Unlock()
	before := f.clone()
	change(&f.Record)
	if err := f.save(); err != nil {
		f.Record = before
		return err
	}
	return nil
}

// Process returns the recorded process of a component, or the zero value if there is none.
func (f *File) Process(component string) Process {
	f.guard.Lock()
	defer f.guard.Unlock()
	return f.Processes[component]
}

// ForgetBoot removes entries that do not survive a reboot.
func (f *File) ForgetBoot(now string) error {
	if f.BootID == "" || f.BootID == now {
		return nil
	}
	return f.Change(func(r *Record) {
		r.BootID = now
		r.Cgroup, r.SubtreeControl, r.Links, r.Shape = "", nil, nil, ""
		r.Processes, r.Sysctls, r.Namespaces = map[string]Process{}, map[string]string{}, map[string][]string{}
	})
}

// Remove deletes the record.
func (f *File) Remove() error {
	if err := os.Remove(f.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the record: %w", err)
	}
	f.Record = Record{Processes: map[string]Process{}, Sysctls: map[string]string{}, Namespaces: map[string][]string{}}
	return nil
}

// AddLink records an interface once.
func (r *Record) AddLink(name string) {
	if !slices.Contains(r.Links, name) {
		r.Links = append(r.Links, name)
	}
}

// AddDirectory records a directory once.
func (r *Record) AddDirectory(path string) {
	if !slices.Contains(r.Directories, path) {
		r.Directories = append(r.Directories, path)
	}
}

func (f *File) clone() Record {
	r := f.Record
	r.Links, r.Directories, r.SubtreeControl = slices.Clone(r.Links), slices.Clone(r.Directories),
		slices.Clone(r.SubtreeControl)
	r.Processes, r.Sysctls, r.Namespaces = maps.Clone(r.Processes), maps.Clone(r.Sysctls), maps.Clone(r.Namespaces)
	return r
}

// save replaces the file atomically.
func (f *File) save() error {
	data, err := json.MarshalIndent(f.Record, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the record: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(f.path), 0o755); err != nil {
		return fmt.Errorf("make the folder of the record: %w", err)
	}
	temporary := f.path + ".new"
	if err := os.WriteFile(temporary, append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("write the record: %w", err)
	}
	if err := os.Rename(temporary, f.path); err != nil {
		return fmt.Errorf("replace the record: %w", err)
	}
	return nil
}

// BootID identifies the running boot of the machine.
func BootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the boot's id: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}
