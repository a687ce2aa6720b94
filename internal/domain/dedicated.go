// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// configureDedicatedCPUs pins each vCPU to one of the CPUs that the kubelet assigned to the Pod. It reads the results
// of the configurators for CPU, memory and I/O threads.
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
		return field.Invalid(cpuPath.Child("numa", "guestMappingPassthrough"), "{}",
			fmt.Sprintf("the Pod's CPUs %s are in NUMA cells "+
				"so that the threads of %d of the guest's cores would be in different ones: have fewer threads in a core",
				idList(facts.CPUs...), missing))
	case missing > 0:
		return field.Invalid(path, true, fmt.Sprintf("the Pod has the CPUs %s for itself and the guest needs %d",
			idList(facts.CPUs...), t.vcpus()))
	}
	tune := &libvirtxml.DomainCPUTune{}
	for vcpu, cpu := range pins {
		tune.VCPUPin = append(tune.VCPUPin, libvirtxml.DomainCPUTuneVCPUPin{VCPU: uint(vcpu), CPUSet: idList(cpu)})
	}
	domain.CPUTune = tune
	if err := pinEmulator(vmi, pool, pins, domain); err != nil {
		return err
	}
	if domain.Features != nil && !facts.Emulation {
		// The guest does not share a dedicated CPU, so it need not give it up while it waits.
		if domain.Features.KVM == nil {
			domain.Features.KVM = &libvirtxml.DomainFeatureKVM{}
		}
		domain.Features.KVM.HintDedicated = &libvirtxml.DomainFeatureState{State: "on"}
	}
	return nil
}

// pinEmulator pins QEMU's main thread to a CPU of its own if the spec isolates it. It pins the I/O threads to the CPUs
// of the supplemental pool, or else to the CPU of the main thread, or else to the CPUs of the vCPUs.
func pinEmulator(vmi *v1.VirtualMachineInstance, pool *cpuPool, pins []uint, domain *libvirtxml.Domain) error {
	tune := domain.CPUTune
	if vmi.Spec.Domain.CPU.IsolateEmulatorThread {
		cpu, ok := pool.one()
		if !ok {
			return field.Invalid(cpuPath.Child("isolateEmulatorThread"), true, "the Pod has no CPU more than the guest has")
		}
		tune.EmulatorPin = &libvirtxml.DomainCPUTuneEmulatorPin{CPUSet: idList(cpu)}
	}
	if domain.IOThreads == 0 {
		return nil
	}
	var sets [][]uint
	switch own := pool.remaining(); {
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
			pin.CPUSet = idList(sets[i]...)
		}
		tune.IOThreadPin = append(tune.IOThreadPin, pin)
	}
	return nil
}

func hasSupplementalPool(spec *v1.DomainSpec) bool {
	return spec.IOThreadsPolicy != nil && *spec.IOThreadsPolicy == v1.IOThreadsPolicySupplementalPool
}

// spread distributes CPUs over threads: ranges of similar length, or one CPU for each thread, round robin, if there are
// more threads.
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

// idList returns IDs of CPUs or NUMA nodes as a list for libvirt, in the given order.
func idList(ids ...uint) string {
	text := make([]string, 0, len(ids))
	for _, id := range ids {
		text = append(text, strconv.FormatUint(uint64(id), 10))
	}
	return strings.Join(text, ",")
}
