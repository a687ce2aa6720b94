// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package wirecompat

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// face is what users and scripts see of a CRD apart from its schema.
type face struct {
	// kind and, after a colon, the short names.
	names string
	// all reports whether `kubectl get all` shows it.
	all, cluster bool
	// versions are the served versions, the stored one first. A trailing ! marks a deprecated one.
	versions string
	// columns are name=path, with :priority where it is not 0.
	columns string
	// subresources are status and scale.
	subresources string
}

const ready, labelSelector = ".status.conditions[?(@.type=='Ready')].status",
	"scale(.spec.replicas,.status.replicas,.status.labelSelector)"

// faces are KubeVirt's (pkg/virt-operator/resource/generate/components/crds.go), except that only Vireo's VMI has a
// status subresource, and that presets are stored as v1 here and as v1alpha3 there, which clients cannot see.
var faces = map[string]face{
	"kubevirt.io_virtualmachines": {"VirtualMachine: vm vms", true, false, "v1 v1alpha3!",
		"Age=.metadata.creationTimestamp Status=.status.printableStatus Ready=" + ready, "status"},
	"kubevirt.io_virtualmachineinstances": {"VirtualMachineInstance: vmi vmis", true, false, "v1 v1alpha3!",
		"Age=.metadata.creationTimestamp Phase=.status.phase IP=.status.interfaces[0].ipAddress NodeName=.status.nodeName Ready=" + ready +
			" Live-Migratable=.status.conditions[?(@.type=='LiveMigratable')].status:1 Paused=.status.conditions[?(@.type=='Paused')].status:1", "status"},
	"kubevirt.io_virtualmachineinstancereplicasets": {"VirtualMachineInstanceReplicaSet: vmirs vmirss", true, false, "v1 v1alpha3!",
		"Desired=.spec.replicas Current=.status.replicas Ready=.status.readyReplicas Age=.metadata.creationTimestamp",
		"status " + labelSelector},
	"kubevirt.io_virtualmachineinstancemigrations": {"VirtualMachineInstanceMigration: vmim vmims", true, false, "v1 v1alpha3!",
		"Phase=.status.phase VMI=.spec.vmiName", "status"},
	"kubevirt.io_virtualmachineinstancepresets": {"VirtualMachineInstancePreset: vmipreset vmipresets", true, false, "v1! v1alpha3!", "", ""},
	"kubevirt.io_kubevirts": {"KubeVirt: kv kvs", true, false, "v1 v1alpha3!",
		"Age=.metadata.creationTimestamp Phase=.status.phase", "status"},
	"pool.kubevirt.io_virtualmachinepools": {"VirtualMachinePool: vmpool vmpools", true, false, "v1beta1 v1alpha1",
		"Desired=.spec.replicas Current=.status.replicas Ready=.status.readyReplicas Age=.metadata.creationTimestamp",
		"status " + labelSelector},
	"snapshot.kubevirt.io_virtualmachinesnapshots": {"VirtualMachineSnapshot: vmsnapshot vmsnapshots", true, false, "v1beta1 v1alpha1",
		"SourceKind=.spec.source.kind SourceName=.spec.source.name Phase=.status.phase ReadyToUse=.status.readyToUse CreationTime=.status.creationTime Error=.status.error.message", "status"},
	"snapshot.kubevirt.io_virtualmachinesnapshotcontents": {"VirtualMachineSnapshotContent: vmsnapshotcontent vmsnapshotcontents", true, false, "v1beta1 v1alpha1",
		"ReadyToUse=.status.readyToUse CreationTime=.status.creationTime Error=.status.error.message", "status"},
	"snapshot.kubevirt.io_virtualmachinerestores": {"VirtualMachineRestore: vmrestore vmrestores", true, false, "v1beta1 v1alpha1",
		"TargetKind=.spec.target.kind TargetName=.spec.target.name Complete=.status.complete RestoreTime=.status.restoreTime",
		"status"},
	"export.kubevirt.io_virtualmachineexports": {"VirtualMachineExport: vmexport vmexports", true, false, "v1 v1beta1!",
		"SourceKind=.spec.source.kind SourceName=.spec.source.name Phase=.status.phase", "status"},
	"backup.kubevirt.io_virtualmachinebackups": {"VirtualMachineBackup: vmbackup vmbackups", true, false, "v1alpha1",
		"SourceKind=.spec.source.kind SourceName=.spec.source.name Type=.status.type CheckpointName=.status.checkpointName",
		"status"},
	"backup.kubevirt.io_virtualmachinebackuptrackers": {"VirtualMachineBackupTracker: vmbackuptracker vmbackuptrackers", true, false, "v1alpha1",
		"SourceKind=.spec.source.kind SourceName=.spec.source.name LatestCheckpoint=.status.latestCheckpoint.name CheckpointTime=.status.latestCheckpoint.creationTime", "status"},
	"clone.kubevirt.io_virtualmachineclones": {"VirtualMachineClone: vmclone vmclones", true, false, "v1beta1 v1alpha1",
		"Phase=.status.phase SourceVirtualMachine=.spec.source.name TargetVirtualMachine=.spec.target.name", "status"},
	"migrations.kubevirt.io_migrationpolicies": {"MigrationPolicy:", false, true, "v1alpha1", "", "status"},
	"instancetype.kubevirt.io_virtualmachineinstancetypes": {
		"VirtualMachineInstancetype: vminstancetype vminstancetypes vmf vmfs", true, false, "v1beta1", "", ""},
	"instancetype.kubevirt.io_virtualmachineclusterinstancetypes": {
		"VirtualMachineClusterInstancetype: vmclusterinstancetype vmclusterinstancetypes vmcf vmcfs", false, true, "v1beta1",
		"", ""},
	"instancetype.kubevirt.io_virtualmachinepreferences": {
		"VirtualMachinePreference: vmpref vmprefs vmp vmps", true, false, "v1beta1", "", ""},
	"instancetype.kubevirt.io_virtualmachineclusterpreferences": {
		"VirtualMachineClusterPreference: vmcp vmcps", false, true, "v1beta1", "", ""},
}

// Short names, categories, scopes, versions, printer columns, status and scale are KubeVirt's.
func TestCRDsHaveTheSameFace(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range pairs {
		if p.crd == "" || seen[p.crd] {
			continue
		}
		seen[p.crd] = true
		t.Run(p.crd, func(t *testing.T) {
			crd, err := readCRD(p.crd)
			if err != nil {
				t.Fatal(err)
			}
			for i := range crd.Spec.Versions {
				got := faceOf(crd, &crd.Spec.Versions[i])
				if diff := cmp.Diff(faces[p.crd], got, cmp.AllowUnexported(face{})); diff != "" {
					t.Errorf("%s (-KubeVirt's +ours):\n%s", crd.Spec.Versions[i].Name, diff)
				}
			}
		})
	}
	if len(seen) != len(faces) {
		t.Errorf("%d CRDs in pairs, %d in the table", len(seen), len(faces))
	}
}

func faceOf(crd *apiextensionsv1.CustomResourceDefinition, v *apiextensionsv1.CustomResourceDefinitionVersion) face {
	var stored, others []string
	for i := range crd.Spec.Versions {
		version := &crd.Spec.Versions[i]
		name := version.Name
		if version.Deprecated {
			name += "!"
		}
		switch {
		case version.Storage:
			stored = append(stored, name)
		case version.Served:
			others = append(others, name)
		}
	}
	var columns, subresources []string
	for _, c := range v.AdditionalPrinterColumns {
		column := c.Name + "=" + c.JSONPath
		if c.Priority != 0 {
			column += fmt.Sprintf(":%d", c.Priority)
		}
		columns = append(columns, column)
	}
	if s := v.Subresources; s != nil {
		if s.Status != nil {
			subresources = append(subresources, "status")
		}
		if s.Scale != nil {
			subresources = append(subresources,
				fmt.Sprintf("scale(%s,%s,%s)", s.Scale.SpecReplicasPath, s.Scale.StatusReplicasPath, *s.Scale.LabelSelectorPath))
		}
	}
	return face{
		names:        strings.TrimSpace(crd.Spec.Names.Kind + ": " + strings.Join(crd.Spec.Names.ShortNames, " ")),
		all:          slices.Contains(crd.Spec.Names.Categories, "all"),
		cluster:      crd.Spec.Scope == apiextensionsv1.ClusterScoped,
		versions:     strings.Join(append(stored, others...), " "),
		columns:      strings.Join(columns, " "),
		subresources: strings.Join(subresources, " "),
	}
}
