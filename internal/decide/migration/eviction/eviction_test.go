// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package eviction

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/vmistatus"
	"github.com/vireo-project/vireo/test/builder"
)

var noon = metav1.NewTime(time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC))

// facts are those of a guest that runs on node-1, can migrate and is to.
func facts(changes ...func(*Facts)) Facts {
	f := Facts{
		VMI: builder.MakeVMI("vm").Namespace("ns").UID("uid").With(func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.EvictionStrategy = ptr.To(v1.EvictionStrategyLiveMigrate)
			vmi.Status.Phase, vmi.Status.NodeName = v1.Running, "node-1"
		}).Condition(v1.VirtualMachineInstanceIsMigratable, corev1.ConditionTrue, "", "").Obj(),
		Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "virt-launcher-vm-abc", Namespace: "ns"},
			Spec: corev1.PodSpec{NodeName: "node-1"}, Status: corev1.PodStatus{Phase: corev1.PodRunning}},
		Default: v1.EvictionStrategyNone, LiveMigration: true,
	}
	f.Pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(f.VMI,
		v1.VirtualMachineInstanceGroupVersionKind)}
	for _, change := range changes {
		change(&f)
	}
	return f
}

func strategy(s v1.EvictionStrategy) func(*Facts) {
	return func(f *Facts) { f.VMI.Spec.EvictionStrategy = &s }
}

func stuck(f *Facts) {
	vmistatus.SetCondition(&f.VMI.Status, v1.VirtualMachineInstanceCondition{
		Type: v1.VirtualMachineInstanceIsMigratable, Status: corev1.ConditionFalse,
		Reason: v1.VirtualMachineInstanceReasonDisksNotMigratable, Message: "cannot migrate VMI: claim data is not shared",
	}, noon)
}

func marked(f *Facts) { f.VMI.Status.EvacuationNodeName = f.VMI.Status.NodeName }

// on puts the Pod on another node than the guest.
func on(node string) func(*Facts) { return func(f *Facts) { f.Pod.Spec.NodeName = node } }

func TestDecide(t *testing.T) {
	const (
		first  = `Eviction triggered evacuation of VMI "ns/vm"`
		again  = `Evacuation in progress: Eviction triggered evacuation of VMI "ns/vm"`
		cannot = "VMI vm is configured with an eviction strategy but is not live-migratable: "
	)
	allow := Decision{Allowed: true}
	for _, c := range []struct {
		name    string
		changes []func(*Facts)
		// want has the start of the message.
		want Decision
	}{
		{"None", []func(*Facts){strategy(v1.EvictionStrategyNone)}, allow},
		{"None, marked by hand", []func(*Facts){strategy(v1.EvictionStrategyNone), marked}, allow},
		{"LiveMigrate", nil, Decision{Mark: true, Message: first}},
		{"LiveMigrate again", []func(*Facts){marked}, Decision{Message: again}},
		{"LiveMigrate, stuck", []func(*Facts){stuck}, Decision{Message: cannot + "cannot migrate VMI: claim data is not shared"}},
		{"LiveMigrate, stuck and marked", []func(*Facts){stuck, marked}, Decision{Message: cannot + "cannot migrate VMI: claim data is not shared"}},
		{"LiveMigrate where nothing migrates", []func(*Facts){func(f *Facts) { f.LiveMigration = false }},
			Decision{Message: cannot + "this installation cannot migrate guests"}},
		{"LiveMigrate, starting", []func(*Facts){func(f *Facts) {
			f.VMI.Status = v1.VirtualMachineInstanceStatus{Phase: v1.Scheduling}
		}}, Decision{Message: cannot + "its guest does not run yet (phase Scheduling)"}},
		{"LiveMigrate, nothing known", []func(*Facts){func(f *Facts) { f.VMI.Status.Conditions = nil }},
			Decision{Message: cannot + "the agent of node node-1"}},
		{"IfPossible", []func(*Facts){strategy(v1.EvictionStrategyLiveMigrateIfPossible)}, Decision{Mark: true, Message: first}},
		{"IfPossible again", []func(*Facts){strategy(v1.EvictionStrategyLiveMigrateIfPossible), marked}, Decision{Message: again}},
		{"IfPossible, stuck", []func(*Facts){strategy(v1.EvictionStrategyLiveMigrateIfPossible), stuck}, allow},
		{"IfPossible where nothing migrates", []func(*Facts){strategy(v1.EvictionStrategyLiveMigrateIfPossible),
			func(f *Facts) { f.LiveMigration = false }}, allow},
		{"External, stuck", []func(*Facts){strategy(v1.EvictionStrategyExternal), stuck}, Decision{Mark: true, Message: first}},
		{"External again", []func(*Facts){strategy(v1.EvictionStrategyExternal), marked}, Decision{Message: again}},
		{"External, starting", []func(*Facts){strategy(v1.EvictionStrategyExternal), func(f *Facts) { f.VMI.Status.NodeName = "" }},
			Decision{Message: `The guest of VMI "ns/vm" is about to start in this Pod`}},
		{"the cluster's strategy", []func(*Facts){func(f *Facts) {
			f.VMI.Spec.EvictionStrategy, f.Default = nil, v1.EvictionStrategyLiveMigrate
		}}, Decision{Mark: true, Message: first}},
		{"its own before the cluster's", []func(*Facts){strategy(v1.EvictionStrategyNone), func(f *Facts) {
			f.Default = v1.EvictionStrategyLiveMigrate
		}}, allow},
		{"marked for a node of the past", []func(*Facts){func(f *Facts) { f.VMI.Status.EvacuationNodeName = "node-0" }},
			Decision{Mark: true, Message: first}},
		{"target Pod", []func(*Facts){on("node-2")}, Decision{Message: "Eviction request for target Pod"}},
		{"target Pod of an evacuation", []func(*Facts){on("node-2"), marked}, Decision{Message: again}},
		{"Pod that was left", []func(*Facts){on("node-0"), func(f *Facts) {
			f.VMI.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{SourcePod: f.Pod.Name}
		}}, Decision{Message: `The guest of VMI "ns/vm" has moved to node node-1`}},
		{"Pod that succeeded", []func(*Facts){func(f *Facts) { f.Pod.Status.Phase = corev1.PodSucceeded }}, allow},
		{"Pod that failed", []func(*Facts){func(f *Facts) { f.Pod.Status.Phase = corev1.PodFailed }}, allow},
		{"Pod that goes anyhow", []func(*Facts){func(f *Facts) { f.Pod.DeletionTimestamp = &noon }}, allow},
		{"VMI that goes anyhow", []func(*Facts){func(f *Facts) { f.VMI.DeletionTimestamp = &noon }}, allow},
		{"VMI that ended", []func(*Facts){func(f *Facts) { f.VMI.Status.Phase = v1.Failed }}, allow},
		{"no VMI", []func(*Facts){func(f *Facts) { f.VMI = nil }}, allow},
		{"labels without an owner", []func(*Facts){func(f *Facts) {
			f.Pod.OwnerReferences, f.Pod.Labels = nil, map[string]string{v1.CreatedByLabel: "uid"}
		}}, allow},
		{"an orphan, which its VMI takes back", []func(*Facts){func(f *Facts) {
			f.Pod.OwnerReferences, f.Pod.Labels = nil,
				map[string]string{v1.AppLabel: launcherpod.AppLabelValue, v1.CreatedByLabel: "uid"}
		}}, Decision{Mark: true, Message: first}},
		{"an owner of another kind", []func(*Facts){func(f *Facts) { f.Pod.OwnerReferences[0].Kind = "ConfigMap" }}, allow},
		{"another VMI of the name", []func(*Facts){func(f *Facts) { f.VMI.UID = "other" }}, allow},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := facts(c.changes...)
			got := Decide(f)
			if got.Allowed != c.want.Allowed || got.Mark != c.want.Mark || !strings.HasPrefix(got.Message, c.want.Message) ||
				(got.Message == "") != (c.want.Message == "") {
				t.Errorf("got %+v\nwant %+v", got, c.want)
			}
		})
	}
}

func TestMark(t *testing.T) {
	status := facts().VMI.Status
	Mark(&status, noon)
	vmi := &v1.VirtualMachineInstance{Status: status}
	if at := MarkedAt(vmi); !IsMarked(vmi) || !at.Equal(&noon) {
		t.Fatalf("not marked: %+v", status)
	}
	condition := vmistatus.FindCondition(&status, v1.VirtualMachineInstanceEvictionRequested)
	if condition == nil || condition.Reason != "EvictionRequested" || !strings.Contains(condition.Message, "node-1") ||
		// With External, another controller decides what happens to the guest.
		strings.Contains(condition.Message, "migrate") {
		t.Errorf("condition %+v", condition)
	}
	if _, err := vmistatus.Check(vmistatus.Controller, &facts().VMI.Status, &status); err != nil {
		t.Error(err)
	}

	later := metav1.NewTime(noon.Add(time.Hour))
	Observe(&vmi.Status, later)
	if at := MarkedAt(vmi); !at.Equal(&noon) {
		t.Errorf("reading it changes the time of the request: %s", at)
	}
	Mark(&vmi.Status, later)
	if at := MarkedAt(vmi); !at.Equal(&later) {
		t.Errorf("another request is of %s", at)
	}
	Unmark(&vmi.Status)
	if at := MarkedAt(vmi); IsMarked(vmi) || !at.IsZero() {
		t.Errorf("still marked: %+v", vmi.Status)
	}
}

func TestAnnotate(t *testing.T) {
	pod := &metav1.ObjectMeta{Annotations: map[string]string{"a": "b"}}
	Annotate(pod, true)
	if !ByDrain(pod) || pod.Annotations[InProgressAnnotation] != "kubevirt" {
		t.Errorf("drained: %v", pod.Annotations)
	}
	Annotate(pod, false)
	if ByDrain(pod) || pod.Annotations[InProgressAnnotation] != "kubevirt" {
		t.Errorf("evicted by somebody else: %v", pod.Annotations)
	}
	Forget(pod)
	if len(pod.Annotations) != 1 {
		t.Errorf("left over: %v", pod.Annotations)
	}
}

func TestHasTaint(t *testing.T) {
	node := &corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{
		{Key: "kubevirt.io/drain", Effect: corev1.TaintEffectNoExecute}, {Key: "other", Effect: corev1.TaintEffectNoSchedule},
	}}}
	if HasTaint(node, "kubevirt.io/drain") || !HasTaint(node, "other") {
		t.Error("key and effect count together")
	}
}

func TestSourceOf(t *testing.T) {
	if got := SourceOf(map[string]string{"requested-by": "sigs.k8s.io/descheduler", "reason": "x"}); got != "descheduler" {
		t.Errorf("the descheduler is %q", got)
	}
	if got := SourceOf(map[string]string{"requested-by": "somebody"}) + SourceOf(nil); got != "" {
		t.Errorf("somebody else is %q", got)
	}
}
