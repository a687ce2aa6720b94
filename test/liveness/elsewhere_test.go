// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package liveness_test

// consumedElsewhere are the leaves that do not show in Pod, network, media and domain, with what uses them.
var consumedElsewhere = map[string]string{
	"accessCredentials[].sshPublicKey.propagationMethod.qemuGuestAgent.users": "internal/handler/reconciler gives the keys to these users",
	"accessCredentials[].userPassword.propagationMethod.qemuGuestAgent":       "internal/handler/reconciler sets the passwords, the only way there is",
	"domain.cpu.realtime.mask":       "internal/handler/reconciler gives the vCPUs that it names their priority",
	"domain.devices.disks[].lun.bus": "internal/domain refuses every bus but scsi, which is the default",
	"startStrategy":                  "internal/handler/reconciler starts the domain paused",
	"volumes[].hostDisk.shared":      "internal/handler/reconciler judges by it whether the VMI can migrate",
}
