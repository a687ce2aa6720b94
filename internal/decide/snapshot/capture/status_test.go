// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package capture

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/csi"
	"github.com/vireo-project/vireo/api/snapshot"
	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/builder"
	"github.com/vireo-project/vireo/test/health"
)

var created = time.Unix(1000, 0)

func locked(vm *v1.VirtualMachine) {
	vm.Status.SnapshotInProgress = ptr.To("snap")
	vm.Finalizers = []string{snapshot.SourceFinalizer}
}

// contentOf returns the content of a VM with the volumes root and data, of which only root is in it.
func contentOf(status *v1beta1.VirtualMachineSnapshotContentStatus) *v1beta1.VirtualMachineSnapshotContent {
	vm := builder.MakeVM("vm").With(withVolume("root", onClaim("root"))).With(withVolume("data", onClaim("data"))).Obj()
	content, _ := Content(request(),
		Stored{VM: vm, Volumes: []Volume{{Name: "root", Claim: claim("root", "fast"), Class: "snap"}}})
	content.Status = status
	return content
}

// brief lists the conditions in their order, as Progressing=True: reason.
func brief(list []v1beta1.Condition) []string {
	var out []string
	for _, c := range list {
		out = append(out, fmt.Sprintf("%s=%s: %s%s", c.Type, c.Status, c.Reason, c.Message))
	}
	return out
}

func TestStatus(t *testing.T) {
	inTime, late := created.Add(time.Minute), created.Add(6*time.Minute)
	taken := metav1.NewTime(created.Add(30 * time.Second))
	succeeded := &v1beta1.VirtualMachineSnapshotStatus{Phase: v1beta1.Succeeded}
	for name, tc := range map[string]struct {
		change func(*v1beta1.VirtualMachineSnapshot)
		seen   Observed
		phase  v1beta1.VirtualMachineSnapshotPhase
		want   []string
		ready  bool
	}{
		"without a VM": {
			seen: Observed{Now: inTime}, phase: v1beta1.InProgress,
			want: []string{"Progressing=False: Source does not exist", "Ready=False: Not ready"},
		},
		"not locked yet": {
			seen: Observed{Now: inTime, Source: Source{VM: builder.MakeVM("vm").Obj()}}, phase: v1beta1.InProgress,
			want: []string{"Progressing=False: Source not locked", "Ready=False: Not ready"},
		},
		"not to be locked": {
			seen: Observed{Now: inTime, Source: Source{VM: builder.MakeVM("vm").Obj(), Pods: 1}}, phase: v1beta1.InProgress,
			want: []string{"Progressing=False: Source not locked source is offline but 1 pods using PVCs []",
				"Ready=False: Not ready"},
		},
		"locked": {
			seen: Observed{Now: inTime, Source: Source{VM: builder.MakeVM("vm").With(locked).Obj()}}, phase: v1beta1.InProgress,
			want: []string{"Progressing=True: Source locked and operation in progress", "Ready=False: Not ready"},
		},
		"with an error": {
			seen: Observed{
				Now: inTime, Source: Source{VM: builder.MakeVM("vm").With(locked).Obj()},
				Content: contentOf(&v1beta1.VirtualMachineSnapshotContentStatus{Error: &v1beta1.Error{Message: ptr.To("x")}}),
			},
			phase: v1beta1.InProgress, want: []string{"Progressing=False: In error state", "Ready=False: Not ready"},
		},
		"taken": {
			seen:  Observed{Now: inTime, Content: contentOf(&v1beta1.VirtualMachineSnapshotContentStatus{CreationTime: &taken})},
			phase: v1beta1.Succeeded, want: []string{"Progressing=False: Operation complete", "Ready=False: Not ready"},
		},
		"taken in time, reported late": {
			seen:  Observed{Now: late, Content: contentOf(&v1beta1.VirtualMachineSnapshotContentStatus{CreationTime: &taken})},
			phase: v1beta1.Succeeded, want: []string{"Progressing=False: Operation complete", "Ready=False: Not ready"},
		},
		"usable": {
			change: func(s *v1beta1.VirtualMachineSnapshot) { s.Status = succeeded.DeepCopy() },
			seen: Observed{Now: late, Content: contentOf(&v1beta1.VirtualMachineSnapshotContentStatus{
				CreationTime: &taken, ReadyToUse: ptr.To(true),
			})},
			phase: v1beta1.Succeeded, want: []string{"Progressing=False: Operation complete", "Ready=True: Ready"}, ready: true,
		},
		"usable, and its VM is gone": {
			change: func(s *v1beta1.VirtualMachineSnapshot) {
				s.Status = succeeded.DeepCopy()
				s.Status.ReadyToUse = ptr.To(true)
			},
			seen: Observed{Now: late}, phase: v1beta1.Succeeded,
			want: []string{"Progressing=False: Operation complete", "Ready=True: Ready"}, ready: true,
		},
		"too late": {
			seen: Observed{Now: late, Source: Source{VM: builder.MakeVM("vm").Obj()}}, phase: v1beta1.Failed,
			want: []string{"Progressing=False: Operation failed", "Ready=False: Not ready",
				"Failure=True: snapshot deadline exceeded"},
		},
		"without a deadline": {
			change: func(s *v1beta1.VirtualMachineSnapshot) { s.Spec.FailureDeadline = &metav1.Duration{} },
			seen:   Observed{Now: late}, phase: v1beta1.InProgress,
			want: []string{"Progressing=False: Source does not exist", "Ready=False: Not ready"},
		},
		"failed before its content was gone": {
			change: func(s *v1beta1.VirtualMachineSnapshot) {
				s.Status = &v1beta1.VirtualMachineSnapshotStatus{Phase: v1beta1.Failed}
			},
			seen: Observed{Now: late, Content: contentOf(&v1beta1.VirtualMachineSnapshotContentStatus{
				CreationTime: &taken, ReadyToUse: ptr.To(true),
			})},
			phase: v1beta1.Failed,
			want: []string{"Progressing=False: Operation failed", "Ready=False: Not ready",
				"Failure=True: snapshot deadline exceeded"},
		},
		"deleted": {
			change: func(s *v1beta1.VirtualMachineSnapshot) { s.DeletionTimestamp = ptr.To(metav1.NewTime(inTime)) },
			seen:   Observed{Now: inTime, Source: Source{VM: builder.MakeVM("vm").With(locked).Obj()}}, phase: v1beta1.Deleting,
			want: []string{"Progressing=False: VM snapshot is deleting", "Ready=False: Not ready"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			vmSnapshot := request()
			vmSnapshot.CreationTimestamp = metav1.NewTime(created)
			if tc.change != nil {
				tc.change(vmSnapshot)
			}
			before := vmSnapshot.DeepCopy()
			got := Status(vmSnapshot, tc.seen)
			if diff := cmp.Diff(tc.want, brief(got.Conditions)); diff != "" || got.Phase != tc.phase ||
				*got.ReadyToUse != tc.ready {
				t.Errorf("phase %s, ready %t (-want +got):\n%s", got.Phase, *got.ReadyToUse, diff)
			}
			if diff := cmp.Diff(before, vmSnapshot); diff != "" {
				t.Errorf("the input has changed:\n%s", diff)
			}
			vmSnapshot.Status = got
			// It counts as current only when it can be restored.
			if kstatus := health.Kstatus(t, vmSnapshot); vmSnapshot.DeletionTimestamp == nil &&
				(kstatus == health.Current) != tc.ready {
				t.Errorf("kstatus: got %s", kstatus)
			}
			tc.seen.Now = tc.seen.Now.Add(time.Second)
			if diff := cmp.Diff(got, Status(vmSnapshot, tc.seen)); diff != "" {
				t.Errorf("the status changes with the time (-first +second):\n%s", diff)
			}
		})
	}
}

func TestASucceededSnapshotNamesItsVolumes(t *testing.T) {
	taken := metav1.NewTime(created)
	seen := Observed{
		Now: created, Source: Source{VM: builder.MakeVM("vm").UID("7").Obj()},
		Guest:   Guest{Online: true, Agent: true, Frozen: 1234567 * time.Microsecond},
		Content: contentOf(&v1beta1.VirtualMachineSnapshotContentStatus{CreationTime: &taken}),
	}
	got := Status(request(), seen)
	want := &v1beta1.SnapshotVolumesLists{IncludedVolumes: []string{"root"}, ExcludedVolumes: []string{"data"}}
	if diff := cmp.Diff(want, got.SnapshotVolumes); diff != "" || *got.SourceUID != "7" ||
		*got.VirtualMachineSnapshotContentName != "vmsnapshot-content-42" {
		t.Errorf("%+v (-want +got):\n%s", got, diff)
	}
	indications := []v1beta1.Indication{"GuestAgent", "Online", "PartialSnapshot"}
	if diff := cmp.Diff(indications, got.Indications); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if text := got.SourceIndications[0].Message; text != messages[v1beta1.VMSnapshotGuestAgentIndication]+
		" Its file systems were frozen for 1.235s." {
		t.Errorf("got %q", text)
	}
	// What the guest does afterwards does not matter.
	vmSnapshot := request()
	vmSnapshot.Status = got
	seen.Guest = Guest{Online: true, Paused: true}
	if diff := cmp.Diff(got, Status(vmSnapshot, seen)); diff != "" {
		t.Errorf("the status has changed:\n%s", diff)
	}
}

func TestIndications(t *testing.T) {
	for name, tc := range map[string]struct {
		guest Guest
		want  []v1beta1.Indication
	}{
		"stopped":               {Guest{Agent: true}, nil},
		"paused":                {Guest{Online: true, Paused: true, Agent: true}, []v1beta1.Indication{"Online", "Paused"}},
		"without a guest agent": {Guest{Online: true}, []v1beta1.Indication{"NoGuestAgent", "Online"}},
		"frozen":                {Guest{Online: true, Agent: true}, []v1beta1.Indication{"GuestAgent", "Online"}},
		"not frozen in the end": {
			Guest{Online: true, Agent: true, Broken: true, Problem: "fsfreeze is limited"},
			[]v1beta1.Indication{"GuestAgent", "Online", "QuiesceTimeout"},
		},
	} {
		var got []v1beta1.Indication
		for _, indication := range tc.guest.indications() {
			got = append(got, indication.Indication)
			if indication.Message == "" {
				t.Errorf("%s: %s has no message", name, indication.Indication)
			}
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestContentStatus(t *testing.T) {
	first, last := metav1.NewTime(created), metav1.NewTime(created.Add(time.Second))
	volumeSnapshot := func(name string, at *metav1.Time, ready bool, problem string) *csi.VolumeSnapshot {
		out := &csi.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "vmsnapshot-42-volume-" + name}}
		out.Status = &csi.VolumeSnapshotStatus{CreationTime: at, ReadyToUse: &ready}
		if problem != "" {
			out.Status.Error = &csi.VolumeSnapshotError{Message: &problem}
		}
		return out
	}
	for name, tc := range map[string]struct {
		before    *v1beta1.VirtualMachineSnapshotContentStatus
		snapshots []*csi.VolumeSnapshot
		frozen    bool
		abandoned bool
		at        *metav1.Time
		ready     bool
		problem   string
	}{
		"nothing yet":      {},
		"one":              {snapshots: []*csi.VolumeSnapshot{volumeSnapshot("a", &first, true, "")}},
		"still frozen":     {snapshots: []*csi.VolumeSnapshot{volumeSnapshot("a", &first, true, ""), volumeSnapshot("b", &last, true, "")}, frozen: true},
		"taken":            {snapshots: []*csi.VolumeSnapshot{volumeSnapshot("a", &last, false, ""), volumeSnapshot("b", &first, true, "")}, at: &last},
		"usable":           {snapshots: []*csi.VolumeSnapshot{volumeSnapshot("a", &first, true, ""), volumeSnapshot("b", &last, true, "")}, at: &last, ready: true},
		"without a status": {snapshots: []*csi.VolumeSnapshot{{ObjectMeta: metav1.ObjectMeta{Name: "vmsnapshot-42-volume-a"}}}},
		"with an error": {
			snapshots: []*csi.VolumeSnapshot{volumeSnapshot("a", nil, false, "full"), volumeSnapshot("b", &last, true, "")},
			problem:   "VolumeSnapshot vmsnapshot-42-volume-a error: full",
		},
		"with an error that has passed": {
			snapshots: []*csi.VolumeSnapshot{volumeSnapshot("a", &first, true, "full"), volumeSnapshot("b", &last, true, "")},
			at:        &last, ready: true,
		},
		"abandoned": {
			snapshots: []*csi.VolumeSnapshot{volumeSnapshot("a", &first, true, "")}, abandoned: true,
			problem: "VolumeSnapshots (vmsnapshot-42-volume-b) skipped because vm snapshot is deleted",
		},
		"both deleted since": {
			before: &v1beta1.VirtualMachineSnapshotContentStatus{CreationTime: &first, ReadyToUse: ptr.To(true)}, at: &first,
			problem: "VolumeSnapshots (vmsnapshot-42-volume-a,vmsnapshot-42-volume-b) missing",
		},
	} {
		t.Run(name, func(t *testing.T) {
			vm := builder.MakeVM("vm").Obj()
			content, _ := Content(request(), Stored{VM: vm, Volumes: []Volume{
				{Name: "b", Claim: claim("b", "fast"), Class: "snap"}, {Name: "a", Claim: claim("a", "fast"), Class: "snap"},
			}})
			content.Status = tc.before
			taken := Taken{Now: created, Snapshots: map[string]*csi.VolumeSnapshot{}, Thawed: !tc.frozen,
				Abandoned: tc.abandoned}
			for _, volumeSnapshot := range tc.snapshots {
				taken.Snapshots[volumeSnapshot.Name] = volumeSnapshot
			}
			got := ContentStatus(content, taken)
			problem := ""
			if got.Error != nil {
				problem = *got.Error.Message
			}
			if !got.CreationTime.Equal(tc.at) || *got.ReadyToUse != tc.ready || problem != tc.problem {
				t.Errorf("created %v, ready %t, error %q", got.CreationTime, *got.ReadyToUse, problem)
			}
			if len(got.VolumeSnapshotStatus) != len(tc.snapshots) {
				t.Errorf("%d of %d VolumeSnapshots", len(got.VolumeSnapshotStatus), len(tc.snapshots))
			}
			content.Status, taken.Now = got, created.Add(time.Hour)
			if diff := cmp.Diff(got, ContentStatus(content, taken)); diff != "" {
				t.Errorf("the status changes with the time (-first +second):\n%s", diff)
			}
		})
	}
}

func TestAContentWithoutVolumesIsTakenAtOnce(t *testing.T) {
	content, _ := Content(request(), Stored{VM: builder.MakeVM("vm").Obj()})
	got := ContentStatus(content, Taken{Now: created, Thawed: true})
	if want := metav1.NewTime(created); !got.CreationTime.Equal(&want) || !*got.ReadyToUse || got.Error != nil {
		t.Errorf("got %+v", got)
	}
}

func TestDeadline(t *testing.T) {
	for name, tc := range map[string]struct {
		limit *metav1.Duration
		phase v1beta1.VirtualMachineSnapshotPhase
		want  time.Time
	}{
		"default":   {want: created.Add(5 * time.Minute)},
		"given":     {limit: &metav1.Duration{Duration: time.Hour}, want: created.Add(time.Hour)},
		"never":     {limit: &metav1.Duration{}},
		"succeeded": {phase: v1beta1.Succeeded},
	} {
		vmSnapshot := request()
		vmSnapshot.CreationTimestamp, vmSnapshot.Spec.FailureDeadline = metav1.NewTime(created), tc.limit
		vmSnapshot.Status = &v1beta1.VirtualMachineSnapshotStatus{Phase: tc.phase}
		if got := Deadline(vmSnapshot); !got.Equal(tc.want) {
			t.Errorf("%s: got %s, want %s", name, got, tc.want)
		}
	}
}
