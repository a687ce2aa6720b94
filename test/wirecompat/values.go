// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package wirecompat

// knownValues are valid values of fields whose validity KubeVirt's schema does not express: CEL rules, patterns, and
// values that KubeVirt's webhooks and Vireo's schema validate. Keys are suffixes of paths.
var knownValues = map[string][]any{
	"containerPath.path":                               {"/var/lib/data", "/srv"},
	"containerPath.readOnly":                           {true},
	"filesystemOverhead":                               {"0", "0.055", "1"},
	"VirtualMachine.spec.running":                      {unset},
	"virtualMachineTemplate.spec.running":              {unset},
	"VirtualMachineBackup.spec.source.apiGroup":        {"kubevirt.io"},
	"VirtualMachineBackup.spec.source.kind":            {"VirtualMachine"},
	"VirtualMachineBackup.spec.pvcName":                {"backup"},
	"VirtualMachineBackup.spec.tokenSecretRef":         {"token"},
	"VirtualMachineBackupTracker.spec.source.apiGroup": {"kubevirt.io"},
	"VirtualMachineBackupTracker.spec.source.kind":     {"VirtualMachine"},
	// Durations are strings in KubeVirt's schema. With an invalid one, no component could decode the object.
	"batchEvictionInterval": {"24h", "1h30m", "90s"},
	"caOverlapInterval":     {"24h", "1h30m", "90s"},
	"caRotateInterval":      {"24h", "1h30m", "90s"},
	"certRotateInterval":    {"24h", "1h30m", "90s"},
	"duration":              {"24h", "1h30m", "90s"},
	"renewBefore":           {"24h", "1h30m", "90s"},
	"spec.runStrategy":      {"Always", "Halted", "Manual", "RerunOnFailure", "Once", "WaitAsReceiver"},
}
