// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package instancetype

import (
	"cmp"
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/vireo-project/vireo/api/instancetype/v1beta1"
)

// defaultRatio is the ratio for spreading CPUs if the preference sets none.
const defaultRatio = 2

// threadsPerCore is the number of threads of a core for CPUs that are spread across sockets, cores and threads.
const threadsPerCore = 2

// deprecatedTopologies maps the deprecated names of topologies to the current ones.
var deprecatedTopologies = map[v1beta1.PreferredCPUTopology]v1beta1.PreferredCPUTopology{
	v1beta1.DeprecatedPreferSockets: v1beta1.Sockets,
	v1beta1.DeprecatedPreferCores:   v1beta1.Cores,
	v1beta1.DeprecatedPreferThreads: v1beta1.Threads,
	v1beta1.DeprecatedPreferSpread:  v1beta1.Spread,
	v1beta1.DeprecatedPreferAny:     v1beta1.Any,
}

// layout is how the CPUs of an instance type appear in the guest.
type layout struct{ sockets, cores, threads uint32 }

// topology returns the current name of the preferred topology.
func (p *preference) topology() v1beta1.PreferredCPUTopology {
	if p.cpu.PreferredCPUTopology == nil {
		return v1beta1.Sockets
	}
	preferred := *p.cpu.PreferredCPUTopology
	return cmp.Or(deprecatedTopologies[preferred], preferred)
}

// spread returns the options of the topology spread.
func (p *preference) spread() (across v1beta1.SpreadAcross, ratio uint32) {
	across, ratio = v1beta1.SpreadAcrossSocketsCores, cmp.Or(p.PreferSpreadSocketToCoreRatio, defaultRatio)
	if options := p.cpu.SpreadOptions; options != nil {
		if options.Across != nil {
			across = *options.Across
		}
		if options.Ratio != nil {
			ratio = *options.Ratio
		}
	}
	return across, ratio
}

// arrange returns the layout of the CPUs of an instance type. If they cannot be spread, it also returns the reason, and each CPU is a
// socket. A single CPU is always accepted, although KubeVirt refuses to spread it.
func (p *preference) arrange(cpus uint32) (result layout, problem string) {
	if cpus <= 1 {
		return layout{1, 1, 1}, ""
	}
	switch p.topology() {
	case v1beta1.Cores:
		return layout{1, cpus, 1}, ""
	case v1beta1.Threads:
		return layout{1, 1, cpus}, ""
	case v1beta1.Spread:
		return p.arrangeSpread(cpus)
	default:
		return layout{cpus, 1, 1}, ""
	}
}

func (p *preference) arrangeSpread(cpus uint32) (result layout, problem string) {
	const indivisible = "%d vCPUs provided by the instance type are not divisible by the %s" // KubeVirt's
	across, ratio := p.spread()
	sockets := layout{cpus, 1, 1}
	if ratio == 0 {
		return sockets, fmt.Sprintf(indivisible, cpus, "ratio of 0 provided by the preference: set it to 1 or more")
	}
	ratioText := fmt.Sprintf("Spec.PreferSpreadSocketToCoreRatio or Spec.CPU.PreferSpreadOptions.Ratio of %d", ratio)
	switch across {
	case v1beta1.SpreadAcrossCoresThreads:
		if cpus%ratio != 0 {
			return sockets, fmt.Sprintf(indivisible, cpus, fmt.Sprintf("number of threads per core %d", ratio))
		}
		return layout{1, cpus / ratio, ratio}, ""
	case v1beta1.SpreadAcrossSocketsCoresThreads:
		if cpus%threadsPerCore != 0 || cpus/threadsPerCore%ratio != 0 {
			return sockets, fmt.Sprintf(indivisible, cpus, fmt.Sprintf("number of threads per core %d and %s", threadsPerCore, ratioText))
		}
		return layout{cpus / threadsPerCore / ratio, ratio, threadsPerCore}, ""
	default:
		if cpus%ratio != 0 {
			return sockets, fmt.Sprintf(indivisible, cpus, ratioText+" provided by the preference")
		}
		return layout{cpus / ratio, ratio, 1}, ""
	}
}

// CheckTopology returns an error, with KubeVirt's field and message, if the CPUs of an instance type cannot be spread as the
// preference requires. Each of the two may be nil.
func CheckTopology(instancetype *v1beta1.VirtualMachineInstancetypeSpec, spec *v1beta1.VirtualMachinePreferenceSpec) *field.Error {
	if instancetype == nil {
		return nil
	}
	p := complete(spec)
	if _, problem := p.arrange(instancetype.CPU.Guest); problem != "" {
		return field.Invalid(field.NewPath("instancetype", "spec", "cpu", "guest"), instancetype.CPU.Guest, problem)
	}
	return nil
}
