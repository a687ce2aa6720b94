// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package capture

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/csi"
	"github.com/vireo-project/vireo/api/snapshot"
	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/firmware"
	"github.com/vireo-project/vireo/test/builder"
)

func request() *v1beta1.VirtualMachineSnapshot {
	return &v1beta1.VirtualMachineSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "snap", UID: "42"}}
}

func withDisk(name string) func(*v1.VirtualMachine) {
	return func(vm *v1.VirtualMachine) {
		devices := &vm.Spec.Template.Spec.Domain.Devices
		devices.Disks = append(devices.Disks, v1.Disk{Name: name})
	}
}

func TestContent(t *testing.T) {
	vm := builder.MakeVM("vm").UID("7").Label("app", "db").With(withVolume("root", onClaim("root"))).
		With(func(vm *v1.VirtualMachine) { vm.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}} }).Obj()
	root := claim("root", "fast")
	root.Labels = map[string]string{"tier": "gold"}
	content, copies := Content(request(), Stored{VM: vm, Identity: firmware.FromUID, Volumes: []Volume{
		{Name: "root", ClaimName: "root", Claim: root, Class: "snap"},
		{Name: "slow", ClaimName: "slow", Claim: claim("slow", "plain"), Reason: "no class"},
		{Name: "image"},
	}})
	if content.Name != "vmsnapshot-content-42" || content.Namespace != "default" || len(content.OwnerReferences) > 0 ||
		len(copies) > 0 {
		t.Errorf("content %+v, copies %v", content.ObjectMeta, copies)
	}
	if diff := cmp.Diff([]string{snapshot.VirtualMachineSnapshotContentFinalizer}, content.Finalizers); diff != "" {
		t.Error(diff)
	}
	stored := content.Spec.Source.VirtualMachine
	if stored.UID != "7" || stored.Labels["app"] != "db" || stored.ManagedFields != nil ||
		stored.Annotations[firmware.IdentityAnnotation] != "vm-uid" || vm.Annotations != nil {
		t.Errorf("stored metadata: %+v", stored.ObjectMeta)
	}
	want := []v1beta1.VolumeBackup{{
		VolumeName:            "root",
		PersistentVolumeClaim: v1beta1.PersistentVolumeClaim{ObjectMeta: root.ObjectMeta, Spec: root.Spec},
		VolumeSnapshotName:    ptr.To("vmsnapshot-42-volume-root"),
	}}
	if diff := cmp.Diff(want, content.Spec.VolumeBackups); diff != "" {
		t.Errorf("volume backups (-want +got):\n%s", diff)
	}
	made := VolumeSnapshot(content, &content.Spec.VolumeBackups[0], "snap")
	labels := map[string]string{"snapshot.kubevirt.io/source-vm-name": "vm",
		"snapshot.kubevirt.io/source-vm-namespace": "default"}
	if diff := cmp.Diff(labels, made.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	owner := metav1.GetControllerOf(made)
	if made.Name != "vmsnapshot-42-volume-root" || *made.Spec.Source.PersistentVolumeClaimName != "root" ||
		*made.Spec.VolumeSnapshotClassName != "snap" || owner == nil || owner.Name != content.Name {
		t.Errorf("VolumeSnapshot %+v", made)
	}
}

// Users may write contents. A VolumeSnapshot is in the content's namespace, and of a claim of that namespace, whatever
// is in it.
func TestASnapshotReachesNoOtherNamespace(t *testing.T) {
	content, _ := Content(request(),
		Stored{VM: builder.MakeVM("vm").UID("7").Obj(), Identity: firmware.FromUID, Volumes: []Volume{
			{Name: "root", ClaimName: "root", Claim: claim("root", "fast"), Class: "snap"},
		}})
	content.Spec.Source.VirtualMachine.Namespace = "other"
	content.Spec.VolumeBackups[0].PersistentVolumeClaim.Namespace = "other"
	made := VolumeSnapshot(content, &content.Spec.VolumeBackups[0], "snap")
	want := csi.VolumeSnapshotSource{PersistentVolumeClaimName: ptr.To("root")}
	if diff := cmp.Diff(want, made.Spec.Source); diff != "" || made.Namespace != "default" {
		t.Errorf("a VolumeSnapshot in namespace %s (-want +got):\n%s", made.Namespace, diff)
	}
	if !IsContentOf(content, request()) {
		t.Error("the content does not belong to the snapshot")
	}
	content.Namespace = "other"
	if IsContentOf(content, request()) {
		t.Error("the content of another namespace belongs to the snapshot")
	}
}

// TestLongNamesOfVMs has names of which some are too long for a label.
func TestLongNamesOfVMs(t *testing.T) {
	const key = "snapshot.kubevirt.io/source-vm-name"
	labels := map[string]string{}
	for _, name := range []string{
		"vm", strings.Repeat("v", 63), strings.Repeat("v", 64), strings.Repeat("v", 65), strings.Repeat("a.b-", 40) + "c",
	} {
		content := &v1beta1.VirtualMachineSnapshotContent{}
		content.Spec.Source.VirtualMachine = &v1beta1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "default",
			Name: name}}
		made := VolumeSnapshot(content, &v1beta1.VolumeBackup{VolumeSnapshotName: ptr.To("x")}, "snap")
		label, annotation := made.Labels[key], made.Annotations[key]
		if errs := validation.IsValidLabelValue(label); len(errs) > 0 || label == "" {
			t.Errorf("%s: label %q: %v", name, label, errs)
		}
		if fits := len(name) <= 63; fits && (label != name || annotation != "") || !fits && annotation != name {
			t.Errorf("%s: label %q, annotation %q", name, label, annotation)
		}
		if other := labels[label]; other != "" {
			t.Errorf("%s and %s have the label %q", name, other, label)
		}
		labels[label] = name
	}
}

func TestARunningGuestIsStoredAsItWasStarted(t *testing.T) {
	started := builder.MakeVM("vm").Template(builder.MakeVMI("vm").Guest("1Gi")).With(
		withVolume("root", onClaim("root"))).With(withDisk("root")).Obj()
	vm := builder.MakeVM("vm").Template(builder.MakeVMI("vm").Guest("2Gi")).With(withVolume("root", onClaim("root"))).With(
		withDisk("root")).
		With(withVolume("plugged", onClaim("plugged"))).With(withDisk("plugged")).
		With(func(vm *v1.VirtualMachine) {
			vm.Spec.DataVolumeTemplates = []v1.DataVolumeTemplateSpec{{ObjectMeta: metav1.ObjectMeta{Name: "new"}}}
		}).Obj()
	for name, tc := range map[string]struct {
		started *v1.VirtualMachineSpec
		memory  string
	}{
		"running": {&started.Spec, "1Gi"},
		"stopped": {nil, "2Gi"},
	} {
		content, _ := Content(request(), Stored{VM: vm, Started: tc.started})
		spec := content.Spec.Source.VirtualMachine.Spec
		if got := spec.Template.Spec.Domain.Memory.Guest.String(); got != tc.memory {
			t.Errorf("%s: the guest is stored with %s of memory", name, got)
		}
		if len(spec.Template.Spec.Volumes) != 2 || len(spec.Template.Spec.Domain.Devices.Disks) != 2 ||
			len(spec.DataVolumeTemplates) != 1 {
			t.Errorf("%s: the plugged disk is not stored: %+v", name, spec)
		}
	}
	if len(started.Spec.Template.Spec.Volumes) != 1 {
		t.Error("the spec that was started has changed")
	}
}

// TestFileSystemsAreStoredWithTheirVolumes has file systems that were removed, or added, since the guest was started.
func TestFileSystemsAreStoredWithTheirVolumes(t *testing.T) {
	vm := func(filesystems ...string) *v1.VirtualMachine {
		b := builder.MakeVM("vm").Template(builder.MakeVMI("vm")).With(withVolume("root", onClaim("root"))).With(
			withDisk("root"))
		for _, name := range filesystems {
			b = b.With(withVolume(name, onClaim(name))).With(func(vm *v1.VirtualMachine) {
				devices := &vm.Spec.Template.Spec.Domain.Devices
				devices.Filesystems = append(devices.Filesystems, v1.Filesystem{Name: name})
			})
		}
		return b.Obj()
	}
	for name, tc := range map[string]struct{ started, now []string }{
		"unchanged":   {[]string{"a"}, []string{"a"}},
		"one removed": {[]string{"a", "b"}, []string{"b"}},
		"one added":   {[]string{"a"}, []string{"a", "b"}},
		"all removed": {[]string{"a"}, nil},
	} {
		content, _ := Content(request(), Stored{VM: vm(tc.now...), Started: &vm(tc.started...).Spec})
		spec := &content.Spec.Source.VirtualMachine.Spec.Template.Spec
		var got []string
		for _, fs := range spec.Domain.Devices.Filesystems {
			got = append(got, fs.Name)
			if !slices.ContainsFunc(spec.Volumes, func(v v1.Volume) bool { return v.Name == fs.Name }) {
				t.Errorf("%s: file system %s has no volume", name, fs.Name)
			}
		}
		if !slices.Equal(got, tc.now) {
			t.Errorf("%s: the file systems are %v, not %v", name, got, tc.now)
		}
	}
}

func TestRevisionsAreCopied(t *testing.T) {
	ref := func(name, revision string) *v1.InstancetypeStatusRef {
		return &v1.InstancetypeStatusRef{
			Name: name, Kind: "VirtualMachineClusterInstancetype",
			ControllerRevisionRef: &v1.ControllerRevisionRef{Name: revision},
		}
	}
	inferred := ref("small", "vm-small-v1beta1-9-1")
	inferred.InferFromVolume = "root"
	for name, tc := range map[string]struct {
		matcher v1.InstancetypeMatcher
		ref     *v1.InstancetypeStatusRef
		copies  []RevisionCopy
		want    v1.InstancetypeMatcher
	}{
		"in the status": {
			v1.InstancetypeMatcher{Name: "small"}, ref("small", "vm-small-v1beta1-9-1"),
			[]RevisionCopy{{"vm-small-v1beta1-9-1", "snap-small-v1beta1-9-1"}},
			v1.InstancetypeMatcher{Name: "small", Kind: "VirtualMachineClusterInstancetype",
				RevisionName: "snap-small-v1beta1-9-1"},
		},
		"in the spec": {
			v1.InstancetypeMatcher{Name: "small", RevisionName: "vm-small-v1beta1-9-1"}, nil,
			[]RevisionCopy{{"vm-small-v1beta1-9-1", "snap-small-v1beta1-9-1"}},
			v1.InstancetypeMatcher{Name: "small", RevisionName: "snap-small-v1beta1-9-1"},
		},
		"of the user's own": {
			v1.InstancetypeMatcher{Name: "small", RevisionName: "mine"}, nil,
			[]RevisionCopy{{"mine", "snap-mine"}}, v1.InstancetypeMatcher{Name: "small", RevisionName: "snap-mine"},
		},
		"inferred": {
			v1.InstancetypeMatcher{InferFromVolume: "root",
				InferFromVolumeFailurePolicy: ptr.To(v1.IgnoreInferFromVolumeFailure)}, inferred,
			[]RevisionCopy{{"vm-small-v1beta1-9-1", "snap-small-v1beta1-9-1"}},
			v1.InstancetypeMatcher{Name: "small", Kind: "VirtualMachineClusterInstancetype",
				RevisionName: "snap-small-v1beta1-9-1"},
		},
		"of another object than the spec's": {
			v1.InstancetypeMatcher{Name: "large"}, ref("small", "vm-small-v1beta1-9-1"), nil,
			v1.InstancetypeMatcher{Name: "large"},
		},
		"not stored yet": {v1.InstancetypeMatcher{Name: "small"}, nil, nil, v1.InstancetypeMatcher{Name: "small"}},
	} {
		t.Run(name, func(t *testing.T) {
			vm := builder.MakeVM("vm").With(func(vm *v1.VirtualMachine) {
				vm.Spec.Instancetype, vm.Status.InstancetypeRef = &tc.matcher, tc.ref
			}).Obj()
			content, copies := Content(request(), Stored{VM: vm})
			if diff := cmp.Diff(tc.copies, copies); diff != "" {
				t.Errorf("copies (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(&tc.want, content.Spec.Source.VirtualMachine.Spec.Instancetype); diff != "" {
				t.Errorf("matcher (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTheSnapshotOwnsItsRevisions(t *testing.T) {
	revision := &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Name: "vm-small", UID: "1", ResourceVersion: "5", Labels: map[string]string{
				v1.CreatedByLabel: "7", "instancetype.kubevirt.io/object-kind": "VirtualMachineInstancetype", "app": "a-workload",
				"kubevirt.io.example/a": "b",
			},
		},
		Data: runtime.RawExtension{Raw: []byte(`{"b":1,"a":2}`)}, Revision: 3,
	}
	want := &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "snap-small", Labels: map[string]string{
				v1.CreatedByLabel: "42", "instancetype.kubevirt.io/object-kind": "VirtualMachineInstancetype",
			},
			Annotations: map[string]string{"kubevirt.io/data-form": "sorted"},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "snapshot.kubevirt.io/v1beta1", Kind: "VirtualMachineSnapshot", Name: "snap", UID: "42",
				Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true),
			}},
		},
		Data: runtime.RawExtension{Raw: []byte(`{"a":2,"b":1}`)}, Revision: 3,
	}
	if diff := cmp.Diff(want, Revision(request(), revision, "snap-small")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestObstacle(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Source, *corev1.PersistentVolumeClaim)
		want   string
	}{
		"none": {func(*Source, *corev1.PersistentVolumeClaim) {}, ""},
		"no claim": {
			func(s *Source, _ *corev1.PersistentVolumeClaim) { s.Volumes[0].Claim = nil }, "source default/vm volume doesnt exist: root",
		},
		"a claim being deleted": {
			func(_ *Source, c *corev1.PersistentVolumeClaim) {
				c.DeletionTimestamp = ptr.To(metav1.NewTime(time.Unix(1, 0)))
			},
			"source default/vm volume is being deleted: root",
		},
		"an unbound claim": {
			func(_ *Source, c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimPending }, "source default/vm volume not bound: root",
		},
		"a claim that is being filled": {
			func(s *Source, _ *corev1.PersistentVolumeClaim) { s.Unfilled = map[string]string{"root": ""} },
			"source default/vm volume not populated: root",
		},
		"a claim that nothing fills": {
			func(s *Source, _ *corev1.PersistentVolumeClaim) { s.Unfilled = map[string]string{"root": "install it"} },
			"source default/vm volume not populated: root: install it",
		},
		"no default among the classes": {
			func(s *Source, _ *corev1.PersistentVolumeClaim) {
				s.Volumes[0].Undecided, s.Volumes[0].Reason = true, "2 matching VolumeSnapshotClasses for fast"
			},
			"source default/vm 2 matching VolumeSnapshotClasses for fast: root",
		},
		"a volume without a snapshot class": {
			func(s *Source, _ *corev1.PersistentVolumeClaim) { s.Volumes[0].Class, s.Volumes[0].Reason = "", "none" }, "",
		},
		"Pods of others": {func(s *Source, _ *corev1.PersistentVolumeClaim) { s.Pods = 2 }, "source is offline but 2 pods using PVCs [root]"},
		"the guest's own Pod": {
			func(s *Source, _ *corev1.PersistentVolumeClaim) { s.Pods, s.Online = 1, true }, "",
		},
		"another snapshot": {
			func(s *Source, _ *corev1.PersistentVolumeClaim) { s.VM.Status.SnapshotInProgress = ptr.To("b") }, `snapshot "b" in progress`,
		},
		"this snapshot": {
			func(s *Source, _ *corev1.PersistentVolumeClaim) { s.VM.Status.SnapshotInProgress = ptr.To("a") }, "",
		},
		"a restore": {
			func(s *Source, _ *corev1.PersistentVolumeClaim) { s.VM.Status.RestoreInProgress = ptr.To("r") }, `restore "r" in progress`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := claim("root", "fast")
			source := Source{VM: builder.MakeVM("vm").Obj(), Volumes: []Volume{
				{Name: "root", ClaimName: "root", Claim: root, Class: "snap"}, {Name: "image"}, {Name: "again", ClaimName: "root", Claim: root},
			}}
			tc.change(&source, root)
			if got := source.Obstacle("a"); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestLockedNeedsBothWrites(t *testing.T) {
	status := func(vm *v1.VirtualMachine) { vm.Status.SnapshotInProgress = ptr.To("a") }
	for name, tc := range map[string]struct {
		vm   *v1.VirtualMachine
		want bool
	}{
		"no VM":          {nil, false},
		"neither":        {builder.MakeVM("vm").Obj(), false},
		"only status":    {builder.MakeVM("vm").With(status).Obj(), false},
		"only finalizer": {builder.MakeVM("vm").Finalizers(snapshot.SourceFinalizer).Obj(), false},
		"both":           {builder.MakeVM("vm").Finalizers(snapshot.SourceFinalizer).With(status).Obj(), true},
	} {
		if got := (Source{VM: tc.vm}).Locked("a"); got != tc.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}
