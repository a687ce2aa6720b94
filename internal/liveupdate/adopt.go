// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package liveupdate

import (
	v1 "github.com/vireo-project/vireo/api/v1"
)

func adoptNodeSelector(before, now *v1.VirtualMachineInstanceSpec, _ *v1.VirtualMachineInstance) {
	before.NodeSelector = now.NodeSelector
}

func adoptAffinity(before, now *v1.VirtualMachineInstanceSpec, _ *v1.VirtualMachineInstance) {
	before.Affinity = now.Affinity
}

func adoptTolerations(before, now *v1.VirtualMachineInstanceSpec, _ *v1.VirtualMachineInstance) {
	before.Tolerations = now.Tolerations
}

func adoptSockets(before, now *v1.VirtualMachineInstanceSpec, _ *v1.VirtualMachineInstance) {
	if before.Domain.CPU == nil && now.Domain.CPU == nil {
		return
	}
	for _, spec := range []*v1.VirtualMachineInstanceSpec{before, now} {
		if spec.Domain.CPU == nil {
			spec.Domain.CPU = &v1.CPU{}
		}
	}
	before.Domain.CPU.Sockets = now.Domain.CPU.Sockets
}

// adoptMemory also adopts that a template gets memory.guest: until then, the guest's memory was that of the resources.
func adoptMemory(before, now *v1.VirtualMachineInstanceSpec, _ *v1.VirtualMachineInstance) {
	if now.Domain.Memory == nil || now.Domain.Memory.Guest == nil {
		return
	}
	if before.Domain.Memory == nil {
		before.Domain.Memory = &v1.Memory{}
	}
	before.Domain.Memory.Guest = now.Domain.Memory.Guest
}

// adoptIdentity adopts a UUID or a serial number that the guest has already.
func adoptIdentity(before, now *v1.VirtualMachineInstanceSpec, vmi *v1.VirtualMachineInstance) {
	is, to := vmi.Spec.Domain.Firmware, now.Domain.Firmware
	if to == nil {
		return
	}
	if before.Domain.Firmware == nil {
		before.Domain.Firmware = &v1.Firmware{}
	}
	if is != nil && is.UUID == to.UUID {
		before.Domain.Firmware.UUID = to.UUID
	}
	if is != nil && is.Serial == to.Serial {
		before.Domain.Firmware.Serial = to.Serial
	}
}

// adoptLinks leaves interfaces that are absent in one of the specs: a guest cannot get or lose an interface while it runs.
func adoptLinks(before, now *v1.VirtualMachineInstanceSpec, _ *v1.VirtualMachineInstance) {
	CopyLinkStates(before, now)
}

// CopyLinkStates makes the links of interfaces as those of the interfaces with the same name in another spec. It leaves interfaces
// that are absent in one of the specs.
func CopyLinkStates(to, from *v1.VirtualMachineInstanceSpec) {
	states := map[string]v1.InterfaceState{}
	for i := range from.Domain.Devices.Interfaces {
		if iface := &from.Domain.Devices.Interfaces[i]; iface.State != v1.InterfaceStateAbsent {
			states[iface.Name] = iface.State
		}
	}
	for i := range to.Domain.Devices.Interfaces {
		iface := &to.Domain.Devices.Interfaces[i]
		if state, found := states[iface.Name]; found && iface.State != v1.InterfaceStateAbsent {
			iface.State = state
		}
	}
}

// adoptClaims adopts the volumes with another claim.
func adoptClaims(before, now *v1.VirtualMachineInstanceSpec, _ *v1.VirtualMachineInstance) {
	desired := map[string]*v1.Volume{}
	for i := range now.Volumes {
		desired[now.Volumes[i].Name] = &now.Volumes[i]
	}
	for i := range before.Volumes {
		had, to := before.Volumes[i].WrittenClaim(), desired[before.Volumes[i].Name]
		if to != nil && had != "" && to.WrittenClaim() != "" && to.WrittenClaim() != had {
			before.Volumes[i] = *to.DeepCopy()
		}
	}
}
