// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"context"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
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

func newSnapshot() *snapshotv1beta1.VirtualMachineSnapshot {
	vmSnapshot := &snapshotv1beta1.VirtualMachineSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "snap",
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

func newRestore(
	name string, changes ...func(*snapshotv1beta1.VirtualMachineRestore),
) *snapshotv1beta1.VirtualMachineRestore {
	vmRestore := &snapshotv1beta1.VirtualMachineRestore{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault,
		Name: name}}
	vmRestore.Spec.Target = corev1.TypedLocalObjectReference{APIGroup: ptr.To("kubevirt.io"), Kind: "VirtualMachine",
		Name: "vm"}
	vmRestore.Spec.VirtualMachineSnapshotName = "snap"
	for _, change := range changes {
		change(vmRestore)
	}
	return vmRestore
}

// restoresWith returns a validator in a cluster with objects.
func restoresWith(config clusterconfig.Config, objects ...client.Object) *restoreValidator {
	scheme := runtime.NewScheme()
	utilruntime.Must(snapshotv1beta1.AddToScheme(scheme))
	utilruntime.Must(v1.AddToScheme(scheme))
	return &restoreValidator{config: fixedConfig{config},
		reader: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()}
}

// snapshotOf returns a snapshot of the VM vm with the UID vm-uid, and its content.
func snapshotOf(options ...specOption) []client.Object {
	meta := metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "snap"}
	content := &snapshotv1beta1.VirtualMachineSnapshotContent{ObjectMeta: meta}
	content.Spec.Source.VirtualMachine = &snapshotv1beta1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "vm"},
		Spec: newVM("vm", options...).Spec}
	return []client.Object{content, &snapshotv1beta1.VirtualMachineSnapshot{
		ObjectMeta: meta, Status: &snapshotv1beta1.VirtualMachineSnapshotStatus{
			VirtualMachineSnapshotContentName: ptr.To("snap"), SourceUID: ptr.To(types.UID("vm-uid")),
		},
	}}
}

// liveVM returns a VM of which a snapshot may have been taken.
func liveVM(name, uid string) *v1.VirtualMachine {
	vm := newVM(name)
	vm.UID = types.UID(uid)
	return vm
}

func TestRestores(t *testing.T) {
	type object = snapshotv1beta1.VirtualMachineRestore
	withTPM := func(spec *v1.VirtualMachineInstanceSpec) {
		spec.Domain.Devices.TPM = &v1.TPMDevice{Persistent: ptr.To(true)}
	}
	override := func(o snapshotv1beta1.VolumeRestoreOverride) func(*object) {
		return func(vmRestore *object) {
			vmRestore.Spec.VolumeRestoreOverrides = []snapshotv1beta1.VolumeRestoreOverride{o}
		}
	}
	otherVM := []cause{invalid("spec",
		"Restore to a different VM is not supported when snapshotted VM has backend storage (persistent TPM or EFI)")}
	underway := newRestore("first")
	failed := newRestore("first", func(vmRestore *object) {
		vmRestore.Status = &snapshotv1beta1.VirtualMachineRestoreStatus{
			Conditions: []snapshotv1beta1.Condition{{Type: snapshotv1beta1.ConditionFailure, Status: corev1.ConditionTrue}}}
	})
	complete := newRestore("first", func(vmRestore *object) {
		vmRestore.Status = &snapshotv1beta1.VirtualMachineRestoreStatus{Complete: ptr.To(true)}
	})
	ofOther := newRestore("first", func(vmRestore *object) { vmRestore.Spec.Target.Name = "other" })
	for name, tc := range map[string]struct {
		change func(*object)
		others []client.Object
		want   []cause
	}{
		"sound":                       {},
		"a snapshot that exists":      {others: snapshotOf()},
		"without apiGroup":            {change: func(vmRestore *object) { vmRestore.Spec.Target.APIGroup = nil }, want: []cause{{metav1.CauseTypeFieldValueNotFound, "spec.target.apiGroup", "missing apiGroup"}}},
		"of another group":            {change: func(vmRestore *object) { vmRestore.Spec.Target.APIGroup = ptr.To("apps") }, want: []cause{invalid("spec.target.apiGroup", "invalid apiGroup")}},
		"of another kind":             {change: func(vmRestore *object) { vmRestore.Spec.Target.Kind = "Pod" }, want: []cause{invalid("spec.target.kind", "invalid kind")}},
		"another one underway":        {others: []client.Object{underway}, want: []cause{invalid("spec.target", `VirtualMachineRestore "first" in progress`)}},
		"another one that has failed": {others: []client.Object{failed}},
		"another one is complete":     {others: []client.Object{complete}},
		"another one of another VM":   {others: []client.Object{ofOther}},
		"a MAC address": {change: func(vmRestore *object) {
			vmRestore.Spec.Patches = []string{`{"op":"add","path":"/spec/x","value":"02:00"}`}
		}},
		"a label": {change: func(vmRestore *object) {
			vmRestore.Spec.Patches = []string{`{"op":"add","path":"/metadata/labels/x","value":"y"}`}
		}},
		"patches of the name": {
			change: func(vmRestore *object) {
				vmRestore.Spec.Patches = []string{`{"op":"remove","path":"/spec/x"}`, `{"op":"replace","path":"/metadata/name","value":"x"}`}
			},
			want: []cause{invalid("spec.patches", "patching is valid only for elements under /spec/ only: ")},
		},
		"an override without a volume": {
			change: override(snapshotv1beta1.VolumeRestoreOverride{RestoreName: "x"}),
			want: []cause{{metav1.CauseTypeFieldValueRequired, "spec.volumeRestoreOverrides[0].volumeName",
				"must provide a volume name"}},
		},
		"an override of nothing": {
			change: override(snapshotv1beta1.VolumeRestoreOverride{VolumeName: "x"}),
			want:   []cause{{metav1.CauseTypeFieldValueRequired, "spec.volumeRestoreOverrides[0]", "must provide at least one"}},
		},
		"an override of labels": {change: override(snapshotv1beta1.VolumeRestoreOverride{VolumeName: "x", Labels: map[string]string{}})},
		"a prefix": {
			change: func(vmRestore *object) {
				vmRestore.Spec.VolumeRestorePolicy = ptr.To(snapshotv1beta1.VolumeRestorePolicyPrefixTargetName)
			},
		},
		"an unknown policy": {
			change: func(vmRestore *object) {
				vmRestore.Spec.VolumeRestorePolicy = ptr.To(snapshotv1beta1.VolumeRestorePolicy("x"))
			},
			want: []cause{invalid("spec.volumeRestorePolicy", `volume restore policy "x" doesn't exist`)},
		},
		"an unknown owner": {
			change: func(vmRestore *object) {
				vmRestore.Spec.VolumeOwnershipPolicy = ptr.To(snapshotv1beta1.VolumeOwnershipPolicy("x"))
			},
			want: []cause{invalid("spec.volumeOwnershipPolicy", `volume ownership policy "x" doesn't exist`)},
		},
		"a TPM to its VM":                         {others: append(snapshotOf(withTPM), liveVM("vm", "vm-uid"))},
		"a TPM to its VM, which is created again": {others: snapshotOf(withTPM)},
		"a TPM to another VM of its VM's name":    {others: append(snapshotOf(withTPM), liveVM("vm", "another")), want: otherVM},
		"no TPM to another VM of its VM's name":   {others: append(snapshotOf(), liveVM("vm", "another"))},
		"a TPM to another VM that exists": {
			change: func(vmRestore *object) { vmRestore.Spec.Target.Name = "other" },
			others: append(snapshotOf(withTPM), liveVM("other", "another")), want: otherVM,
		},
		"a TPM to another VM": {
			change: func(vmRestore *object) { vmRestore.Spec.Target.Name = "other" }, others: snapshotOf(withTPM),
			want: otherVM,
		},
		"no TPM to another VM": {change: func(vmRestore *object) { vmRestore.Spec.Target.Name = "other" }, others: snapshotOf()},
	} {
		t.Run(name, func(t *testing.T) {
			vmRestore := newRestore("back")
			if tc.change != nil {
				tc.change(vmRestore)
			}
			_, err := restoresWith(clusterconfig.Default(), tc.others...).ValidateCreate(t.Context(), vmRestore)
			if tc.want != nil {
				expectCauses(t, err, tc.want)
			} else if err != nil {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestRestoresNeedTheirGate(t *testing.T) {
	config := clusterconfig.Default()
	config.FeatureGates = clusterconfig.NewFeatureGates(nil, []string{"Snapshot"})
	_, err := restoresWith(config).ValidateCreate(t.Context(), newRestore("back"))
	if err == nil || !strings.Contains(err.Error(), "Snapshot/Restore feature gate not enabled") {
		t.Errorf("got %v", err)
	}
}

func TestRestoresAreImmutable(t *testing.T) {
	v := restoresWith(clusterconfig.Default())
	before, after := newRestore("back"), newRestore("back")
	after.Finalizers = []string{"x"}
	if _, err := v.ValidateUpdate(t.Context(), before, after); err != nil {
		t.Error(err)
	}
	after.Spec.Target.Name = "other"
	_, err := v.ValidateUpdate(t.Context(), before, after)
	expectCauses(t, err, []cause{invalid("spec", "spec in immutable after creation")})
}

// requestOf returns a context with the request of a user.
func requestOf(user string) context.Context {
	request := admission.Request{}
	request.UserInfo = authenticationv1.UserInfo{Username: user}
	return admission.NewContextWithRequest(context.Background(), request)
}

func TestAVMThatIsBeingRestoredKeepsItsStrategy(t *testing.T) {
	before := newVM("vm")
	before.Spec.RunStrategy = ptr.To(v1.RunStrategyHalted)
	before.Status.RestoreInProgress = ptr.To("back")
	v := &vmValidator{config: fixedConfig{clusterconfig.Default()}, trusted: sets.New("virt-controller"),
		finder: readers()}
	for name, tc := range map[string]struct {
		user   string
		change func(*v1.VirtualMachine)
		fails  bool
	}{
		"a start":                    {"jane", func(vm *v1.VirtualMachine) { vm.Spec.RunStrategy = ptr.To(v1.RunStrategyAlways) }, true},
		"another field":              {"jane", func(vm *v1.VirtualMachine) { vm.Spec.Running, vm.Spec.RunStrategy = ptr.To(false), nil }, false},
		"a start by virt-controller": {"virt-controller", func(vm *v1.VirtualMachine) { vm.Spec.RunStrategy = ptr.To(v1.RunStrategyAlways) }, false},
		"a start after the restore": {"jane", func(vm *v1.VirtualMachine) {
			vm.Spec.RunStrategy, vm.Status.RestoreInProgress = ptr.To(v1.RunStrategyAlways), nil
		}, false},
	} {
		after := before.DeepCopy()
		tc.change(after)
		_, err := v.ValidateUpdate(requestOf(tc.user), before, after)
		refused := err != nil && strings.Contains(err.Error(), `Cannot update VM runStrategy until restore "back" completes`)
		if refused != tc.fails || err != nil && !tc.fails {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestReservedLabelsFromAContent has VMs that virt-controller writes: what is in them may be a user's.
func TestReservedLabelsFromAContent(t *testing.T) {
	v := &vmValidator{config: fixedConfig{clusterconfig.Default()}, trusted: sets.New("virt-controller"),
		finder: readers()}
	plain := newVM("vm")
	plain.Spec.RunStrategy = ptr.To(v1.RunStrategyHalted)
	forged := plain.DeepCopy()
	forged.Spec.Template.ObjectMeta.Labels = map[string]string{v1.CreatedByLabel: "x"}
	halted := forged.DeepCopy()
	halted.Spec.RunStrategy = ptr.To(v1.RunStrategyManual)
	ctx := requestOf("virt-controller")
	for name, refusal := range map[string]func() error{
		"created": func() error { _, err := v.ValidateCreate(ctx, forged); return err },
		"updated": func() error { _, err := v.ValidateUpdate(ctx, plain, forged); return err },
	} {
		if err := refusal(); err == nil || !strings.Contains(err.Error(), "reserved kubevirt.io/ labels") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := v.ValidateUpdate(ctx, forged, halted); err != nil {
		t.Errorf("labels that were there before: %v", err)
	}
}

var _ = Describe("restores", func() {
	It("are validated when they are created and changed", func(ctx SpecContext) {
		vmRestore := newRestore("back")
		vmRestore.Spec.Patches = []string{`{"op":"remove","path":"/metadata/name"}`}
		Expect(k8s.Create(ctx, vmRestore)).To(
			MatchError(ContainSubstring("patching is valid only for elements under /spec/ only")))
		vmRestore = newRestore("back")
		Expect(k8s.Create(ctx, vmRestore)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { Expect(k8s.Delete(ctx, vmRestore)).To(Succeed()) })
		vmRestore.Spec.VirtualMachineSnapshotName = "other"
		Expect(k8s.Update(ctx, vmRestore)).To(MatchError(ContainSubstring("spec in immutable after creation")))
	})
})
