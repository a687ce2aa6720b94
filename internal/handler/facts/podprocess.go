// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package facts

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/cpulist"
)

// maxProcFile bounds what is read of a file of /proc. A status has about 60 lines.
const maxProcFile = 64 << 10

// CPUs are the CPUs that the kernel lets the Pod's libvirtd run on: the Pod's cpuset, whatever version of cgroups the node
// has, and nothing that the process could add to. The kubelet sets it before the container starts. None are returned
// when that cannot be read.
func (p PodFiles) CPUs(context.Context) []uint {
	f, err := openIn(p.Process.Dir, "status")
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(io.LimitReader(f, maxProcFile))
	for lines.Scan() {
		if list, ok := strings.CutPrefix(lines.Text(), "Cpus_allowed_list:"); ok {
			cpus, err := cpulist.Parse(list)
			if err != nil {
				return nil
			}
			return cpus
		}
	}
	return nil
}

// openIn opens a file of a process by the descriptor of its directory.
func openIn(dir *os.File, name string) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "openat", Path: dir.Name() + "/" + name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// Names of QEMU's program and of the threads that run a guest's CPUs, as the kernel shows them.
// Source: qemu accel/kvm/kvm-accel-ops.c, accel/tcg/tcg-accel-ops-mttcg.c; libvirt starts QEMU with debug-threads=on.
const qemuComm = "qemu-system-x86"

var vcpuComm = regexp.MustCompile(`^CPU (\d{1,5})/(KVM|TCG)$`)

// realtimePriority is the priority of vCPUs among realtime threads: the lowest, as in KubeVirt.
const realtimePriority = 1

// SetRealtime gives vCPUs of the Pod's guest the scheduler SCHED_FIFO. QEMU may not do so itself. The processes that are
// looked at are those of the Pod's process namespace; one that gives itself QEMU's names gets the priority on the Pod's
// own CPUs.
func (p PodFiles) SetRealtime(_ context.Context, vcpus []uint) error {
	threads, err := p.vcpuThreads()
	if err != nil {
		return err
	}
	for _, vcpu := range vcpus {
		tid, ok := threads[vcpu]
		if !ok {
			return fmt.Errorf("vCPU %d has no thread in the launcher Pod", vcpu)
		}
		if err := setRealtime(tid); err != nil {
			return fmt.Errorf("give vCPU %d a realtime priority (the agent needs SYS_NICE, and the node's cgroup time for realtime threads): %w",
				vcpu, err)
		}
	}
	return nil
}

func setRealtime(tid int) error {
	return unix.SchedSetAttr(tid, &unix.SchedAttr{
		Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: realtimePriority,
	}, 0)
}

// vcpuThreads finds the threads of the guest's vCPUs among the processes of the Pod.
func (p PodFiles) vcpuThreads() (map[uint]int, error) {
	pod, err := pidNamespace(p.Process.Dir)
	if err != nil {
		return nil, fmt.Errorf("find the launcher Pod's processes: %w", err)
	}
	own, err := os.Open("/proc/self")
	if err != nil {
		return nil, err
	}
	defer func() { _ = own.Close() }()
	if agent, err := pidNamespace(own); err != nil || agent == pod {
		return nil, errors.Join(err, errors.New("the launcher Pod has no process namespace of its own"))
	}
	processes, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	threads := map[uint]int{}
	for _, process := range processes {
		if _, err := strconv.Atoi(process.Name()); err != nil {
			continue
		}
		dir, err := os.Open("/proc/" + process.Name())
		if err != nil {
			continue // It has ended.
		}
		if ns, err := pidNamespace(dir); err == nil && ns == pod && comm(dir, ".") == qemuComm {
			addVCPUs(dir, threads)
		}
		_ = dir.Close()
	}
	return threads, nil
}

// namespace tells namespaces apart.
type namespace struct{ dev, ino uint64 }

func pidNamespace(process *os.File) (namespace, error) {
	var stat unix.Stat_t
	if err := unix.Fstatat(int(process.Fd()), "ns/pid", &stat, 0); err != nil {
		return namespace{}, &os.PathError{Op: "stat", Path: process.Name() + "/ns/pid", Err: err}
	}
	return namespace{uint64(stat.Dev), stat.Ino}, nil //nolint:unconvert // the width differs between architectures
}

// comm is the name of a process or of one of its threads.
func comm(process *os.File, thread string) string {
	f, err := openIn(process, thread+"/comm")
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxProcFile))
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(string(text), "\n")
}

// addVCPUs adds the threads of a process that are named like vCPUs.
func addVCPUs(process *os.File, threads map[uint]int) {
	dir, err := openIn(process, "task")
	if err != nil {
		return
	}
	defer func() { _ = dir.Close() }()
	const maxThreads = 4096
	names, _ := dir.Readdirnames(maxThreads) // What was read before an error counts.
	for _, name := range names {
		parts := vcpuComm.FindStringSubmatch(comm(process, "task/"+name))
		tid, err := strconv.Atoi(name)
		if parts == nil || err != nil {
			continue
		}
		if vcpu, err := strconv.ParseUint(parts[1], 10, 32); err == nil {
			threads[uint(vcpu)] = tid
		}
	}
}
