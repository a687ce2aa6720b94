// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"strings"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// addressesAfterMigration describes for each interface whether the guest keeps its address in a migration.
func addressesAfterMigration(vmi *v1.VirtualMachineInstance) string {
	interfaces := vmi.Spec.Domain.Devices.Interfaces
	descriptions := make([]string, 0, len(interfaces))
	for i := range interfaces {
		descriptions = append(descriptions, "interface "+interfaces[i].Name+" "+addressAfterMigration(vmi, &interfaces[i]))
	}
	return strings.Join(descriptions, "; ")
}

func addressAfterMigration(vmi *v1.VirtualMachineInstance, iface *v1.Interface) string {
	switch {
	case !onPodNetwork(vmi, iface.Name):
		return "keeps its address"
	case iface.Bridge != nil:
		return "gets the address of the new Pod, once the guest requests one again"
	default:
		return "keeps its address inside the guest; from outside, that of the new Pod leads to it"
	}
}
