// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package restore

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/cdi"
	"github.com/vireo-project/vireo/api/snapshot"
	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/firmware"
	"github.com/vireo-project/vireo/test/health"
)

func inPlace(c *cluster) {
	c.Restore.Spec.VolumeRestorePolicy = ptr.To(v1beta1.VolumeRestorePolicyInPlace)
}

// toNew makes the target a VM that does not exist.
func toNew(c *cluster) {
	c.Restore.Spec.Target.Name, c.Target = "copy", nil
}

// again deletes the VM, with all that it owned, before it is restored under its name.
func again(c *cluster) {
	c.remove(c.DataVolumes["root-dv"])
	c.remove(c.Claims["data-pvc"])
	c.remove(c.Revisions["vm"+revision])
	c.Target = nil
}

// scenarios are restores that complete, and what is there afterwards.
var scenarios = map[string]struct {
	vm     []func(*v1.VirtualMachine)
	change []func(*cluster)
	want   []string
}{
	"with new names": {
		vm: []func(*v1.VirtualMachine){withTPM},
		want: []string{
			`claim data-pvc of VirtualMachine/vm, restored by "", state of ""`,
			`claim more-dv of DataVolume/more-dv, restored by "", state of ""`,
			`claim restore-r1-data of VirtualMachine/vm, restored by "back", state of ""`,
			`claim restore-r1-more of VirtualMachine/vm, restored by "back", state of ""`,
			`claim restore-r1-persistent-state-for-vm of VirtualMachine/vm, restored by "back", state of "vm"`,
			`claim restore-r1-root of DataVolume/restore-r1-root, restored by "back", state of ""`,
			`DataVolume more-dv of none`,
			`DataVolume restore-r1-root of VirtualMachine/vm`,
			`revision snap-small-v1beta1-9-1 of VirtualMachineSnapshot/snap`,
			`revision vm-small-v1beta1-9-1 of VirtualMachine/vm`,
			`volume root on DataVolume restore-r1-root`,
			`volume data on "restore-r1-data"`,
			`volume more on "restore-r1-more"`,
			`volume image on ""`,
			`template restore-r1-root`,
			`locked false, deleted [root-dv]`,
		},
	},
	"in place": {
		vm: []func(*v1.VirtualMachine){withTPM}, change: []func(*cluster){inPlace},
		want: []string{
			`claim data-pvc of VirtualMachine/vm, restored by "back", state of ""`,
			`claim more-dv of DataVolume/more-dv, restored by "back", state of ""`,
			`claim persistent-state-for-vm-x of VirtualMachine/vm, restored by "back", state of "vm"`,
			`claim root-dv of DataVolume/root-dv, restored by "back", state of ""`,
			`DataVolume more-dv of none`,
			`DataVolume root-dv of VirtualMachine/vm`,
			`revision snap-small-v1beta1-9-1 of VirtualMachineSnapshot/snap`,
			`revision vm-small-v1beta1-9-1 of VirtualMachine/vm`,
			`volume root on DataVolume root-dv`,
			`volume data on "data-pvc"`,
			`volume more on DataVolume more-dv`,
			`volume image on ""`,
			`template root-dv`,
			`locked false, deleted []`,
		},
	},
	"to a new VM": {
		change: []func(*cluster){toNew, func(c *cluster) {
			c.Restore.Spec.VolumeRestorePolicy = ptr.To(v1beta1.VolumeRestorePolicyPrefixTargetName)
		}},
		want: []string{
			`claim copy-data of VirtualMachine/copy, restored by "back", state of ""`,
			// The source VM did not own this claim, so the new one does not either.
			`claim copy-more of none, restored by "back", state of ""`,
			`claim copy-root of DataVolume/copy-root, restored by "back", state of ""`,
			`claim data-pvc of VirtualMachine/vm, restored by "", state of ""`,
			`claim more-dv of DataVolume/more-dv, restored by "", state of ""`,
			`claim root-dv of DataVolume/root-dv, restored by "", state of ""`,
			`DataVolume copy-root of none`,
			`DataVolume more-dv of none`,
			`DataVolume root-dv of VirtualMachine/vm`,
			`revision copy-small-v1beta1-9-1 of VirtualMachine/copy`,
			`revision snap-small-v1beta1-9-1 of VirtualMachineSnapshot/snap`,
			`revision vm-small-v1beta1-9-1 of VirtualMachine/vm`,
			`volume root on DataVolume copy-root`,
			`volume data on "copy-data"`,
			`volume more on "copy-more"`,
			`volume image on ""`,
			`template copy-root`,
			`locked false, deleted []`,
		},
	},
	"to a VM that was deleted": {
		change: []func(*cluster){again, inPlace},
		want: []string{
			`claim data-pvc of VirtualMachine/vm, restored by "back", state of ""`,
			`claim more-dv of DataVolume/more-dv, restored by "back", state of ""`,
			`claim root-dv of DataVolume/root-dv, restored by "back", state of ""`,
			`DataVolume more-dv of none`,
			`DataVolume root-dv of none`,
			`revision snap-small-v1beta1-9-1 of VirtualMachineSnapshot/snap`,
			`revision vm-small-v1beta1-9-1 of VirtualMachine/vm`,
			`volume root on DataVolume root-dv`,
			`volume data on "data-pvc"`,
			`volume more on DataVolume more-dv`,
			`volume image on ""`,
			`template root-dv`,
			`locked false, deleted []`,
		},
	},
	"without owners, under names of the user's": {
		change: []func(*cluster){func(c *cluster) {
			c.Restore.Spec.VolumeOwnershipPolicy = ptr.To(v1beta1.VolumeOwnershipPolicyNone)
			c.Restore.Spec.VolumeRestoreOverrides = []v1beta1.VolumeRestoreOverride{{VolumeName: "data", RestoreName: "mine"}}
		}},
		want: []string{
			`claim data-pvc of VirtualMachine/vm, restored by "", state of ""`,
			`claim mine of none, restored by "back", state of ""`,
			`claim more-dv of DataVolume/more-dv, restored by "", state of ""`,
			`claim restore-r1-more of none, restored by "back", state of ""`,
			`claim restore-r1-root of DataVolume/restore-r1-root, restored by "back", state of ""`,
			`DataVolume more-dv of none`,
			`DataVolume restore-r1-root of VirtualMachine/vm`,
			`revision snap-small-v1beta1-9-1 of VirtualMachineSnapshot/snap`,
			`revision vm-small-v1beta1-9-1 of VirtualMachine/vm`,
			`volume root on DataVolume restore-r1-root`,
			`volume data on "mine"`,
			`volume more on "restore-r1-more"`,
			`volume image on ""`,
			`template restore-r1-root`,
			`locked false, deleted [root-dv]`,
		},
	},
}

func TestRestore(t *testing.T) {
	for name, tc := range scenarios {
		start := func() *cluster {
			c := newCluster(tc.vm...)
			for _, change := range tc.change {
				change(c)
			}
			return c
		}
		t.Run(name, func(t *testing.T) {
			c := start()
			last := c.run(t, all)
			if diff := cmp.Diff(tc.want, c.summary()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if last.Event == nil || last.Event.Reason != snapshot.RestoreCompleteEvent ||
				!c.Restore.Status.RestoreTime.Time.Equal(c.Now) {
				t.Errorf("the last step is %+v", last)
			}
			if got := health.Kstatus(t, c.Restore); got != health.Current {
				t.Errorf("kstatus: got %s", got)
			}
			if after := Next(c.Observed); len(after.Create)+len(after.Update)+len(after.Delete) > 0 || after.Event != nil {
				t.Errorf("a complete restore goes on: %+v", after)
			}
		})
		// A process that ends at any time, caches that are behind and requests that fail apply a part of a step.
		t.Run(name+", interrupted", func(t *testing.T) {
			for seed := range uint64(100) {
				c := start()
				c.run(t, some(seed))
				if diff := cmp.Diff(tc.want, c.summary()); diff != "" {
					t.Fatalf("seed %d (-want +got):\n%s", seed, diff)
				}
			}
		})
	}
}

func TestRestoredClaim(t *testing.T) {
	c := newCluster()
	c.Restore.Spec.VolumeRestoreOverrides = []v1beta1.VolumeRestoreOverride{{
		VolumeName: "data", Labels: map[string]string{"tier": "silver", v1.PersistentStateLabel: "another"},
		Annotations: map[string]string{
			"more": "yes", snapshot.LastRestoreAnnotation: "forged",
			// Instructions for the importer, a provisioner and the scheduler.
			"cdi.kubevirt.io/storage.import.endpoint": "http://e.org", "k8s.io/CloneRequest": "default/other", "pv.kubernetes.io/bind-completed": "yes",
			"volume.kubernetes.io/selected-node": "node",
		},
	}}
	c.run(t, all)
	got := c.Claims["restore-r1-data"]
	labels := map[string]string{
		"tier": "silver", "restore.kubevirt.io/source-vm-name": "vm", "restore.kubevirt.io/source-vm-namespace": "default",
	}
	if diff := cmp.Diff(labels, got.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	annotations := map[string]string{
		"note": "mine", "more": "yes", cdi.ContentTypeAnnotation: "kubevirt",
		"restore.kubevirt.io/name": "back", "restore.kubevirt.io/lastRestoreUID": "back-r1",
	}
	if diff := cmp.Diff(annotations, got.Annotations); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
	group := "snapshot.storage.k8s.io"
	source := &corev1.TypedLocalObjectReference{APIGroup: &group, Kind: "VolumeSnapshot",
		Name: "vmsnapshot-s1-volume-data"}
	if diff := cmp.Diff(source, got.Spec.DataSource); diff != "" || got.Spec.DataSourceRef.Name != source.Name ||
		got.Spec.VolumeName != "" {
		t.Errorf("spec %+v (-want +got):\n%s", got.Spec, diff)
	}
	if size := got.Spec.Resources.Requests.Storage().String(); size != "2Gi" {
		t.Errorf("the claim requests %s, and the snapshot needs 2Gi", size)
	}
}

func TestARestoredClaimOfAVMWithALongName(t *testing.T) {
	const key = "restore.kubevirt.io/source-vm-name"
	c := newCluster()
	name := strings.Repeat("v", 70)
	c.Content.Spec.Source.VirtualMachine.Name = name
	c.run(t, all)
	got := c.Claims["restore-r1-data"]
	if errs := validation.IsValidLabelValue(got.Labels[key]); len(errs) > 0 || got.Annotations[key] != name {
		t.Errorf("labels %v (%v), annotations %v", got.Labels, errs, got.Annotations)
	}
}

func TestRestoredTarget(t *testing.T) {
	c := newCluster(func(vm *v1.VirtualMachine) {
		dump := &v1.MemoryDumpVolumeSource{}
		dump.ClaimName = "data-pvc"
		vm.Spec.Template.Spec.Volumes = append(vm.Spec.Template.Spec.Volumes,
			v1.Volume{Name: "dump", VolumeSource: v1.VolumeSource{MemoryDump: dump}})
		vm.Status.MemoryDumpRequest = &v1.VirtualMachineMemoryDumpRequest{ClaimName: "data-pvc"}
	})
	c.Target.Labels["app"] = "changed"
	c.Target.Spec.RunStrategy = ptr.To(v1.RunStrategyManual)
	c.run(t, all)
	vm := c.Target
	if vm.Labels["app"] != "changed" || *vm.Spec.RunStrategy != v1.RunStrategyManual ||
		vm.Status.MemoryDumpRequest != nil {
		t.Errorf("labels %v, run strategy %s, memory dump %v", vm.Labels, *vm.Spec.RunStrategy, vm.Status.MemoryDumpRequest)
	}
	if got := vm.Spec.Template.Spec.Domain.Devices.Interfaces[0].MacAddress; got != mac {
		t.Errorf("the address is %s", got)
	}
	if vm.Spec.Template.Spec.Domain.Firmware != nil {
		t.Errorf("the identity was written into the spec of a VM that keeps its UID: %+v",
			vm.Spec.Template.Spec.Domain.Firmware)
	}
	if len(vm.Spec.Template.Spec.Volumes) != 4 {
		t.Errorf("the memory dump was restored: %+v", vm.Spec.Template.Spec.Volumes)
	}
}

func TestARestoredTargetIsTheUsers(t *testing.T) {
	c := newCluster()
	for c.Target.Annotations[snapshot.LastRestoreAnnotation] == "" {
		c.apply(Next(c.Observed), all)
		c.settle()
	}
	// Between the restore of the spec and its end, a user takes the former DataVolume back.
	c.Target.Spec.Template.Spec.Volumes[0].DataVolume.Name = "root-dv"
	c.Running = true
	c.run(t, all)
	if got := c.Target.Spec.Template.Spec.Volumes[0].DataVolume.Name; got != "root-dv" || c.DataVolumes["root-dv"] == nil {
		t.Errorf("the volume is %s, and its DataVolume %v", got, c.DataVolumes["root-dv"])
	}
}

func TestOfRunningAndHalted(t *testing.T) {
	running := newCluster(func(vm *v1.VirtualMachine) { vm.Spec.Running, vm.Spec.RunStrategy = ptr.To(true), nil })
	running.run(t, all)
	if spec := &running.Target.Spec; spec.RunStrategy != nil || *spec.Running {
		t.Errorf("a VM with running has %v and %v", spec.Running, spec.RunStrategy)
	}
	created := newCluster()
	toNew(created)
	created.run(t, all)
	if spec := &created.Target.Spec; spec.Running != nil || *spec.RunStrategy != v1.RunStrategyHalted {
		t.Errorf("a new VM has %v and %v", spec.Running, spec.RunStrategy)
	}
	for _, key := range []string{corev1.LastAppliedConfigAnnotation, "kubevirt.io/firmware-identity"} {
		if _, found := created.Target.Annotations[key]; found {
			t.Errorf("the new VM has annotation %s", key)
		}
	}
	if created.Target.Labels["app"] != "db" {
		t.Errorf("the new VM has labels %v", created.Target.Labels)
	}
}

func TestIdentityOfANewTarget(t *testing.T) {
	recorded := firmware.NewRecord("ns", "vm")
	for name, tc := range map[string]struct {
		prepare func(*cluster)
		want    func(source *v1.VirtualMachine) *firmware.Record
	}{
		"created again": {func(c *cluster) {
			recorded.VM = c.Restore.Namespace + "/vm"
			recorded.Annotate(&c.Content.Spec.Source.VirtualMachine.ObjectMeta)
			again(c)
		}, func(*v1.VirtualMachine) *firmware.Record { return &recorded }},
		"created again, from an earlier version's snapshot": {again, func(source *v1.VirtualMachine) *firmware.Record {
			return ptr.To(firmware.Derive(source.Namespace, "vm", source.UID, firmware.FromUID))
		}},
		"created again, from KubeVirt's snapshot": {func(c *cluster) {
			delete(c.Content.Spec.Source.VirtualMachine.Annotations, "kubevirt.io/firmware-identity")
			again(c)
		}, func(source *v1.VirtualMachine) *firmware.Record {
			return ptr.To(firmware.Derive(source.Namespace, "vm", source.UID, firmware.FromName))
		}},
		"another name": {func(c *cluster) {
			recorded.Annotate(&c.Content.Spec.Source.VirtualMachine.ObjectMeta)
			toNew(c)
		}, func(*v1.VirtualMachine) *firmware.Record { return nil }},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster()
			source := c.Target.DeepCopy()
			tc.prepare(c)
			c.run(t, all)
			var got *firmware.Record
			if text, found := c.Target.Annotations[firmware.RecordAnnotation]; found {
				record, valid := firmware.RecordOf(c.Target.Namespace, c.Target.Name, c.Target.Annotations)
				if got = &record; !valid {
					t.Errorf("the record is %s", text)
				}
			}
			if diff := cmp.Diff(tc.want(source), got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if got := c.Target.Spec.Template.Spec.Domain.Firmware; got != nil {
				t.Errorf("the template has %+v", got)
			}
		})
	}
	other := newCluster()
	toNew(other)
	other.run(t, all)
	if got := other.Target.Spec.Template.Spec.Domain.Devices.Interfaces[0].MacAddress; got != mac {
		t.Errorf("without a patch, the address is %q", got)
	}
}

func TestADifferentRevisionIsReplaced(t *testing.T) {
	c := newCluster()
	name := "vm" + revision
	before := c.Revisions[name].UID
	c.run(t, all)
	if c.Revisions[name].UID != before {
		t.Error("a revision with the same data was replaced")
	}
	c = newCluster()
	c.Revisions[name].Data = runtime.RawExtension{Raw: []byte(`{"spec":{"cpu":{"guest":2}}}`)}
	c.run(t, all)
	if got := string(c.Revisions[name].Data.Raw); !strings.Contains(got, `"guest":1`) {
		t.Errorf("the revision has %s", got)
	}
	if got := c.Target.Spec.Instancetype.RevisionName; got != name {
		t.Errorf("the VM refers to %s", got)
	}
}

func TestAStateClaimThatIsNotInTheSnapshotStays(t *testing.T) {
	c := newCluster(withTPM)
	c.Content.Spec.VolumeBackups = c.Content.Spec.VolumeBackups[:3]
	c.run(t, all)
	state := c.Claims["persistent-state-for-vm-x"]
	if state == nil || state.Labels[v1.PersistentStateLabel] != "vm" {
		t.Errorf("the state claim is %+v", state)
	}
}

func TestTargetReadiness(t *testing.T) {
	running := func(policy v1beta1.TargetReadinessPolicy, age time.Duration) Step {
		c := newCluster()
		c.Running, c.Restore.Status = true, &v1beta1.VirtualMachineRestoreStatus{}
		c.Now = c.Now.Add(age)
		if policy != "" {
			c.Restore.Spec.TargetReadinessPolicy = &policy
		}
		return Next(c.Observed)
	}
	inTime := "Waiting for target VM to be powered off. Please stop the restore target to proceed with restore, " +
		"or the operation will fail after 5m0s"
	tooLate := "Restore target failed to be ready within 5m0s. Please power off the target VM before attempting restore"
	for name, tc := range map[string]struct {
		step   Step
		reason string
		failed bool
		stop   bool
		after  time.Duration
		event  string
	}{
		"by default":     {step: running("", time.Minute), reason: inTime, after: 4 * time.Minute, event: "RestoreTargetNotReady"},
		"grace exceeded": {step: running("WaitGracePeriod", 5*time.Minute), reason: tooLate, failed: true, event: "Operation failed"},
		"wait": {
			step:   running("WaitEventually", time.Hour),
			reason: "Waiting for target VM to be powered off. Please stop the restore target to proceed with restore",
			event:  "RestoreTargetNotReady",
		},
		"stop": {
			step:   running("StopTarget", time.Hour),
			reason: "Automatically stopping restore target for restore operation", stop: true, event: "RestoreTargetNotReady",
		},
		"fail": {
			step:   running("FailImmediate", 0),
			reason: "Restore target VMI must be powered off before restore operation", failed: true, event: "Operation failed",
		},
		"unknown": {
			step: running("Perhaps", 0), reason: "unknown targetReadinessPolicy: Perhaps", after: retry,
			event: "VirtualMachineRestoreError",
		},
	} {
		t.Run(name, func(t *testing.T) {
			want := []string{"Progressing=False: " + tc.reason, "Ready=False: " + tc.reason}
			if tc.failed {
				want = append(want, "Failure=True: "+tc.reason)
			}
			if diff := cmp.Diff(want, brief(tc.step.Status.Conditions)); diff != "" {
				t.Errorf("conditions (-want +got):\n%s", diff)
			}
			if tc.step.Stop != tc.stop || tc.step.RequeueAfter != tc.after || tc.step.Event.Reason != tc.event || tc.step.Lock {
				t.Errorf("step %+v, event %+v", tc.step, tc.step.Event)
			}
		})
	}
	c := newCluster()
	toNew(c)
	c.Running = true
	c.run(t, all) // A VMI of that name does not use the restored claims.
}

// TestATargetThatStartsWhenItIsLocked has a VMI that appears once the VM is locked. Users cannot stop a locked VM.
func TestATargetThatStartsWhenItIsLocked(t *testing.T) {
	for policy, tc := range map[v1beta1.TargetReadinessPolicy]struct{ stops, fails bool }{
		v1beta1.VirtualMachineRestoreWaitGracePeriodAndFail: {},
		v1beta1.VirtualMachineRestoreWaitEventually:         {},
		v1beta1.VirtualMachineRestoreStopTarget:             {stops: true},
		v1beta1.VirtualMachineRestoreFailImmediate:          {fails: true},
	} {
		t.Run(string(policy), func(t *testing.T) {
			c := newCluster()
			c.Restore.Spec.TargetReadinessPolicy = &policy
			for c.Target.Status.RestoreInProgress == nil {
				c.apply(Next(c.Observed), all)
			}
			c.Running = true
			step := Next(c.Observed)
			if !step.Unlock || changes(step) != 1 || Finished(step.Status) != tc.fails {
				t.Fatalf("step %+v", step)
			}
			c.apply(step, all)
			if step = Next(c.Observed); step.Unlock || step.Lock || step.Stop != tc.stops {
				t.Errorf("the next step is %+v", step)
			}
			if c.Running = false; !tc.fails {
				c.run(t, all)
			}
		})
	}
	t.Run("for another restore", func(t *testing.T) {
		c := newCluster()
		c.Restore.Status, c.Running, c.Target.Status.RestoreInProgress = initialized(), true, ptr.To("other")
		if step := Next(c.Observed); step.Unlock {
			t.Errorf("step %+v", step)
		}
	})
}

// TestARestoreThatFailsUnlocksItsTarget has a restore that is locked when its grace period ends, and one whose VM is
// refused.
func TestARestoreThatFailsUnlocksItsTarget(t *testing.T) {
	c := newCluster()
	c.Restore.Status, c.Running, c.Target.Status.RestoreInProgress = initialized(), true, ptr.To("back")
	c.Now = c.Now.Add(time.Hour)
	for name, step := range map[string]Step{"the target runs": Next(c.Observed),
		"it is refused": Refused(c.Observed, errors.New("invalid"))} {
		if !step.Unlock || changes(step) != 1 || !Finished(step.Status) {
			t.Errorf("%s: step %+v", name, step)
		}
	}
}

func brief(list []v1beta1.Condition) []string {
	var out []string
	for _, c := range list {
		out = append(out, fmt.Sprintf("%s=%s: %s", c.Type, c.Status, c.Reason))
	}
	return out
}

// TestObstacles has what keeps a restore from going on. It reports the reason, deletes nothing, and goes on when the
// obstacle is gone.
func TestObstacles(t *testing.T) {
	for name, tc := range map[string]struct {
		vm     []func(*v1.VirtualMachine)
		change func(*cluster)
		want   string
	}{
		"no snapshot":            {change: func(c *cluster) { c.Snapshot = nil }, want: "VMSnapshot default/snap does not exist"},
		"a failed snapshot":      {change: func(c *cluster) { c.Snapshot.Status.Phase = v1beta1.Failed }, want: "VMSnapshot default/snap failed and is invalid to use"},
		"a snapshot in progress": {change: func(c *cluster) { c.Snapshot.Status.ReadyToUse = nil }, want: "VMSnapshot default/snap not ready"},
		"a new snapshot":         {change: func(c *cluster) { c.Snapshot.Status = nil }, want: "VMSnapshot default/snap not ready"},
		"no content":             {change: func(c *cluster) { c.Content = nil }, want: "VMSnapshotContent of VMSnapshot default/snap does not exist"},
		"an unusable content": {
			change: func(c *cluster) { c.Content.Status = nil },
			want:   "VMSnapshotContent default/vmsnapshot-content-s1 not ready",
		},
		"an empty content": {
			change: func(c *cluster) { c.Content.Spec.Source.VirtualMachine = nil },
			want:   "VMSnapshotContent default/vmsnapshot-content-s1 contains no VirtualMachine",
		},
		"a content without a template": {
			change: func(c *cluster) { c.Content.Spec.Source.VirtualMachine.Spec.Template = nil },
			want:   "VMSnapshotContent default/vmsnapshot-content-s1 contains no VirtualMachine",
		},
		"a content with more volumes than any VM": {
			change: func(c *cluster) {
				for i := range 300 {
					c.Content.Spec.VolumeBackups = append(c.Content.Spec.VolumeBackups,
						v1beta1.VolumeBackup{VolumeName: fmt.Sprintf("v%d", i)})
				}
			},
			want: "VMSnapshotContent default/vmsnapshot-content-s1 has 303 volumes, and a VirtualMachine has at most 257",
		},
		"a content larger than that of any VM": {
			change: func(c *cluster) {
				vm := c.Content.Spec.Source.VirtualMachine
				vm.Spec.Template.Spec.NodeSelector = map[string]string{"key": strings.Repeat("x", 1<<20)}
			},
			want: "VMSnapshotContent default/vmsnapshot-content-s1 has 10",
		},
		"another VM": {
			change: func(c *cluster) { c.Target.UID = "another" },
			want:   "restore source and restore target are different but restore target already exists",
		},
		"another restore": {
			change: func(c *cluster) { c.Target.Status.RestoreInProgress = ptr.To("first") },
			want:   "vm restore first in progress",
		},
		"a snapshot of the target": {
			change: func(c *cluster) { c.Target.Status.SnapshotInProgress = ptr.To("new") }, want: `snapshot "new" in progress`,
		},
		"a VolumeSnapshot that is gone": {
			change: func(c *cluster) { delete(c.VolumeSnapshots, "vmsnapshot-s1-volume-data") },
			want:   "missing volumeSnapshot vmsnapshot-s1-volume-data",
		},
		"a volume without a VolumeSnapshot": {
			change: func(c *cluster) { c.Content.Spec.VolumeBackups[1].VolumeSnapshotName = nil },
			want:   "volume data of the snapshot has no VolumeSnapshot",
		},
		"a foreign volume": {
			change: func(c *cluster) { c.Content.Spec.VolumeBackups[1].VolumeName = "x" },
			want:   "the snapshot has volume x, but its VirtualMachine does not have it",
		},
		"a policy that does not exist": {
			change: func(c *cluster) { c.Restore.Spec.VolumeRestorePolicy = ptr.To(v1beta1.VolumeRestorePolicy("x")) },
			want:   `volume restore policy "x" doesn't exist`,
		},
		"an ownership policy that does not exist": {
			change: func(c *cluster) { c.Restore.Spec.VolumeOwnershipPolicy = ptr.To(v1beta1.VolumeOwnershipPolicy("x")) },
			want:   `volume ownership policy "x" doesn't exist`,
		},
		"two volumes of one name": {
			change: func(c *cluster) {
				c.Restore.Spec.VolumeRestoreOverrides = []v1beta1.VolumeRestoreOverride{
					{VolumeName: "root", RestoreName: "one"}, {VolumeName: "data", RestoreName: "one"},
				}
			},
			want: "volume data would be restored to PersistentVolumeClaim one, as another volume",
		},
		"a claim of the user's under the new name": {
			change: func(c *cluster) {
				c.create(claim("mine", metav1.OwnerReference{}))
				c.Restore.Spec.VolumeRestoreOverrides = []v1beta1.VolumeRestoreOverride{{VolumeName: "data", RestoreName: "mine"}}
			},
			want: "PersistentVolumeClaim mine exists already: delete it, or give volume data another name in volumeRestoreOverrides",
		},
		"a DataVolume under the new name": {
			change: func(c *cluster) {
				dv := &cdi.DataVolume{ObjectMeta: metav1.ObjectMeta{Name: "mine",
					Annotations: map[string]string{prePopulated: "true"}}}
				c.create(dv)
				c.Restore.Spec.VolumeRestoreOverrides = []v1beta1.VolumeRestoreOverride{{VolumeName: "root", RestoreName: "mine"}}
			},
			want: "DataVolume mine exists already: delete it, or give volume root another name in volumeRestoreOverrides",
		},
		"a claim of the user's, in place": {
			change: func(c *cluster) {
				inPlace(c)
				c.create(claim("mine", metav1.OwnerReference{}))
				c.Restore.Spec.VolumeRestoreOverrides = []v1beta1.VolumeRestoreOverride{{VolumeName: "data", RestoreName: "mine"}}
			},
			want: "PersistentVolumeClaim mine exists already: delete it, or give volume data another name in volumeRestoreOverrides",
		},
		"the disks of the source, in place of which a new VM would be": {
			change: func(c *cluster) { toNew(c); inPlace(c) },
			want:   "PersistentVolumeClaim root-dv exists already: delete it, or give volume root another name in volumeRestoreOverrides",
		},
		"a revision that is gone": {
			change: func(c *cluster) { delete(c.Revisions, "snap"+revision) },
			want:   "ControllerRevision default/snap" + revision + " of the snapshot does not exist",
		},
		"the state of a TPM for a new VM": {
			vm: []func(*v1.VirtualMachine){withTPM}, change: toNew,
			want: "volume persistent-state-for-vm contains the state of TPM and EFI of VirtualMachine vm: " +
				"it can be restored to a VirtualMachine of that name only",
		},
		"a disk that both VMs would write to": {
			change: func(c *cluster) {
				toNew(c)
				c.Content.Spec.VolumeBackups = c.Content.Spec.VolumeBackups[:1]
			},
			want: "volume data is not in the snapshot, and VirtualMachine copy would write to PersistentVolumeClaim data-pvc of VirtualMachine vm: " +
				"remove the volume and its disk in patches, or give it another claim",
		},
		"a lost volume": {
			change: func(c *cluster) {
				lost := claim("restore-r1-data", metav1.OwnerReference{})
				lost.Annotations[snapshot.LastRestoreAnnotation], lost.Status.Phase = "back-r1", corev1.ClaimLost
				c.create(lost)
			},
			want: `PVC default/restore-r1-data in status "Lost"`,
		},
		"a storage class that is gone before the claims are replaced": {
			change: func(c *cluster) {
				inPlace(c)
				c.BindingModes = nil
			},
			want: "StorageClass fast does not exist",
		},
		"a storage class that is gone": {
			change: func(c *cluster) {
				pending := claim("restore-r1-data", metav1.OwnerReference{})
				pending.Annotations[snapshot.LastRestoreAnnotation], pending.Status.Phase = "back-r1", corev1.ClaimPending
				c.create(pending)
				c.BindingModes = nil
			},
			want: "StorageClass fast does not exist",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(tc.vm...)
			tc.change(c)
			for range 20 {
				step := Next(c.Observed)
				if len(step.Delete) > 0 {
					t.Fatalf("the step deletes %v", step.Delete)
				}
				c.apply(step, all)
				c.settle()
			}
			step := Next(c.Observed)
			got := brief(step.Status.Conditions)
			if len(got) != 2 || !strings.HasPrefix(got[0], "Progressing=False: "+tc.want) ||
				!strings.HasPrefix(got[1], "Ready=False: "+tc.want) {
				t.Fatalf("conditions %q, want %q", got, tc.want)
			}
			if step.Event == nil || step.Event.Reason != snapshot.RestoreErrorEvent || step.RequeueAfter != retry {
				t.Errorf("step %+v, event %+v", step, step.Event)
			}
			if c.Target != nil && c.Target.Annotations[snapshot.LastRestoreAnnotation] != "" {
				t.Error("the target was changed")
			}
		})
	}
}

func TestSharedDisksThatAreMeantToBe(t *testing.T) {
	for name, change := range map[string]func(*v1.Disk){
		"a CD-ROM":         func(d *v1.Disk) { d.CDRom = &v1.CDRomTarget{} },
		"a read-only disk": func(d *v1.Disk) { d.Disk = &v1.DiskTarget{ReadOnly: true} },
		"a read-only LUN":  func(d *v1.Disk) { d.LUN = &v1.LunTarget{ReadOnly: true} },
		"a shared disk":    func(d *v1.Disk) { d.Shareable = ptr.To(true) },
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(func(vm *v1.VirtualMachine) { change(&vm.Spec.Template.Spec.Domain.Devices.Disks[1]) })
			toNew(c)
			c.Content.Spec.VolumeBackups = slices.Delete(c.Content.Spec.VolumeBackups, 1, 2)
			c.run(t, all)
			if got := c.Target.Spec.Template.Spec.Volumes[1].WrittenClaim(); got != "data-pvc" {
				t.Errorf("the volume is on %s", got)
			}
		})
	}
}

func TestClaimsThatAreBoundLater(t *testing.T) {
	for mode, want := range map[storagev1.VolumeBindingMode]bool{
		storagev1.VolumeBindingImmediate: false, storagev1.VolumeBindingWaitForFirstConsumer: true,
	} {
		s := &scope{Observed: Observed{BindingModes: map[string]storagev1.VolumeBindingMode{"fast": mode}}}
		pending := claim("data", metav1.OwnerReference{})
		pending.Status.Phase = corev1.ClaimPending
		if got, err := s.bound(pending); got != want || err != nil {
			t.Errorf("%s: got %t, %v", mode, got, err)
		}
	}
}

func TestInPlaceDeletesAClaimOnce(t *testing.T) {
	c := newCluster()
	inPlace(c)
	deleted := map[string]int{}
	for range 40 {
		step := Next(c.Observed)
		for _, object := range step.Delete {
			deleted[object.GetName()]++
			// The importer must leave the DataVolume without a claim.
			if dv := c.DataVolumes[object.GetName()]; dv != nil && dv.Annotations[prePopulated] == "" {
				t.Errorf("the claim of DataVolume %s is deleted too early", dv.Name)
			}
		}
		c.apply(step, all)
		c.settle()
	}
	if diff := cmp.Diff(map[string]int{"root-dv": 1, "more-dv": 1, "data-pvc": 1}, deleted); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
