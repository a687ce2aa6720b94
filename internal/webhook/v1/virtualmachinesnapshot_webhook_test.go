// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
)

// expectRefused fails the test unless an error has a text; none is expected for "".
func expectRefused(t *testing.T, err error, want string) {
	t.Helper()
	if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
		t.Errorf("got %v, want %q", err, want)
	}
}

func newSnapshot() *v1beta1.VirtualMachineSnapshot {
	vmSnapshot := &v1beta1.VirtualMachineSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "snap",
		Namespace: metav1.NamespaceDefault}}
	vmSnapshot.Spec.Source = corev1.TypedLocalObjectReference{APIGroup: ptr.To("kubevirt.io"), Kind: "VirtualMachine",
		Name: "vm"}
	return vmSnapshot
}

func TestSnapshotIsValidated(t *testing.T) {
	for _, tc := range []struct {
		name     string
		disabled bool
		change   func(*corev1.TypedLocalObjectReference)
		want     string
	}{
		{name: "valid", change: func(*corev1.TypedLocalObjectReference) {}},
		{"gate", true, func(*corev1.TypedLocalObjectReference) {}, "snapshot feature gate not enabled"},
		{"no group", false, func(s *corev1.TypedLocalObjectReference) { s.APIGroup = nil }, "spec.source.apiGroup: Not found: missing apiGroup"},
		{"other group", false, func(s *corev1.TypedLocalObjectReference) { s.APIGroup = ptr.To("apps") }, "invalid apiGroup"},
		{"other kind", false, func(s *corev1.TypedLocalObjectReference) { s.Kind = "VirtualMachineInstance" }, "spec.source.kind: Invalid value: \"VirtualMachineInstance\": invalid kind"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			config := clusterconfig.Default()
			if tc.disabled {
				config.FeatureGates = clusterconfig.NewFeatureGates(nil, []string{gateSnapshot})
			}
			vmSnapshot := newSnapshot()
			tc.change(&vmSnapshot.Spec.Source)
			_, err := (&snapshotValidator{config: fixedConfig{config}}).ValidateCreate(t.Context(), vmSnapshot)
			expectRefused(t, err, tc.want)
		})
	}
}

func TestSnapshotIsImmutable(t *testing.T) {
	v := &snapshotValidator{config: fixedConfig{clusterconfig.Default()}}
	labeled, changed := newSnapshot(), newSnapshot()
	labeled.Labels = map[string]string{"a": "b"}
	_, err := v.ValidateUpdate(t.Context(), newSnapshot(), labeled)
	expectRefused(t, err, "")
	changed.Spec.FailureDeadline = &metav1.Duration{Duration: time.Hour}
	_, err = v.ValidateUpdate(t.Context(), newSnapshot(), changed)
	expectCauses(t, err, []cause{invalid("spec", "spec in immutable after creation")})
	if _, err := v.ValidateDelete(t.Context(), changed); err != nil {
		t.Error(err)
	}
}

func TestVMIsLockedDuringASnapshot(t *testing.T) {
	for _, tc := range []struct {
		name     string
		unlocked bool
		change   func(*v1.VirtualMachine)
		want     string
	}{
		{"labels of the template", false, func(vm *v1.VirtualMachine) { vm.Spec.Template.ObjectMeta.Labels = map[string]string{"a": "b"} }, ""},
		{"a volume", false, func(vm *v1.VirtualMachine) {
			vm.Spec.Template.Spec.Volumes = append(vm.Spec.Template.Spec.Volumes, v1.Volume{Name: "new"})
		}, `Cannot update vm disks or volumes until snapshot "snap" completes`},
		{"the run strategy", false, func(vm *v1.VirtualMachine) {
			vm.Spec.Running, vm.Spec.RunStrategy = nil, ptr.To(v1.RunStrategyManual)
		}, `Cannot update vm running state until snapshot "snap" completes`},
		{"the run strategy, without a snapshot", true, func(vm *v1.VirtualMachine) {
			vm.Spec.Running, vm.Spec.RunStrategy = nil, ptr.To(v1.RunStrategyManual)
		}, ""},
		{"a volume of a VM that is being deleted", false, func(vm *v1.VirtualMachine) {
			vm.DeletionTimestamp = ptr.To(metav1.Now())
			vm.Spec.Template.Spec.Volumes = append(vm.Spec.Template.Spec.Volumes, v1.Volume{Name: "new"})
		}, `Cannot update vm disks or volumes until snapshot "snap" completes`},
		{"the finalizers of a VM that is being deleted", false, func(vm *v1.VirtualMachine) {
			vm.DeletionTimestamp, vm.Finalizers = ptr.To(metav1.Now()), nil
		}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := newVM("vm")
			if !tc.unlocked {
				before.Status.SnapshotInProgress = ptr.To("snap")
			}
			after := before.DeepCopy()
			tc.change(after)
			_, err := (&vmValidator{config: fixedConfig{clusterconfig.Default()}}).ValidateUpdate(t.Context(), before, after)
			expectRefused(t, err, tc.want)
		})
	}
}
