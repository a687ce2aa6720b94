// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package health

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/instancetype/v1beta1"
	"github.com/vireo-project/vireo/api/migrations/v1alpha1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/builder"
)

// Without a condition and a generation that kstatus knows, an object is current as soon as it exists. For the first
// ones that is right. For the others it is too early, and docs/health.md says what to wait for.
func TestKindsWithoutProgress(t *testing.T) {
	set, pool := builder.MakeReplicaSet("set").Replicas(3).Obj(), builder.MakePool("pool").Replicas(3).Obj()
	set.Status.Replicas, pool.Status.Replicas = 1, 1
	for name, object := range map[string]client.Object{
		"instance type":         &v1beta1.VirtualMachineInstancetype{},
		"cluster instance type": &v1beta1.VirtualMachineClusterInstancetype{},
		"preference":            &v1beta1.VirtualMachinePreference{},
		"cluster preference":    &v1beta1.VirtualMachineClusterPreference{},
		"migration policy":      &v1alpha1.MigrationPolicy{},

		"migration that runs":              builder.MakeMigration("m", "vm").Phase(v1.MigrationRunning, time.Unix(1, 0)).Obj(),
		"migration that failed":            builder.MakeMigration("m", "vm").Phase(v1.MigrationFailed, time.Unix(1, 0)).Obj(),
		"replica set that lacks replicas":  set,
		"pool that lacks replicas":         pool,
		"VM that was not reconciled yet":   builder.MakeVM("vm").Obj(),
		"VMI that was not reconciled yet":  builder.MakeVMI("vmi").Obj(),
		"KubeVirt that was not reconciled": &v1.KubeVirt{},
	} {
		object.SetGeneration(1)
		if got := Kstatus(t, object); got != Current {
			t.Errorf("%s: %s", name, got)
		}
		object.SetDeletionTimestamp(&metav1.Time{Time: time.Unix(1, 0)})
		if got := Kstatus(t, object); got != Terminating {
			t.Errorf("%s, deleted: %s", name, got)
		}
	}
}
