// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package wirecompat

import (
	"strings"
	"testing"
)

// onPurpose is a difference that we want.
type onPurpose struct {
	// path is the end of the paths that it covers, at a field's boundary.
	path string
	// what is the kind of difference, as in difference.what.
	what string
	// why is for whoever wonders.
	why string
}

// olderVersion is why our v1alpha1 has what KubeVirt's Go types of that version lack: KubeVirt's CRDs have one schema for
// all versions, that of the newest (its pkg/virt-operator/resource/generate/components/crds.go). With another schema the
// API server would drop the fields whenever somebody reads or writes an object in the older version.
const olderVersion = "KubeVirt's CRD has it in the older version as well"

// typeDifferences are the ways in which our Go types differ from KubeVirt's on purpose.
var typeDifferences = []onPurpose{
	{"VirtualMachineRestore.spec.targetReadinessPolicy", addedField, olderVersion},
	{"VirtualMachineRestore.spec.volumeOwnershipPolicy", addedField, olderVersion},
	{"VirtualMachineRestore.spec.volumeRestoreOverrides", addedField, olderVersion},
	{"VirtualMachineRestore.spec.volumeRestorePolicy", addedField, olderVersion},
	{"VirtualMachineClone.spec.patches", addedField, olderVersion},
	{"VirtualMachineClone.spec.volumeNamePolicy", addedField, olderVersion},
}

// accepted matches differences against a list and knows which entries it used.
type accepted struct {
	list []onPurpose
	used []bool
}

func newAccepted(list []onPurpose) *accepted {
	return &accepted{list: list, used: make([]bool, len(list))}
}

// has tells whether the list covers a difference.
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

// checkUsed fails for entries that no longer cover anything.
func (a *accepted) checkUsed(t *testing.T) {
	t.Helper()
	for i, entry := range a.list {
		if !a.used[i] {
			t.Errorf("%s (%s) is listed as a difference and is none", entry.path, entry.what)
		}
	}
}

// durationWhy is why durations have a pattern.
const durationWhy = "what is no duration fails to decode in KubeVirt, without the field's name"

// schemaDifferences are the ways in which our schemas differ from KubeVirt's on purpose.
var schemaDifferences = []onPurpose{
	{"VirtualMachine.spec", schemaRule, "KubeVirt's webhook refuses both or none of running and runStrategy"},
	{"VirtualMachinePool.spec.virtualMachineTemplate.spec", schemaRule, "KubeVirt's webhook refuses both or none of running and runStrategy"},
	{"VirtualMachineRestore.spec.targetReadinessPolicy", schemaAdded, olderVersion},
	{"VirtualMachineRestore.spec.volumeOwnershipPolicy", schemaAdded, olderVersion},
	{"VirtualMachineRestore.spec.volumeRestoreOverrides", schemaAdded, olderVersion},
	{"VirtualMachineRestore.spec.volumeRestorePolicy", schemaAdded, olderVersion},
	{"VirtualMachineRestore.status.deletedDataVolumes", schemaList, olderVersion},
	{"VirtualMachineClone.spec.patches", schemaAdded, olderVersion},
	{"VirtualMachineClone.spec.volumeNamePolicy", schemaAdded, olderVersion},
	{"spec.runStrategy", schemaStricter, "KubeVirt's webhook refuses any other value"},
	{"selfSigned.caRotateInterval", schemaRule, durationWhy},
	{"selfSigned.certRotateInterval", schemaRule, durationWhy},
	{"selfSigned.caOverlapInterval", schemaRule, durationWhy},
	{"selfSigned.ca.duration", schemaRule, durationWhy},
	{"selfSigned.ca.renewBefore", schemaRule, durationWhy},
	{"selfSigned.server.duration", schemaRule, durationWhy},
	{"selfSigned.server.renewBefore", schemaRule, durationWhy},
	{"workloadUpdateStrategy.batchEvictionInterval", schemaRule, durationWhy},
	{"MigrationPolicy.spec.bandwidthPerMigration", schemaRule, "KubeVirt's webhook refuses a negative value"},
	{"MigrationPolicy.spec.completionTimeoutPerGiB", schemaRule, "KubeVirt's webhook refuses a negative value"},
	{"dataVolumeTemplates[]", schemaNullable, "KubeVirt's webhook refuses an element without a name, and null has none"},
	{"VirtualMachineInstance.status", schemaDefault, "a new VMI shows Pending without a write"},
}
