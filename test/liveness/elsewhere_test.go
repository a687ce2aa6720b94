// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package liveness_test

// consumedElsewhere are the leaves that do not change the outcome, with what uses them.
var consumedElsewhere = map[string]string{
	"domain.devices.disks[].lun.bus": "internal/domain refuses every bus but scsi, which is the default",
	"evictionStrategy":               "internal/migration/eviction decides by it what becomes of an eviction",
	"startStrategy":                  "internal/agent/reconciler starts the domain paused",
	"volumes[].hostDisk.shared":      "internal/agent/reconciler judges by it whether the VMI can migrate",
}
