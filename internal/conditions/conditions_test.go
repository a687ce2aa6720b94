// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package conditions_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/conditions"
)

var then, now = metav1.NewTime(time.Unix(1, 0)), metav1.NewTime(time.Unix(2, 0))

func ready(status corev1.ConditionStatus, message string, at metav1.Time) v1.VirtualMachineCondition {
	return v1.VirtualMachineCondition{Type: v1.VirtualMachineReady, Status: status, Message: message,
		LastTransitionTime: at}
}

func TestSet(t *testing.T) {
	for name, c := range map[string]struct {
		before  []v1.VirtualMachineCondition
		set     v1.VirtualMachineCondition
		want    v1.VirtualMachineCondition
		changed bool
	}{
		"a new one": {nil, ready("True", "a", now), ready("True", "a", now), true},
		"the same": {
			[]v1.VirtualMachineCondition{ready("True", "a", then)}, ready("True", "a", now), ready("True", "a", then), false,
		},
		"another message": {
			[]v1.VirtualMachineCondition{ready("True", "a", then)}, ready("True", "b", now), ready("True", "b", then), true,
		},
		"another status": {
			[]v1.VirtualMachineCondition{ready("True", "a", then)}, ready("False", "a", now), ready("False", "a", now), true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			list := append([]v1.VirtualMachineCondition{{Type: v1.VirtualMachineFailure}}, c.before...)
			if changed := conditions.Set(&list, c.set); changed != c.changed {
				t.Errorf("changed: got %t, want %t", changed, c.changed)
			}
			if len(list) != 2 || list[1] != c.want {
				t.Errorf("got %v, want %v as the second", list, c.want)
			}
		})
	}
}

func TestSetProbed(t *testing.T) {
	condition := func(message string, probed, transition metav1.Time) v1.KubeVirtCondition {
		return v1.KubeVirtCondition{
			Type: v1.KubeVirtConditionAvailable, Status: corev1.ConditionTrue, Message: message, LastProbeTime: probed,
			LastTransitionTime: transition,
		}
	}
	list := []v1.KubeVirtCondition{condition("a", then, then)}
	if conditions.SetProbed(&list, condition("a", now, now)) || list[0] != condition("a", then, then) {
		t.Errorf("the same has changed: %v", list)
	}
	if !conditions.SetProbed(&list, condition("b", now, now)) || list[0] != condition("b", now, then) {
		t.Errorf("another message: %v", list)
	}
}

func TestFindAndRemove(t *testing.T) {
	list := []v1.VirtualMachineInstanceCondition{
		{Type: v1.VirtualMachineInstanceReady, Status: corev1.ConditionTrue},
		{Type: v1.VirtualMachineInstancePaused, Status: corev1.ConditionFalse},
	}
	if got := conditions.Find(list, v1.VirtualMachineInstancePaused); got != &list[1] {
		t.Errorf("got %v, want the element of the list", got)
	}
	if got := conditions.Find(list, v1.VirtualMachineInstanceSynchronized); got != nil {
		t.Errorf("got %v, want none", got)
	}
	if !conditions.IsTrue(list, v1.VirtualMachineInstanceReady) ||
		conditions.IsTrue(list, v1.VirtualMachineInstancePaused) ||
		conditions.IsTrue(list, v1.VirtualMachineInstanceSynchronized) {
		t.Error("only Ready is True")
	}
	if conditions.Remove(&list, v1.VirtualMachineInstanceSynchronized) || len(list) != 2 {
		t.Error("removed one that is not there")
	}
	if !conditions.Remove(&list, v1.VirtualMachineInstanceReady) || len(list) != 1 {
		t.Error("did not remove Ready")
	}
}
