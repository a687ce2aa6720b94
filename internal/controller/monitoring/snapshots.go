// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package monitoring

import (
	"github.com/prometheus/client_golang/prometheus"

	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
	"github.com/vireo-project/vireo/internal/component/metrics"
)

var snapshotTaken = metrics.Describe("vmsnapshot_succeeded_timestamp_seconds", "When a snapshot of a VM was taken, in Unix time.",
	"name", "snapshot_name", "namespace")

func collectSnapshots(snapshots []snapshotv1beta1.VirtualMachineSnapshot, to chan<- prometheus.Metric) {
	for i := range snapshots {
		snapshot := &snapshots[i]
		if snapshot.Status == nil || snapshot.Status.Phase != snapshotv1beta1.Succeeded || snapshot.Status.CreationTime == nil {
			continue
		}
		to <- metrics.Gauge(snapshotTaken, float64(snapshot.Status.CreationTime.Unix()), snapshot.Spec.Source.Name, snapshot.Name, snapshot.Namespace)
	}
}
