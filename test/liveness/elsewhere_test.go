// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package liveness_test

// consumedElsewhere are the leaves that do not change the outcome, with what uses them.
var consumedElsewhere = map[string]string{
	"domain.devices.disks[].lun.bus": "internal/domain refuses every bus but scsi, which is the default",
	"evictionStrategy":               "internal/decide/migration/eviction decides by it what becomes of an eviction",
	"startStrategy":                  "internal/agent/vmi starts the domain paused",
	"utilityVolumes[].name":          utilityVolumes,
	"utilityVolumes[].claimName":     utilityVolumes,
	"utilityVolumes[].readOnly":      utilityVolumes,
	"utilityVolumes[].type":          "virt-controller sets it for those who read the VMI: how a volume is attached does not depend on it",
	"volumes[].hostDisk.shared":      "internal/agent/vmi judges by it whether the VMI can migrate",
}

// utilityVolumes uses the fields of utility volumes, which a new VMI cannot have.
const utilityVolumes = "internal/controller/virtualmachineinstance attaches the claim to the node of the running guest"
