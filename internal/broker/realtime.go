// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package broker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/utils/cpuset"

	"github.com/vireo-project/vireo/internal/broker/podprocess"
	"github.com/vireo-project/vireo/internal/broker/server"
	"github.com/vireo-project/vireo/internal/wire/brokerapi"
)

// cpus returns the CPUs that the kernel lets the Pod's libvirtd run on, in ascending order. This is the Pod's cpuset
// with any version of cgroups: the kubelet sets it before the container starts, and the process cannot extend it. It
// returns none if the list cannot be read.
func (b *Broker) cpus(pod string, _ server.None) (server.Task, error) {
	return b.ofLibvirtd(b.quick, pod, func(_ context.Context, libvirtd *os.File) (server.Output, error) {
		result := brokerapi.CPUsResult{}
		for _, cpu := range allowedCPUs(libvirtd).List() {
			result.CPUs = append(result.CPUs, uint(cpu))
		}
		return server.Output{Result: result}, nil
	}), nil
}

// allowedCPUs returns the CPUs that the kernel lets a process or a thread run on, given its directory in /proc.
func allowedCPUs(dir *os.File) cpuset.CPUSet {
	status, _ := podprocess.Read(dir, "status")
	_, list, _ := strings.Cut(status, "\nCpus_allowed_list:")
	list, _, _ = strings.Cut(list, "\n")
	set, _ := cpuset.Parse(strings.TrimSpace(list)) // which returns none with an error
	return set
}

// realtimePriority is the realtime priority of vCPUs: the lowest, as in KubeVirt.
const realtimePriority = 1

// maxVCPUs is the limit for the vCPUs of a guest.
const maxVCPUs = 4096

// setRealtime sets the priority of vCPUs of the Pod's guest.
func (b *Broker) setRealtime(pod string, a brokerapi.SetRealtimeArguments) (server.Task, error) {
	if len(a.VCPUs) > maxVCPUs {
		return server.Task{}, brokerapi.Invalid("%d vCPUs are more than a guest has", len(a.VCPUs))
	}
	return b.ofLibvirtd(b.quick, pod, func(ctx context.Context, libvirtd *os.File) (server.Output, error) {
		exclusive, err := b.ExclusiveCPUs(ctx, pod)
		if err != nil {
			return server.Output{}, err
		}
		return server.Output{}, prioritize(libvirtd, a.VCPUs, exclusive)
	}), nil
}

// prioritize sets the scheduling policy SCHED_FIFO for vCPUs of the Pod's guest. QEMU has no permission to do so
// itself. exclusive are the CPUs that the kubelet has assigned to the guest's container exclusively. Any process in the
// Pod's process namespace can take QEMU's names, so that prioritize only changes threads that the kernel confines to
// these CPUs, where they can disturb their own Pod only. Other containers of the Pod, ephemeral ones included, may not
// run there.
func prioritize(libvirtd *os.File, vcpus []uint, exclusive cpuset.CPUSet) error {
	if exclusive.IsEmpty() {
		return errors.New("the launcher Pod has no exclusive CPUs of the kubelet, and on shared ones no vCPU gets a realtime priority")
	}
	done, failed := map[uint]bool{}, []error{}
	err := podprocess.EachQEMU(libvirtd, func(process *os.File, _ int) {
		failed = append(failed, setVCPUs(process, vcpus, exclusive, done))
	})
	if err := errors.Join(append(failed, err)...); err != nil {
		return err
	}
	for _, vcpu := range vcpus {
		if !done[vcpu] {
			return fmt.Errorf("vCPU %d has no thread in the launcher Pod that is confined to its exclusive CPUs (%s)", vcpu,
				exclusive)
		}
	}
	return nil
}

// setVCPUs sets the priority of those of a process's threads that have the name of the thread of one of the vCPUs.
// Source: qemu accel/kvm/kvm-accel-ops.c, accel/tcg/tcg-accel-ops-mttcg.c; libvirt starts QEMU with debug-threads=on.
func setVCPUs(process *os.File, vcpus []uint, exclusive cpuset.CPUSet, done map[uint]bool) error {
	named := map[string]uint{}
	for _, vcpu := range vcpus {
		named[fmt.Sprintf("CPU %d/KVM", vcpu)], named[fmt.Sprintf("CPU %d/TCG", vcpu)] = vcpu, vcpu
	}
	tasks, err := podprocess.OpenIn(process, "task")
	if err != nil {
		return nil // The process has exited.
	}
	defer func() { _ = tasks.Close() }()
	const maxThreads = 4096
	names, _ := tasks.Readdirnames(maxThreads) // On an error it also returns the names that it has read.
	for _, name := range names {
		// The directory always refers to one thread of this process, even if the tid is reused.
		thread, err := podprocess.OpenIn(tasks, name)
		if err != nil {
			continue // The thread has exited.
		}
		vcpu, found := named[podprocess.Comm(thread, ".")]
		if cpus := allowedCPUs(thread); found && !cpus.IsEmpty() && cpus.IsSubsetOf(exclusive) {
			err = setVCPU(thread, name, vcpu)
			done[vcpu] = err == nil
		}
		if _ = thread.Close(); err != nil {
			return err
		}
	}
	return nil
}

// setVCPU sets the priority of the thread of a vCPU.
func setVCPU(thread *os.File, name string, vcpu uint) error {
	tid, err := strconv.Atoi(name)
	if err == nil {
		err = makeRealtime(tid)
	}
	if err != nil {
		return fmt.Errorf("set the realtime priority of vCPU %d (virt-broker needs SYS_NICE, and the node's cgroup time for realtime threads): %w", vcpu, err)
	}
	// If the thread has exited meanwhile, the kernel may have reused the tid, and the call changed another thread of
	// the node.
	if podprocess.Comm(thread, ".") == "" {
		return errors.Join(fmt.Errorf("the thread of vCPU %d ended while it got its realtime priority", vcpu),
			unsetRealtime(tid))
	}
	return nil
}

// makeRealtime sets the priority of a thread. Its children do not inherit it.
func makeRealtime(tid int) error {
	return unix.SchedSetAttr(tid, &unix.SchedAttr{
		Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Flags: unix.SCHED_FLAG_RESET_ON_FORK, Priority: realtimePriority,
	}, 0)
}

// unsetRealtime resets a priority that makeRealtime set. It does not change a thread that has another one.
func unsetRealtime(tid int) error {
	attr, err := unix.SchedGetAttr(tid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil || attr.Policy != unix.SCHED_FIFO || attr.Priority != realtimePriority ||
		attr.Flags&unix.SCHED_FLAG_RESET_ON_FORK == 0 {
		return err
	}
	return unix.SchedSetAttr(tid, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL}, 0)
}
