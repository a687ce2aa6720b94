// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package clone

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/clone/v1beta1"
	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/conditions"
)

var (
	allPhases = []v1beta1.VirtualMachineClonePhase{
		v1beta1.SnapshotInProgress, v1beta1.RestoreInProgress, v1beta1.CreatingTargetVM, v1beta1.Succeeded,
	}
	eventsOfVM = []string{"SnapshotCreated", "SnapshotReady", "RestoreCreated", "RestoreReady", "TargetVMCreated",
		"PVCBound"}
	eventsOfSnapshot = eventsOfVM[1:]
)

// TestEachClone applies steps completely and in part, as a process that ends at any time would, and expects the same in
// the end.
func TestEachClone(t *testing.T) {
	for name, tc := range map[string]struct {
		change  func(*cluster)
		events  []string
		deleted []string
	}{
		"of a VM":       {func(*cluster) {}, eventsOfVM, []string{"restore", "snapshot"}},
		"of a snapshot": {ofSnapshot, eventsOfSnapshot, []string{"restore"}},
	} {
		for seed := range uint64(50) {
			chosen := some(seed)
			if seed == 0 {
				chosen = all
			}
			c := newCluster(tc.change)
			c.until(t, v1beta1.Succeeded, chosen)
			if diff := cmp.Diff(allPhases, c.phases); diff != "" {
				t.Fatalf("%s, %d: phases\n%s", name, seed, diff)
			}
			if diff := cmp.Diff(tc.events, c.events); diff != "" {
				t.Fatalf("%s, %d: events\n%s", name, seed, diff)
			}
			slices.Sort(c.deleted)
			if diff := cmp.Diff(tc.deleted, c.deleted); diff != "" {
				t.Fatalf("%s, %d: deleted\n%s", name, seed, diff)
			}
			status := c.Clone.Status
			if ptr.Deref(status.TargetName, "") != "copy" || status.CreationTime == nil || status.SnapshotName != nil {
				t.Errorf("%s, %d: %+v", name, seed, status)
			}
			if step := c.next(all); len(step.Create)+len(step.Delete) > 0 || step.RequeueAfter != 0 ||
				!cmp.Equal(*step.Status, status) {
				t.Errorf("%s, %d: it goes on: %+v", name, seed, step)
			}
		}
	}
}

func TestWhatIsCreated(t *testing.T) {
	c := newCluster(func(c *cluster) { c.Clone.Spec.VolumeNamePolicy = ptr.To(v1beta1.VolumeNamePolicyPrefixTargetName) })
	c.until(t, v1beta1.RestoreInProgress, all)
	c.next(all)
	if of := c.Snapshot; of.Name != "tmp-snapshot-c1" || of.Namespace != "default" ||
		!metav1.IsControlledBy(of, c.Clone) || of.Spec.Source.Name != "vm" {
		t.Errorf("snapshot %+v", of)
	}
	of := c.Restore
	if of.Name != "tmp-restore-c1" || of.Namespace != "default" || !metav1.IsControlledBy(of, c.Clone) ||
		of.Spec.VirtualMachineSnapshotName != c.Snapshot.Name {
		t.Errorf("restore %+v", of)
	}
	if target := of.Spec.Target; target.Name != "copy" || target.Kind != "VirtualMachine" ||
		ptr.Deref(target.APIGroup, "") != "kubevirt.io" {
		t.Errorf("target %+v", target)
	}
	if ptr.Deref(of.Spec.VolumeRestorePolicy, "") != snapshotv1beta1.VolumeRestorePolicyPrefixTargetName {
		t.Errorf("policy %v", of.Spec.VolumeRestorePolicy)
	}
	if ref := of.OwnerReferences[0]; ref.APIVersion != "clone.kubevirt.io/v1beta1" || !*ref.BlockOwnerDeletion {
		t.Errorf("owner %+v", ref)
	}
}

// Users may write contents. What a clone creates and deletes is in its namespace, and names objects of it, whatever the
// content contains.
func TestACloneReachesNoOtherNamespace(t *testing.T) {
	for name, change := range map[string]func(*cluster){"of a VM": func(*cluster) {}, "of a snapshot": ofSnapshot} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(change)
			made := 0
			for range 100 {
				if c.Content != nil {
					c.Content = c.Content.DeepCopy()
					c.Content.Spec.Source.VirtualMachine.Namespace = "other"
				}
				step := Next(c.seen())
				for _, object := range append(slices.Clone(step.Create), step.Delete...) {
					if object.GetNamespace() != "default" {
						t.Errorf("%T %s/%s is changed", object, object.GetNamespace(), object.GetName())
					}
				}
				for _, object := range step.Create {
					if of, ok := object.(*snapshotv1beta1.VirtualMachineRestore); ok &&
						strings.Contains(strings.Join(of.Spec.Patches, " "), "other") {
						t.Errorf("the VM is patched with %v", of.Spec.Patches)
					}
					made++
				}
				c.apply(step, all)
				c.settle()
				if c.Clone.Status.Phase == v1beta1.Succeeded {
					break
				}
			}
			if c.Clone.Status.Phase != v1beta1.Succeeded || made == 0 {
				t.Fatalf("got %s after %d objects", describe(&c.Clone.Status), made)
			}
		})
	}
}

func TestClaimsThatWaitKeepTheSnapshot(t *testing.T) {
	c := newCluster()
	c.unbound = true
	c.until(t, v1beta1.Succeeded, all)
	for range 3 {
		c.next(all)
	}
	if c.Snapshot == nil || c.Restore == nil || c.Clone.Status.RestoreName == nil ||
		slices.Contains(c.events, "PVCBound") {
		t.Fatalf("the snapshot is needed: %+v", c.Clone.Status)
	}
	if !conditions.IsTrue(c.Clone.Status.Conditions, v1beta1.ConditionReady) {
		t.Error("the target is there")
	}
	c.unbound = false
	c.until(t, v1beta1.Succeeded, some(1))
	if c.Snapshot != nil || c.Restore != nil {
		t.Error("what is not needed any more stays")
	}
}

// TestObstacles has what a clone waits for, and what makes it fail.
func TestObstacles(t *testing.T) {
	underway := func(phase v1beta1.VirtualMachineClonePhase, change func(*cluster)) func(*testing.T, *cluster) {
		return func(t *testing.T, c *cluster) {
			t.Helper()
			if phase != v1beta1.PhaseUnset {
				c.until(t, phase, all)
			}
			change(c)
		}
	}
	restoring := func(change func(*cluster)) func(*testing.T, *cluster) {
		return func(t *testing.T, c *cluster) {
			t.Helper()
			c.until(t, v1beta1.RestoreInProgress, all)
			c.next(all)
			change(c)
		}
	}
	const unset, taking, inProgress = v1beta1.PhaseUnset, v1beta1.SnapshotInProgress, v1beta1.RestoreInProgress
	failed := func(text string) string { return "Failed: Progressing=False Failed, Ready=False " + text }
	for name, tc := range map[string]struct {
		change func(*testing.T, *cluster)
		want   string
		event  string
	}{
		"no source": {
			underway(unset, func(c *cluster) { c.Source = nil }),
			": Progressing=False Pending, Ready=False Source doesnt exist: VirtualMachine default/vm", "SourceDoesNotExist",
		},
		"no source, a snapshot": {
			underway(unset, func(c *cluster) { ofSnapshot(c); c.Snapshot = nil }),
			": Progressing=False Pending, Ready=False Source doesnt exist: VirtualMachineSnapshot default/snap",
			"SourceDoesNotExist",
		},
		"a source that says nothing": {
			underway(unset, func(c *cluster) { c.Clone.Spec.Source = nil }),
			": Progressing=False Pending, Ready=False clone c is defined with an unknown source type ", "",
		},
		"another kind of target": {
			underway(unset, func(c *cluster) { c.Clone.Spec.Target.Kind = "Pod" }),
			": Progressing=False Pending, Ready=False target type is unknown: Pod", "",
		},
		"a TPM": {
			underway(unset, func(c *cluster) {
				c.Source.Spec.Template.Spec.Domain.Devices.TPM = &v1.TPMDevice{Persistent: ptr.To(true)}
			}),
			failed("Clone of source with backendstorage is not supported: VM default/vm"), "SourceVMWithBackendStorageInvalid",
		},
		"a volume without snapshots": {
			underway(unset, func(c *cluster) { c.Source.Status.VolumeSnapshotStatuses[0].Enabled = false }),
			": Progressing=False Pending, Ready=False Virtual Machine volume root does not support snapshots",
			"VMVolumeSnapshotsInvalid",
		},
		"a volume of which nothing is known": {
			underway(unset, func(c *cluster) { c.Source.Status.VolumeSnapshotStatuses = nil }),
			": Progressing=False Pending, Ready=False Virtual Machine volume root snapshot support unknown",
			"VMVolumeSnapshotsInvalid",
		},
		"two volumes without snapshots": {
			underway(unset, func(c *cluster) {
				withData(c.Source)
				c.Source.Status.VolumeSnapshotStatuses[0].Enabled = false
			}),
			": Progressing=False Pending, Ready=False Virtual Machine volume root does not support snapshots\n" +
				"Virtual Machine volume data snapshot support unknown", "VMVolumeSnapshotsInvalid",
		},
		"a snapshot of the user's under that name": {
			underway(unset, func(c *cluster) {
				c.Snapshot = &snapshotv1beta1.VirtualMachineSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: "default",
					Name: "tmp-snapshot-c1"}}
			}),
			": Progressing=True Still processing, Ready=False Still processing (VirtualMachineSnapshot default/tmp-snapshot-c1 exists already and does not belong to the clone: delete it)", "",
		},
		"a snapshot that is gone": {
			underway(taking, func(c *cluster) { c.Snapshot = nil }), failed("snapshot tmp-snapshot-c1 does not exist anymore"),
			"SnapshotDeleted",
		},
		"a snapshot with an error": {
			underway(taking, func(c *cluster) {
				c.Snapshot.Status = &snapshotv1beta1.VirtualMachineSnapshotStatus{Error: &snapshotv1beta1.Error{Message: ptr.To(
					"no space")}}
			}),
			"SnapshotInProgress: Progressing=True Still processing, Ready=False Still processing (snapshot tmp-snapshot-c1: no space)", "",
		},
		"a snapshot that has failed": {
			underway(taking, func(c *cluster) {
				c.Snapshot.Status = &snapshotv1beta1.VirtualMachineSnapshotStatus{Phase: snapshotv1beta1.Failed}
			}),
			failed("snapshot tmp-snapshot-c1 has failed"), "SnapshotFailed",
		},
		"no content": {
			underway(taking, func(c *cluster) { c.Content = nil }),
			failed("snapshot content vmsnapshot-content-uid-tmp-snapshot-c1 in namespace default does not exist"),
			"SnapshotContentInvalid",
		},
		"a content without a VM": {
			underway(taking, func(c *cluster) { c.Content.Spec.Source.VirtualMachine = nil }),
			failed("snapshot content vmsnapshot-content-uid-tmp-snapshot-c1 contains no VirtualMachine"),
			"SnapshotContentInvalid",
		},
		"a content without a snapshot": {
			underway(taking, func(c *cluster) { c.Content.Spec.VirtualMachineSnapshotName = nil }),
			failed("cannot get snapshot name from content vmsnapshot-content-uid-tmp-snapshot-c1"), "SnapshotContentInvalid",
		},
		"the content of another snapshot": {
			underway(taking, func(c *cluster) { c.Content.Spec.VirtualMachineSnapshotName = ptr.To("other") }),
			failed("snapshot content vmsnapshot-content-uid-tmp-snapshot-c1 does not belong to snapshot tmp-snapshot-c1"),
			"SnapshotContentInvalid",
		},
		"a content with more volumes than any VM": {
			underway(taking, func(c *cluster) { c.Content.Spec.VolumeBackups = make([]snapshotv1beta1.VolumeBackup, 258) }),
			failed("VMSnapshotContent default/vmsnapshot-content-uid-tmp-snapshot-c1 has 258 volumes, and a VirtualMachine has at most 257"), "SnapshotContentInvalid",
		},
		"a content without a volume": {
			underway(taking, func(c *cluster) { c.Content.Spec.VolumeBackups = nil }),
			failed("volume root is not backed up in snapshot tmp-snapshot-c1"), "SnapshotContentInvalid",
		},
		"a content without two volumes": {
			underway(taking, func(c *cluster) {
				withData(c.Source)
				c.Content.Spec.Source.VirtualMachine.Spec, c.Content.Spec.VolumeBackups = c.Source.Spec, nil
			}),
			failed("volume root is not backed up in snapshot tmp-snapshot-c1\nvolume data is not backed up in snapshot tmp-snapshot-c1"), "SnapshotContentInvalid",
		},
		"a content with the state of a TPM": {
			underway(taking, func(c *cluster) {
				backup := snapshotv1beta1.VolumeBackup{VolumeName: "persistent-state-for-vm"}
				backup.PersistentVolumeClaim.Labels = map[string]string{v1.PersistentStateLabel: "vm"}
				c.Content.Spec.VolumeBackups = append(c.Content.Spec.VolumeBackups, backup)
			}),
			failed("Clone of source with backendstorage is not supported: snapshot default/tmp-snapshot-c1"),
			"SnapshotContentInvalid",
		},
		"a snapshot that is gone before the restore": {
			underway(inProgress, func(c *cluster) { c.Snapshot = nil }),
			failed("snapshot tmp-snapshot-c1 does not exist anymore"), "SnapshotDeleted",
		},
		"a source that is gone before the restore": {
			func(t *testing.T, c *cluster) {
				ofSnapshot(c)
				c.until(t, inProgress, all)
				c.Snapshot = nil
			},
			"RestoreInProgress: Progressing=False Pending, Ready=False Source doesnt exist: VirtualMachineSnapshot default/snap",
			"SourceDoesNotExist",
		},
		"a target that exists": {
			underway(inProgress, func(c *cluster) { c.Target = c.Source }),
			"RestoreInProgress: Progressing=True Still processing, Ready=False Still processing (VirtualMachine default/copy exists already: delete it, or clone to another name)", "RestoreCreationFailed",
		},
		"too many filters": {
			underway(inProgress, func(c *cluster) { c.Clone.Spec.LabelFilters = make([]string, MaxFilters+1) }),
			failed("error generating patches for clone c: 257 filters: at most 256 are possible"), "RestoreCreationFailed",
		},
		"a restore of the user's under that name": {
			underway(inProgress, func(c *cluster) {
				c.Restore = &snapshotv1beta1.VirtualMachineRestore{ObjectMeta: metav1.ObjectMeta{Namespace: "default",
					Name: "tmp-restore-c1"}}
			}),
			"RestoreInProgress: Progressing=True Still processing, Ready=False Still processing (VirtualMachineRestore default/tmp-restore-c1 exists already and does not belong to the clone: delete it)", "",
		},
		"a restore that is gone": {restoring(func(c *cluster) { c.Restore = nil }), failed("restore tmp-restore-c1 does not exist anymore"), "RestoreDeleted"},
		"a restore that waits": {
			restoring(func(c *cluster) {
				c.Restore.Status = restoreStatus(snapshotv1beta1.ConditionProgressing, corev1.ConditionFalse)
			}),
			"RestoreInProgress: Progressing=True Still processing, Ready=False Still processing (restore tmp-restore-c1: why)",
			"",
		},
		"a restore that has failed": {
			restoring(func(c *cluster) {
				c.Restore.Status = restoreStatus(snapshotv1beta1.ConditionFailure, corev1.ConditionTrue)
			}),
			failed("restore tmp-restore-c1 has failed"), "RestoreFailed",
		},
		"a snapshot that is gone during the restore": {restoring(func(c *cluster) { c.Snapshot = nil }), failed("snapshot tmp-snapshot-c1 does not exist anymore"), "SnapshotDeleted"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster()
			tc.change(t, c)
			before := len(c.events)
			step := c.next(all)
			if diff := cmp.Diff(tc.want, describe(step.Status)); diff != "" {
				t.Error(diff)
			}
			if got := strings.Join(c.events[before:], ", "); got != tc.event {
				t.Errorf("event %q, want %q", got, tc.event)
			}
			for _, e := range step.Events {
				if warns := e.Type == corev1.EventTypeWarning; warns != (e.Reason == "RestoreCreationFailed") {
					t.Errorf("the event %s is of type %s", e.Reason, e.Type)
				}
			}
			if again := Next(c.seen()); !cmp.Equal(again.Status, step.Status) || len(again.Create)+len(again.Delete) > 0 {
				t.Errorf("it changes without a reason: %+v", again)
			}
			if retried := step.RequeueAfter != 0; retried != strings.Contains(tc.want, "xists already") {
				t.Errorf("again after %s", step.RequeueAfter)
			}
		})
	}
}

// withData adds a volume to a VM.
func withData(vm *v1.VirtualMachine) {
	volume := v1.Volume{Name: "data"}
	volume.DataVolume = &v1.DataVolumeSource{Name: "data-dv"}
	vm.Spec.Template.Spec.Volumes = append(vm.Spec.Template.Spec.Volumes, volume)
}

func restoreStatus(
	kind snapshotv1beta1.ConditionType, value corev1.ConditionStatus,
) *snapshotv1beta1.VirtualMachineRestoreStatus {
	return &snapshotv1beta1.VirtualMachineRestoreStatus{Conditions: []snapshotv1beta1.Condition{{Type: kind, Status: value,
		Reason: "why"}}}
}

// describe formats phase and conditions.
func describe(status *v1beta1.VirtualMachineCloneStatus) string {
	var texts []string
	for _, c := range status.Conditions {
		text := string(c.Type) + "=" + string(c.Status) + " " + c.Reason
		if c.Message != "" {
			text += " (" + c.Message + ")"
		}
		texts = append(texts, text)
	}
	return string(status.Phase) + ": " + strings.Join(texts, ", ")
}

func TestAWaitingCloneGoesOn(t *testing.T) {
	c := newCluster()
	vm := c.Source
	c.Source = nil
	c.next(all)
	c.Source = vm
	c.until(t, v1beta1.Succeeded, all)
	if diff := cmp.Diff(allPhases, c.phases); diff != "" {
		t.Error(diff)
	}
}

func TestACloneIsDeletedWithItsTarget(t *testing.T) {
	for name, reached := range map[string]func(*cluster){
		"when it is complete":   func(*cluster) {},
		"while its claims wait": func(c *cluster) { c.unbound = true },
	} {
		c := newCluster()
		reached(c)
		c.until(t, v1beta1.Succeeded, all)
		c.Target, c.deleted = nil, nil
		c.next(all)
		if diff := cmp.Diff([]string{"clone"}, c.deleted); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// TestACloneWaitsForItsTarget has a target that is gone before the clone has succeeded: KubeVirt does nothing then.
func TestACloneWaitsForItsTarget(t *testing.T) {
	c := newCluster()
	c.until(t, v1beta1.CreatingTargetVM, all)
	target, events := c.Target, len(c.events)
	c.Target, c.deleted = nil, nil
	c.next(all)
	want := "CreatingTargetVM: Progressing=True Still processing, Ready=False Still processing (target VM copy is not created yet for clone c)"
	if got := describe(&c.Clone.Status); got != want || len(c.deleted) > 0 || len(c.events) > events {
		t.Errorf("got %s, deleted %v, events %v", got, c.deleted, c.events[events:])
	}
	if step := c.next(all); len(step.Create)+len(step.Delete)+len(step.Events) > 0 || step.RequeueAfter != 0 ||
		describe(step.Status) != want {
		t.Errorf("it changes without a reason: %+v", step)
	}
	c.Target = target
	c.until(t, v1beta1.Succeeded, all)
	if c.Snapshot != nil || c.Restore != nil ||
		describe(&c.Clone.Status) != "Succeeded: Progressing=False Ready, Ready=True Ready" {
		t.Errorf("got %s", describe(&c.Clone.Status))
	}
}

func TestOnlyOwnObjectsAreDeleted(t *testing.T) {
	c := newCluster()
	c.unbound = true
	c.until(t, v1beta1.Succeeded, all)
	c.Snapshot.OwnerReferences, c.Restore.OwnerReferences = nil, nil
	c.unbound = false
	c.until(t, v1beta1.Succeeded, all)
	if len(c.deleted) > 0 {
		t.Errorf("deleted %v", c.deleted)
	}
}

func TestFailed(t *testing.T) {
	refused := errors.New("denied by team.example")
	c := newCluster()
	step := Next(c.seen())
	got := Failed(c.seen(), step, refused)
	if want := ": Progressing=True Still processing, Ready=False Still processing (failed creating snapshot tmp-snapshot-c1 for clone c: denied by team.example)"; describe(got.Status) != want {
		t.Errorf("got %s", describe(got.Status))
	}
	if len(got.Create)+len(got.Events) > 0 || got.RequeueAfter != retry || got.Status.SnapshotName != nil {
		t.Errorf("got %+v", got)
	}
	c.until(t, v1beta1.RestoreInProgress, all)
	step = Next(c.seen())
	got = Failed(c.seen(), step, refused)
	want := []Event{{Type: "Warning", Reason: "RestoreCreationFailed",
		Note: "failed creating restore tmp-restore-c1 for clone c: denied by team.example"}}
	if diff := cmp.Diff(want, got.Events); diff != "" || got.Status.Phase != v1beta1.RestoreInProgress ||
		got.Status.RestoreName != nil {
		t.Errorf("%s, %+v", diff, got.Status)
	}
	c.unbound = true
	c.until(t, v1beta1.Succeeded, all)
	c.unbound = false
	c.settle()
	got = Failed(c.seen(), Next(c.seen()), refused)
	if want := "Succeeded: Progressing=False Ready, Ready=True Ready (denied by team.example)"; describe(
		got.Status) != want || got.Status.RestoreName == nil {
		t.Errorf("got %s", describe(got.Status))
	}
	c.Clone.Status = *got.Status
	if c.until(t, v1beta1.Succeeded, all); strings.Contains(describe(&c.Clone.Status), "denied") {
		t.Errorf("got %s", describe(&c.Clone.Status))
	}
}

func TestTargetName(t *testing.T) {
	vmClone := newCluster().Clone
	vmClone.Spec.Target = nil
	if got := TargetName(vmClone); got != "clone-vm-c1" || got != TargetName(vmClone) {
		t.Errorf("without a target: %s", got)
	}
	vmClone.Spec.Source = nil
	if got := TargetName(vmClone); got != "clone-c1" {
		t.Errorf("without a source: %s", got)
	}
	vmClone.Status.TargetName = ptr.To("known")
	if got := TargetName(vmClone); got != "known" {
		t.Errorf("with a target in the status: %s", got)
	}
}
