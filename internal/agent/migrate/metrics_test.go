// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package migrate

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
)

func TestMetricsOfRunningTransfers(t *testing.T) {
	progress := &hypervisor.TransferProgress{
		Memory:              hypervisor.TransferAmount{Total: 1000, Processed: 300, Remaining: 700, BytesPerSecond: 50},
		Disk:                hypervisor.TransferAmount{Total: 10000, Processed: 9000, Remaining: 1000, BytesPerSecond: 5000},
		DirtyBytesPerSecond: 7,
	}
	transfers := NewTransfers(Options{})
	for name, state := range map[string]State{
		"moves":   {Running: true, Progress: progress},
		"waits":   {Running: true},
		"starts":  {Running: true, Progress: &hypervisor.TransferProgress{}},
		"is-gone": {Migrated: true, Progress: progress},
	} {
		vmi := &v1.VirtualMachineInstance{}
		vmi.Namespace, vmi.Name = "shop", name
		transfers.transfers[types.UID(name)] = &Transfer{vmi: vmi, state: state}
	}
	const expected = `
# HELP kubevirt_vmi_migration_data_bytes_total Bytes to transfer: the guest's memory and the disks that are copied.
# TYPE kubevirt_vmi_migration_data_bytes_total counter
kubevirt_vmi_migration_data_bytes_total{name="moves",namespace="shop",node="node-1"} 11000
# HELP kubevirt_vmi_migration_data_processed_bytes Bytes transferred so far.
# TYPE kubevirt_vmi_migration_data_processed_bytes gauge
kubevirt_vmi_migration_data_processed_bytes{name="moves",namespace="shop",node="node-1"} 9300
# HELP kubevirt_vmi_migration_data_remaining_bytes Bytes left to transfer. They grow when the guest changes memory.
# TYPE kubevirt_vmi_migration_data_remaining_bytes gauge
kubevirt_vmi_migration_data_remaining_bytes{name="moves",namespace="shop",node="node-1"} 1700
# HELP kubevirt_vmi_migration_dirty_memory_rate_bytes Bytes of memory that the guest changes per second.
# TYPE kubevirt_vmi_migration_dirty_memory_rate_bytes gauge
kubevirt_vmi_migration_dirty_memory_rate_bytes{name="moves",namespace="shop",node="node-1"} 7
# HELP kubevirt_vmi_migration_memory_transfer_rate_bytes Bytes of memory sent per second.
# TYPE kubevirt_vmi_migration_memory_transfer_rate_bytes gauge
kubevirt_vmi_migration_memory_transfer_rate_bytes{name="moves",namespace="shop",node="node-1"} 50
`
	if err := testutil.CollectAndCompare(transfers.Metrics("node-1"), strings.NewReader(expected)); err != nil {
		t.Fatal(err)
	}
}
