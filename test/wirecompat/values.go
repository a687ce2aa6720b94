// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package wirecompat

// knownValues are what random objects have where KubeVirt's schema does not tell what is taken: CEL rules, patterns, and
// values that only its webhooks check while our schema says them. By the end of the path.
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
	// Durations are text to KubeVirt's schema. One that is none would keep every component from reading the object.
	"batchEvictionInterval": {"24h", "1h30m", "90s"},
	"caOverlapInterval":     {"24h", "1h30m", "90s"},
	"caRotateInterval":      {"24h", "1h30m", "90s"},
	"certRotateInterval":    {"24h", "1h30m", "90s"},
	"duration":              {"24h", "1h30m", "90s"},
	"renewBefore":           {"24h", "1h30m", "90s"},
	"spec.runStrategy":      {"Always", "Halted", "Manual", "RerunOnFailure", "Once", "WaitAsReceiver"},
}
