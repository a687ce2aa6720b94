// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// configureBalloon adds the balloon, through which the guest tells of its memory and gives free pages back.
func configureBalloon(vmi *v1.VirtualMachineInstance, facts Facts, domain *libvirtxml.Domain) error {
	if !enabled(vmi.Spec.Domain.Devices.AutoattachMemBalloon) {
		// libvirt adds one where none is named.
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

// reportsFreePages: huge pages are the guest's for good, so that there is nothing to give back. A guest that was promised its CPUs or its
// latency does not spend them on that: each page that it takes again is a fault. KubeVirt's conditions (IsHighPerformanceVMI in
// kubevirt.io/api core/v1).
func reportsFreePages(vmi *v1.VirtualMachineInstance) bool {
	memory := vmi.Spec.Domain.Memory
	if memory != nil && memory.Hugepages != nil {
		return false
	}
	if cpu := vmi.Spec.Domain.CPU; cpu != nil && (cpu.DedicatedCPUPlacement || cpu.IsolateEmulatorThread || cpu.Realtime != nil) {
		return false
	}
	return vmi.Annotations[v1.FreePageReportingDisabledAnnotation] != "true"
}
