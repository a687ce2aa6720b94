// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstancereplicaset

import (
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/vmistatus"
	"github.com/vireo-project/vireo/test/builder"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// instance is a VMI in a phase, some minutes old. Its condition Ready is "True", or "False" for a reason; "" is none.
func instance(name string, phase v1.VirtualMachineInstancePhase, ready string, minutes int) *v1.VirtualMachineInstance {
	vmi := builder.MakeVMI(name).Obj()
	vmi.CreationTimestamp = metav1.NewTime(epoch.Add(-time.Duration(minutes) * time.Minute))
	vmi.Status.Phase = phase
	status, reason, _ := strings.Cut(ready, " ")
	if status != "" {
		vmistatus.SetCondition(&vmi.Status, v1.VirtualMachineInstanceCondition{
			Type: v1.VirtualMachineInstanceReady, Status: corev1.ConditionStatus(status), Reason: reason,
		}, metav1.NewTime(epoch))
	}
	return vmi
}

func TestActiveAndFinished(t *testing.T) {
	for _, tc := range []struct {
		name             string
		vmi              *v1.VirtualMachineInstance
		active, finished bool
	}{
		{"new", instance("a", v1.VmPhaseUnset, "", 0), true, false},
		{"starting", instance("a", v1.Scheduling, "False GuestNotRunning", 0), true, false},
		{"running", instance("a", v1.Running, "True", 0), true, false},
		{"not ready", instance("a", v1.Running, "False GuestNotRunning", 0), true, false},
		{"unknown", instance("a", v1.Unknown, "", 0), true, false},
		{"not known to be ready", instance("a", v1.Running, "Unknown NodeUnresponsive", 0), true, false},
		{"its Pod is being deleted", instance("a", v1.Running, "False PodTerminating", 0), false, true},
		{"succeeded", instance("a", v1.Succeeded, "", 0), false, true},
		{"failed", instance("a", v1.Failed, "False PodTerminating", 0), false, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if active(tc.vmi) != tc.active || finished(tc.vmi) != tc.finished {
				t.Errorf("active %t, finished %t", active(tc.vmi), finished(tc.vmi))
			}
			tc.vmi.DeletionTimestamp = &metav1.Time{Time: epoch}
			if active(tc.vmi) || finished(tc.vmi) {
				t.Error("counts though it is being deleted")
			}
		})
	}
}

func TestSortForRemoval(t *testing.T) {
	want := []*v1.VirtualMachineInstance{
		instance("pending-new", v1.Pending, "", 1),
		instance("pending-old", v1.Pending, "", 9),
		instance("scheduling", v1.Scheduling, "False PodNotReady", 1),
		instance("scheduled", v1.Scheduled, "False GuestNotRunning", 0),
		instance("unready-new", v1.Running, "False GuestNotRunning", 2),
		instance("lost", v1.Unknown, "", 3),
		instance("unready-old", v1.Running, "Unknown", 8),
		instance("ready-new-a", v1.Running, "True", 4),
		instance("ready-new-b", v1.Running, "True", 4),
		instance("ready-old", v1.Running, "True", 7),
	}
	for range 20 {
		got := append([]*v1.VirtualMachineInstance(nil), want...)
		rand.Shuffle(len(got), func(i, j int) { got[i], got[j] = got[j], got[i] })
		sortForRemoval(got)
		for i := range want {
			if got[i].Name != want[i].Name {
				t.Fatalf("place %d: %s, want %s", i, got[i].Name, want[i].Name)
			}
		}
	}
}

func TestNames(t *testing.T) {
	named := func(change func(*v1.VirtualMachineInstanceReplicaSet)) *v1.VirtualMachineInstanceReplicaSet {
		return builder.MakeReplicaSet("web").UID("u1").With(change).Obj()
	}
	for _, tc := range []struct {
		name   string
		change func(*v1.VirtualMachineInstanceReplicaSet)
		want   string
	}{
		{"from the set", func(*v1.VirtualMachineInstanceReplicaSet) {}, "web"},
		{"from the template's name", func(s *v1.VirtualMachineInstanceReplicaSet) {
			s.Spec.Template.ObjectMeta.Name, s.Spec.Template.ObjectMeta.GenerateName = "vm-", "other"
		}, "vm-"},
		{"from the template's generateName", func(s *v1.VirtualMachineInstanceReplicaSet) { s.Spec.Template.ObjectMeta.GenerateName = "gen-" }, "gen-"},
		{"truncated as by the API server", func(s *v1.VirtualMachineInstanceReplicaSet) { s.Name = strings.Repeat("a", 80) },
			strings.Repeat("a", 58)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := newNames(named(tc.change)).take()
			if !regexp.MustCompile(`^` + tc.want + `[bcdfghjklmnpqrstvwxz2-9]{5}$`).MatchString(got) {
				t.Errorf("%q does not look like a name that the API server made from %q", got, tc.want)
			}
			if wrong := validation.IsDNS1123Label(got); len(wrong) > 0 {
				t.Errorf("%q: %v", got, wrong)
			}
		})
	}
}

// TestNamesFollowFromExistingVMIs checks what prevents surplus VMIs when the cache is stale.
func TestNamesFollowFromExistingVMIs(t *testing.T) {
	set, other := builder.MakeReplicaSet("web").UID("u1").Obj(), builder.MakeReplicaSet("web").UID("u2").Obj()
	first := newNames(set)
	a, b, c := first.take(), first.take(), first.take()
	if a == b || b == c || a == c {
		t.Fatalf("returned twice: %s %s %s", a, b, c)
	}
	again := newNames(set)
	again.taken[b] = true
	if x, y := again.take(), again.take(); x != a || y != c {
		t.Errorf("got %s and %s with %s taken, want %s and %s", x, y, b, a, c)
	}
	if of := newNames(other).take(); of == a {
		t.Errorf("another set of the same name has the same names")
	}
	many, seen := newNames(set), map[string]bool{}
	for range 5000 {
		name := many.take()
		if seen[name] {
			t.Fatalf("%s was returned twice", name)
		}
		seen[name] = true
	}
}
