// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package monitoring

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
)

func TestSnapshots(t *testing.T) {
	taken, when := snapshotv1beta1.VirtualMachineSnapshot{}, metav1.NewTime(noon)
	taken.Namespace, taken.Name, taken.Spec.Source.Name = "ns", "snap", "vm"
	taken.Status = &snapshotv1beta1.VirtualMachineSnapshotStatus{Phase: snapshotv1beta1.Succeeded, CreationTime: &when}
	running := *taken.DeepCopy()
	running.Name, running.Status.Phase = "running", snapshotv1beta1.InProgress
	c := collector(&cached{snapshots: []snapshotv1beta1.VirtualMachineSnapshot{taken, running, {}}})
	const want = `kubevirt_vmsnapshot_succeeded_timestamp_seconds{name="vm",namespace="ns",snapshot_name="snap"} 1.`
	got := samples(t, c, "kubevirt_vmsnapshot_succeeded_timestamp_seconds")
	if len(got) < len(want) || got[:len(want)] != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
