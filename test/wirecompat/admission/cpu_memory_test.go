// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package admission

import (
	"testing"

	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
)

const (
	cpuField      = "spec.domain.cpu."
	memoryRequest = "spec.domain.resources.requests.memory"
	memoryLimit   = "spec.domain.resources.limits.memory"
	cpuRequest    = "spec.domain.resources.requests.cpu"
	cpuLimit      = "spec.domain.resources.limits.cpu"
	guestMemory   = "spec.domain.memory.guest"
)

func TestMemory(t *testing.T) {
	stage := v1.KubeVirtConfiguration{VMRolloutStrategy: ptr.To(v1.VMRolloutStrategyStage)}
	pages := func(size, guest string) option {
		m := v1.Memory{Hugepages: &v1.Hugepages{PageSize: size}}
		if guest != "" {
			m.Guest = quantity(guest)
		}
		return memory(m)
	}
	decide(t, []testCase{
		{name: "guest memory", object: vmi()},
		{name: "no memory", object: vmi(noMemory), fields: []string{guestMemory}, says: "no memory requested, at least one of"},
		{name: "no memory in a template", object: vm(noMemory), says: "keeps the VM from starting"},
		{name: "memory by request", object: vmi(noMemory, requests("", "64Mi"))},
		{name: "memory by limit", object: vmi(noMemory, limits("", "64Mi"))},
		{name: "memory by page size", object: vmi(pages("2Mi", ""))},
		{name: "negative request", object: vmi(noMemory, requests("", "-64Mi")), fields: []string{memoryRequest}, says: "must be greater than or equal to 0"},
		{name: "request below 1M", object: vmi(noMemory, requests("", "100k")), fields: []string{memoryRequest}, says: "must be greater than or equal to 1M"},
		{name: "request of 1M", object: vmi(noMemory, requests("", "1M"))},
		{name: "guest below 1M", object: vmi(memory(v1.Memory{Guest: quantity("64")})), fields: []string{guestMemory}, says: "must be greater than or equal to 1M"},
		// A limit without a request is the request too, before validation.
		{name: "negative memory limit", object: vmi(limits("", "-64Mi")), fields: []string{memoryLimit, memoryRequest}},
		{name: "request beyond limit", object: vmi(requests("", "2Gi"), limits("", "1Gi")), fields: []string{memoryRequest}, says: "is greater than"},
		{name: "request beyond limit in a template", object: vm(requests("", "2Gi"), limits("", "1Gi")),
			fields: []string{"spec.template.spec.domain.resources.requests.memory"}},
		{name: "request equal to limit", object: vmi(requests("", "1Gi"), limits("", "1Gi"))},
		{name: "guest beyond limit, live update", object: vmi(limits("", "512Mi"))},
		{name: "guest beyond limit, stage", object: vmi(limits("", "512Mi")), config: stage, fields: []string{guestMemory},
			says: "must be equal to or less than the memory limit"},
		{name: "guest within limit, stage", object: vmi(limits("", "2Gi")), config: stage},
		{name: "page size that is no size", object: vmi(pages("big", "1Gi")), fields: []string{"spec.domain.memory.hugepages.pageSize"}},
		{name: "page size of nothing", object: vmi(pages("0", "1Gi")), fields: []string{"spec.domain.memory.hugepages.pageSize"},
			differs: "KubeVirt divides by it and its webhook panics"},
		{name: "less than a page", object: vmi(pages("1Gi", "512Mi")), fields: []string{guestMemory}, says: "must be equal to or larger than page size"},
		{name: "request less than a page", object: vmi(pages("1Gi", ""), requests("", "512Mi")), fields: []string{memoryRequest}},
		{name: "not a multiple of a page", object: vmi(pages("2Mi", "3Mi")), fields: []string{guestMemory}, says: "is not a multiple of the page size"},
		{name: "a multiple of a page", object: vmi(pages("2Mi", "64Mi"))},
		{name: "limit less than a page", object: vm(pages("1Gi", ""), limits("", "512Mi")),
			fields: []string{"spec.template.spec.domain.resources.limits.memory"}},
		{name: "room to grow", object: vm(memory(v1.Memory{Guest: quantity("1Gi"), MaxGuest: quantity("4Gi")}))},
		{name: "room below the guest", object: vm(memory(v1.Memory{Guest: quantity("2Gi"), MaxGuest: quantity("1Gi")})),
			fields: []string{"spec.template.spec.domain.memory.guest"},
			says:   "Guest memory is greater than the configured maxGuest memory"},
		{name: "room that is not aligned", object: vm(memory(v1.Memory{Guest: quantity("1Gi"), MaxGuest: quantity("1500000000")})),
			fields: []string{"spec.template.spec.domain.memory.maxGuest"}, says: "MaxGuest must be"},
		{name: "guest too small to grow", object: vm(memory(v1.Memory{Guest: quantity("512Mi"), MaxGuest: quantity("1Gi")})),
			fields: []string{"spec.template.spec.domain.memory.guest"}, says: "at least 1Gi of guest memory"},
		{name: "guest too small to grow, stage", config: stage, object: vm(memory(v1.Memory{Guest: quantity("512Mi"), MaxGuest: quantity("1Gi")}))},
		{name: "guest that is not aligned", object: vm(memory(v1.Memory{Guest: quantity("1500000000"), MaxGuest: quantity("4Gi")})),
			fields: []string{"spec.template.spec.domain.memory.guest"}, says: "Guest memory must be"},
		{name: "memory that is no number", config: gates("ReservedOverheadMemlock"), object: vmi(with(func(s *spec) {
			s.Domain.Memory.ReservedOverhead = &v1.ReservedOverhead{
				MemLock: ptr.To(v1.MemLockRequirement("Perhaps"))}
		})), fields: []string{"spec.domain.memory.reservedOverhead.memLock"}},
	})
}

func TestCPU(t *testing.T) {
	dedicated := func(change func(*v1.CPU)) option {
		c := v1.CPU{DedicatedCPUPlacement: true}
		change(&c)
		return cpu(c)
	}
	cores := func(n uint32) func(*v1.CPU) { return func(c *v1.CPU) { c.Cores = n } }
	none := func(*v1.CPU) {}
	passthrough := &v1.NUMA{GuestMappingPassthrough: &v1.NUMAGuestMappingPassthrough{}}
	pages := with(func(s *spec) { s.Domain.Memory.Hugepages = &v1.Hugepages{PageSize: "2Mi"} })
	const isolate, placement = cpuField + "isolateEmulatorThread", cpuField + "dedicatedCpuPlacement"
	const numa = cpuField + "numa.guestMappingPassthrough"
	decide(t, []testCase{
		{name: "topology", object: vmi(cpu(v1.CPU{Cores: 2, Sockets: 2, Threads: 2}))},
		{name: "sockets beyond their maximum", object: vmi(cpu(v1.CPU{Sockets: 5, MaxSockets: 4})), fields: []string{cpuField + "sockets"},
			says: "Number of sockets in CPU topology is greater than the maximum sockets allowed"},
		{name: "sockets up to their maximum", object: vmi(cpu(v1.CPU{Sockets: 4, MaxSockets: 4}))},
		{name: "negative cpu request", object: vmi(requests("-1", "")), fields: []string{cpuRequest}, says: "must be greater than or equal to 0"},
		{name: "negative cpu limit", object: vmi(limits("-1", "")), fields: []string{cpuLimit, cpuRequest}, says: "must be greater than or equal to 0"},
		{name: "cpu request beyond limit", object: vmi(requests("2", ""), limits("1", "")), fields: []string{cpuRequest}, says: "is greater than"},
		{name: "fraction of a cpu", object: vmi(requests("1200m", ""), limits("1500m", ""))},
		{name: "feature policy", object: vmi(cpu(v1.CPU{Features: []v1.CPUFeature{{Name: "vmx", Policy: "require"}, {Name: "x2apic"}}}))},
		{name: "unknown feature policy", object: vmi(cpu(v1.CPU{Features: []v1.CPUFeature{{Name: "vmx", Policy: "maybe"}}})),
			fields: []string{cpuField + "features[0].policy"}, says: "CPU feature vmx uses policy maybe that is not supported."},
		{name: "any model name", object: vmi(cpu(v1.CPU{Model: "Skylake-Client"}))},
		{name: "isolation without dedication", object: vmi(cpu(v1.CPU{IsolateEmulatorThread: true})), fields: []string{isolate},
			says: "IsolateEmulatorThread should be only set in combination with DedicatedCPUPlacement"},
		{name: "isolation with dedication", object: vmi(dedicated(func(c *v1.CPU) { c.Cores, c.IsolateEmulatorThread = 2, true }))},
		{name: "dedicated cores and the guest's memory", object: vmi(dedicated(cores(2)))},
		{name: "dedicated by request", object: vmi(dedicated(none), requests("2", "1Gi"))},
		{name: "dedicated by limit", object: vmi(dedicated(none), limits("2", "1Gi"))},
		{name: "dedicated without any number", object: vm(dedicated(none)), says: "",
			fields: []string{"spec.template.spec.domain.cpu.dedicatedCpuPlacement"},
		},
		{name: "dedicated without memory", object: vmi(noMemory, dedicated(cores(2))), fields: []string{memoryLimit, guestMemory}, says: "should be provided"},
		{name: "dedicated with unequal memory", object: vmi(dedicated(none), requests("2", "1Gi"), limits("2", "2Gi")), fields: []string{memoryRequest},
			says: "must be equal to"},
		{name: "dedicated with unequal cpus", object: vmi(dedicated(none), requests("2", "1Gi"), limits("4", "1Gi")), fields: []string{placement},
			says: "must be equal when DedicatedCPUPlacement is true"},
		{name: "dedicated fraction requested", object: vmi(dedicated(none), requests("1500m", "1Gi")), fields: []string{cpuRequest},
			says: "provided resources CPU requests must be an interger"},
		{name: "dedicated fraction limited", object: vmi(dedicated(none), limits("1500m", "1Gi")), fields: []string{cpuLimit, cpuRequest},
			says: "provided resources CPU limits must be an interger"},
		{name: "dedicated cores and another request", object: vmi(dedicated(cores(3)), requests("2", "1Gi")), fields: []string{placement},
			says: "must not be provided at the same time with"},
		{name: "dedicated cores and the same request", object: vmi(dedicated(cores(2)), requests("2", "1Gi"))},
		{name: "dedicated with three threads", object: vmi(dedicated(func(c *v1.CPU) { c.Threads = 3 })), fields: []string{placement},
			says: "Not more than two threads must be provided"},
		{name: "dedicated with two threads", object: vmi(dedicated(func(c *v1.CPU) { c.Threads = 2 }))},
		{name: "dedicated threads of arm64", config: gates("MultiArchitecture"), object: vmi(onArchitecture("arm64"), dedicated(func(c *v1.CPU) { c.Threads = 2 })),
			fields: []string{"spec.architecture"}, says: "threads must not be greater than 1"},
		{name: "NUMA", object: vmi(pages, dedicated(func(c *v1.CPU) { c.Cores, c.NUMA = 2, passthrough }))},
		{name: "NUMA without dedication", object: vmi(pages, cpu(v1.CPU{Cores: 2, NUMA: passthrough})), fields: []string{numa},
			says: "must be set to true when NUMA topology strategy is set in"},
		{name: "NUMA without huge pages", object: vmi(dedicated(func(c *v1.CPU) { c.Cores, c.NUMA = 2, passthrough })), fields: []string{numa},
			says: "must be requested when NUMA topology strategy is set in"},
		{name: "realtime", object: vmi(pages, dedicated(func(c *v1.CPU) { c.Cores, c.NUMA, c.Realtime = 2, passthrough, &v1.Realtime{} }))},
		{name: "realtime without dedication and NUMA", object: vmi(cpu(v1.CPU{Realtime: &v1.Realtime{}})), fields: []string{placement, numa},
			says: "must be set to true when"},
		{name: "realtime without NUMA", object: vmi(dedicated(func(c *v1.CPU) { c.Cores, c.Realtime = 2, &v1.Realtime{} })), fields: []string{numa},
			says: "must be defined when"},
	})
}
