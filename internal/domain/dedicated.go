// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/cpulist"
)

// configureDedicatedCPUs pins each vCPU to a CPU of its own, of those that the kubelet gave to the Pod. It comes after the
// CPU, the memory and the I/O threads, which it refers to.
func configureDedicatedCPUs(vmi *v1.VirtualMachineInstance, facts Facts, domain *libvirtxml.Domain) error {
	if !vmi.IsCPUDedicated() {
		return nil
	}
	path := cpuPath.Child("dedicatedCpuPlacement")
	if len(facts.CPUs) == 0 {
		return fmt.Errorf("%s: the CPUs of the Pod are %w", path, ErrNotPrepared)
	}
	t, strict := topologyOf(&vmi.Spec.Domain), passesNUMA(vmi)
	pool := newCPUPool(facts.NUMACells, facts.CPUs, t.threads)
	pins, missing := pool.take(int(t.sockets*t.cores), strict)
	switch {
	case missing > 0 && strict && uint(len(facts.CPUs)) >= t.vcpus():
		return field.Invalid(cpuPath.Child("numa", "guestMappingPassthrough"), "{}", fmt.Sprintf("the Pod's CPUs %s lie in NUMA cells "+
			"so that the threads of %d of the guest's cores would be in different ones: have fewer threads in a core", cpulist.Format(facts.CPUs...), missing))
	case missing > 0:
		return field.Invalid(path, true, fmt.Sprintf("the Pod has the CPUs %s for itself and the guest needs %d",
			cpulist.Format(facts.CPUs...), t.vcpus()))
	}
	tune := &libvirtxml.DomainCPUTune{}
	for vcpu, cpu := range pins {
		tune.VCPUPin = append(tune.VCPUPin, libvirtxml.DomainCPUTuneVCPUPin{VCPU: uint(vcpu), CPUSet: cpulist.Format(cpu)})
	}
	domain.CPUTune = tune
	if err := pinEmulator(vmi, pool, pins, domain); err != nil {
		return err
	}
	if domain.Features != nil && !facts.Emulation {
		// The guest need not yield a CPU that nobody else wants.
		if domain.Features.KVM == nil {
			domain.Features.KVM = &libvirtxml.DomainFeatureKVM{}
		}
		domain.Features.KVM.HintDedicated = &libvirtxml.DomainFeatureState{State: "on"}
	}
	return nil
}

// pinEmulator gives QEMU's own thread the CPU that was asked for it, and says where the I/O threads run: beside it, on
// CPUs that were asked for them, or on those of the vCPUs.
func pinEmulator(vmi *v1.VirtualMachineInstance, pool *cpuPool, pins []uint, domain *libvirtxml.Domain) error {
	tune := domain.CPUTune
	if vmi.Spec.Domain.CPU.IsolateEmulatorThread {
		cpu, ok := pool.one()
		if !ok {
			return field.Invalid(cpuPath.Child("isolateEmulatorThread"), true, "the Pod has no CPU more than the guest has")
		}
		tune.EmulatorPin = &libvirtxml.DomainCPUTuneEmulatorPin{CPUSet: cpulist.Format(cpu)}
	}
	if domain.IOThreads == 0 {
		return nil
	}
	var sets [][]uint
	switch own := pool.left(); {
	case hasSupplementalPool(&vmi.Spec.Domain) && len(own) > 0:
		sets = spread(own, int(domain.IOThreads))
	case tune.EmulatorPin != nil:
		sets = nil
	default:
		sets = spread(pins, int(domain.IOThreads))
	}
	for i := range int(domain.IOThreads) {
		pin := libvirtxml.DomainCPUTuneIOThreadPin{IOThread: uint(i) + 1}
		if sets == nil {
			pin.CPUSet = tune.EmulatorPin.CPUSet
		} else {
			pin.CPUSet = cpulist.Format(sets[i]...)
		}
		tune.IOThreadPin = append(tune.IOThreadPin, pin)
	}
	return nil
}

func hasSupplementalPool(spec *v1.DomainSpec) bool {
	return spec.IOThreadsPolicy != nil && *spec.IOThreadsPolicy == v1.IOThreadsPolicySupplementalPool
}

// spread deals CPUs out to threads: ranges of about the same length, or one CPU each in turn where the threads are more.
func spread(cpus []uint, threads int) [][]uint {
	sets := make([][]uint, threads)
	for i := range sets {
		if threads >= len(cpus) {
			sets[i] = cpus[i%len(cpus) : i%len(cpus)+1]
			continue
		}
		sets[i] = cpus[i*len(cpus)/threads : (i+1)*len(cpus)/threads]
	}
	return sets
}
