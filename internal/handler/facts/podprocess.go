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

	"github.com/vireo-project/vireo/internal/cpulist"
	"github.com/vireo-project/vireo/internal/handler/podprocess"
)

// maxProcFile bounds what is read of a file of /proc. A status has about 60 lines.
const maxProcFile = 64 << 10

// CPUs are the CPUs that the kernel lets the Pod's libvirtd run on: the Pod's cpuset, whatever version of cgroups the node
// has, and nothing that the process could add to. The kubelet sets it before the container starts. None are returned
// when that cannot be read.
func (p PodFiles) CPUs(context.Context) []uint {
	return allowedCPUs(p.Process.Dir)
}

// allowedCPUs are the CPUs that the kernel lets a process or a thread run on, by its directory.
func allowedCPUs(dir *os.File) []uint {
	f, err := podprocess.OpenIn(dir, "status")
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

// vcpuComm is the name of the threads that run a guest's CPUs, as the kernel shows it.
// Source: qemu accel/kvm/kvm-accel-ops.c, accel/tcg/tcg-accel-ops-mttcg.c; libvirt starts QEMU with debug-threads=on.
var vcpuComm = regexp.MustCompile(`^CPU (\d{1,5})/(KVM|TCG)$`)

// realtimePriority is the priority of vCPUs among realtime threads: the lowest, as in KubeVirt.
const realtimePriority = 1

// SetRealtime gives vCPUs of the Pod's guest the scheduler SCHED_FIFO. QEMU may not do so itself. Exclusive are the CPUs that the kubelet
// has given to the guest's container for itself. The processes that are looked at are those of the Pod's process namespace, and any of
// them can give itself QEMU's names: only threads count that the kernel keeps on those CPUs, where they can disturb their own Pod alone.
// A container beside the guest's, or one that somebody adds for debugging, has none of them.
func (p PodFiles) SetRealtime(_ context.Context, vcpus, exclusive []uint) error {
	if len(exclusive) == 0 {
		return errors.New("the kubelet gave the launcher Pod no exclusive CPUs, and on shared ones no vCPU gets a realtime priority")
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

// setVCPUs gives those of a process's threads the priority that are named like one of the vCPUs.
func setVCPUs(process *os.File, vcpus, exclusive []uint, done map[uint]bool) error {
	dir, err := podprocess.OpenIn(process, "task")
	if err != nil {
		return nil // The process has ended.
	}
	defer func() { _ = dir.Close() }()
	const maxThreads = 4096
	names, _ := dir.Readdirnames(maxThreads) // What was read before an error counts.
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

// setVCPU gives a thread the priority if it is that of one of the vCPUs.
func setVCPU(tasks *os.File, tid int, vcpus, exclusive []uint, done map[uint]bool) error {
	// The directory is that of one thread of this process for good, whoever gets its number.
	thread, err := podprocess.OpenIn(tasks, strconv.Itoa(tid))
	if err != nil {
		return nil // The thread has ended.
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
		return fmt.Errorf("give vCPU %d a realtime priority (the agent needs SYS_NICE, and the node's cgroup time for realtime threads): %w",
			number, err)
	}
	// The call takes a number. If the thread has ended meanwhile, it may have been about another thread of the node.
	if podprocess.Comm(thread, ".") == "" {
		return errors.Join(fmt.Errorf("the thread of vCPU %d ended while it got its realtime priority", number), unsetRealtime(tid))
	}
	done[uint(number)] = true
	return nil
}

// within says that there are CPUs, and that all of them are among others.
func within(cpus, others []uint) bool {
	return len(cpus) > 0 && !slices.ContainsFunc(cpus, func(cpu uint) bool { return !slices.Contains(others, cpu) })
}

// setRealtime gives a thread the priority. What it starts does not inherit it.
func setRealtime(tid int) error {
	return unix.SchedSetAttr(tid, &unix.SchedAttr{
		Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Flags: unix.SCHED_FLAG_RESET_ON_FORK, Priority: realtimePriority,
	}, 0)
}

// unsetRealtime takes a priority away that setRealtime gave. A thread of that number that has another one keeps it.
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
