// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// configureBalloon adds the memory balloon, with which the guest reports statistics of its memory and returns free
// pages.
func configureBalloon(vmi *v1.VirtualMachineInstance, facts Facts, domain *libvirtxml.Domain) error {
	if !enabled(vmi.Spec.Domain.Devices.AutoattachMemBalloon) {
		// Without this, libvirt adds a balloon.
		domain.Devices.MemBalloon = &libvirtxml.DomainMemBalloon{Model: "none"}
		return nil
	}
	domain.Devices.MemBalloon = &libvirtxml.DomainMemBalloon{
		Model:             virtioModel(vmi),
		FreePageReporting: onOff(reportsFreePages(vmi)),
	}
	if facts.MemBalloonStatsPeriod > 0 {
		domain.Devices.MemBalloon.Stats = &libvirtxml.DomainMemBalloonStats{Period: facts.MemBalloonStatsPeriod}
	}
	return nil
}

// reportsFreePages reports whether the guest returns free pages to the node. Huge pages are never returned. Guests with
// dedicated CPUs or realtime guests do not return pages, because using a page again costs a page fault. The conditions
// are KubeVirt's (IsHighPerformanceVMI in kubevirt.io/api core/v1).
func reportsFreePages(vmi *v1.VirtualMachineInstance) bool {
	memory := vmi.Spec.Domain.Memory
	if memory != nil && memory.Hugepages != nil {
		return false
	}
	if cpu := vmi.Spec.Domain.CPU; cpu != nil &&
		(cpu.DedicatedCPUPlacement || cpu.IsolateEmulatorThread || cpu.Realtime != nil) {
		return false
	}
	return vmi.Annotations[v1.FreePageReportingDisabledAnnotation] != "true"
}
