// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinebackup

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/event"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func TestMigrationsThatMatter(t *testing.T) {
	urgent := func(m *v1.VirtualMachineInstanceMigration) { m.Spec.Priority = ptr.To(v1.PrioritySystemCritical) }
	for name, tc := range map[string]struct {
		change  func(*v1.VirtualMachineInstanceMigration)
		matters bool
	}{
		"a user's":              {func(*v1.VirtualMachineInstanceMigration) {}, false},
		"a drain's":             {urgent, true},
		"a drain's, ended":      {func(m *v1.VirtualMachineInstanceMigration) { urgent(m); m.Status.Phase = v1.MigrationFailed }, false},
		"a drain's, deleted":    {func(m *v1.VirtualMachineInstanceMigration) { urgent(m); m.DeletionTimestamp = &metav1.Time{} }, false},
		"with another priority": {func(m *v1.VirtualMachineInstanceMigration) { m.Spec.Priority = ptr.To(v1.PriorityUserTriggered) }, false},
	} {
		m := &v1.VirtualMachineInstanceMigration{}
		tc.change(m)
		if got := migrationMatters.Create(event.CreateEvent{Object: m}); got != tc.matters {
			t.Errorf("%s: got %t", name, got)
		}
	}
}

func TestClaimsAndVMsThatMatter(t *testing.T) {
	deleted := metav1.Now()
	for name, tc := range map[string]struct {
		before, after metav1.ObjectMeta
		claim, vm     bool
	}{
		"labels":        {metav1.ObjectMeta{UID: "a"}, metav1.ObjectMeta{UID: "a", Labels: map[string]string{"a": "b"}}, false, false},
		"replaced":      {metav1.ObjectMeta{UID: "a"}, metav1.ObjectMeta{UID: "b"}, true, true},
		"being deleted": {metav1.ObjectMeta{UID: "a"}, metav1.ObjectMeta{UID: "a", DeletionTimestamp: &deleted}, true, false},
	} {
		if got := claimComesOrGoes.Update(event.UpdateEvent{
			ObjectOld: &corev1.PersistentVolumeClaim{ObjectMeta: tc.before},
			ObjectNew: &corev1.PersistentVolumeClaim{ObjectMeta: tc.after},
		}); got != tc.claim {
			t.Errorf("%s: claim: got %t", name, got)
		}
		if got := vmComesOrGoes.Update(event.UpdateEvent{
			ObjectOld: &v1.VirtualMachine{ObjectMeta: tc.before}, ObjectNew: &v1.VirtualMachine{ObjectMeta: tc.after},
		}); got != tc.vm {
			t.Errorf("%s: VM: got %t", name, got)
		}
	}
	if !claimComesOrGoes.Create(event.CreateEvent{}) || !claimComesOrGoes.Delete(event.DeleteEvent{}) ||
		!vmComesOrGoes.Create(event.CreateEvent{}) || !vmComesOrGoes.Delete(event.DeleteEvent{}) {
		t.Error("objects that are new or gone do not matter")
	}
}

func TestConditionsThatMatter(t *testing.T) {
	for kind, matters := range map[v1.VirtualMachineInstanceConditionType]bool{
		v1.VirtualMachineInstanceNodeUnresponsive: true, v1.VirtualMachineInstanceSynchronized: true,
		v1.VirtualMachineInstanceAgentConnected: false,
	} {
		before := &v1.VirtualMachineInstance{}
		before.Status.Conditions = []v1.VirtualMachineInstanceCondition{{Type: kind, Status: corev1.ConditionTrue,
			Message: "a"}}
		for name, change := range map[string]func(*v1.VirtualMachineInstanceStatus){
			"it is gone":            func(s *v1.VirtualMachineInstanceStatus) { s.Conditions = nil },
			"it has another status": func(s *v1.VirtualMachineInstanceStatus) { s.Conditions[0].Status = corev1.ConditionFalse },
			"it says another thing": func(s *v1.VirtualMachineInstanceStatus) { s.Conditions[0].Message = "b" },
		} {
			after := before.DeepCopy()
			change(&after.Status)
			if got := backupChanged.Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after}); got != matters {
				t.Errorf("%s: %s: got %t", kind, name, got)
			}
		}
		after := before.DeepCopy()
		after.Status.Conditions[0].LastProbeTime = metav1.Now()
		if backupChanged.Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after}) {
			t.Errorf("%s: its times matter", kind)
		}
	}
}
