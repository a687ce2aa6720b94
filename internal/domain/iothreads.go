// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// ioThreadsPerCPU bounds the threads of policy auto. Source: kubevirt/kubevirt pkg/virt-launcher/virtwrap/converter,
// iothreads/iothreads.go, getThreadPoolLimit.
const ioThreadsPerCPU = 2

// ioThreadPlan says which of QEMU's I/O threads, numbered from 1, serve which disk.
type ioThreadPlan struct {
	count   uint
	threads map[string][]uint
}

// configureIOThreads makes the threads; configureDisks hands them out by the same plan.
func configureIOThreads(vmi *v1.VirtualMachineInstance, _ Facts, domain *libvirtxml.Domain) error {
	plan, err := planIOThreads(&vmi.Spec.Domain)
	if err != nil {
		return err
	}
	domain.IOThreads = plan.count
	return nil
}

// maxIOThreads is four times as many as a disk has queues at most. Each disk lists all of them: for any number the agent would not have the
// memory. Source: qemu include/hw/virtio/virtio.h, VIRTIO_QUEUE_MAX.
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
		if spec.IOThreads == nil || spec.IOThreads.SupplementalPoolThreadCount == nil || *spec.IOThreads.SupplementalPoolThreadCount == 0 {
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

// splitByIOThread names the virtio disks with a thread of their own and the others. Only virtio disks use
// I/O threads; the other buses are emulated in QEMU's main thread.
func splitByIOThread(disks []v1.Disk) (dedicated, pooled []string, err error) {
	for i := range disks {
		disk := &disks[i]
		onVirtio := disk.Disk != nil && disk.Disk.Bus == v1.DiskBusVirtio
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

// ioThreadLimit is how many threads policy auto makes at most. As in KubeVirt, it goes by the CPUs that the resources name and
// not by the vCPUs, and a CPU of its own for QEMU has room for one.
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

// roundRobin gives the dedicated disks a thread each and spreads the others over a pool of at least one. Unlike in
// KubeVirt there is no thread that no disk uses.
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

// supplementalPool lets every disk use every thread, a virtqueue on each in turn.
func supplementalPool(disks []string, count uint) ioThreadPlan {
	plan := ioThreadPlan{count: count, threads: map[string][]uint{}}
	for _, name := range disks {
		for id := range count {
			plan.threads[name] = append(plan.threads[name], id+1)
		}
	}
	return plan
}

// apply puts the plan into a disk's driver.
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
