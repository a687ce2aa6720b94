// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package restore

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	cdiv1beta1 "github.com/vireo-project/vireo/api/cdi/v1beta1"
	"github.com/vireo-project/vireo/api/csi"
	"github.com/vireo-project/vireo/api/snapshot"
	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
)

// changes counts what a step changes besides the status.
func changes(step Step) int {
	count := len(step.Create) + len(step.Update) + len(step.Delete)
	for _, flag := range []bool{step.Lock, step.Unlock, step.Stop} {
		if flag {
			count++
		}
	}
	return count
}

// initialized returns the status of a restore that has just begun.
func initialized() *v1beta1.VirtualMachineRestoreStatus {
	return &v1beta1.VirtualMachineRestoreStatus{Complete: ptr.To(false)}
}

func TestARestoreEndsWithTheVMThatOwnsIt(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(c *cluster)
		waits  bool
	}{
		"the VM exists":        {change: func(*cluster) {}},
		"it was deleted":       {change: func(c *cluster) { c.Target = nil }, waits: true},
		"it was created again": {change: func(c *cluster) { c.Target.UID = "new" }, waits: true},
		"it is being deleted":  {change: func(c *cluster) { c.Target.DeletionTimestamp = &metav1.Time{Time: c.Now} }, waits: true},
		"another kind owns it": {change: func(c *cluster) { c.Restore.OwnerReferences[0].Kind, c.Target.UID = "VirtualMachineClone", "vm-uid" }},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster()
			c.Restore.Status = initialized()
			c.Restore.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(c.Target,
				v1.VirtualMachineGroupVersionKind)}
			tc.change(c)
			step := Next(c.Observed)
			if (changes(step) == 0) != tc.waits || step.Event != nil || tc.waits && len(step.Status.Conditions) > 0 {
				t.Errorf("step %+v", step)
			}
		})
	}
}

func TestDataVolumesThatCannotBeRead(t *testing.T) {
	missing := errors.New("no DataVolumes")
	withoutTemplates := func(vm *v1.VirtualMachine) {
		vm.Spec.DataVolumeTemplates = nil
		vm.Spec.Template.Spec.Volumes = vm.Spec.Template.Spec.Volumes[1:2]
	}
	for name, tc := range map[string]struct {
		vm     func(*v1.VirtualMachine)
		change func(*cluster)
		fails  bool
	}{
		"templates":                     {vm: func(*v1.VirtualMachine) {}, fails: true},
		"no templates":                  {vm: withoutTemplates},
		"templates of the VM as it is":  {vm: withoutTemplates, change: func(c *cluster) { c.Target.Spec.DataVolumeTemplates = make([]v1.DataVolumeTemplateSpec, 1) }, fails: true},
		"a claim of a DataVolume":       {vm: withoutTemplates, change: ownClaim("cdi.kubevirt.io/v1beta1"), fails: true},
		"a claim of another DataVolume": {vm: withoutTemplates, change: ownClaim("team.example/v1")},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(tc.vm)
			c.Restore.Status, c.DataVolumes, c.NoDataVolumes = initialized(), nil, missing
			if tc.change != nil {
				tc.change(c)
			}
			step := Next(c.Observed)
			if failed := step.Event != nil && strings.HasSuffix(step.Event.Note, missing.Error()); failed != tc.fails ||
				failed == step.Lock {
				t.Errorf("step %+v, event %+v", step, step.Event)
			}
		})
	}
}

func ownClaim(apiVersion string) func(*cluster) {
	return func(c *cluster) {
		c.Claims["data-pvc"].OwnerReferences = []metav1.OwnerReference{{APIVersion: apiVersion, Kind: "DataVolume", Name: "x",
			Controller: ptr.To(true)}}
	}
}

// TestDataVolumesThatCannotBeReadAreNotGone has a restore whose former DataVolumes are to be deleted.
func TestDataVolumesThatCannotBeReadAreNotGone(t *testing.T) {
	c := newCluster()
	for !c.Restored() {
		c.apply(Next(c.Observed), all)
		c.settle()
	}
	c.NoDataVolumes, c.DataVolumes = errors.New("no DataVolumes"), nil
	step := Next(c.Observed)
	if step.Event == nil || !strings.HasSuffix(step.Event.Note, "no DataVolumes") || step.Unlock {
		t.Errorf("step %+v, event %+v", step, step.Event)
	}
}

func TestReleasedUnlocksOnlyItsOwnTarget(t *testing.T) {
	for name, tc := range map[string]struct {
		by   *string
		want bool
	}{"its own": {ptr.To("back"), true}, "another one's": {by: ptr.To("other")}, "none": {}} {
		c := newCluster()
		c.Target.Status.RestoreInProgress = tc.by
		step := Released(c.Observed)
		if step.Unlock != tc.want || changes(step) > 1 {
			t.Errorf("%s: %+v", name, step)
		}
		want := []string{"Progressing=False: VM restore is deleting", "Ready=False: VM restore is deleting"}
		if got := brief(step.Status.Conditions); !slices.Equal(got, want) {
			t.Errorf("%s: conditions %v", name, got)
		}
	}
	c := newCluster()
	c.Target = nil
	if step := Released(c.Observed); changes(step) > 0 {
		t.Errorf("without a target: %+v", step)
	}
}

func TestFailedReportsAndTriesAgain(t *testing.T) {
	c := newCluster()
	step := Failed(c.Observed, errors.New("refused\x1b: "+strings.Repeat("x", 2*maxReason)))
	reason := step.Status.Conditions[0].Reason
	if !strings.HasPrefix(reason, "refused: xx") || len(reason) != maxReason || step.RequeueAfter != retry ||
		changes(step) > 0 {
		t.Errorf("%d characters, step %+v", len(reason), step)
	}
}

// TestTheVMIsCheckedFirst has restores of which the API server checks the VM before the first change.
func TestTheVMIsCheckedFirst(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*cluster)
		checks bool
	}{
		"an existing VM":           {change: func(*cluster) {}, checks: true},
		"its disks in place":       {change: inPlace, checks: true},
		"one without volumes":      {change: withoutVolumes, checks: true},
		"a new VM":                 {change: toNew, checks: true},
		"a VM that was deleted":    {change: func(c *cluster) { again(c); inPlace(c) }, checks: true},
		"a new VM without volumes": {change: func(c *cluster) { toNew(c); withoutVolumes(c) }},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster()
			tc.change(c)
			began, checked := false, false
			for range 40 {
				step := Next(c.Observed)
				if step.Check != nil {
					checked = true
					if began || step.Check.Annotations[snapshot.LastRestoreAnnotation] != "back-r1" ||
						step.Check.Name != c.Restore.Spec.Target.Name || changes(step) == 0 {
						t.Fatalf("step %+v", step)
					}
				}
				if tc.checks && !checked && len(step.Delete) > 0 {
					t.Fatalf("the step deletes before the VM was checked: %+v", step)
				}
				began = began || len(step.Create) > 0
				c.apply(step, all)
				c.settle()
			}
			if !ptr.Deref(c.Restore.Status.Complete, false) || checked != tc.checks {
				t.Errorf("complete: %v, checked: %t", c.Restore.Status.Complete, checked)
			}
		})
	}
}

// withoutVolumes leaves nothing in the snapshot but the VM.
func withoutVolumes(c *cluster) {
	c.Content.Spec.VolumeBackups = nil
	vm := c.Content.Spec.Source.VirtualMachine
	vm.Spec.Template.Spec.Volumes, vm.Spec.Template.Spec.Domain.Devices.Disks, vm.Spec.DataVolumeTemplates = nil, nil, nil
}

func TestAVMThatIsRefusedEndsTheRestore(t *testing.T) {
	c := newCluster()
	toNew(c)
	c.Restore.Status = initialized()
	step := Refused(c.Observed, errors.New("invalid\x1b: "+strings.Repeat("x", 2*maxReason)))
	if changes(step) > 0 || step.Check != nil || step.RequeueAfter != 0 || step.Event == nil ||
		step.Event.Reason != snapshot.RestoreFailedEvent {
		t.Errorf("step %+v", step)
	}
	for _, got := range brief(step.Status.Conditions) {
		if !strings.Contains(got, ": invalid: xx") || len(got) > maxReason+30 {
			t.Errorf("condition %.60s", got)
		}
	}
	if !Finished(step.Status) {
		t.Error("it goes on")
	}
}

func TestARevisionOfAnotherOwnerStays(t *testing.T) {
	c := newCluster()
	c.Revisions["vm"+revision].OwnerReferences[0].UID = "another"
	for range 5 {
		c.apply(Next(c.Observed), all)
	}
	want := "ControllerRevision default/vm" + revision + " exists already and belongs to another object"
	if got := c.Restore.Status.Conditions[0].Reason; got != want || len(c.Claims) != 3 {
		t.Errorf("got %q and %d claims", got, len(c.Claims))
	}
}

// TestARevisionOfAnotherKindStays has a ControllerRevision without an owner under the name of the restored one, which
// contains no instance type.
func TestARevisionOfAnotherKindStays(t *testing.T) {
	for name, change := range map[string]func(*cluster){"an existing VM": func(*cluster) {}, "a new VM": toNew} {
		t.Run(name, func(t *testing.T) {
			c := newCluster()
			change(c)
			at := c.Restore.Spec.Target.Name + revision
			foreign := &appsv1.ControllerRevision{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: at}, Data: runtime.RawExtension{Raw: []byte(`{"spec":{}}`)},
			}
			c.create(foreign)
			for range 5 {
				c.apply(Next(c.Observed), all)
				c.settle()
			}
			want := "ControllerRevision default/" + at + " exists already and belongs to another object"
			if got := c.Restore.Status.Conditions[0].Reason; got != want || len(c.Claims) != 3 {
				t.Errorf("got %q and %d claims", got, len(c.Claims))
			}
			if live := c.Revisions[at]; live == nil || live.UID != foreign.UID || len(live.OwnerReferences) > 0 {
				t.Errorf("the revision is %+v", live)
			}
		})
	}
}

// TestARevisionOfAnotherKindIsNotAdopted has one that replaced the restored one before the end.
func TestARevisionOfAnotherKindIsNotAdopted(t *testing.T) {
	c := newCluster()
	toNew(c)
	for !c.Restored() {
		c.apply(Next(c.Observed), all)
		c.settle()
	}
	c.Revisions["copy"+revision].Labels = map[string]string{"app": "a-workload"}
	c.run(t, all)
	if owners := c.Revisions["copy"+revision].OwnerReferences; len(owners) > 0 {
		t.Errorf("it is owned by %+v", owners)
	}
}

func TestARevisionThatContainsNoInstanceTypeIsNotCopiedToANewVM(t *testing.T) {
	c := newCluster()
	toNew(c)
	c.Revisions["snap"+revision].Labels = nil
	for range 5 {
		c.apply(Next(c.Observed), all)
	}
	want := "ControllerRevision default/snap" + revision + " of the snapshot contains no instance type and no preference"
	if got := c.Restore.Status.Conditions[0].Reason; got != want || len(c.Claims) != 3 {
		t.Errorf("got %q and %d claims", got, len(c.Claims))
	}
}

// TestTheStateOfAnotherOwnerStays has claims with the label of the VM's state: of an earlier VM of its name, and of a
// user.
func TestTheStateOfAnotherOwnerStays(t *testing.T) {
	for name, change := range map[string]func(*cluster){"an existing VM": func(*cluster) {},
		"a VM that was deleted": again} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(withTPM)
			change(c)
			foreign := claim("foreign",
				*metav1.NewControllerRef(&v1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "vm", UID: "earlier"}},
					v1.VirtualMachineGroupVersionKind))
			mine := claim("mine", metav1.OwnerReference{})
			mine.OwnerReferences = nil
			for _, existing := range []*corev1.PersistentVolumeClaim{foreign, mine} {
				existing.Labels[v1.PersistentStateLabel] = "vm"
				c.create(existing)
			}
			before := c.Claims["foreign"].DeepCopy()
			c.run(t, all)
			if diff := cmp.Diff(before, c.Claims["foreign"]); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if c.Claims["mine"] != nil {
				t.Error("two claims without another owner have the VM's state")
			}
		})
	}
}

// TestARestoredDataVolumeCopiesNothing has a template that copies a claim of another namespace.
func TestARestoredDataVolumeCopiesNothing(t *testing.T) {
	c := newCluster(func(vm *v1.VirtualMachine) {
		spec := &vm.Spec.DataVolumeTemplates[0].Spec
		spec.Source = &cdiv1beta1.DataVolumeSource{PVC: &cdiv1beta1.DataVolumeSourcePVC{Namespace: "other", Name: "secret"}}
	})
	c.run(t, all)
	dv := c.DataVolumes["restore-r1-root"]
	if dv == nil || dv.Spec.Source == nil || dv.Spec.Source.Blank == nil || dv.Spec.Source.PVC != nil ||
		dv.Spec.SourceRef != nil {
		t.Errorf("got %+v", dv)
	}
	if template := c.Target.Spec.DataVolumeTemplates[0]; template.Spec.Source.PVC == nil {
		t.Errorf("the template of the VM is %+v", template)
	}
}

// TestARestoredDataVolumeHasOneSource has templates whose claim a driver or a populator fills.
func TestARestoredDataVolumeHasOneSource(t *testing.T) {
	local := &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "golden"}
	anywhere := &corev1.TypedObjectReference{Kind: "PersistentVolumeClaim", Name: "golden", Namespace: ptr.To("other")}
	for name, change := range map[string]func(*cdiv1beta1.DataVolumeSpec){
		"pvc": func(spec *cdiv1beta1.DataVolumeSpec) {
			spec.PVC = &corev1.PersistentVolumeClaimSpec{DataSource: local, DataSourceRef: anywhere}
		},
		"storage": func(spec *cdiv1beta1.DataVolumeSpec) {
			spec.Storage = &cdiv1beta1.StorageSpec{DataSource: local, DataSourceRef: anywhere}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(func(vm *v1.VirtualMachine) { change(&vm.Spec.DataVolumeTemplates[0].Spec) })
			c.run(t, all)
			spec := c.DataVolumes["restore-r1-root"].Spec
			if spec.Source == nil || spec.Source.Blank == nil {
				t.Errorf("the source is %+v", spec.Source)
			}
			if pvc := spec.PVC; pvc != nil && (pvc.DataSource != nil || pvc.DataSourceRef != nil) {
				t.Errorf("pvc %+v", pvc)
			}
			if storage := spec.Storage; storage != nil && (storage.DataSource != nil || storage.DataSourceRef != nil) {
				t.Errorf("storage %+v", storage)
			}
			if spec.PVC == nil && spec.Storage == nil {
				t.Error("the rest of the template is gone")
			}
			template := c.Target.Spec.DataVolumeTemplates[0].Spec
			if template.PVC != nil && template.PVC.DataSourceRef == nil ||
				template.Storage != nil && template.Storage.DataSourceRef == nil {
				t.Errorf("the template of the VM is %+v", template)
			}
		})
	}
}

// reachOut changes what a namespace's editor can write, the content of a snapshot, so that everything in it is another
// namespace's.
func reachOut(c *cluster) {
	content := c.Content.DeepCopy()
	content.Spec.Source.VirtualMachine.Namespace = "other"
	for i := range content.Spec.VolumeBackups {
		claim := &content.Spec.VolumeBackups[i].PersistentVolumeClaim
		claim.Namespace = "other"
		claim.Spec.VolumeName = "pv-of-other"
		claim.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "other"}}
		claim.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "secret"}
		claim.Spec.DataSourceRef = &corev1.TypedObjectReference{Kind: "PersistentVolumeClaim", Name: "secret",
			Namespace: ptr.To("other")}
		claim.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "other", UID: "other"}}
		claim.Finalizers = []string{"example.com/stay"}
	}
	c.Content = content
}

// A restore creates, changes and deletes objects of its namespace only, and a claim is filled from a VolumeSnapshot of
// it, whatever the content contains. virt-controller may read and write all namespaces.
func TestARestoreReachesNoOtherNamespace(t *testing.T) {
	withState := func(c *cluster) { *c = *newCluster(withTPM) }
	for name, change := range map[string]func(*cluster){"to the VM": withState, "in place": inPlace,
		"to a new VM": toNew} {
		t.Run(name, func(t *testing.T) {
			c := newCluster()
			change(c)
			reachOut(c)
			claims := 0
			for range 200 {
				step := Next(c.Observed)
				objects := slices.Concat(step.Create, step.Update, step.Delete)
				if step.Check != nil {
					objects = append(objects, step.Check)
				}
				for _, object := range objects {
					if object.GetNamespace() != "default" {
						t.Errorf("%T %s/%s is changed", object, object.GetNamespace(), object.GetName())
					}
				}
				for _, object := range step.Create {
					if claim, ok := object.(*corev1.PersistentVolumeClaim); ok {
						expectOwnSource(t, c, claim)
						claims++
					}
				}
				c.apply(step, all)
				c.settle()
				if ptr.Deref(step.Status.Complete, false) {
					break
				}
			}
			if claims < 3 {
				t.Errorf("%d claims are restored: %+v", claims, c.Restore.Status)
			}
		})
	}
}

// Patches that move a new VM to another namespace, or let another object own it, are refused before anything is
// created.
func TestPatchesReachNoOtherNamespace(t *testing.T) {
	for _, patch := range []string{
		`{"op":"replace","path":"/metadata/namespace","value":"other"}`,
		`{"op":"remove","path":"/metadata/namespace"}`,
		`{"op":"move","from":"/metadata/namespace","path":"/metadata/labels/a"}`,
		`{"op":"copy","from":"/metadata/labels/app","path":"/metadata/namespace"}`,
		`{"op":"replace","path":"/metadata","value":{"name":"copy","namespace":"other"}}`,
		`{"op":"replace","path":"","value":{}}`,
		`{"op":"add","path":"/metadata/ownerReferences","value":[]}`,
		`{"op":"add","path":"/spec/../metadata/namespace","value":"other"}`,
		`[{"op":"remove","path":"/spec/instancetype"},{"op":"replace","path":"/metadata/namespace","value":"other"}]`,
	} {
		c := newCluster()
		toNew(c)
		c.Restore.Spec.Patches = []string{patch}
		before := len(c.Claims)
		for range 10 {
			step := Next(c.Observed)
			if step.Check != nil && step.Check.Namespace != "default" {
				t.Errorf("%s: the VM would be in namespace %s", patch, step.Check.Namespace)
			}
			c.apply(step, all)
		}
		if c.Target != nil || len(c.Claims) != before || !Finished(c.Restore.Status) {
			t.Errorf("%s: target %v, %d claims, status %+v", patch, c.Target, len(c.Claims)-before, c.Restore.Status)
		}
	}
}

// expectOwnSource checks that a claim is filled from a VolumeSnapshot of its namespace, and bound to no volume that
// exists.
func expectOwnSource(t *testing.T, c *cluster, claim *corev1.PersistentVolumeClaim) {
	t.Helper()
	spec := &claim.Spec
	if spec.VolumeName != "" || spec.Selector != nil || len(claim.Finalizers) > 0 {
		t.Errorf("claim %s selects volume %q, %v and has the finalizers %v", claim.Name, spec.VolumeName, spec.Selector,
			claim.Finalizers)
	}
	if ref := spec.DataSourceRef; ref == nil || ref.Kind != csi.Kind || ref.Namespace != nil ||
		c.VolumeSnapshots[ref.Name] == nil {
		t.Errorf("claim %s is filled from %+v", claim.Name, ref)
	}
	if source := spec.DataSource; source == nil || source.Kind != csi.Kind || c.VolumeSnapshots[source.Name] == nil {
		t.Errorf("claim %s is filled from %+v", claim.Name, source)
	}
	for _, owner := range claim.OwnerReferences {
		if owner.UID == "other" {
			t.Errorf("claim %s has the owner %s of the content", claim.Name, owner.Name)
		}
	}
}
