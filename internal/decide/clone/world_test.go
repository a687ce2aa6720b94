// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package clone

import (
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/clone/v1beta1"
	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/snapshot/capture"
	"github.com/vireo-project/vireo/test/builder"
	"github.com/vireo-project/vireo/test/health"
)

const mac = "02:00:00:00:00:01"

// cluster is a Observed whose objects change as those of an API server do, and those of the reconcilers of snapshots
// and restores.
type cluster struct {
	Observed
	// deleted are the kinds of the objects that were deleted, and events the reasons of events.
	deleted, events []string
	// phases are those that the clone has had.
	phases []v1beta1.VirtualMachineClonePhase
	// unbound lets claims wait for their first consumer.
	unbound bool
}

// newCluster returns a VM with a disk and a clone of it.
func newCluster(changes ...func(*cluster)) *cluster {
	vm := builder.MakeVM("vm").UID("vm-uid").Label("app", "db").With(func(vm *v1.VirtualMachine) {
		vm.Annotations = map[string]string{"note": "mine", corev1.LastAppliedConfigAnnotation: "{}"}
		volume := v1.Volume{Name: "root"}
		volume.DataVolume = &v1.DataVolumeSource{Name: "root-dv"}
		vm.Spec.Template.Spec.Volumes = []v1.Volume{volume,
			{Name: "image", VolumeSource: v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{Image: "x"}}}}
		vm.Spec.Template.Spec.Domain.Devices.Interfaces = []v1.Interface{{Name: "default", MacAddress: mac}}
		vm.Status.VolumeSnapshotStatuses = []v1.VolumeSnapshotStatus{{Name: "root", Enabled: true}, {Name: "image"}}
	}).Obj()
	c := &cluster{Observed: Observed{Now: time.Unix(1000, 0), Source: vm, Clone: &v1beta1.VirtualMachineClone{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c", UID: "c1"},
		Spec: v1beta1.VirtualMachineCloneSpec{
			Source: &corev1.TypedLocalObjectReference{APIGroup: ptr.To("kubevirt.io"), Kind: "VirtualMachine", Name: "vm"},
			Target: &corev1.TypedLocalObjectReference{APIGroup: ptr.To("kubevirt.io"), Kind: "VirtualMachine", Name: "copy"},
		},
	}}}
	for _, change := range changes {
		change(c)
	}
	return c
}

// ofSnapshot makes the source a snapshot of the user's, which is ready.
func ofSnapshot(c *cluster) {
	c.Clone.Spec.Source = &corev1.TypedLocalObjectReference{APIGroup: ptr.To("snapshot.kubevirt.io"),
		Kind: "VirtualMachineSnapshot", Name: "snap"}
	c.Snapshot = &snapshotv1beta1.VirtualMachineSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "snap",
		UID: "s1"}}
	c.settle()
}

// seen returns the world as the reconciler reads it.
func (c *cluster) seen() Observed {
	w, needs := c.Observed, NeedsOf(c.Clone)
	if !needs.Source {
		w.Source = nil
	}
	if !needs.Snapshot {
		w.Snapshot = nil
	}
	if !needs.Content {
		w.Content = nil
	}
	if !needs.Restore {
		w.Restore = nil
	}
	if !needs.Target {
		w.Target = nil
	}
	if !needs.Claims {
		w.Claims = nil
	}
	return w
}

// apply applies a step, or the part of it for which chosen returns true. The status is written if all was applied.
func (c *cluster) apply(step Step, chosen func() bool) {
	complete := true
	for _, object := range step.Create {
		if !chosen() {
			complete = false
			continue
		}
		object.SetUID(types.UID("uid-" + object.GetName()))
		switch o := object.(type) {
		case *snapshotv1beta1.VirtualMachineSnapshot:
			c.Snapshot = o
		case *snapshotv1beta1.VirtualMachineRestore:
			c.Restore = o
		}
	}
	for _, object := range step.Delete {
		if !chosen() {
			complete = false
			continue
		}
		switch object.(type) {
		case *snapshotv1beta1.VirtualMachineSnapshot:
			c.Snapshot, c.deleted = nil, append(c.deleted, "snapshot")
		case *snapshotv1beta1.VirtualMachineRestore:
			c.Restore, c.deleted = nil, append(c.deleted, "restore")
		case *v1beta1.VirtualMachineClone:
			c.deleted = append(c.deleted, "clone")
		}
	}
	if !complete || !chosen() {
		return
	}
	if step.Status.Phase != c.Clone.Status.Phase {
		c.phases = append(c.phases, step.Status.Phase)
	}
	c.Clone.Status = *step.Status
	for _, e := range step.Events {
		c.events = append(c.events, e.Reason)
	}
}

// settle does what the reconcilers of snapshots and restores do.
func (c *cluster) settle() {
	if of := c.Snapshot; of != nil && of.Status == nil {
		of.Status = &snapshotv1beta1.VirtualMachineSnapshotStatus{Phase: snapshotv1beta1.Succeeded, ReadyToUse: ptr.To(true)}
		c.Content = &snapshotv1beta1.VirtualMachineSnapshotContent{ObjectMeta: metav1.ObjectMeta{Namespace: "default",
			Name: capture.ContentName(of)}}
		c.Content.Spec.VirtualMachineSnapshotName = ptr.To(of.Name)
		c.Content.Spec.Source.VirtualMachine = &snapshotv1beta1.VirtualMachine{ObjectMeta: c.Source.ObjectMeta,
			Spec: *c.Source.Spec.DeepCopy()}
		c.Content.Spec.VolumeBackups = []snapshotv1beta1.VolumeBackup{{VolumeName: "root"}}
	}
	if of := c.Restore; of != nil && of.Status == nil {
		of.Status = &snapshotv1beta1.VirtualMachineRestoreStatus{Complete: ptr.To(true)}
		c.Target = builder.MakeVM(of.Spec.Target.Name).UID("target-uid").Obj()
		claim := builder.MakePVC("restored").Obj()
		claim.Status.Phase = corev1.ClaimPending
		c.Claims = []*corev1.PersistentVolumeClaim{claim}
	}
	for _, claim := range c.Claims {
		if !c.unbound {
			claim.Status.Phase = corev1.ClaimBound
		}
	}
}

// next applies the next step.
func (c *cluster) next(chosen func() bool) Step {
	step := Next(c.seen())
	c.apply(step, chosen)
	return step
}

// until applies steps until the clone is in a phase and nothing changes any more.
func (c *cluster) until(t *testing.T, phase v1beta1.VirtualMachineClonePhase, chosen func() bool) {
	t.Helper()
	for range 200 {
		c.next(chosen)
		c.settle()
		if c.Clone.Status.Phase == phase && (phase != v1beta1.Succeeded || c.unbound || c.Clone.Status.RestoreName == nil) {
			if got := health.Kstatus(t, c.Clone); phase == v1beta1.Succeeded && got != health.Current {
				t.Errorf("the clone has succeeded, and kstatus is %s", got)
			}
			return
		}
		if got := health.Kstatus(t, c.Clone); c.Clone.Status.Phase != v1beta1.Succeeded && c.Clone.Status.Phase != "" &&
			got != health.InProgress {
			t.Errorf("the clone is in phase %s, and kstatus is %s", c.Clone.Status.Phase, got)
		}
	}
	t.Fatalf("the clone does not get to %s: %+v", phase, c.Clone.Status)
}

func all() bool { return true }

// some chooses a part of a step.
func some(seed uint64) func() bool {
	random := rand.New(rand.NewPCG(seed, 0))
	return func() bool { return random.IntN(2) == 0 }
}
