// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// featurePolicies are libvirt's policies of a CPU feature. The default is require.
var featurePolicies = []string{"force", "require", "optional", "disable", "forbid"}

// deprecatedFeature is in libvirt's definitions of some Intel models, but newer CPUs and kernels lack it, so that a
// guest with such a model would not start there. As in KubeVirt, it is disabled for all named models
// (https://gitlab.com/libvirt/libvirt/-/issues/608).
const deprecatedFeature = "mpx"

// topology is the guest's CPU topology.
type topology struct{ sockets, maxSockets, cores, threads uint }

func (t topology) vcpus() uint    { return t.sockets * t.cores * t.threads }
func (t topology) maxVCPUs() uint { return t.maxSockets * t.cores * t.threads }

// maxVCPUs is QEMU's limit for the vCPUs of a guest. Source: qemu docs/system/i386, the Q35 machine.
const maxVCPUs = 4096

// check refuses a topology with too many vCPUs, before the agent builds a list of them that does not fit into its
// memory.
func (t topology) check() error {
	count := uint(1)
	for _, factor := range []uint{t.maxSockets, t.cores, t.threads} {
		if factor > maxVCPUs || count*factor > maxVCPUs {
			return field.Invalid(cpuPath,
				fmt.Sprintf("%d sockets with %d cores with %d threads", t.maxSockets, t.cores, t.threads),
				fmt.Sprintf("a guest can have %d vCPUs at most, those of maxSockets included", maxVCPUs))
		}
		count *= factor
	}
	return nil
}

// topologyOf returns the topology of spec.domain.cpu. Without one, each CPU of the resources is a socket.
func topologyOf(spec *v1.DomainSpec) topology {
	cpu := v1.CPU{}
	if spec.CPU != nil {
		cpu = *spec.CPU
	}
	t := topology{sockets: uint(cpu.Sockets), maxSockets: uint(cpu.MaxSockets), cores: uint(cpu.Cores),
		threads: uint(cpu.Threads)}
	if t.sockets == 0 && t.cores == 0 && t.threads == 0 {
		t.sockets = cpusFromResources(spec.Resources)
	}
	t.sockets, t.cores, t.threads = max(t.sockets, 1), max(t.cores, 1), max(t.threads, 1)
	t.maxSockets = max(t.maxSockets, t.sockets)
	return t
}

func cpusFromResources(resources v1.ResourceRequirements) uint {
	for _, list := range []corev1.ResourceList{resources.Limits, resources.Requests} {
		if quantity, found := list[corev1.ResourceCPU]; found && quantity.Sign() > 0 {
			return uint(quantity.Value())
		}
	}
	return 1
}

func configureCPU(vmi *v1.VirtualMachineInstance, facts Facts, domain *libvirtxml.Domain) error {
	t := topologyOf(&vmi.Spec.Domain)
	if err := t.check(); err != nil {
		return err
	}
	domain.VCPU = &libvirtxml.DomainVCPU{Placement: "static", Value: t.maxVCPUs()}
	if t.maxSockets > t.sockets {
		domain.VCPU.Current = t.vcpus()
		domain.VCPUs = hotpluggableVCPUs(t)
	}
	cpu, err := cpuModel(&vmi.Spec.Domain, facts)
	if err != nil {
		return err
	}
	cpu.Topology = &libvirtxml.DomainCPUTopology{Sockets: int(t.maxSockets), Cores: int(t.cores), Threads: int(t.threads)}
	domain.CPU = cpu
	return nil
}

// hotpluggableVCPUs lists all possible vCPUs. QEMU does not support unplugging those of the first socket.
func hotpluggableVCPUs(t topology) *libvirtxml.DomainVCPUs {
	list := &libvirtxml.DomainVCPUs{}
	for id := range t.maxVCPUs() {
		list.VCPU = append(list.VCPU, libvirtxml.DomainVCPUsVCPU{
			Id:           &id,
			Enabled:      yesNo(id < t.vcpus()),
			Hotpluggable: yesNo(id >= t.cores*t.threads),
		})
	}
	return list
}

func cpuModel(spec *v1.DomainSpec, facts Facts) (*libvirtxml.DomainCPU, error) {
	model := v1.DefaultCPUModel
	var features []v1.CPUFeature
	if spec.CPU != nil {
		if spec.CPU.Model != "" {
			model = spec.CPU.Model
		}
		features = spec.CPU.Features
	}
	cpu := &libvirtxml.DomainCPU{}
	switch {
	case model == v1.CPUModeHostPassthrough && facts.Emulation:
		// There is no CPU to pass through: use all features of the emulation.
		cpu.Mode = "maximum"
	case model == v1.CPUModeHostPassthrough, model == v1.CPUModeHostModel:
		cpu.Mode = model
	default:
		// The scheduler chose a node with this model, so libvirt must not replace it.
		cpu.Mode, cpu.Match = "custom", "exact"
		cpu.Model = &libvirtxml.DomainCPUModel{Value: model, Fallback: "forbid"}
	}
	for i, feature := range features {
		policy := feature.Policy
		if policy == "" {
			policy = "require"
		}
		if !slices.Contains(featurePolicies, policy) {
			return nil, field.NotSupported(cpuPath.Child("features").Index(i).Child("policy"), policy, featurePolicies)
		}
		cpu.Features = append(cpu.Features, libvirtxml.DomainCPUFeature{Name: feature.Name, Policy: policy})
	}
	if cpu.Model != nil && !slices.ContainsFunc(features,
		func(f v1.CPUFeature) bool { return f.Name == deprecatedFeature }) {
		cpu.Features = append(cpu.Features, libvirtxml.DomainCPUFeature{Name: deprecatedFeature, Policy: "disable"})
	}
	return cpu, nil
}
