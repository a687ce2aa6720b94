// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/decide/resize"
	"github.com/vireo-project/vireo/internal/quantity"
)

// cpuFeaturePolicies are the policies of libvirt.
var cpuFeaturePolicies = []string{"", "force", "require", "optional", "disable", "forbid"}

// minMemoryRequest is the smallest request that KubeVirt accepts.
var minMemoryRequest = resource.MustParse("1M")

func checkCPU(c *check) {
	cpu := c.spec.Domain.CPU
	if cpu == nil {
		return
	}
	p := c.at("domain", "cpu")
	for i, f := range cpu.Features {
		if !slices.Contains(cpuFeaturePolicies, f.Policy) {
			c.invalid(p.Child("features").Index(i).Child("policy"), f.Policy,
				"CPU feature %s uses policy %s that is not supported. Use one of force, require, optional, disable, forbid.",
				f.Name, f.Policy)
		}
	}
	if cpu.MaxSockets != 0 && cpu.Sockets > cpu.MaxSockets {
		c.invalid(p.Child("sockets"), cpu.Sockets,
			"Number of sockets in CPU topology is greater than the maximum sockets allowed (%d)", cpu.MaxSockets)
	}
	if cpu.IsolateEmulatorThread && !cpu.DedicatedCPUPlacement {
		c.invalid(p.Child("isolateEmulatorThread"), true,
			"IsolateEmulatorThread should be only set in combination with DedicatedCPUPlacement")
	}
}

// vcpus returns the number of vCPUs of the topology, or 0 if the spec has no topology.
func vcpus(cpu *v1.CPU) int64 {
	if cpu == nil || cpu.Cores == 0 && cpu.Sockets == 0 && cpu.Threads == 0 {
		return 0
	}
	return int64(max(cpu.Cores, 1)) * int64(max(cpu.Sockets, 1)) * int64(max(cpu.Threads, 1))
}

func checkDedicatedCPU(c *check) {
	cpu := c.spec.Domain.CPU
	if cpu == nil || !cpu.DedicatedCPUPlacement {
		return
	}
	c.dedicatedMemory()
	c.dedicatedNumber(cpu)
	if arch := architecture(c.spec, c.config); cpu.Threads > 1 && arch == clusterconfig.ArchARM64 {
		c.invalid(c.at("architecture"), arch, "threads must not be greater than 1 at %s (got %d) when %s is arm64",
			c.at("domain", "cpu", "threads"), cpu.Threads, c.at("architecture"))
	}
	if cpu.Threads > 2 {
		c.invalid(c.at("domain", "cpu", "dedicatedCpuPlacement"), true,
			"Not more than two threads must be provided at %s (got %d) when DedicatedCPUPlacement is true",
			c.at("domain", "cpu", "threads"), cpu.Threads)
	}
}

// memoryRequest returns the memory that the Pod will request, and the field from which it is taken. As in KubeVirt,
// this is the first that is set of the request, the limit, the guest's memory and the size of a huge page.
func (c *check) memoryRequest() (*field.Path, resource.Quantity) {
	resources, memory := c.spec.Domain.Resources, c.spec.Domain.Memory
	switch {
	case !resources.Requests.Memory().IsZero():
		return c.at("domain", "resources", "requests", "memory"), *resources.Requests.Memory()
	case !resources.Limits.Memory().IsZero():
		return c.at("domain", "resources", "limits", "memory"), *resources.Limits.Memory()
	case memory != nil && memory.Guest != nil:
		return c.at("domain", "memory", "guest"), *memory.Guest
	case memory != nil && memory.Hugepages != nil:
		return c.at("domain", "memory", "hugepages", "pageSize"), *parseOrZero(memory.Hugepages.PageSize)
	}
	return c.at("domain", "memory", "guest"), resource.Quantity{}
}

// dedicatedMemory checks that memory requests and limits are equal, because the Pod is not Guaranteed otherwise.
func (c *check) dedicatedMemory() {
	requests, limits := c.at("domain", "resources", "requests", "memory"), c.at("domain", "resources", "limits", "memory")
	req, lim := c.spec.Domain.Resources.Requests.Memory(), c.spec.Domain.Resources.Limits.Memory()
	_, size := c.memoryRequest()
	switch {
	case size.IsZero():
		c.invalid(limits, lim.String(), "%s or %s should be provided", requests, limits)
	case !req.IsZero() && !lim.IsZero() && req.Cmp(*lim) != 0:
		c.invalid(requests, req.String(), "%s must be equal to %s", requests, limits)
	}
}

// dedicatedNumber checks that the topology, the request and the limit specify the same whole number of CPUs.
func (c *check) dedicatedNumber(cpu *v1.CPU) {
	var (
		p        = c.at("domain", "cpu", "dedicatedCpuPlacement")
		requests = c.at("domain", "resources", "requests", "cpu")
		limits   = c.at("domain", "resources", "limits", "cpu")
		req, lim = c.spec.Domain.Resources.Requests.Cpu(), c.spec.Domain.Resources.Limits.Cpu()
		wanted   = vcpus(cpu)
	)
	if !wholeCPUs(req) {
		c.invalid(requests, req.String(), "provided resources CPU requests must be an interger")
	}
	if !wholeCPUs(lim) {
		c.invalid(limits, lim.String(), "provided resources CPU limits must be an interger")
	}
	switch {
	case req.IsZero() && lim.IsZero() && wanted == 0:
		c.invalid(p, true, "either %s or %s or %s must be provided when DedicatedCPUPlacement is true ",
			requests, limits, c.at("domain", "cpu", "cores"))
	case !req.IsZero() && !lim.IsZero() && req.Cmp(*lim) != 0:
		c.invalid(p, true, "%s or %s must be equal when DedicatedCPUPlacement is true ", requests, limits)
	case (!req.IsZero() || !lim.IsZero()) && wanted > 0 && req.Value() != wanted && lim.Value() != wanted:
		c.invalid(p, true, "%s or %s must not be provided at the same time with %s when DedicatedCPUPlacement is true ",
			requests, limits, c.at("domain", "cpu", "cores"))
	}
}

func wholeCPUs(q *resource.Quantity) bool { return q.MilliValue()%1000 == 0 }

func checkNUMAAndRealtime(c *check) {
	cpu := c.spec.Domain.CPU
	if cpu == nil {
		return
	}
	dedicated := c.at("domain", "cpu", "dedicatedCpuPlacement")
	numa := c.at("domain", "cpu", "numa", "guestMappingPassthrough")
	passthrough := cpu.NUMA != nil && cpu.NUMA.GuestMappingPassthrough != nil
	if passthrough && !cpu.DedicatedCPUPlacement {
		c.invalid(numa, "{}", "%s must be set to true when NUMA topology strategy is set in %s", dedicated, numa)
	}
	if passthrough && (c.spec.Domain.Memory == nil || c.spec.Domain.Memory.Hugepages == nil) {
		c.invalid(numa, "{}", "%s must be requested when NUMA topology strategy is set in %s",
			c.at("domain", "memory", "hugepages"), numa)
	}
	if cpu.Realtime == nil {
		return
	}
	realtime := c.at("domain", "cpu", "realtime")
	if !cpu.DedicatedCPUPlacement {
		c.required(dedicated, "%s must be set to true when %s is used", dedicated, realtime)
	}
	if !passthrough {
		c.required(numa, "%s must be defined when %s is used", numa, realtime)
	}
}

func checkCPUResources(c *check) {
	requests, limits := c.at("domain", "resources", "requests", "cpu"), c.at("domain", "resources", "limits", "cpu")
	req, lim := c.spec.Domain.Resources.Requests.Cpu(), c.spec.Domain.Resources.Limits.Cpu()
	if req.Sign() < 0 {
		c.invalid(requests, req.String(), "%s '%s': must be greater than or equal to 0.", requests, req)
	}
	if lim.Sign() < 0 {
		c.invalid(limits, lim.String(), "%s '%s': must be greater than or equal to 0.", limits, lim)
	}
	if lim.Sign() > 0 && req.Cmp(*lim) > 0 {
		c.invalid(requests, req.String(), "%s '%s' is greater than %s '%s'", requests, req, limits, lim)
	}
}

func checkMemory(c *check) {
	requests, limits := c.at("domain", "resources", "requests", "memory"), c.at("domain", "resources", "limits", "memory")
	req, lim := c.spec.Domain.Resources.Requests.Memory(), c.spec.Domain.Resources.Limits.Memory()
	at, size := c.memoryRequest()
	switch {
	case size.Sign() < 0:
		c.invalid(at, size.String(), "%s '%s': must be greater than or equal to 0.", at, size.String())
	case size.Sign() > 0 && size.Cmp(minMemoryRequest) < 0:
		c.invalid(at, size.String(), "%s '%s': must be greater than or equal to 1M.", at, size.String())
	}
	if lim.Sign() < 0 && at.String() != limits.String() {
		c.invalid(limits, lim.String(), "%s '%s': must be greater than or equal to 0.", limits, lim)
	}
	if lim.Sign() > 0 && req.Cmp(*lim) > 0 {
		c.invalid(requests, req.String(), "%s '%s' is greater than %s '%s'", requests, req, limits, lim)
	}
	memory := c.spec.Domain.Memory
	// With memory hotplug, KubeVirt increases the limit together with the guest's memory.
	if memory == nil || memory.Guest == nil || c.config.RolloutStrategy == v1.VMRolloutStrategyLiveUpdate {
		return
	}
	if lim.Sign() > 0 && memory.Guest.Cmp(*lim) > 0 {
		guest := c.at("domain", "memory", "guest")
		c.invalid(guest, memory.Guest.String(), "%s '%s' must be equal to or less than the memory limit %s '%s'",
			guest, memory.Guest, limits, lim)
	}
}

func checkHugepages(c *check) {
	memory := c.spec.Domain.Memory
	if memory == nil || memory.Hugepages == nil {
		return
	}
	sizePath := c.at("domain", "memory", "hugepages", "pageSize")
	page, err := quantity.Parse(memory.Hugepages.PageSize)
	if err != nil || page.Value() <= 0 { // Value is 0 if the quantity exceeds an int64
		c.invalid(sizePath, memory.Hugepages.PageSize, "%s '%s': must be a size that the nodes offer, such as 2Mi or 1Gi",
			sizePath, memory.Hugepages.PageSize)
		return
	}
	path, size := c.memoryRequest()
	switch {
	case size.Cmp(page) < 0:
		c.invalid(path, size.String(), "%s '%s' must be equal to or larger than page size %s '%s'",
			path, size.String(), sizePath, memory.Hugepages.PageSize)
	case size.Value()%page.Value() != 0:
		c.invalid(path, size.String(), "%s '%s' is not a multiple of the page size %s '%s'",
			path, size.String(), sizePath, memory.Hugepages.PageSize)
	}
}

// checkMemoryGiven applies only to a VMI, because the memory of a VM can be set by an instance type.
func checkMemoryGiven(c *check) {
	memory := c.spec.Domain.Memory
	if !c.spec.Domain.Resources.Requests.Memory().IsZero() {
		return
	}
	if memory != nil && (memory.Guest != nil || memory.Hugepages != nil) {
		return
	}
	c.required(c.at("domain", "memory", "guest"), "no memory requested, at least one of '%s', '%s' or '%s' must be set",
		c.at("domain", "memory", "guest"), c.at("domain", "memory", "hugepages", "size"),
		c.at("domain", "resources", "requests", "memory"))
}

// checkMaxGuest applies to a VM whose memory can be hotplugged.
func checkMaxGuest(c *check) {
	memory := c.spec.Domain.Memory
	if c.config.RolloutStrategy != v1.VMRolloutStrategyLiveUpdate || memory == nil || memory.MaxGuest == nil {
		return
	}
	p := c.at("domain", "memory", "guest")
	_, guest := c.memoryRequest()
	if memory.Guest != nil {
		guest = *memory.Guest
	}
	switch problem := resize.CheckMemory(c.spec, architecture(c.spec, c.config), guest, *memory.MaxGuest); {
	case problem == nil:
	case problem.Missing:
		c.required(p, "%s", problem.Message)
	case problem.OfLimit:
		c.invalid(c.at("domain", "memory", "maxGuest"), memory.MaxGuest.String(), "%s", problem.Message)
	default:
		c.invalid(p, guest.String(), "%s", problem.Message)
	}
}
