// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package wirecompat

import (
	"strings"
	"testing"
)

// onPurpose is an intended difference.
type onPurpose struct {
	// path is a suffix of the paths that it covers, from the start of a field's name.
	path string
	// what is the kind of difference, as in difference.what.
	what string
	// why is the reason.
	why string
}

// olderVersion is why Vireo's v1alpha1 has fields that KubeVirt's Go types of that version lack: KubeVirt's CRDs have
// the schema of the newest version for all versions (its pkg/virt-operator/resource/generate/components/crds.go). With
// another schema the API server would drop the fields when a client reads or writes an object in the older version.
const olderVersion = "KubeVirt's CRD has it in the older version as well"

// ownField is why a VMI's status has fields that KubeVirt's has not: virt-controller and the agent have no other way to
// agree on the freeze of a guest (ADR 86).
const ownField = "a freeze for a snapshot, which KubeVirt requests by calls"

// typeDifferences are the intended differences of the Go types.
var typeDifferences = []onPurpose{
	{"VirtualMachineRestore.spec.targetReadinessPolicy", addedField, olderVersion},
	{"VirtualMachineRestore.spec.volumeOwnershipPolicy", addedField, olderVersion},
	{"VirtualMachineRestore.spec.volumeRestoreOverrides", addedField, olderVersion},
	{"VirtualMachineRestore.spec.volumeRestorePolicy", addedField, olderVersion},
	{"VirtualMachineClone.spec.patches", addedField, olderVersion},
	{"VirtualMachineClone.spec.volumeNamePolicy", addedField, olderVersion},
	{"VirtualMachineInstance.status.snapshotFreeze", addedField, ownField},
	{"VirtualMachineInstance.status.snapshotFreezeRecord", addedField, ownField},
	{"VirtualMachineInstance.status.diskBackup", addedField, ownField},
	{"VirtualMachineInstance.status.diskBackupRecord", addedField, ownField},
	{"VirtualMachineInstance.status.trackedVolumes", addedField, ownField},
}

// accepted matches differences with a list and records which entries matched.
type accepted struct {
	list []onPurpose
	used []bool
}

func newAccepted(list []onPurpose) *accepted {
	return &accepted{list: list, used: make([]bool, len(list))}
}

// has reports whether the list covers a difference.
func (a *accepted) has(d difference) bool {
	found := false
	for i, entry := range a.list {
		if entry.what == d.what && (d.path == entry.path || strings.HasSuffix(d.path, "."+entry.path)) {
			a.used[i] = true
			found = true
		}
	}
	return found
}

// checkUsed fails the test for entries that have not matched.
func (a *accepted) checkUsed(t *testing.T) {
	t.Helper()
	for i, entry := range a.list {
		if !a.used[i] {
			t.Errorf("%s (%s) is listed as a difference, but there is none", entry.path, entry.what)
		}
	}
}

// durationWhy is the reason for the pattern of durations.
const durationWhy = "KubeVirt fails to decode an invalid duration, without naming the field"

// alwaysWrittenWhy is why a field has a default.
const alwaysWrittenWhy = "KubeVirt's encoder always writes it, and Vireo's components write only what they change"

// schemaDifferences are the intended differences of the schemas.
var schemaDifferences = []onPurpose{
	{"VirtualMachine.spec", schemaRule, "KubeVirt's webhook rejects both or none of running and runStrategy"},
	{"VirtualMachinePool.spec.virtualMachineTemplate.spec", schemaRule, "KubeVirt's webhook rejects both or none of running and runStrategy"},
	{"VirtualMachineRestore.spec.targetReadinessPolicy", schemaAdded, olderVersion},
	{"VirtualMachineRestore.spec.volumeOwnershipPolicy", schemaAdded, olderVersion},
	{"VirtualMachineRestore.spec.volumeRestoreOverrides", schemaAdded, olderVersion},
	{"VirtualMachineRestore.spec.volumeRestorePolicy", schemaAdded, olderVersion},
	{"VirtualMachineRestore.status.deletedDataVolumes", schemaList, olderVersion},
	{"VirtualMachineClone.spec.patches", schemaAdded, olderVersion},
	{"VirtualMachineClone.spec.volumeNamePolicy", schemaAdded, olderVersion},
	{"VirtualMachineInstance.status.snapshotFreeze", schemaAdded, ownField},
	{"VirtualMachineInstance.status.snapshotFreezeRecord", schemaAdded, ownField},
	{"VirtualMachineInstance.status.diskBackup", schemaAdded, ownField},
	{"VirtualMachineInstance.status.diskBackupRecord", schemaAdded, ownField},
	{"VirtualMachineInstance.status.trackedVolumes", schemaAdded, ownField},
	{"spec.runStrategy", schemaStricter, "KubeVirt's webhook rejects any other value"},
	{"selfSigned.caRotateInterval", schemaRule, durationWhy},
	{"selfSigned.certRotateInterval", schemaRule, durationWhy},
	{"selfSigned.caOverlapInterval", schemaRule, durationWhy},
	{"selfSigned.ca.duration", schemaRule, durationWhy},
	{"selfSigned.ca.renewBefore", schemaRule, durationWhy},
	{"selfSigned.server.duration", schemaRule, durationWhy},
	{"selfSigned.server.renewBefore", schemaRule, durationWhy},
	{"workloadUpdateStrategy.batchEvictionInterval", schemaRule, durationWhy},
	{"MigrationPolicy.spec.bandwidthPerMigration", schemaRule, "KubeVirt's webhook rejects a negative value"},
	{"MigrationPolicy.spec.completionTimeoutPerGiB", schemaRule, "KubeVirt's webhook rejects a negative value"},
	{"dataVolumeTemplates[]", schemaNullable, "KubeVirt's webhook rejects an element without a name, and null has none"},
	{"VirtualMachineInstance.status", schemaDefault, "a new VMI has the phase Pending without a write"},
	{"VirtualMachineInstance.status.guestOSInfo", schemaDefault, alwaysWrittenWhy},
	{"VirtualMachineInstance.status.runtimeUser", schemaDefault, alwaysWrittenWhy},
}
