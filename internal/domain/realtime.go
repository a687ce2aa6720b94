// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// configureRealtime disables what would interrupt a realtime guest. virt-broker sets the priority of the vCPUs after
// the start, because libvirtd in the Pod lacks the capability.
func configureRealtime(vmi *v1.VirtualMachineInstance, _ Facts, domain *libvirtxml.Domain) error {
	cpu := vmi.Spec.Domain.CPU
	if cpu == nil || cpu.Realtime == nil {
		return nil
	}
	if !cpu.DedicatedCPUPlacement {
		return field.Invalid(cpuPath.Child("realtime"), "{}", "needs spec.domain.cpu.dedicatedCpuPlacement")
	}
	if _, err := RealtimeVCPUs(vmi); err != nil {
		return err
	}
	if domain.Features != nil {
		domain.Features.PMU = &libvirtxml.DomainFeatureState{State: "off"}
	}
	if domain.MemoryBacking != nil {
		domain.MemoryBacking.MemoryNosharepages = &libvirtxml.DomainMemoryNosharepages{}
	}
	return nil
}

// RealtimeVCPUs returns the vCPUs with a realtime priority, in ascending order: those of the mask that are present at
// the start, or without a mask all that are present. It returns nil for a guest that is not realtime.
func RealtimeVCPUs(vmi *v1.VirtualMachineInstance) ([]uint, error) {
	cpu := vmi.Spec.Domain.CPU
	if cpu == nil || cpu.Realtime == nil {
		return nil, nil
	}
	t := topologyOf(&vmi.Spec.Domain)
	if err := t.check(); err != nil {
		return nil, err
	}
	vcpus, mask := t.vcpus(), strings.TrimSpace(cpu.Realtime.Mask)
	if mask == "" {
		mask = "0-" + strconv.FormatUint(uint64(vcpus-1), 10)
	}
	chosen := make([]bool, vcpus)
	var excluded []uint
	for term := range strings.SplitSeq(mask, ",") {
		text, excludes := strings.CutPrefix(strings.TrimSpace(term), "^")
		first, last, ok := vcpuRange(text)
		if !ok || (excludes && first != last) {
			return nil, field.Invalid(cpuPath.Child("realtime", "mask"), cpu.Realtime.Mask,
				"must be a list of vCPUs such as 0-3,^1: numbers, ranges, and numbers to leave out after ^")
		}
		if excludes {
			excluded = append(excluded, first)
			continue
		}
		for id := first; id <= last && id < vcpus; id++ {
			chosen[id] = true
		}
	}
	var list []uint
	for id := range vcpus {
		if chosen[id] && !slices.Contains(excluded, id) {
			list = append(list, id)
		}
	}
	if len(list) == 0 {
		return nil, field.Invalid(cpuPath.Child("realtime", "mask"), cpu.Realtime.Mask, "chooses none of the guest's vCPUs")
	}
	return list, nil
}

// vcpuRange parses a number or a range such as 1-3.
func vcpuRange(text string) (first, last uint, ok bool) {
	from, to, isRange := strings.Cut(text, "-")
	if !isRange {
		to = from
	}
	const bits = 31
	a, errA := strconv.ParseUint(from, 10, bits)
	b, errB := strconv.ParseUint(to, 10, bits)
	return uint(a), uint(b), errA == nil && errB == nil && a <= b
}
