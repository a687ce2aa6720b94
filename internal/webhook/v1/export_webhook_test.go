// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/backup/v1alpha1"
	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
)

func newExport(group *string, kind, name string) *exportv1.VirtualMachineExport {
	vmExport := &exportv1.VirtualMachineExport{ObjectMeta: metav1.ObjectMeta{Name: "export",
		Namespace: metav1.NamespaceDefault}}
	vmExport.Spec.Source = corev1.TypedLocalObjectReference{APIGroup: group, Kind: kind, Name: name}
	return vmExport
}

func TestExportIsValidated(t *testing.T) {
	for name, tc := range map[string]struct {
		of   *exportv1.VirtualMachineExport
		want string
	}{
		"a claim":                    {newExport(nil, "PersistentVolumeClaim", "data"), ""},
		"a claim of an empty group":  {newExport(ptr.To(""), "PersistentVolumeClaim", "data"), ""},
		"a VM":                       {newExport(ptr.To("kubevirt.io"), "VirtualMachine", "vm"), ""},
		"a snapshot":                 {newExport(ptr.To("snapshot.kubevirt.io"), "VirtualMachineSnapshot", "snap"), ""},
		"a backup":                   {newExport(ptr.To("backup.kubevirt.io"), "VirtualMachineBackup", "backup"), ""},
		"a template":                 {newExport(ptr.To("template.kubevirt.io"), "VirtualMachineTemplate", "template"), ""},
		"a template without a group": {newExport(nil, "VirtualMachineTemplate", "template"), "VirtualMachineTemplate API group must be template.kubevirt.io"},
		"another kind":               {newExport(nil, "ConfigMap", "data"), "spec.source.kind: Invalid value: \"ConfigMap\": invalid kind"},
		"a claim without a name":     {newExport(nil, "PersistentVolumeClaim", ""), "PVC name must not be empty"},
		"a claim of another group":   {newExport(ptr.To("v1"), "PersistentVolumeClaim", "data"), "PVC API group must be missing or blank"},
		"a VM without a group":       {newExport(nil, "VirtualMachine", "vm"), "VM API group must be kubevirt.io"},
		"a VM without a name":        {newExport(ptr.To("kubevirt.io"), "VirtualMachine", ""), "Virtual Machine name must not be empty"},
		"a snapshot without a group": {newExport(nil, "VirtualMachineSnapshot", "snap"), "VMSnapshot API group must be snapshot.kubevirt.io"},
		"a snapshot without a name":  {newExport(ptr.To("snapshot.kubevirt.io"), "VirtualMachineSnapshot", ""), "VMSnapshot name must not be empty"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := exportValidator{}.ValidateCreate(t.Context(), tc.of)
			expectRefused(t, err, tc.want)
		})
	}
}

func TestExportIsImmutable(t *testing.T) {
	before := newExport(nil, "PersistentVolumeClaim", "data")
	after := before.DeepCopy()
	after.Labels = map[string]string{"a": "b"}
	_, err := exportValidator{}.ValidateUpdate(t.Context(), before, after)
	expectRefused(t, err, "")
	after.Spec.TTLDuration = &metav1.Duration{Duration: time.Hour}
	_, err = exportValidator{}.ValidateUpdate(t.Context(), before, after)
	expectRefused(t, err, "spec in immutable after creation")
}

func TestBackupNeedsItsFeatureGate(t *testing.T) {
	for gate, want := range map[string]string{clusterconfig.GateIncrementalBackup: "",
		gateSnapshot: "IncrementalBackup feature gate not enabled"} {
		config := clusterconfig.Config{FeatureGates: clusterconfig.NewFeatureGates([]string{gate}, nil)}
		_, err := (&backupValidator[*v1alpha1.VirtualMachineBackup]{config: fixedConfig{config}}).ValidateCreate(t.Context(),
			&v1alpha1.VirtualMachineBackup{})
		expectRefused(t, err, want)
		_, err = (&backupValidator[*v1alpha1.VirtualMachineBackupTracker]{config: fixedConfig{config}}).ValidateCreate(
			t.Context(), &v1alpha1.VirtualMachineBackupTracker{})
		expectRefused(t, err, want)
	}
}
