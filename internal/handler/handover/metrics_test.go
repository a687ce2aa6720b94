// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package handover

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/handler/hypervisor"
)

func TestMetricsOfCopiesThatAreUnderWay(t *testing.T) {
	progress := &hypervisor.CopyProgress{
		Memory:              hypervisor.CopyAmount{Total: 1000, Processed: 300, Remaining: 700, BytesPerSecond: 50},
		Disk:                hypervisor.CopyAmount{Total: 10000, Processed: 9000, Remaining: 1000, BytesPerSecond: 5000},
		DirtyBytesPerSecond: 7,
	}
	copies := NewCopies(CopiesOptions{})
	for name, state := range map[string]CopyState{
		"moves":   {Running: true, Progress: progress},
		"asks":    {Running: true},
		"begins":  {Running: true, Progress: &hypervisor.CopyProgress{}},
		"is-gone": {HandedOver: true, Progress: progress},
	} {
		vmi := &v1.VirtualMachineInstance{}
		vmi.Namespace, vmi.Name = "shop", name
		copies.copies[types.UID(name)] = &Copy{vmi: vmi, state: state}
	}
	const expected = `
# HELP kubevirt_vmi_migration_data_bytes_total How much is to be copied: the guest's memory and the disks that move with it.
# TYPE kubevirt_vmi_migration_data_bytes_total counter
kubevirt_vmi_migration_data_bytes_total{name="moves",namespace="shop",node="node-1"} 11000
# HELP kubevirt_vmi_migration_data_processed_bytes How much was copied so far.
# TYPE kubevirt_vmi_migration_data_processed_bytes gauge
kubevirt_vmi_migration_data_processed_bytes{name="moves",namespace="shop",node="node-1"} 9300
# HELP kubevirt_vmi_migration_data_remaining_bytes How much is left to copy. The guest may add to it.
# TYPE kubevirt_vmi_migration_data_remaining_bytes gauge
kubevirt_vmi_migration_data_remaining_bytes{name="moves",namespace="shop",node="node-1"} 1700
# HELP kubevirt_vmi_migration_dirty_memory_rate_bytes How many bytes of memory the guest changes in a second.
# TYPE kubevirt_vmi_migration_dirty_memory_rate_bytes gauge
kubevirt_vmi_migration_dirty_memory_rate_bytes{name="moves",namespace="shop",node="node-1"} 7
# HELP kubevirt_vmi_migration_memory_transfer_rate_bytes How many bytes of memory are sent in a second.
# TYPE kubevirt_vmi_migration_memory_transfer_rate_bytes gauge
kubevirt_vmi_migration_memory_transfer_rate_bytes{name="moves",namespace="shop",node="node-1"} 50
`
	if err := testutil.CollectAndCompare(copies.Metrics("node-1"), strings.NewReader(expected)); err != nil {
		t.Fatal(err)
	}
}
