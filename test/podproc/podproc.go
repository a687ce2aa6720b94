// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package podproc finds the processes of a Pod whose node is this machine.
package podproc

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// Process is a process on this machine; the start time distinguishes it from a later one with the same id.
type Process struct {
	PID int
	// Program is the base name of the executable.
	Program string
	// Start is when it started, in clock ticks since the machine did.
	Start string
}

// Of lists the processes of a Pod, without the one that keeps its namespaces. It finds them by their cgroups,
// which contain the Pod's UID. Processes that end meanwhile are left out.
func Of(pod types.UID) ([]Process, error) {
	directories, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var found []Process
	for _, directory := range directories {
		cgroup, err := os.ReadFile(filepath.Join(directory, "cgroup"))
		if err != nil || !names(cgroup, pod) {
			continue
		}
		executable, err := os.Readlink(filepath.Join(directory, "exe"))
		program := filepath.Base(strings.TrimSuffix(executable, " (deleted)"))
		if err != nil || program == "pause" {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(directory))
		if err != nil {
			return nil, err
		}
		stat, err := Stat(pid)
		if err != nil {
			continue
		}
		found = append(found, Process{PID: pid, Program: program, Start: stat[21]})
	}
	return found, nil
}

// Oldest returns the process of a program that was started first, or nil. A probe may be another process of the same
// program.
func Oldest(all []Process, program string) *Process {
	var first *Process
	for i := range all {
		if all[i].Program == program && (first == nil || all[i].startedBefore(first)) {
			first = &all[i]
		}
	}
	return first
}

// startedBefore compares decimal numbers without leading zeros.
func (p *Process) startedBefore(other *Process) bool {
	if len(p.Start) != len(other.Start) {
		return len(p.Start) < len(other.Start)
	}
	return p.Start < other.Start
}

// names reports whether a process's cgroups are those of a Pod. Drivers of cgroups write the UID with dashes or
// underscores.
func names(cgroup []byte, pod types.UID) bool {
	uid := string(pod)
	return bytes.Contains(cgroup, []byte(uid)) || bytes.Contains(cgroup, []byte(strings.ReplaceAll(uid, "-", "_")))
}

// Stat is the fields of /proc/PID/stat; index 0 is field 1 of proc(5). The name in field 2 may contain blanks.
func Stat(pid int) ([]string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	end := bytes.LastIndexByte(text, ')')
	if end < 0 {
		return nil, fmt.Errorf("/proc/%d/stat has no name", pid)
	}
	return append([]string{strconv.Itoa(pid), ""}, strings.Fields(string(text[end+1:]))...), nil
}
