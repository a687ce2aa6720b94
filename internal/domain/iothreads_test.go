// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/domain"
)

// threeDisks are a and b in the pool, own with a thread of its own, and one on a bus without I/O threads.
func threeDisks(change func(*v1.DomainSpec)) *guest {
	own := diskOn("own", v1.DiskBusVirtio)
	own.DedicatedIOThread = ptr.To(true)
	return makeGuest().emptyDisk(diskOn("a", v1.DiskBusVirtio)).emptyDisk(own).emptyDisk(diskOn("b", v1.DiskBusVirtio)).
		emptyDisk(diskOn("sata", v1.DiskBusSATA)).domainSpec(change)
}

// isolated sets dedicated CPUs, one of them for QEMU's main thread.
func isolated(g *guest) *guest {
	return g.domainSpec(func(d *v1.DomainSpec) { d.CPU.DedicatedCPUPlacement, d.CPU.IsolateEmulatorThread = true, true }).
		on(func(f *domain.Facts) { f.CPUs = []uint{1, 2, 3} })
}

func TestIOThreads(t *testing.T) {
	policy := func(p v1.IOThreadsPolicy) func(*v1.DomainSpec) {
		return func(d *v1.DomainSpec) { d.IOThreadsPolicy, d.CPU = &p, &v1.CPU{Cores: 2} }
	}
	auto := func(change func(*v1.DomainSpec)) *guest {
		return threeDisks(func(d *v1.DomainSpec) { policy(v1.IOThreadsPolicyAuto)(d); change(d) })
	}
	cpus := func(n string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(n)}
	}
	alone := diskOn("a", v1.DiskBusVirtio)
	alone.DedicatedIOThread = ptr.To(true)
	for name, tc := range map[string]struct {
		guest *guest
		count uint
		want  []uint
	}{
		"none requested": {makeGuest().emptyDisk(diskOn("a", v1.DiskBusVirtio)), 0, []uint{0}},
		"one dedicated":  {threeDisks(func(*v1.DomainSpec) {}), 2, []uint{1, 2, 1, 0}},
		"shared":         {threeDisks(policy(v1.IOThreadsPolicyShared)), 2, []uint{1, 2, 1, 0}},
		"only dedicated": {makeGuest().emptyDisk(alone), 1, []uint{1}},
		// The two vCPUs do not count.
		"auto":                     {auto(func(*v1.DomainSpec) {}), 2, []uint{1, 2, 1, 0}},
		"auto by requests":         {auto(func(d *v1.DomainSpec) { d.Resources.Requests = cpus("1100m") }), 3, []uint{1, 3, 2, 0}},
		"auto by limits":           {auto(func(d *v1.DomainSpec) { d.Resources.Limits = cpus("2") }), 3, []uint{1, 3, 2, 0}},
		"requests before limit":    {auto(func(d *v1.DomainSpec) { d.Resources.Requests, d.Resources.Limits = cpus("1"), cpus("2") }), 2, []uint{1, 2, 1, 0}},
		"auto beside the emulator": {isolated(auto(func(d *v1.DomainSpec) { d.Resources.Requests = cpus("2") })), 2, []uint{1, 2, 1, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			got := tc.guest.build(t)
			expectEqual(t, got.IOThreads, tc.count)
			var threads []uint
			for _, disk := range got.Devices.Disks {
				threads = append(threads, ptr.Deref(disk.Driver.IOThread, 0))
			}
			expectEqual(t, threads, tc.want)
		})
	}
}

func TestIOThreadsOfASupplementalPool(t *testing.T) {
	got := poolOfIOThreads().build(t)
	expectEqual(t, got.IOThreads, 2)
	for _, disk := range got.Devices.Disks {
		expectEqual(t, disk.Driver.IOThreads, &libvirtxml.DomainDiskIOThreads{
			IOThread: []libvirtxml.DomainDiskIOThread{{ID: 1}, {ID: 2}},
		})
	}
}

func TestIOThreadsRefused(t *testing.T) {
	threeDisks(func(d *v1.DomainSpec) { d.IOThreadsPolicy = ptr.To(v1.IOThreadsPolicySupplementalPool) }).
		expectRefused(t, "spec.domain.ioThreads.supplementalPoolThreadCount", "number of threads")
	threeDisks(func(d *v1.DomainSpec) {
		d.IOThreadsPolicy = ptr.To(v1.IOThreadsPolicySupplementalPool)
		d.IOThreads = &v1.DiskIOThreads{SupplementalPoolThreadCount: ptr.To[uint32](5000)}
	}).expectRefused(t, "spec.domain.ioThreads.supplementalPoolThreadCount", "at most 4096")
	threeDisks(func(d *v1.DomainSpec) { d.IOThreadsPolicy = ptr.To[v1.IOThreadsPolicy]("many") }).
		expectRefused(t, "spec.domain.ioThreadsPolicy", "auto")
	onSATA := diskOn("a", v1.DiskBusSATA)
	onSATA.DedicatedIOThread = ptr.To(true)
	makeGuest().emptyDisk(onSATA).expectRefused(t, "spec.domain.devices.disks[0].dedicatedIOThread", "virtio")
}
