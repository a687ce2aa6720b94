// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package process starts programs that outlive this process, in a control
// group and, for those of a node, in the node's namespaces.
package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vireo-project/vireo/hack/cluster/internal/record"
)

// join enters the control groups whose files are given up to "--" and becomes
// the command that follows. A shell does this before the command exists, so
// that no process of the cluster is ever outside of its control group.
const join = `while [ "$1" != -- ]; do echo $$ > "$1" || exit 125; shift; done; shift; exec "$@"`

// Spec is a program to start.
type Spec struct {
	// Command is the command and its arguments; the first is an absolute path.
	Command []string
	// Log receives its output. The previous log is kept beside it.
	Log string
	// JoinFiles are the cgroup.procs of the groups to enter.
	JoinFiles []string
	// Path is its PATH. It inherits no other environment variable.
	Path string
}

// Start runs the program in a session of its own.
func Start(spec Spec) (record.Process, error) {
	if err := os.MkdirAll(filepath.Dir(spec.Log), 0o755); err != nil {
		return record.Process{}, fmt.Errorf("make the folder of a log: %w", err)
	}
	if err := os.Rename(spec.Log, spec.Log+".1"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return record.Process{}, fmt.Errorf("keep the former log: %w", err)
	}
	log, err := os.Create(spec.Log)
	if err != nil {
		return record.Process{}, fmt.Errorf("make a log: %w", err)
	}
	defer func() { _ = log.Close() }()
	arguments := append([]string{"-c", join, "sh"}, spec.JoinFiles...)
	arguments = append(append(arguments, "--"), spec.Command...)
	command := exec.Command("/bin/sh", arguments...)
	command.Dir = "/"
	command.Env = []string{"PATH=" + spec.Path, "HOME=/root", "LANG=C.UTF-8"}
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := command.Start(); err != nil {
		return record.Process{}, fmt.Errorf("start %s: %w", spec.Command[0], err)
	}
	pid := command.Process.Pid
	start, err := startTime(pid)
	// Reap it if it exits while this process runs.
	go func() { _ = command.Wait() }()
	if err != nil {
		return record.Process{}, fmt.Errorf("%s ended at once, see %s: %w", spec.Command[0], spec.Log, err)
	}
	return record.Process{PID: pid, Start: start}, nil
}

// Enter returns the command line that runs a command inside a node, given the
// process that keeps the node's namespaces.
func Enter(holder int, command ...string) []string {
	return append([]string{"/usr/bin/nsenter", "--target", strconv.Itoa(holder), "--mount", "--uts", "--net", "--"},
		command...)
}

// Run runs a command until it exits. An error contains the command's output.
func Run(ctx context.Context, command ...string) (string, error) {
	output, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput()
	text := strings.TrimSpace(string(output))
	if err != nil {
		return text, fmt.Errorf("%s: %w: %s", strings.Join(command, " "), err, text)
	}
	return text, nil
}

// Alive reports whether the recorded process still runs.
func Alive(p record.Process) bool {
	if p.PID == 0 {
		return false
	}
	start, err := startTime(p.PID)
	return err == nil && start == p.Start
}

// Stop ends a process and returns when it is gone.
func Stop(ctx context.Context, p record.Process, signal syscall.Signal) error {
	for first := true; Alive(p); first = false {
		if first {
			if err := syscall.Kill(p.PID, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("signal process %d: %w", p.PID, err)
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("process %d does not end: %w", p.PID, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

// startTime returns when a process was started; a zombie counts as ended.
func startTime(pid int) (uint64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("read the state of process %d: %w", pid, err)
	}
	return parseStat(string(data))
}

// parseStat reads the state and the start time from /proc/<pid>/stat: see
// proc(5). The command's name may have blanks and brackets, so count from its end.
func parseStat(stat string) (uint64, error) {
	end := strings.LastIndexByte(stat, ')')
	if end < 0 {
		return 0, fmt.Errorf("no command name in %q", stat)
	}
	fields := strings.Fields(stat[end+1:])
	const state, startTime = 0, 19
	if len(fields) <= startTime {
		return 0, fmt.Errorf("too few fields in %q", stat)
	}
	if fields[state] == "Z" || fields[state] == "X" {
		return 0, errors.New("the process has ended")
	}
	start, err := strconv.ParseUint(fields[startTime], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("start time: %w", err)
	}
	return start, nil
}
