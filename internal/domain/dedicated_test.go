// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/domain"
)

// hyperthreaded sets a node of two cells with two cores each, whose threads are n and n+4.
func hyperthreaded(f *domain.Facts) {
	for cell := range uint(2) {
		fact := domain.NUMACellFact{ID: cell}
		for _, id := range []uint{2 * cell, 2*cell + 1, 2*cell + 4, 2*cell + 5} {
			fact.CPUs = append(fact.CPUs, domain.CPUFact{ID: id, Siblings: []uint{id % 4, id%4 + 4}})
		}
		f.NUMACells = append(f.NUMACells, fact)
	}
}

// dedicated returns a guest with dedicated CPUs on the hyperthreaded node.
func dedicated(sockets, threads uint32, cpus ...uint) *guest {
	return makeGuest().on(hyperthreaded).on(func(f *domain.Facts) { f.CPUs = cpus }).domainSpec(func(d *v1.DomainSpec) {
		d.CPU = &v1.CPU{Sockets: sockets, Cores: 1, Threads: threads, DedicatedCPUPlacement: true}
	})
}

func (g *guest) cpu(change func(*v1.CPU)) *guest {
	return g.domainSpec(func(d *v1.DomainSpec) { change(d.CPU) })
}

// pinning returns the pinning of a guest's threads as a short text.
func (g *guest) pinning(t *testing.T) string {
	t.Helper()
	tune := g.build(t).CPUTune
	if tune == nil {
		return ""
	}
	var words []string
	for i, pin := range tune.VCPUPin {
		if pin.VCPU != uint(i) {
			t.Errorf("vCPU %d is pinned in place %d", pin.VCPU, i)
		}
		words = append(words, pin.CPUSet)
	}
	if tune.EmulatorPin != nil {
		words = append(words, "emulator="+tune.EmulatorPin.CPUSet)
	}
	for _, pin := range tune.IOThreadPin {
		words = append(words, fmt.Sprintf("io%d=%s", pin.IOThread, pin.CPUSet))
	}
	return strings.Join(words, " ")
}

func TestDedicatedCPUs(t *testing.T) {
	isolated := func(c *v1.CPU) { c.IsolateEmulatorThread = true }
	pool := func(threads uint32) func(*v1.DomainSpec) {
		return func(d *v1.DomainSpec) {
			d.IOThreadsPolicy = ptr.To(v1.IOThreadsPolicySupplementalPool)
			d.IOThreads = &v1.DiskIOThreads{SupplementalPoolThreadCount: &threads}
		}
	}
	auto := func(d *v1.DomainSpec) {
		d.IOThreadsPolicy = ptr.To(v1.IOThreadsPolicyAuto)
		d.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}
	}
	disks := func(g *guest) *guest {
		return g.emptyDisk(diskOn("a", v1.DiskBusVirtio)).emptyDisk(diskOn("b", v1.DiskBusVirtio)).emptyDisk(
			diskOn("c", v1.DiskBusVirtio))
	}
	for name, tc := range map[string]struct {
		guest *guest
		want  string
	}{
		"not dedicated":                 {makeGuest().on(hyperthreaded).on(func(f *domain.Facts) { f.CPUs = []uint{0} }), ""},
		"threads share a core":          {dedicated(2, 2, 0, 1, 4, 5), "0 4 1 5"},
		"whole cores before broken":     {dedicated(1, 2, 0, 1, 5), "1 5"},
		"broken cores of a cell":        {dedicated(1, 2, 0, 1), "0 1"},
		"over cells if nothing is left": {dedicated(1, 2, 1, 2), "1 2"},
		"one thread for a core":         {dedicated(3, 1, 0, 2, 4), "0 4 2"},
		"the emulator apart":            {dedicated(1, 2, 0, 1, 4).cpu(isolated), "0 4 emulator=1"},
		"two CPUs for the emulator":     {dedicated(1, 2, 0, 1, 4, 5).cpu(isolated), "0 4 emulator=1"},
		"without a topology": {dedicated(2, 1, 3, 7, 9).on(func(f *domain.Facts) { f.NUMACells = nil }).cpu(isolated),
			"3 7 emulator=9"},
		"a socket to be plugged has none": {dedicated(2, 1, 0, 1).cpu(func(c *v1.CPU) { c.MaxSockets = 8 }), "0 1"},
		"I/O threads on the vCPUs":        {disks(dedicated(2, 1, 0, 1)).domainSpec(auto), "0 1 io1=0 io2=1 io3=0"},
		"ranges for few I/O threads":      {disks(dedicated(4, 1, 0, 1, 2, 3)).domainSpec(auto), "0 1 2 3 io1=0 io2=1 io3=2,3"},
		"I/O threads beside the emulator": {disks(dedicated(1, 1, 0, 1)).cpu(isolated).domainSpec(auto), "0 emulator=1 io1=1"},
		"CPUs of the pool's own":          {disks(dedicated(1, 1, 0, 1, 2)).domainSpec(pool(2)), "0 io1=1 io2=2"},
		"a pool and the emulator":         {disks(dedicated(1, 1, 0, 1, 2, 3)).cpu(isolated).domainSpec(pool(2)), "0 emulator=1 io1=2 io2=3"},
	} {
		t.Run(name, func(t *testing.T) { expectEqual(t, tc.guest.pinning(t), tc.want) })
	}
}

func TestHintDedicated(t *testing.T) {
	if kvm := dedicated(1, 1, 0).build(t).Features.KVM; kvm != nil {
		t.Errorf("an emulated guest gets hints of KVM: %+v", kvm)
	}
	hidden := dedicated(1, 1,
		0).kvm().domainSpec(func(d *v1.DomainSpec) { d.Features = &v1.Features{KVM: &v1.FeatureKVM{Hidden: true}} })
	got := hidden.build(t).Features.KVM
	if got == nil || got.HintDedicated == nil || got.HintDedicated.State != "on" || got.Hidden == nil {
		t.Errorf("KVM features are %+v", got)
	}
}

func TestDedicatedCPUsRefused(t *testing.T) {
	dedicated(1, 1).expectNotPrepared(t, "spec.domain.cpu.dedicatedCpuPlacement")
	dedicated(3, 1, 0, 1).expectRefused(t, "spec.domain.cpu.dedicatedCpuPlacement", "CPUs 0,1")
	dedicated(2, 1, 0, 1).cpu(func(c *v1.CPU) { c.IsolateEmulatorThread = true }).
		expectRefused(t, "spec.domain.cpu.isolateEmulatorThread", "no CPU more")
}
