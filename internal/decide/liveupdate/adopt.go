// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package liveupdate

import (
	"slices"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/vmistatus"
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

// adoptLinks leaves interfaces that are absent in one of the specs: see adoptInterfaces.
func adoptLinks(before, now *v1.VirtualMachineInstanceSpec, _ *v1.VirtualMachineInstance) {
	CopyLinkStates(before, now)
}

// CopyLinkStates makes the links of interfaces as those of the interfaces with the same name in another spec. It leaves
// interfaces that are absent in one of the specs.
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

// IsPluggable reports whether a running guest can get and lose an interface of a spec.
func IsPluggable(spec *v1.VirtualMachineInstanceSpec, iface *v1.Interface) bool {
	network := networkOf(spec, iface.Name)
	return network != nil && network.IsPluggable() && iface.Bridge != nil && !spec.Domain.Devices.DisableHotplug
}

// adoptInterfaces adopts interfaces that the guest gets and loses while it runs. before has the interfaces of the
// start. One that the instance has got since is compared with what it has, and one that the guest has and the template
// does not have counts as removed, unless it is absent.
func adoptInterfaces(before, now *v1.VirtualMachineInstanceSpec, vmi *v1.VirtualMachineInstance) {
	at := 0
	for i := range now.Domain.Devices.Interfaces {
		iface := &now.Domain.Devices.Interfaces[i]
		has := Interface(&vmi.Spec, iface.Name)
		if had := indexOf(before, iface.Name); IsPluggable(now, iface) && (had < 0 || has == nil) {
			from := now
			if has != nil {
				from = &vmi.Spec
			}
			if removeInterface(before, iface.Name); had >= 0 && had < at {
				at--
			}
			insertInterface(before, from, iface.Name, at)
		}
		had := Interface(before, iface.Name)
		if had == nil {
			continue
		}
		if IsPluggable(now, iface) && (had.State == v1.InterfaceStateAbsent || iface.State == v1.InterfaceStateAbsent) {
			had.State = iface.State
		}
		at = indexOf(before, iface.Name) + 1
	}
	for i := range vmi.Spec.Domain.Devices.Interfaces {
		iface := &vmi.Spec.Domain.Devices.Interfaces[i]
		switch {
		case Interface(now, iface.Name) != nil || !IsPluggable(&vmi.Spec, iface):
		case iface.State == v1.InterfaceStateAbsent:
			removeInterface(before, iface.Name)
		case Interface(before, iface.Name) == nil && vmistatus.HasInterface(&vmi.Status, iface.Name):
			insertInterface(before, &vmi.Spec, iface.Name, len(before.Domain.Devices.Interfaces))
		}
	}
	removeLost(before, now, vmi)
}

// adoptNetworkNames adopts other networks of Multus for interfaces that the guest keeps.
func adoptNetworkNames(before, now *v1.VirtualMachineInstanceSpec, _ *v1.VirtualMachineInstance) {
	copyNetworkNames(before, now)
}

// copyNetworkNames makes the networks of interfaces that a running guest can get those of the same interfaces in
// another spec.
func copyNetworkNames(to, from *v1.VirtualMachineInstanceSpec) {
	for i := range from.Domain.Devices.Interfaces {
		iface := &from.Domain.Devices.Interfaces[i]
		if has := Interface(to, iface.Name); has != nil && IsPluggable(from, iface) && IsPluggable(to, has) {
			networkOf(to, iface.Name).Multus.NetworkName = networkOf(from, iface.Name).Multus.NetworkName
		}
	}
}

// removeLost removes from before the interfaces that neither the instance nor the template has any more.
func removeLost(before, now *v1.VirtualMachineInstanceSpec, vmi *v1.VirtualMachineInstance) {
	for i := len(before.Domain.Devices.Interfaces) - 1; i >= 0; i-- {
		iface := &before.Domain.Devices.Interfaces[i]
		if Interface(now, iface.Name) == nil && Interface(&vmi.Spec, iface.Name) == nil && IsPluggable(before, iface) {
			removeInterface(before, iface.Name)
		}
	}
}

// CopyInterfaces copies the interfaces of a template that a running guest can get or lose to the spec of its instance,
// if NeedRestart names none, and the networks of those that it keeps. One that the template does not have becomes
// absent, and is removed once the guest does not have it.
func CopyInterfaces(to, from *v1.VirtualMachineInstanceSpec, inGuest func(name string) bool) {
	copyNetworkNames(to, from)
	for i := range from.Domain.Devices.Interfaces {
		iface := &from.Domain.Devices.Interfaces[i]
		if !IsPluggable(from, iface) {
			continue
		}
		has := Interface(to, iface.Name)
		if has == nil {
			insertInterface(to, from, iface.Name, len(to.Domain.Devices.Interfaces))
		} else if has.State == v1.InterfaceStateAbsent || iface.State == v1.InterfaceStateAbsent {
			has.State = iface.State
		}
	}
	for i := len(to.Domain.Devices.Interfaces) - 1; i >= 0; i-- {
		iface := &to.Domain.Devices.Interfaces[i]
		switch {
		case Interface(from, iface.Name) != nil || !IsPluggable(to, iface):
		case iface.State != v1.InterfaceStateAbsent:
			iface.State = v1.InterfaceStateAbsent
		case !inGuest(iface.Name):
			removeInterface(to, iface.Name)
		}
	}
}

// SameInterfaces reports whether CopyInterfaces has nothing to do.
func SameInterfaces(to, from *v1.VirtualMachineInstanceSpec) bool {
	for i := range from.Domain.Devices.Interfaces {
		iface := &from.Domain.Devices.Interfaces[i]
		has := Interface(to, iface.Name)
		if !IsPluggable(from, iface) {
			continue
		}
		if has == nil || (has.State == v1.InterfaceStateAbsent) != (iface.State == v1.InterfaceStateAbsent) ||
			IsPluggable(to, has) &&
				networkOf(to, iface.Name).Multus.NetworkName != networkOf(from, iface.Name).Multus.NetworkName {
			return false
		}
	}
	return !slices.ContainsFunc(to.Domain.Devices.Interfaces, func(i v1.Interface) bool {
		return IsPluggable(to, &i) && Interface(from, i.Name) == nil
	})
}

// HasConnected reports whether a spec has an interface that is not absent.
func HasConnected(spec *v1.VirtualMachineInstanceSpec, name string) bool {
	iface := Interface(spec, name)
	return iface != nil && iface.State != v1.InterfaceStateAbsent
}

func indexOf(spec *v1.VirtualMachineInstanceSpec, name string) int {
	return slices.IndexFunc(spec.Domain.Devices.Interfaces, func(i v1.Interface) bool { return i.Name == name })
}

// Interface returns an interface of a spec, or nil.
func Interface(spec *v1.VirtualMachineInstanceSpec, name string) *v1.Interface {
	if at := indexOf(spec, name); at >= 0 {
		return &spec.Domain.Devices.Interfaces[at]
	}
	return nil
}

func networkOf(spec *v1.VirtualMachineInstanceSpec, name string) *v1.Network {
	for i := range spec.Networks {
		if spec.Networks[i].Name == name {
			return &spec.Networks[i]
		}
	}
	return nil
}

// insertInterface copies an interface and its network from another spec. The network goes to the place of the list that
// it has there among the same neighbors, so that its addition is not a change of the order.
func insertInterface(to, from *v1.VirtualMachineInstanceSpec, name string, at int) {
	to.Domain.Devices.Interfaces = slices.Insert(to.Domain.Devices.Interfaces, at, *Interface(from, name).DeepCopy())
	if network := networkOf(from, name); network != nil && networkOf(to, name) == nil {
		place := 0
		for i := range from.Networks {
			if from.Networks[i].Name == name {
				break
			}
			neighbor := from.Networks[i].Name
			if found := slices.IndexFunc(to.Networks, func(n v1.Network) bool { return n.Name == neighbor }); found >= 0 {
				place = found + 1
			}
		}
		to.Networks = slices.Insert(to.Networks, place, *network.DeepCopy())
	}
}

func removeInterface(from *v1.VirtualMachineInstanceSpec, name string) {
	from.Domain.Devices.Interfaces = slices.DeleteFunc(from.Domain.Devices.Interfaces,
		func(i v1.Interface) bool { return i.Name == name })
	from.Networks = slices.DeleteFunc(from.Networks, func(n v1.Network) bool { return n.Name == name })
}
