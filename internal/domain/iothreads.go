// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/diskbus"
)

// ioThreadsPerCPU limits the threads of the policy auto. Source: kubevirt/kubevirt
// pkg/virt-launcher/virtwrap/converter, iothreads/iothreads.go, getThreadPoolLimit.
const ioThreadsPerCPU = 2

// ioThreadPlan assigns QEMU's I/O threads, numbered from 1, to disks by name.
type ioThreadPlan struct {
	count   uint
	threads map[string][]uint
}

// configureIOThreads sets the number of I/O threads. configureDisks assigns them to disks by the same plan.
func configureIOThreads(vmi *v1.VirtualMachineInstance, _ Facts, domain *libvirtxml.Domain) error {
	plan, err := planIOThreads(&vmi.Spec.Domain)
	if err != nil {
		return err
	}
	domain.IOThreads = plan.count
	return nil
}

// maxIOThreads limits the supplemental pool to four times the queues that a disk can have. Each disk lists all threads
// of the pool, so that without a limit the lists would not fit into the agent's memory. Source: qemu
// include/hw/virtio/virtio.h, VIRTIO_QUEUE_MAX.
const maxIOThreads = 4096

func planIOThreads(spec *v1.DomainSpec) (ioThreadPlan, error) {
	dedicated, pooled, err := splitByIOThread(spec.Devices.Disks)
	if err != nil {
		return ioThreadPlan{}, err
	}
	policy := v1.IOThreadsPolicyShared
	switch {
	case spec.IOThreadsPolicy != nil:
		policy = *spec.IOThreadsPolicy
	case len(dedicated) == 0:
		return ioThreadPlan{}, nil
	}
	path := domainPath.Child("ioThreadsPolicy")
	switch policy {
	case v1.IOThreadsPolicyShared:
		return roundRobin(dedicated, pooled, 1), nil
	case v1.IOThreadsPolicyAuto:
		return roundRobin(dedicated, pooled, ioThreadLimit(spec)-len(dedicated)), nil
	case v1.IOThreadsPolicySupplementalPool:
		if spec.IOThreads == nil || spec.IOThreads.SupplementalPoolThreadCount == nil ||
			*spec.IOThreads.SupplementalPoolThreadCount == 0 {
			return ioThreadPlan{}, field.Required(domainPath.Child("ioThreads", "supplementalPoolThreadCount"),
				"the policy supplementalPool needs the number of threads")
		}
		count := *spec.IOThreads.SupplementalPoolThreadCount
		if count > maxIOThreads {
			return ioThreadPlan{}, field.Invalid(domainPath.Child("ioThreads", "supplementalPoolThreadCount"), count,
				fmt.Sprintf("must be at most %d", maxIOThreads))
		}
		return supplementalPool(append(dedicated, pooled...), uint(count)), nil
	}
	return ioThreadPlan{}, field.NotSupported(path, policy, []v1.IOThreadsPolicy{
		v1.IOThreadsPolicyShared, v1.IOThreadsPolicyAuto, v1.IOThreadsPolicySupplementalPool,
	})
}

// splitByIOThread returns the names of the virtio disks with a dedicated thread, and those of the other virtio disks.
// Only virtio disks use I/O threads. QEMU's main thread serves the other buses.
func splitByIOThread(disks []v1.Disk) (dedicated, pooled []string, err error) {
	for i := range disks {
		disk := &disks[i]
		onVirtio := disk.Disk != nil && diskbus.Of(disk.Disk.Bus).Virtio
		switch {
		case isTrue(disk.DedicatedIOThread) && !onVirtio:
			return nil, nil, field.Invalid(devicesPath.Child("disks").Index(i).Child("dedicatedIOThread"), true,
				"only a disk on the virtio bus can have an I/O thread: set disk.bus to virtio")
		case isTrue(disk.DedicatedIOThread):
			dedicated = append(dedicated, disk.Name)
		case onVirtio:
			pooled = append(pooled, disk.Name)
		}
	}
	return dedicated, pooled, nil
}

// ioThreadLimit returns the limit for threads with the policy auto. As in KubeVirt, it depends on the CPUs of the
// resources and not on the vCPUs, and is 1 if QEMU's main thread has a CPU of its own.
func ioThreadLimit(spec *v1.DomainSpec) int {
	if spec.CPU != nil && spec.CPU.DedicatedCPUPlacement && spec.CPU.IsolateEmulatorThread {
		return 1
	}
	for _, list := range []corev1.ResourceList{spec.Resources.Requests, spec.Resources.Limits} {
		if quantity, found := list[corev1.ResourceCPU]; found {
			return int(quantity.Value()) * ioThreadsPerCPU
		}
	}
	return ioThreadsPerCPU
}

// roundRobin assigns a thread to each dedicated disk, and a pool of at least one thread to the others. Unlike in
// KubeVirt, there are no unused threads.
func roundRobin(dedicated, pooled []string, pool int) ioThreadPlan {
	pool = min(max(pool, 1), len(pooled))
	plan := ioThreadPlan{count: uint(pool), threads: map[string][]uint{}}
	for i, name := range pooled {
		plan.threads[name] = []uint{uint(i%pool) + 1}
	}
	for _, name := range dedicated {
		plan.count++
		plan.threads[name] = []uint{plan.count}
	}
	return plan
}

// supplementalPool assigns every thread to every disk. QEMU distributes the virtqueues of a disk over its threads.
func supplementalPool(disks []string, count uint) ioThreadPlan {
	plan := ioThreadPlan{count: count, threads: map[string][]uint{}}
	for _, name := range disks {
		for id := range count {
			plan.threads[name] = append(plan.threads[name], id+1)
		}
	}
	return plan
}

// apply sets the threads of a disk's driver.
func (p ioThreadPlan) apply(name string, driver *libvirtxml.DomainDiskDriver) {
	switch ids := p.threads[name]; len(ids) {
	case 0:
	case 1:
		driver.IOThread = &ids[0]
	default:
		driver.IOThreads = &libvirtxml.DomainDiskIOThreads{}
		for _, id := range ids {
			driver.IOThreads.IOThread = append(driver.IOThreads.IOThread, libvirtxml.DomainDiskIOThread{ID: id})
		}
	}
}
