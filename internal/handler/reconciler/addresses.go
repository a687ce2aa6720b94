// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reconciler

import (
	"strings"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// addressesAfterMigration says of each interface whether the guest is reached by the same address after a migration.
func addressesAfterMigration(vmi *v1.VirtualMachineInstance) string {
	interfaces := vmi.Spec.Domain.Devices.Interfaces
	said := make([]string, 0, len(interfaces))
	for i := range interfaces {
		said = append(said, "interface "+interfaces[i].Name+" "+addressAfterMigration(vmi, &interfaces[i]))
	}
	return strings.Join(said, "; ")
}

func addressAfterMigration(vmi *v1.VirtualMachineInstance, iface *v1.Interface) string {
	switch {
	case !onPodNetwork(vmi, iface.Name):
		return "keeps its address"
	case iface.Bridge != nil:
		return "gets the address of the new Pod, once the guest asks for one again"
	default:
		return "keeps its address inside the guest; from outside, that of the new Pod leads to it"
	}
}
