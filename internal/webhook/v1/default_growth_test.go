// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
)

// ofVM returns a VMI with a VM as its controller.
func ofVM(spec *v1.VirtualMachineInstanceSpec) *v1.VirtualMachineInstance {
	vm := &v1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "vm", UID: types.UID("1")}}
	return &v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{Name: "vm",
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(vm, v1.VirtualMachineGroupVersionKind)}},
		Spec: *spec.DeepCopy(),
	}
}

func TestDefaultMaxSockets(t *testing.T) {
	for name, tc := range map[string]struct {
		cpu    v1.CPU
		alone  bool
		config func(*clusterconfig.Config)
		want   uint32
	}{
		"four times the sockets":     {cpu: v1.CPU{Sockets: 2, Cores: 2}, want: 8},
		"its own":                    {cpu: v1.CPU{Sockets: 2, MaxSockets: 3}, want: 3},
		"the cluster's ratio":        {cpu: v1.CPU{Sockets: 2}, config: func(c *clusterconfig.Config) { c.LiveUpdate.MaxRatio = 3 }, want: 6},
		"the cluster's sockets":      {cpu: v1.CPU{Sockets: 2}, config: func(c *clusterconfig.Config) { c.LiveUpdate.MaxSockets = 5 }, want: 5},
		"fewer than the guest has":   {cpu: v1.CPU{Sockets: 6}, config: func(c *clusterconfig.Config) { c.LiveUpdate.MaxSockets = 5 }, want: 6},
		"many":                       {cpu: v1.CPU{Sockets: 64, Cores: 2}, want: 127},
		"more than any without help": {cpu: v1.CPU{Sockets: 300}, want: 300},
		"a great ratio":              {cpu: v1.CPU{Sockets: 200}, config: func(c *clusterconfig.Config) { c.LiveUpdate.MaxRatio = 1<<32 - 1 }, want: 255},
		"great cores and threads":    {cpu: v1.CPU{Sockets: 1, Cores: 1<<32 - 1, Threads: 1<<32 - 1}, want: 1},
		"a VMI without VM":           {cpu: v1.CPU{Sockets: 2}, alone: true},
		"changes at the next start":  {cpu: v1.CPU{Sockets: 2}, config: func(c *clusterconfig.Config) { c.RolloutStrategy = v1.VMRolloutStrategyStage }},
		"arm64":                      {cpu: v1.CPU{Sockets: 2}, config: func(c *clusterconfig.Config) { c.DefaultArchitecture = "arm64" }},
		"the node's NUMA topology":   {cpu: v1.CPU{Sockets: 2, NUMA: &v1.NUMA{GuestMappingPassthrough: &v1.NUMAGuestMappingPassthrough{}}}},
	} {
		config := clusterconfig.Default()
		config.DefaultArchitecture = "amd64"
		if tc.config != nil {
			tc.config(&config)
		}
		vmi := ofVM(newSpec(func(s *v1.VirtualMachineInstanceSpec) { s.Domain.CPU = tc.cpu.DeepCopy() }))
		if tc.alone {
			vmi.OwnerReferences = nil
		}
		setDefaults(vmi, config)
		if got := vmi.Spec.Domain.CPU.MaxSockets; got != tc.want {
			t.Errorf("%s: maxSockets %d, want %d", name, got, tc.want)
		}
	}
}

func TestDefaultMaxGuest(t *testing.T) {
	for name, tc := range map[string]struct {
		memory v1.Memory
		change func(*v1.VirtualMachineInstanceSpec)
		config func(*clusterconfig.Config)
		want   string
	}{
		"four times the memory":  {memory: v1.Memory{Guest: quantityOf("2Gi")}, want: "8Gi"},
		"its own":                {memory: v1.Memory{Guest: quantityOf("2Gi"), MaxGuest: quantityOf("3Gi")}, want: "3Gi"},
		"the cluster's ratio":    {memory: v1.Memory{Guest: quantityOf("2Gi")}, config: func(c *clusterconfig.Config) { c.LiveUpdate.MaxRatio = 2 }, want: "4Gi"},
		"the cluster's size":     {memory: v1.Memory{Guest: quantityOf("2Gi")}, config: func(c *clusterconfig.Config) { c.LiveUpdate.MaxGuest = quantityOf("5Gi") }, want: "5Gi"},
		"less than the guest":    {memory: v1.Memory{Guest: quantityOf("6Gi")}, config: func(c *clusterconfig.Config) { c.LiveUpdate.MaxGuest = quantityOf("5Gi") }},
		"a large guest":          {memory: v1.Memory{Guest: quantityOf("200Gi")}, want: "512Gi"},
		"a guest that is larger": {memory: v1.Memory{Guest: quantityOf("600Gi")}},
		"a small guest":          {memory: v1.Memory{Guest: quantityOf("512Mi")}},
		"an odd size":            {memory: v1.Memory{Guest: quantityOf("1025Mi")}},
		"huge pages":             {memory: v1.Memory{Guest: quantityOf("2Gi"), Hugepages: &v1.Hugepages{PageSize: "1Gi"}}, want: "8Gi"},
		"realtime": {memory: v1.Memory{Guest: quantityOf("2Gi")}, change: func(s *v1.VirtualMachineInstanceSpec) {
			s.Domain.CPU = &v1.CPU{DedicatedCPUPlacement: true, Realtime: &v1.Realtime{}}
		}},
		"changes at the next start": {memory: v1.Memory{Guest: quantityOf("2Gi")}, config: func(c *clusterconfig.Config) { c.RolloutStrategy = v1.VMRolloutStrategyStage }},
	} {
		config := clusterconfig.Default()
		config.DefaultArchitecture = "amd64"
		if tc.config != nil {
			tc.config(&config)
		}
		vmi := ofVM(newSpec(func(s *v1.VirtualMachineInstanceSpec) {
			s.Domain.Memory = tc.memory.DeepCopy()
			if tc.change != nil {
				tc.change(s)
			}
		}))
		setDefaults(vmi, config)
		got := ""
		if most := vmi.Spec.Domain.Memory.MaxGuest; most != nil {
			got = most.String()
		}
		if got != tc.want {
			t.Errorf("%s: maxGuest %q, want %q", name, got, tc.want)
		}
	}
}
