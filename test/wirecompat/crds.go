// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package wirecompat

import (
	"fmt"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// crdFacts is what KubeVirt's CRD of a kind says beside its schema: pkg/virt-operator/resource/generate/components/crds.go
// at v1.9, and api/core/v1/register.go for the versions of kubevirt.io. Everything is text, so that a difference reads
// well.
type crdFacts struct {
	// names are plural, singular and short names.
	names string
	// scope is Namespaced or Cluster, with the categories behind it.
	scope string
	// versions are all versions, with what is special about each.
	versions string
	// subresources are those of each version.
	subresources string
	// columns are the printer columns of each version, without their descriptions, which are documentation.
	columns []string
}

// Texts that occur often.
const (
	namespacedInAll = "Namespaced all"
	onlyCluster     = "Cluster"
	v1AndAlpha3     = "v1 stored, v1alpha3 deprecated"
	betaAndAlpha    = "v1alpha1, v1beta1 stored"
	onlyAlpha       = "v1alpha1 stored"
	onlyBeta        = "v1beta1 stored"
	status          = "status"
	statusAndScale  = "status scale .spec.replicas .status.replicas .status.labelSelector"
	ageColumn       = "Age date .metadata.creationTimestamp"
	phaseColumn     = "Phase string .status.phase"
	readyColumn     = "Ready string .status.conditions[?(@.type=='Ready')].status"
	sourceKind      = "SourceKind string .spec.source.kind"
	sourceName      = "SourceName string .spec.source.name"
	readyToUse      = "ReadyToUse boolean .status.readyToUse"
	creationTime    = "CreationTime date .status.creationTime"
	errorColumn     = "Error string .status.error.message"
)

var replicaColumns = []string{
	"Desired integer .spec.replicas", "Current integer .status.replicas", "Ready integer .status.readyReplicas", ageColumn,
}

// kubevirtsCRDs are KubeVirt's CRDs by name. plugin.kubevirt.io is left out, as in pairs.
var kubevirtsCRDs = map[string]crdFacts{
	"virtualmachines.kubevirt.io": {
		"virtualmachines virtualmachine vm vms", namespacedInAll, v1AndAlpha3, status,
		[]string{ageColumn, "Status string .status.printableStatus", readyColumn},
	},
	"virtualmachineinstances.kubevirt.io": {
		"virtualmachineinstances virtualmachineinstance vmi vmis", namespacedInAll, v1AndAlpha3, "",
		[]string{
			ageColumn, phaseColumn, "IP string .status.interfaces[0].ipAddress", "NodeName string .status.nodeName", readyColumn,
			"Live-Migratable string .status.conditions[?(@.type=='LiveMigratable')].status 1",
			"Paused string .status.conditions[?(@.type=='Paused')].status 1",
		},
	},
	"virtualmachineinstancereplicasets.kubevirt.io": {
		"virtualmachineinstancereplicasets virtualmachineinstancereplicaset vmirs vmirss", namespacedInAll, v1AndAlpha3,
		statusAndScale, replicaColumns,
	},
	"virtualmachineinstancemigrations.kubevirt.io": {
		"virtualmachineinstancemigrations virtualmachineinstancemigration vmim vmims", namespacedInAll, v1AndAlpha3, status,
		[]string{phaseColumn, "VMI string .spec.vmiName"},
	},
	"virtualmachineinstancepresets.kubevirt.io": {
		"virtualmachineinstancepresets virtualmachineinstancepreset vmipreset vmipresets", namespacedInAll,
		"v1 deprecated, v1alpha3 stored deprecated", "", nil,
	},
	"kubevirts.kubevirt.io": {
		"kubevirts kubevirt kv kvs", namespacedInAll, v1AndAlpha3, status, []string{ageColumn, phaseColumn},
	},
	"virtualmachineinstancetypes.instancetype.kubevirt.io": {
		"virtualmachineinstancetypes virtualmachineinstancetype vminstancetype vminstancetypes vmf vmfs", namespacedInAll,
		onlyBeta, "", nil,
	},
	"virtualmachineclusterinstancetypes.instancetype.kubevirt.io": {
		"virtualmachineclusterinstancetypes virtualmachineclusterinstancetype vmclusterinstancetype vmclusterinstancetypes vmcf vmcfs",
		onlyCluster, onlyBeta, "", nil,
	},
	"virtualmachinepreferences.instancetype.kubevirt.io": {
		"virtualmachinepreferences virtualmachinepreference vmpref vmprefs vmp vmps", namespacedInAll, onlyBeta, "", nil,
	},
	"virtualmachineclusterpreferences.instancetype.kubevirt.io": {
		"virtualmachineclusterpreferences virtualmachineclusterpreference vmcp vmcps", onlyCluster, onlyBeta, "", nil,
	},
	"virtualmachinesnapshots.snapshot.kubevirt.io": {
		"virtualmachinesnapshots virtualmachinesnapshot vmsnapshot vmsnapshots", namespacedInAll, betaAndAlpha, status,
		[]string{sourceKind, sourceName, phaseColumn, readyToUse, creationTime, errorColumn},
	},
	"virtualmachinesnapshotcontents.snapshot.kubevirt.io": {
		"virtualmachinesnapshotcontents virtualmachinesnapshotcontent vmsnapshotcontent vmsnapshotcontents", namespacedInAll,
		betaAndAlpha, status, []string{readyToUse, creationTime, errorColumn},
	},
	"virtualmachinerestores.snapshot.kubevirt.io": {
		"virtualmachinerestores virtualmachinerestore vmrestore vmrestores", namespacedInAll, betaAndAlpha, status,
		[]string{
			"TargetKind string .spec.target.kind", "TargetName string .spec.target.name", "Complete boolean .status.complete",
			"RestoreTime date .status.restoreTime",
		},
	},
	"virtualmachineclones.clone.kubevirt.io": {
		"virtualmachineclones virtualmachineclone vmclone vmclones", namespacedInAll, betaAndAlpha, status,
		[]string{
			phaseColumn, "SourceVirtualMachine string .spec.source.name", "TargetVirtualMachine string .spec.target.name",
		},
	},
	"virtualmachinepools.pool.kubevirt.io": {
		"virtualmachinepools virtualmachinepool vmpool vmpools", namespacedInAll, betaAndAlpha, statusAndScale, replicaColumns,
	},
	"virtualmachineexports.export.kubevirt.io": {
		"virtualmachineexports virtualmachineexport vmexport vmexports", namespacedInAll, "v1 stored, v1beta1 deprecated", status,
		[]string{sourceKind, sourceName, phaseColumn},
	},
	"migrationpolicies.migrations.kubevirt.io": {
		"migrationpolicies migrationpolicy", onlyCluster, onlyAlpha, status, nil,
	},
	"virtualmachinebackups.backup.kubevirt.io": {
		"virtualmachinebackups virtualmachinebackup vmbackup vmbackups", namespacedInAll, onlyAlpha, status,
		[]string{sourceKind, sourceName, "Type string .status.type", "CheckpointName string .status.checkpointName"},
	},
	"virtualmachinebackuptrackers.backup.kubevirt.io": {
		"virtualmachinebackuptrackers virtualmachinebackuptracker vmbackuptracker vmbackuptrackers", namespacedInAll, onlyAlpha,
		status,
		[]string{
			sourceKind, sourceName, "LatestCheckpoint string .status.latestCheckpoint.name",
			"CheckpointTime date .status.latestCheckpoint.creationTime",
		},
	},
}

// factsOf reads the facts of one version of a CRD; the versions are described together.
func factsOf(crd *apiextensionsv1.CustomResourceDefinition, version *apiextensionsv1.CustomResourceDefinitionVersion) crdFacts {
	names := crd.Spec.Names
	facts := crdFacts{
		names:        strings.Join(append([]string{names.Plural, names.Singular}, names.ShortNames...), " "),
		scope:        strings.Join(append([]string{string(crd.Spec.Scope)}, names.Categories...), " "),
		subresources: subresourcesOf(version.Subresources),
	}
	versions := make([]string, 0, len(crd.Spec.Versions))
	for _, v := range crd.Spec.Versions {
		text := v.Name
		if v.Storage {
			text += " stored"
		}
		if v.Deprecated {
			text += " deprecated"
		}
		if !v.Served {
			text += " not served"
		}
		versions = append(versions, text)
	}
	slices.Sort(versions)
	facts.versions = strings.Join(versions, ", ")
	for _, column := range version.AdditionalPrinterColumns {
		text := fmt.Sprintf("%s %s %s", column.Name, column.Type, column.JSONPath)
		if column.Priority != 0 {
			text = fmt.Sprintf("%s %d", text, column.Priority)
		}
		facts.columns = append(facts.columns, text)
	}
	return facts
}

func subresourcesOf(s *apiextensionsv1.CustomResourceSubresources) string {
	if s == nil {
		return ""
	}
	var all []string
	if s.Status != nil {
		all = append(all, "status")
	}
	if s.Scale != nil {
		all = append(all, "scale", s.Scale.SpecReplicasPath, s.Scale.StatusReplicasPath)
		if s.Scale.LabelSelectorPath != nil {
			all = append(all, *s.Scale.LabelSelectorPath)
		}
	}
	return strings.Join(all, " ")
}
