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
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/utils/cpuset"

	"github.com/vireo-project/vireo/internal/agent/podprocess"
)

// maxProcFile bounds what is read from a file of /proc. A status has about 60 lines.
const maxProcFile = 64 << 10

// CPUs returns the CPUs that the kernel lets the Pod's libvirtd run on, in ascending order. This is the Pod's cpuset with any
// version of cgroups: the kubelet sets it before the container starts, and the process cannot extend it. It returns none
// if the list cannot be read.
func (p PodFiles) CPUs(context.Context) []uint {
	return allowedCPUs(p.Process.Dir)
}

// allowedCPUs returns the CPUs that the kernel lets a process or a thread run on, given its directory in /proc.
func allowedCPUs(dir *os.File) []uint {
	f, err := podprocess.OpenIn(dir, "status")
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(io.LimitReader(f, maxProcFile))
	for lines.Scan() {
		if list, ok := strings.CutPrefix(lines.Text(), "Cpus_allowed_list:"); ok {
			set, err := cpuset.Parse(strings.TrimSpace(list))
			if err != nil {
				return nil
			}
			cpus := make([]uint, 0, set.Size())
			for _, cpu := range set.List() {
				cpus = append(cpus, uint(cpu))
			}
			return cpus
		}
	}
	return nil
}

// vcpuComm matches the names of vCPU threads.
// Source: qemu accel/kvm/kvm-accel-ops.c, accel/tcg/tcg-accel-ops-mttcg.c; libvirt starts QEMU with debug-threads=on.
var vcpuComm = regexp.MustCompile(`^CPU (\d{1,5})/(KVM|TCG)$`)

// realtimePriority is the realtime priority of vCPUs: the lowest, as in KubeVirt.
const realtimePriority = 1

// SetRealtime sets the scheduling policy SCHED_FIFO for vCPUs of the Pod's guest. QEMU has no permission to do so itself.
// exclusive are the CPUs that the kubelet has assigned to the guest's container exclusively. Any process in the Pod's process
// namespace can take QEMU's names, so that SetRealtime only changes threads that the kernel confines to these CPUs, where they
// can disturb their own Pod only. Other containers of the Pod, ephemeral ones included, may not run there.
func (p PodFiles) SetRealtime(_ context.Context, vcpus, exclusive []uint) error {
	if len(exclusive) == 0 {
		return errors.New("the launcher Pod has no exclusive CPUs of the kubelet, and on shared ones no vCPU gets a realtime priority")
	}
	done, failed := map[uint]bool{}, []error{}
	err := podprocess.EachQEMU(p.Process.Dir, func(process *os.File, _ int) {
		failed = append(failed, setVCPUs(process, vcpus, exclusive, done))
	})
	if err := errors.Join(append(failed, err)...); err != nil {
		return err
	}
	for _, vcpu := range vcpus {
		if !done[vcpu] {
			return fmt.Errorf("vCPU %d has no thread in the launcher Pod that is confined to its exclusive CPUs (%v)", vcpu, exclusive)
		}
	}
	return nil
}

// setVCPUs sets the priority of those of a process's threads that have the name of one of the vCPUs.
func setVCPUs(process *os.File, vcpus, exclusive []uint, done map[uint]bool) error {
	dir, err := podprocess.OpenIn(process, "task")
	if err != nil {
		return nil // The process has exited.
	}
	defer func() { _ = dir.Close() }()
	const maxThreads = 4096
	names, _ := dir.Readdirnames(maxThreads) // On an error it also returns the names that it has read.
	for _, name := range names {
		tid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if err := setVCPU(dir, tid, vcpus, exclusive, done); err != nil {
			return err
		}
	}
	return nil
}

// setVCPU sets the priority of a thread if it is that of one of the vCPUs.
func setVCPU(tasks *os.File, tid int, vcpus, exclusive []uint, done map[uint]bool) error {
	// The directory always refers to one thread of this process, even if the tid is reused.
	thread, err := podprocess.OpenIn(tasks, strconv.Itoa(tid))
	if err != nil {
		return nil // The thread has exited.
	}
	defer func() { _ = thread.Close() }()
	parts := vcpuComm.FindStringSubmatch(podprocess.Comm(thread, "."))
	if parts == nil {
		return nil
	}
	number, err := strconv.ParseUint(parts[1], 10, 32)
	if vcpu := uint(number); err != nil || !slices.Contains(vcpus, vcpu) || !within(allowedCPUs(thread), exclusive) {
		return nil // It is another thread.
	}
	if err := setRealtime(tid); err != nil {
		return fmt.Errorf("set the realtime priority of vCPU %d (the agent needs SYS_NICE, and the node's cgroup time for realtime threads): %w",
			number, err)
	}
	// If the thread has exited meanwhile, the kernel may have reused the tid, and the call changed another thread of the node.
	if podprocess.Comm(thread, ".") == "" {
		return errors.Join(fmt.Errorf("the thread of vCPU %d ended while it got its realtime priority", number), unsetRealtime(tid))
	}
	done[uint(number)] = true
	return nil
}

// within reports whether cpus is not empty and a subset of others.
func within(cpus, others []uint) bool {
	return len(cpus) > 0 && !slices.ContainsFunc(cpus, func(cpu uint) bool { return !slices.Contains(others, cpu) })
}

// setRealtime sets the priority of a thread. Its children do not inherit it.
func setRealtime(tid int) error {
	return unix.SchedSetAttr(tid, &unix.SchedAttr{
		Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Flags: unix.SCHED_FLAG_RESET_ON_FORK, Priority: realtimePriority,
	}, 0)
}

// unsetRealtime resets a priority that setRealtime set. It does not change a thread that has another one.
func unsetRealtime(tid int) error {
	attr, err := unix.SchedGetAttr(tid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil || attr.Policy != unix.SCHED_FIFO || attr.Priority != realtimePriority || attr.Flags&unix.SCHED_FLAG_RESET_ON_FORK == 0 {
		return err
	}
	return unix.SchedSetAttr(tid, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL}, 0)
}
