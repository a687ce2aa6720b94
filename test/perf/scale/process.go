// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// clockTicks is the kernel's unit of CPU times in /proc, USER_HZ, in one second.
const clockTicks = 100

// stopTimeout is how long a process may take to end.
const stopTimeout = 30 * time.Second

// process is a process of the benchmark's cluster.
type process struct {
	name string
	pid  int
	// cmd is nil for the processes that envtest starts.
	cmd  *exec.Cmd
	done chan struct{}
}

// startProcess starts a program, whose output goes to a log in a directory.
func startProcess(name, logs string, environment []string, program string, args ...string) (*process, error) {
	log, err := os.OpenFile(filepath.Join(logs, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), environment...)
	// An interrupt from the terminal is for the benchmark, which then stops its processes in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &process{name: name, pid: cmd.Process.Pid, cmd: cmd, done: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // an early end is found by running
		close(p.done)
	}()
	return p, nil
}

// running returns an error if the process has ended.
func (p *process) running() error {
	select {
	case <-p.done:
		return fmt.Errorf("%s has ended with %s, see its log", p.name, p.cmd.ProcessState)
	default:
		return nil
	}
}

// stop sends a signal and waits for the end of the process.
func (p *process) stop(signal os.Signal) {
	_ = p.cmd.Process.Signal(signal)
	select {
	case <-p.done:
	case <-time.After(stopTimeout):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// childNamed finds a child of this process by its program's name, of which the kernel keeps 15 bytes.
func childNamed(name string) (*process, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	for _, file := range stats {
		stat, err := readStat(file)
		if err == nil && stat.parent == os.Getpid() && stat.program == name[:min(len(name), 15)] {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			return &process{name: name, pid: pid}, err
		}
	}
	return nil, fmt.Errorf("%s is not a child of the benchmark", name)
}

// stat is the part of /proc/<pid>/stat that is used.
type stat struct {
	program string
	parent  int
	cpu     time.Duration
}

func readStat(file string) (stat, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return stat{}, err
	}
	// The name is in parentheses, and may contain any character. Source: proc_pid_stat(5).
	begin, end := strings.IndexByte(string(content), '('), strings.LastIndexByte(string(content), ')')
	if begin < 0 || end < begin {
		return stat{}, fmt.Errorf("%s has no name", file)
	}
	fields := strings.Fields(string(content)[end+1:])
	if len(fields) < 13 {
		return stat{}, fmt.Errorf("%s is too short", file)
	}
	parent, err1 := strconv.Atoi(fields[1])
	userTime, err2 := strconv.ParseInt(fields[11], 10, 64)
	systemTime, err3 := strconv.ParseInt(fields[12], 10, 64)
	for _, err := range []error{err1, err2, err3} {
		if err != nil {
			return stat{}, fmt.Errorf("%s: %w", file, err)
		}
	}
	return stat{
		program: string(content)[begin+1 : end], parent: parent,
		cpu: time.Duration(userTime+systemTime) * time.Second / clockTicks,
	}, nil
}

// usage is what a process has used.
type usage struct {
	cpu time.Duration
	// resident and peak are in bytes.
	resident, peak int64
}

var memoryField = regexp.MustCompile(`(?m)^(VmRSS|VmHWM):\s*(\d+) kB$`)

func (p *process) usage() (usage, error) {
	s, err := readStat(fmt.Sprintf("/proc/%d/stat", p.pid))
	if err != nil {
		return usage{}, err
	}
	u := usage{cpu: s.cpu}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.pid))
	if err != nil {
		return usage{}, err
	}
	for _, m := range memoryField.FindAllStringSubmatch(string(status), -1) {
		kibibytes, err := strconv.ParseInt(m[2], 10, 64)
		if err != nil {
			return usage{}, err
		}
		if m[1] == "VmRSS" {
			u.resident = kibibytes << 10
		} else {
			u.peak = kibibytes << 10
		}
	}
	return u, nil
}

// resetPeak makes the peak of resident memory start again from what is resident now. Source: proc_pid_clear_refs(5).
func (p *process) resetPeak() error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", p.pid), []byte("5"), 0)
}

// poll calls a function until it reports success, and fails when a process of the cluster has ended.
func (w *world) poll(ctx context.Context, what string, interval time.Duration, do func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, phaseTimeout+time.Duration(w.o.count)*timeoutPerVM)
	defer cancel()
	for {
		done, err := do()
		if done || err != nil {
			return err
		}
		for _, p := range w.processes {
			if p.cmd == nil {
				continue
			}
			if err := p.running(); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, ctx.Err())
		case <-time.After(interval):
		}
	}
}
