// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package restore

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/cdi"
	"github.com/vireo-project/vireo/api/csi"
	"github.com/vireo-project/vireo/api/instancetype"
	"github.com/vireo-project/vireo/api/snapshot"
	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/firmware"
	"github.com/vireo-project/vireo/internal/decide/snapshot/capture"
	"github.com/vireo-project/vireo/test/builder"
	"github.com/vireo-project/vireo/test/health"
)

const (
	mac      = "02:00:00:00:00:01"
	revision = "-small-v1beta1-9-1"
)

// cluster is a Observed whose objects change as those of an API server, a storage driver and the importer do.
type cluster struct {
	Observed
	uids int
}

// newCluster returns a VM with a disk of a DataVolume template, one of a claim, one of a DataVolume without template,
// an image and an instance type, and a snapshot of it. The VM has changed since.
func newCluster(changes ...func(*v1.VirtualMachine)) *cluster {
	vm := builder.MakeVM("vm").UID("vm-uid").Label("app", "db").With(func(vm *v1.VirtualMachine) {
		vm.Annotations = map[string]string{corev1.LastAppliedConfigAnnotation: "{}"}
		vm.Spec.DataVolumeTemplates = []v1.DataVolumeTemplateSpec{{ObjectMeta: metav1.ObjectMeta{Name: "root-dv"}}}
		spec := &vm.Spec.Template.Spec
		spec.Volumes = []v1.Volume{
			{Name: "root", VolumeSource: v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "root-dv"}}},
			{Name: "data", VolumeSource: onClaim("data-pvc")},
			{Name: "more", VolumeSource: v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "more-dv", Hotpluggable: true}}},
			{Name: "image", VolumeSource: v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{Image: "image"}}},
		}
		for _, volume := range spec.Volumes {
			spec.Domain.Devices.Disks = append(spec.Domain.Devices.Disks, v1.Disk{Name: volume.Name})
		}
		spec.Domain.Devices.Interfaces = []v1.Interface{{Name: "default", MacAddress: mac}}
		vm.Spec.Instancetype = &v1.InstancetypeMatcher{Name: "small", RevisionName: "vm" + revision}
	}).Obj()
	for _, change := range changes {
		change(vm)
	}
	c := &cluster{Observed: Observed{
		Now: time.Unix(1000, 0), Target: vm, Claims: map[string]*corev1.PersistentVolumeClaim{},
		DataVolumes:     map[string]*cdi.DataVolume{},
		VolumeSnapshots: map[string]*csi.VolumeSnapshot{}, Revisions: map[string]*appsv1.ControllerRevision{},
		BindingModes: map[string]storagev1.VolumeBindingMode{"fast": storagev1.VolumeBindingImmediate},
		Restore: &v1beta1.VirtualMachineRestore{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "back", UID: "r1",
				CreationTimestamp: metav1.NewTime(time.Unix(1000, 0))},
			Spec: v1beta1.VirtualMachineRestoreSpec{
				Target: corev1.TypedLocalObjectReference{Kind: "VirtualMachine", Name: "vm"}, VirtualMachineSnapshotName: "snap",
			},
		},
	}}
	owner := *metav1.NewControllerRef(vm, v1.VirtualMachineGroupVersionKind)
	for _, name := range []string{"root-dv", "more-dv"} {
		dv := &cdi.DataVolume{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
		if name == "root-dv" {
			dv.OwnerReferences = []metav1.OwnerReference{owner}
		}
		dv.Status.Phase = cdi.DataVolumeSucceeded
		c.create(dv)
		c.create(claim(name, *metav1.NewControllerRef(dv, cdi.GroupVersion.WithKind("DataVolume"))))
	}
	c.create(claim("data-pvc", owner))
	if vm.Spec.Template.Spec.HasPersistentState() {
		state := claim("persistent-state-for-vm-x", owner)
		state.Labels[v1.PersistentStateLabel] = "vm"
		c.create(state)
	}
	c.snapshot()
	vm.Spec.Template.Spec.Domain.Devices.Interfaces[0].MacAddress = "02:00:00:00:00:99"
	return c
}

func withTPM(vm *v1.VirtualMachine) {
	vm.Spec.Template.Spec.Domain.Devices.TPM = &v1.TPMDevice{Persistent: ptr.To(true)}
}

func onClaim(name string) v1.VolumeSource {
	out := &v1.PersistentVolumeClaimVolumeSource{}
	out.ClaimName = name
	return v1.VolumeSource{PersistentVolumeClaim: out}
}

func claim(name string, owner metav1.OwnerReference) *corev1.PersistentVolumeClaim {
	out := builder.MakePVC(name).Bound("1Gi").Obj()
	out.Spec.StorageClassName, out.Spec.VolumeName = ptr.To("fast"), "pv-"+name
	out.Labels = map[string]string{"tier": "gold"}
	out.Annotations = map[string]string{
		"pv.kubernetes.io/bind-completed": "yes", "cdi.kubevirt.io/storage.import.endpoint": "x", cdi.ContentTypeAnnotation: "kubevirt",
		"note": "mine", corev1.LastAppliedConfigAnnotation: "{}",
	}
	out.OwnerReferences = []metav1.OwnerReference{owner}
	return out
}

// snapshot takes a snapshot as capture does.
func (c *cluster) snapshot() {
	c.Snapshot = &v1beta1.VirtualMachineSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "snap",
		UID: "s1"}}
	storage := capture.Storage{
		Claims: c.Claims, State: c.Claims["persistent-state-for-vm-x"], Drivers: map[string]string{"fast": "csi"},
		Classes: []csi.VolumeSnapshotClass{{ObjectMeta: metav1.ObjectMeta{Name: "class"}, Driver: "csi"}},
	}
	stored := capture.Stored{VM: c.Target, Identity: firmware.FromUID, Volumes: capture.Volumes(c.Target, storage)}
	var copies []capture.RevisionCopy
	c.Content, copies = capture.Content(c.Snapshot, stored)
	c.Content.Status = &v1beta1.VirtualMachineSnapshotContentStatus{ReadyToUse: ptr.To(true)}
	c.Snapshot.Status = &v1beta1.VirtualMachineSnapshotStatus{
		Phase: v1beta1.Succeeded, ReadyToUse: ptr.To(true), SourceUID: ptr.To(c.Target.UID),
	}
	for i := range c.Content.Spec.VolumeBackups {
		taken := capture.VolumeSnapshot(c.Content, &c.Content.Spec.VolumeBackups[i], "class")
		taken.Status = &csi.VolumeSnapshotStatus{RestoreSize: ptr.To(resource.MustParse("2Gi"))}
		c.VolumeSnapshots[taken.Name] = taken
	}
	for _, names := range copies {
		original := &appsv1.ControllerRevision{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: names.From,
				Labels: map[string]string{instancetype.ControllerRevisionObjectNameLabel: "small"},
			},
			Data: runtime.RawExtension{Raw: []byte(`{"spec":{"cpu":{"guest":1}},"kind":"x"}`)},
		}
		original.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(c.Target,
			v1.VirtualMachineGroupVersionKind)}
		c.create(original)
		c.create(capture.Revision(c.Snapshot, original, names.To))
	}
}

// create adds an object with a new UID.
func (c *cluster) create(object Object) {
	c.uids++
	object.SetUID(types.UID(fmt.Sprintf("uid-%d", c.uids)))
	c.put(object)
}

func (c *cluster) put(object Object) {
	switch o := object.DeepCopyObject().(type) {
	case *corev1.PersistentVolumeClaim:
		c.Claims[o.Name] = o
	case *cdi.DataVolume:
		c.DataVolumes[o.Name] = o
	case *appsv1.ControllerRevision:
		c.Revisions[o.Name] = o
	case *v1.VirtualMachine:
		c.Target = o
	}
}

func (c *cluster) live(object Object) Object {
	name := object.GetName()
	switch object.(type) {
	case *corev1.PersistentVolumeClaim:
		if o := c.Claims[name]; o != nil {
			return o
		}
	case *cdi.DataVolume:
		if o := c.DataVolumes[name]; o != nil {
			return o
		}
	case *appsv1.ControllerRevision:
		if o := c.Revisions[name]; o != nil {
			return o
		}
	case *v1.VirtualMachine:
		if c.Target != nil {
			return c.Target
		}
	}
	return nil
}

// remove deletes an object, and the claim of a DataVolume with it.
func (c *cluster) remove(object Object) {
	switch o := object.(type) {
	case *corev1.PersistentVolumeClaim:
		delete(c.Claims, o.Name)
	case *cdi.DataVolume:
		delete(c.DataVolumes, o.Name)
		if owned := c.Claims[o.Name]; owned != nil && metav1.IsControlledBy(owned, o) {
			delete(c.Claims, o.Name)
		}
	case *appsv1.ControllerRevision:
		delete(c.Revisions, o.Name)
	}
}

// apply applies a step, or the part of it for which chosen returns true.
func (c *cluster) apply(step Step, chosen func() bool) {
	c.Restore.Status = step.Status
	for _, object := range step.Create {
		if chosen() && c.live(object) == nil {
			c.create(object)
		}
	}
	for _, object := range step.Update {
		if chosen() {
			c.put(object)
		}
	}
	for _, object := range step.Delete {
		if live := c.live(object); chosen() && live != nil && live.GetUID() == object.GetUID() {
			c.remove(object)
		}
	}
	if step.Lock && chosen() {
		c.Target.Status.RestoreInProgress = ptr.To(c.Restore.Name)
	}
	if step.Unlock && chosen() {
		c.Target.Status.RestoreInProgress, c.Target.Status.MemoryDumpRequest = nil, nil
	}
}

// settle does what the storage driver and the importer do.
func (c *cluster) settle() {
	for _, claim := range c.Claims {
		if dv := c.DataVolumes[claim.Annotations[populatedFor]]; dv != nil && claim.OwnerReferences == nil {
			claim.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(dv,
				cdi.GroupVersion.WithKind("DataVolume"))}
			dv.Status.Phase = cdi.DataVolumeSucceeded
		}
		if claim.Status.Phase == "" {
			claim.Status.Phase = corev1.ClaimBound
		}
	}
	for _, dv := range c.DataVolumes {
		if c.Claims[dv.Name] == nil && dv.Annotations[prePopulated] == "" {
			empty := claim(dv.Name, *metav1.NewControllerRef(dv, cdi.GroupVersion.WithKind("DataVolume")))
			c.create(empty)
		}
	}
}

// run applies steps until the restore is complete.
func (c *cluster) run(t *testing.T, chosen func() bool) Step {
	t.Helper()
	for range 200 {
		step := Next(c.Observed)
		c.apply(step, chosen)
		c.settle()
		if ptr.Deref(step.Status.Complete, false) {
			return step
		}
		if got := health.Kstatus(t, c.Restore); c.Restore.Status != nil && got != health.InProgress {
			t.Errorf("the restore is not complete, and kstatus is %s", got)
		}
	}
	t.Fatalf("the restore does not end: %+v", c.Restore.Status)
	return Step{}
}

func all() bool { return true }

// some chooses a part of a step.
func some(seed uint64) func() bool {
	random := rand.New(rand.NewPCG(seed, 0))
	return func() bool { return random.IntN(2) == 0 }
}

// summary describes what the user observes of a cluster, without UIDs.
func (c *cluster) summary() []string {
	var out []string
	owner := func(o metav1.Object) string {
		if ref := metav1.GetControllerOf(o); ref != nil {
			return ref.Kind + "/" + ref.Name
		}
		return "none"
	}
	for _, name := range slices.Sorted(maps.Keys(c.Claims)) {
		claim := c.Claims[name]
		out = append(out, fmt.Sprintf("claim %s of %s, restored by %q, state of %q", name, owner(claim),
			claim.Annotations[snapshot.RestoreNameAnnotation], claim.Labels[v1.PersistentStateLabel]))
	}
	for _, name := range slices.Sorted(maps.Keys(c.DataVolumes)) {
		out = append(out, fmt.Sprintf("DataVolume %s of %s", name, owner(c.DataVolumes[name])))
	}
	for _, name := range slices.Sorted(maps.Keys(c.Revisions)) {
		out = append(out, fmt.Sprintf("revision %s of %s", name, owner(c.Revisions[name])))
	}
	for i := range c.Target.Spec.Template.Spec.Volumes {
		if volume := &c.Target.Spec.Template.Spec.Volumes[i]; volume.DataVolume != nil {
			out = append(out, fmt.Sprintf("volume %s on DataVolume %s", volume.Name, volume.DataVolume.Name))
		} else {
			out = append(out, fmt.Sprintf("volume %s on %q", volume.Name, volume.WrittenClaim()))
		}
	}
	for i := range c.Target.Spec.DataVolumeTemplates {
		out = append(out, "template "+c.Target.Spec.DataVolumeTemplates[i].Name)
	}
	return append(out, fmt.Sprintf("locked %t, deleted %v", c.Target.Status.RestoreInProgress != nil,
		c.Restore.Status.DeletedDataVolumes))
}
