// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinebackup

import (
	"testing"

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
