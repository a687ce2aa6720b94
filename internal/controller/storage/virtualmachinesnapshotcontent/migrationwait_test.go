// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinesnapshotcontent

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/builder"
)

var locked = metav1.NewTime(time.Unix(1000, 0))

func TestWhichMigrationsPrecedeASnapshot(t *testing.T) {
	for name, tc := range map[string]struct {
		created time.Time
		change  func(*v1.VirtualMachineInstanceMigration, *v1.VirtualMachineInstance)
		want    bool
	}{
		"an earlier one":          {created: locked.Add(-time.Hour), want: true},
		"one of the same second":  {created: locked.Time, want: true},
		"a later one":             {created: locked.Add(time.Second)},
		"one that has a Pod":      {locked.Add(-time.Hour), phase(v1.MigrationScheduled), true},
		"one that has succeeded":  {locked.Add(-time.Hour), phase(v1.MigrationSucceeded), false},
		"one that has failed":     {locked.Add(-time.Hour), phase(v1.MigrationFailed), false},
		"one that is assigned":    {locked.Add(-time.Hour), assigned("m"), false},
		"one after an earlier":    {locked.Add(-time.Hour), assigned("other"), true},
		"one that is being ended": {locked.Add(-time.Hour), deleted, false},
	} {
		m, vmi := builder.MakeMigration("m", "vm").UID("m").Created(tc.created).Obj(), builder.MakeVMI("vm").Obj()
		if tc.change != nil {
			tc.change(m, vmi)
		}
		if got := isPreceded(vmi, m, locked); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func phase(
	p v1.VirtualMachineInstanceMigrationPhase,
) func(*v1.VirtualMachineInstanceMigration, *v1.VirtualMachineInstance) {
	return func(m *v1.VirtualMachineInstanceMigration, _ *v1.VirtualMachineInstance) { m.Status.Phase = p }
}

func assigned(uid string) func(*v1.VirtualMachineInstanceMigration, *v1.VirtualMachineInstance) {
	return func(_ *v1.VirtualMachineInstanceMigration, vmi *v1.VirtualMachineInstance) {
		vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: types.UID(uid)}
	}
}

func deleted(m *v1.VirtualMachineInstanceMigration, _ *v1.VirtualMachineInstance) {
	m.DeletionTimestamp = &locked
}

func TestWhichChangesOfMigrationsTriggerASnapshot(t *testing.T) {
	migration := func(change func(*v1.VirtualMachineInstanceMigration,
		*v1.VirtualMachineInstance)) *v1.VirtualMachineInstanceMigration {
		m := builder.MakeMigration("m", "vm").Obj()
		if change != nil {
			change(m, nil)
		}
		return m
	}
	for name, tc := range map[string]struct {
		after *v1.VirtualMachineInstanceMigration
		want  bool
	}{
		"nothing":   {migration(nil), false},
		"its phase": {migration(phase(v1.MigrationFailed)), true},
		"its end":   {migration(deleted), true},
	} {
		if got := stopsWaiting.Update(event.UpdateEvent{ObjectOld: migration(nil), ObjectNew: tc.after}); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	if stopsWaiting.Create(event.CreateEvent{Object: migration(nil)}) ||
		!stopsWaiting.Delete(event.DeleteEvent{Object: migration(nil)}) {
		t.Error("a migration that begins triggers a snapshot, or one that is gone does not")
	}
}
