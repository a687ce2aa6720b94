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

func TestCPUTopology(t *testing.T) {
	cpus := func(quantity string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(quantity)}
	}
	for name, tc := range map[string]struct {
		cpu       *v1.CPU
		resources v1.ResourceRequirements
		vcpus     uint
		want      libvirtxml.DomainCPUTopology
	}{
		"nothing requested": {nil, v1.ResourceRequirements{}, 1, libvirtxml.DomainCPUTopology{Sockets: 1, Cores: 1, Threads: 1}},
		"all requested": {&v1.CPU{Sockets: 2, Cores: 3, Threads: 2}, v1.ResourceRequirements{}, 12,
			libvirtxml.DomainCPUTopology{Sockets: 2, Cores: 3, Threads: 2}},
		"the rest is one": {&v1.CPU{Cores: 4}, v1.ResourceRequirements{Limits: cpus("8")}, 4,
			libvirtxml.DomainCPUTopology{Sockets: 1, Cores: 4, Threads: 1}},
		"limits": {nil, v1.ResourceRequirements{Limits: cpus("2"), Requests: cpus("1")}, 2,
			libvirtxml.DomainCPUTopology{Sockets: 2, Cores: 1, Threads: 1}},
		"requests round up": {&v1.CPU{Model: "host-model"}, v1.ResourceRequirements{Requests: cpus("1500m")}, 2,
			libvirtxml.DomainCPUTopology{Sockets: 2, Cores: 1, Threads: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			got := makeGuest().domainSpec(func(d *v1.DomainSpec) { d.CPU, d.Resources = tc.cpu, tc.resources }).build(t)
			expectEqual(t, got.VCPU, &libvirtxml.DomainVCPU{Placement: "static", Value: tc.vcpus})
			expectEqual(t, got.CPU.Topology, &tc.want)
		})
	}
}

func TestCPUHotplugTopology(t *testing.T) {
	got := makeGuest().domainSpec(
		func(d *v1.DomainSpec) { d.CPU = &v1.CPU{Sockets: 1, MaxSockets: 2, Cores: 2, Threads: 1} }).build(t)
	expectEqual(t, got.VCPU, &libvirtxml.DomainVCPU{Placement: "static", Current: 2, Value: 4})
	expectEqual(t, got.CPU.Topology, &libvirtxml.DomainCPUTopology{Sockets: 2, Cores: 2, Threads: 1})
	expectEqual(t, got.VCPUs, &libvirtxml.DomainVCPUs{VCPU: []libvirtxml.DomainVCPUsVCPU{
		{Id: ptr.To[uint](0), Enabled: "yes", Hotpluggable: "no"},
		{Id: ptr.To[uint](1), Enabled: "yes", Hotpluggable: "no"},
		{Id: ptr.To[uint](2), Enabled: "no", Hotpluggable: "yes"},
		{Id: ptr.To[uint](3), Enabled: "no", Hotpluggable: "yes"},
	}})
}

// The agent lists all sockets that can be hotplugged, so their number must be limited.
func TestTooManyVCPUs(t *testing.T) {
	const many = 5000
	for name, cpu := range map[string]v1.CPU{
		"to be plugged": {Sockets: 1, MaxSockets: many, Cores: 1, Threads: 1},
		"at the start":  {Sockets: many, Cores: 1, Threads: 1},
		"by cores":      {Sockets: 1, MaxSockets: 100, Cores: 100, Threads: 1},
		"by threads":    {Sockets: 1, MaxSockets: 2, Cores: 2, Threads: many},
	} {
		t.Run(name, func(t *testing.T) {
			makeGuest().domainSpec(func(d *v1.DomainSpec) { d.CPU = &cpu }).expectRefused(t, "spec.domain.cpu", "4096")
		})
	}
	vmi := &v1.VirtualMachineInstance{}
	vmi.Spec.Domain.CPU = &v1.CPU{Sockets: many, Realtime: &v1.Realtime{}}
	if vcpus, err := domain.RealtimeVCPUs(vmi); err == nil {
		t.Errorf("%d vCPUs are realtime", len(vcpus))
	}
}

func TestCPUModel(t *testing.T) {
	topology := &libvirtxml.DomainCPUTopology{Sockets: 1, Cores: 1, Threads: 1}
	named := libvirtxml.DomainCPU{
		Mode: "custom", Match: "exact", Model: &libvirtxml.DomainCPUModel{Value: "Nehalem", Fallback: "forbid"},
		Topology: topology, Features: []libvirtxml.DomainCPUFeature{{Name: "mpx", Policy: "disable"}},
	}
	for name, tc := range map[string]struct {
		model string
		kvm   bool
		want  libvirtxml.DomainCPU
	}{
		"default":                      {"", false, libvirtxml.DomainCPU{Mode: "host-model", Topology: topology}},
		"host-model":                   {"host-model", true, libvirtxml.DomainCPU{Mode: "host-model", Topology: topology}},
		"host-passthrough":             {"host-passthrough", true, libvirtxml.DomainCPU{Mode: "host-passthrough", Topology: topology}},
		"emulation has no passthrough": {"host-passthrough", false, libvirtxml.DomainCPU{Mode: "maximum", Topology: topology}},
		"named":                        {"Nehalem", true, named},
		"named in emulation":           {"Nehalem", false, named},
	} {
		t.Run(name, func(t *testing.T) {
			g := makeGuest().domainSpec(func(d *v1.DomainSpec) { d.CPU = &v1.CPU{Model: tc.model} })
			if tc.kvm {
				g.kvm()
			}
			expectEqual(t, g.build(t).CPU, &tc.want)
		})
	}
}

func TestDeprecatedCPUFeature(t *testing.T) {
	named := func(features ...v1.CPUFeature) []libvirtxml.DomainCPUFeature {
		return makeGuest().domainSpec(
			func(d *v1.DomainSpec) { d.CPU = &v1.CPU{Model: "Skylake-Client", Features: features} }).build(t).CPU.Features
	}
	expectEqual(t, named(v1.CPUFeature{Name: "vmx"}),
		[]libvirtxml.DomainCPUFeature{{Name: "vmx", Policy: "require"}, {Name: "mpx", Policy: "disable"}})
	expectEqual(t, named(v1.CPUFeature{Name: "mpx", Policy: "optional"}),
		[]libvirtxml.DomainCPUFeature{{Name: "mpx", Policy: "optional"}})
}

func TestCPUFeatures(t *testing.T) {
	withFeatures := func(features ...v1.CPUFeature) *guest {
		return makeGuest().domainSpec(func(d *v1.DomainSpec) { d.CPU = &v1.CPU{Features: features} })
	}
	got := withFeatures(v1.CPUFeature{Name: "x2apic"}, v1.CPUFeature{Name: "vmx", Policy: "forbid"}).build(t)
	expectEqual(t, got.CPU.Features, []libvirtxml.DomainCPUFeature{
		{Name: "x2apic", Policy: "require"}, {Name: "vmx", Policy: "forbid"},
	})
	withFeatures(v1.CPUFeature{Name: "x2apic", Policy: "maybe"}).
		expectRefused(t, "spec.domain.cpu.features[0].policy", "optional")
}
