// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package cgroup creates, empties and removes the cluster's control groups, on a
// machine with cgroup v2, with the v1 hierarchies, or with both (hybrid).
package cgroup

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Hierarchy is one mounted tree of control groups.
type Hierarchy struct {
	// Mount is where it is mounted.
	Mount string
	// V2 reports whether it is the unified hierarchy and not one of v1.
	V2 bool
	// Options are the mount's: the controllers of a v1 hierarchy.
	Options []string
}

// Tree is every hierarchy of the machine.
type Tree []Hierarchy

// Mounted finds the hierarchies.
func Mounted() (Tree, error) {
	file, err := os.Open("/proc/self/mounts")
	if err != nil {
		return nil, fmt.Errorf("list the mounts: %w", err)
	}
	defer func() { _ = file.Close() }()
	tree, err := parse(file)
	if err != nil {
		return nil, err
	}
	if len(tree) == 0 {
		return nil, errors.New("no control groups are mounted on /sys/fs/cgroup: the kubelet cannot run here")
	}
	return tree, nil
}

func parse(mounts io.Reader) (Tree, error) {
	var tree Tree
	lines := bufio.NewScanner(mounts)
	for lines.Scan() {
		// device, mount point, type, options
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || !strings.HasPrefix(fields[1], "/sys/fs/cgroup") {
			continue
		}
		switch fields[2] {
		case "cgroup":
			tree = append(tree, Hierarchy{Mount: fields[1], Options: strings.Split(fields[3], ",")})
		case "cgroup2":
			tree = append(tree, Hierarchy{Mount: fields[1], V2: true})
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read the mounts: %w", err)
	}
	return tree, nil
}

// Unified reports whether the machine has cgroup v2 alone.
func (t Tree) Unified() bool {
	return len(t) == 1 && t[0].V2
}

// Exists reports whether the group exists in any hierarchy.
func (t Tree) Exists(group string) bool {
	return slices.ContainsFunc(t, func(h Hierarchy) bool {
		_, err := os.Stat(filepath.Join(h.Mount, group))
		return err == nil
	})
}

// Create makes the group and its parents in every hierarchy, ready to be used
// by a kubelet: with CPUs and memory nodes in v1, with controllers in v2.
func (t Tree) Create(group string) error {
	for _, h := range t {
		path := h.Mount
		for name := range strings.SplitSeq(strings.Trim(group, "/"), "/") {
			if h.V2 {
				if err := enable(path); err != nil {
					return err
				}
			}
			parent := path
			path = filepath.Join(path, name)
			if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("make a control group: %w", err)
			}
			if slices.Contains(h.Options, "cpuset") {
				if err := inheritCPUSet(parent, path); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// Missing returns the controllers of the root of cgroup v2 that are not enabled
// for its children yet. Create enables them.
func (t Tree) Missing() ([]string, error) {
	if !t.Unified() {
		return nil, nil
	}
	return missing(t[0].Mount)
}

// Disable disables controllers for the children of the root of cgroup v2 again.
// If a group of another program already uses one, the kernel refuses.
func (t Tree) Disable(controllers []string) {
	if !t.Unified() {
		return
	}
	for _, c := range controllers {
		_ = os.WriteFile(filepath.Join(t[0].Mount, "cgroup.subtree_control"), []byte("-"+c), 0o644)
	}
}

func missing(path string) ([]string, error) {
	available, err := os.ReadFile(filepath.Join(path, "cgroup.controllers"))
	if err != nil {
		return nil, fmt.Errorf("list the controllers: %w", err)
	}
	given, err := os.ReadFile(filepath.Join(path, "cgroup.subtree_control"))
	if err != nil {
		return nil, fmt.Errorf("list the controllers of child groups: %w", err)
	}
	var names []string
	for _, c := range strings.Fields(string(available)) {
		if !slices.Contains(strings.Fields(string(given)), c) {
			names = append(names, c)
		}
	}
	return names, nil
}

func enable(path string) error {
	names, err := missing(path)
	if err != nil {
		return err
	}
	for _, c := range names {
		if err := os.WriteFile(filepath.Join(path, "cgroup.subtree_control"), []byte("+"+c), 0o644); err != nil {
			return fmt.Errorf("enable the controller %s for the groups below %s: %w", c, path, err)
		}
	}
	return nil
}

// inheritCPUSet sets CPUs and memory nodes of a new cpuset group: without them,
// no process can join it.
func inheritCPUSet(parent, child string) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(parent, file))
		if err != nil {
			return fmt.Errorf("read the parent's %s: %w", file, err)
		}
		if err := os.WriteFile(filepath.Join(child, file), value, 0o644); err != nil {
			return fmt.Errorf("set %s of %s: %w", file, child, err)
		}
	}
	return nil
}

// JoinFiles returns the files to which a process writes its ID to enter the group.
func (t Tree) JoinFiles(group string) []string {
	files := make([]string, 0, len(t))
	for _, h := range t {
		files = append(files, filepath.Join(h.Mount, group, "cgroup.procs"))
	}
	return files
}

// Processes returns the processes in the group and in all groups below it, in any hierarchy.
func (t Tree) Processes(group string) ([]int, error) {
	found := map[int]bool{}
	for _, h := range t {
		err := walk(filepath.Join(h.Mount, group), func(directory string) error {
			return readProcs(filepath.Join(directory, "cgroup.procs"), found)
		})
		if err != nil {
			return nil, err
		}
	}
	pids := make([]int, 0, len(found))
	for pid := range found {
		pids = append(pids, pid)
	}
	slices.Sort(pids)
	return pids, nil
}

func readProcs(file string, into map[int]bool) error {
	data, err := os.ReadFile(file)
	if gone(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list the processes of a control group: %w", err)
	}
	for _, field := range strings.Fields(string(data)) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			return fmt.Errorf("%s has %q for a process: %w", file, field, err)
		}
		// A process of a foreign process namespace reads as 0.
		if pid > 0 {
			into[pid] = true
		}
	}
	return nil
}

// Kill kills all processes of the group and of those below it, and returns when they have ended.
func (t Tree) Kill(ctx context.Context, group string) error {
	for {
		pids, err := t.Processes(group)
		if err != nil || len(pids) == 0 {
			return err
		}
		t.thaw(group)
		for _, pid := range pids {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("kill process %d of control group %s: %w", pid, group, err)
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the processes %v of control group %s do not end: %w", pids, group, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// thaw resumes frozen processes: in v1, a signal does not end a frozen process.
func (t Tree) thaw(group string) {
	for _, h := range t {
		if !slices.Contains(h.Options, "freezer") {
			continue
		}
		_ = walk(filepath.Join(h.Mount, group), func(directory string) error {
			_ = os.WriteFile(filepath.Join(directory, "freezer.state"), []byte("THAWED"), 0o644)
			return nil
		})
	}
}

// Remove deletes the group and all below it. A group whose last process has
// just ended stays busy for a moment.
func (t Tree) Remove(ctx context.Context, group string) error {
	for {
		err := t.removeOnce(group)
		if err == nil || !errors.Is(err, syscall.EBUSY) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("control group %s stays busy: %w", group, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (t Tree) removeOnce(group string) error {
	for _, h := range t {
		var directories []string
		err := walk(filepath.Join(h.Mount, group), func(directory string) error {
			directories = append(directories, directory)
			return nil
		})
		if err != nil {
			return err
		}
		for _, directory := range slices.Backward(directories) {
			if err := os.Remove(directory); err != nil && !gone(err) {
				return fmt.Errorf("remove a control group: %w", err)
			}
		}
	}
	return nil
}

// walk visits a directory and those below it, parents first. It ignores
// directories that are removed meanwhile.
func walk(root string, visit func(directory string) error) error {
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if gone(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if entry.IsDir() {
			return visit(path)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("walk the control groups below %s: %w", root, err)
	}
	return nil
}

// gone reports whether an error means that a control group was removed while it was read.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV)
}
