// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package monitoring

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/component/metrics"
	"github.com/vireo-project/vireo/internal/decide/instancetype"
	"github.com/vireo-project/vireo/internal/decide/instancetype/reference"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/quantity"
)

var (
	resourceRequests = metrics.Describe("vm_resource_requests",
		"The CPUs and the memory that a VM requests, with its instance type applied.",
		"name", "namespace", "resource", "unit", "source")
	resourceLimits = metrics.Describe("vm_resource_limits",
		"The limits of CPU and memory of a VM, with its instance type applied.",
		"name", "namespace", "resource", "unit")
)

// Values of the label source.
const (
	sourceDomain         = "domain"
	sourceGuest          = "guest"
	sourceHugepages      = "hugepages"
	sourceRequests       = "requests"
	sourceDefault        = "default"
	sourceGuestEffective = "guest_effective"
)

// request is one value of resourceRequests or resourceLimits.
type request struct {
	resource, unit string
	// source is empty for a limit.
	source string
	value  float64
}

// resourceCache caches the resources of VMs with an instance type or preference, because applying these to every VM at
// each scrape is expensive.
type resourceCache struct {
	mu    sync.Mutex
	known map[types.UID]resourceEntry
}

type resourceEntry struct {
	// vm, instancetype and preference are the versions of the objects from which the requests were computed.
	vm                       int64
	instancetype, preference string
	requests                 []request
}

func (c *resourceCache) collect(o *objects, vm *v1.VirtualMachine, to chan<- prometheus.Metric) {
	if vm.Spec.Template == nil {
		return
	}
	for _, r := range c.requestsOfVM(o, vm) {
		if r.source == "" {
			to <- metrics.Gauge(resourceLimits, r.value, vm.Name, vm.Namespace, r.resource, r.unit)
			continue
		}
		to <- metrics.Gauge(resourceRequests, r.value, vm.Name, vm.Namespace, r.resource, r.unit, r.source)
	}
}

// requestsOfVM returns the requests and limits of a VM, from the cache if nothing that they depend on has changed.
func (c *resourceCache) requestsOfVM(o *objects, vm *v1.VirtualMachine) []request {
	if vm.Spec.Instancetype == nil && vm.Spec.Preference == nil {
		return requestsOf(&vm.Spec.Template.Spec)
	}
	kind, preference := o.types.find(reference.Instancetypes, vm), o.types.find(reference.Preferences, vm)
	entry := resourceEntry{vm: vm.Generation, instancetype: versionOf(kind), preference: versionOf(preference)}
	c.mu.Lock()
	defer c.mu.Unlock()
	if known, ok := c.known[vm.UID]; ok && known.vm == entry.vm && known.instancetype == entry.instancetype &&
		known.preference == entry.preference {
		return known.requests
	}
	var specs reference.Specs
	for _, object := range []client.Object{kind, preference} {
		if object != nil {
			specs.Add(object)
		}
	}
	// A VM with conflicts cannot start. The expansion then returns the template as the user has written it.
	template, _ := instancetype.Expand(reference.TemplateOf(&vm.Spec, specs), specs.Instancetype, specs.Preference)
	entry.requests = requestsOf(&template.Spec)
	if c.known == nil {
		c.known = map[types.UID]resourceEntry{}
	}
	c.known[vm.UID] = entry
	return entry.requests
}

// versionOf identifies a version of an object, which may be nil.
func versionOf(object client.Object) string {
	if object == nil {
		return ""
	}
	return string(object.GetUID()) + "/" + object.GetResourceVersion()
}

// forget removes VMs that do not exist any more.
func (c *resourceCache) forget(vms []v1.VirtualMachine) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.known) == 0 {
		return
	}
	exist := make(map[types.UID]bool, len(vms))
	for i := range vms {
		exist[vms[i].UID] = true
	}
	for uid := range c.known {
		if !exist[uid] {
			delete(c.known, uid)
		}
	}
}

// requestsOf returns the requests and limits of a template. A source that is not set has no value.
func requestsOf(spec *v1.VirtualMachineInstanceSpec) []request {
	domain := &spec.Domain
	var all []request
	add := func(resource, unit, source string, value float64) {
		if value != 0 {
			all = append(all, request{resource, unit, source, value})
		}
	}
	const cpu, memory, cores, bytes = "cpu", "memory", "cores", "bytes"
	add(memory, bytes, sourceDomain, valueOf(domain.Resources.Requests, corev1.ResourceMemory))
	add(memory, bytes, "", valueOf(domain.Resources.Limits, corev1.ResourceMemory))
	if domain.Memory != nil && domain.Memory.Guest != nil {
		add(memory, bytes, sourceGuest, domain.Memory.Guest.AsApproximateFloat64())
	}
	if domain.Memory != nil && domain.Memory.Hugepages != nil {
		if size, err := quantity.Parse(domain.Memory.Hugepages.PageSize); err == nil {
			add(memory, bytes, sourceHugepages, size.AsApproximateFloat64())
		}
	}
	requested := valueOf(domain.Resources.Requests, corev1.ResourceCPU)
	add(cpu, cores, sourceRequests, requested)
	add(cpu, cores, "", valueOf(domain.Resources.Limits, corev1.ResourceCPU))
	switch topology := domain.CPU; {
	case topology != nil:
		add(cpu, cores, sourceDomain, float64(topology.Cores))
		add(cpu, "threads", sourceDomain, float64(topology.Threads))
		add(cpu, "sockets", sourceDomain, float64(topology.Sockets))
	case requested == 0:
		for _, unit := range []string{cores, "threads", "sockets"} {
			add(cpu, unit, sourceDefault, 1)
		}
	}
	vmi := &v1.VirtualMachineInstance{Spec: *spec}
	effective := podspec.GuestMemory(vmi)
	add(memory, bytes, sourceGuestEffective, effective.AsApproximateFloat64())
	add(cpu, cores, sourceGuestEffective, float64(podspec.VCPUs(vmi)))
	return all
}

func valueOf(list corev1.ResourceList, name corev1.ResourceName) float64 {
	q := list[name]
	return q.AsApproximateFloat64()
}

var snapshotTaken = metrics.Describe("vmsnapshot_succeeded_timestamp_seconds",
	"When a snapshot of a VM was taken, in Unix time.",
	"name", "snapshot_name", "namespace")

func collectSnapshots(snapshots []snapshotv1beta1.VirtualMachineSnapshot, to chan<- prometheus.Metric) {
	for i := range snapshots {
		snapshot := &snapshots[i]
		if snapshot.Status == nil || snapshot.Status.Phase != snapshotv1beta1.Succeeded ||
			snapshot.Status.CreationTime == nil {
			continue
		}
		to <- metrics.Gauge(snapshotTaken, float64(snapshot.Status.CreationTime.Unix()), snapshot.Spec.Source.Name,
			snapshot.Name, snapshot.Namespace)
	}
}
