// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package facts

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"regexp"
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
	f, err := podprocess.OpenIn(p.Process.Dir, "status")
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
	threads := map[uint]int{}
	err := podprocess.EachQEMU(p.Process.Dir, func(process *os.File, _ int) { addVCPUs(process, threads) })
	return threads, err
}

// addVCPUs adds the threads of a process that are named like vCPUs.
func addVCPUs(process *os.File, threads map[uint]int) {
	dir, err := podprocess.OpenIn(process, "task")
	if err != nil {
		return
	}
	defer func() { _ = dir.Close() }()
	const maxThreads = 4096
	names, _ := dir.Readdirnames(maxThreads) // What was read before an error counts.
	for _, name := range names {
		parts := vcpuComm.FindStringSubmatch(podprocess.Comm(process, "task/"+name))
		tid, err := strconv.Atoi(name)
		if parts == nil || err != nil {
			continue
		}
		if vcpu, err := strconv.ParseUint(parts[1], 10, 32); err == nil {
			threads[uint(vcpu)] = tid
		}
	}
}
