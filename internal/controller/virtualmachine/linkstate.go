// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine

import (
	v1 "github.com/vireo-project/vireo/api/v1"
)

// copyLinkStates makes the links of interfaces as those of the interfaces with the same name in another spec. It leaves interfaces
// that are absent in one of the specs: a guest cannot get or lose an interface while it runs.
func copyLinkStates(to, from *v1.VirtualMachineInstanceSpec) {
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
