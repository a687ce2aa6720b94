// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package instancetype

import (
	"cmp"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/instancetype/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/quantity"
)

// RequirementError is a requirement of a preference that a VM does not meet. Its text is KubeVirt's.
type RequirementError struct {
	// Paths are the fields of the VM that provide too little. KubeVirt's.
	Paths []string
	text  string
}

// Error returns KubeVirt's text.
func (e *RequirementError) Error() string { return e.text }

// Admission returns an error for each field, with KubeVirt's message.
func (e *RequirementError) Admission() field.ErrorList {
	errs := make(field.ErrorList, 0, len(e.Paths))
	for _, path := range e.Paths {
		errs = append(errs, &field.Error{
			Type: field.ErrorTypeNotFound, Field: path, BadValue: field.OmitValueType{},
			Detail: "failure checking preference requirements: " + e.text,
		})
	}
	return errs
}

func unmet(paths []string, format string, args ...any) *RequirementError {
	return &RequirementError{Paths: paths, text: fmt.Sprintf(format, args...)}
}

// CheckRequirements returns a RequirementError for the first requirement of a preference that the expanded spec of a VM
// does not meet, or nil. For fields that the spec does not set, it uses the defaults of a VMI, except that an unset
// architecture is not checked.
func CheckRequirements(
	expanded *v1.VirtualMachineInstanceSpec, instancetype *v1beta1.VirtualMachineInstancetypeSpec,
	spec *v1beta1.VirtualMachinePreferenceSpec,
) error {
	if spec == nil || spec.Requirements == nil {
		return nil
	}
	p := complete(spec)
	for _, check := range []func(*v1.VirtualMachineInstanceSpec,
		*v1beta1.VirtualMachineInstancetypeSpec) *RequirementError{
		p.checkCPU, p.checkMemory, p.checkArchitecture,
	} {
		if err := check(expanded, instancetype); err != nil {
			return err
		}
	}
	return nil
}

func (p *preference) checkCPU(
	expanded *v1.VirtualMachineInstanceSpec, instancetype *v1beta1.VirtualMachineInstancetypeSpec,
) *RequirementError {
	required := p.Requirements.CPU
	if required == nil {
		return nil
	}
	if instancetype != nil {
		if instancetype.CPU.Guest < required.Guest {
			return unmet([]string{"spec.instancetype"}, "insufficient CPU resources of %d vCPU provided by instance type, "+
				"preference requires %d vCPU", instancetype.CPU.Guest, required.Guest)
		}
		return nil
	}
	counted, as := p.counted()
	provided, paths := uint64(1), []string(nil)
	for _, dimension := range counted {
		provided *= uint64(count(expanded, dimension))
		paths = append(paths, "spec.template.spec.domain.cpu."+dimension)
	}
	if provided < uint64(required.Guest) {
		return unmet(paths, "insufficient CPU resources of %d vCPU provided by VirtualMachine, "+
			"preference requires %d vCPU provided as %s", provided, required.Guest, as)
	}
	return nil
}

// counted returns the fields of a VM's CPU that provide its vCPUs with the preferred topology, and KubeVirt's name for
// them.
func (p *preference) counted() (dimensions []string, as string) {
	switch p.topology() {
	case v1beta1.Cores:
		return []string{"cores"}, "cores"
	case v1beta1.Threads:
		return []string{"threads"}, "threads"
	case v1beta1.Any:
		return []string{"cores", "sockets", "threads"}, "cores, sockets and threads"
	case v1beta1.Spread:
		across, _ := p.spread()
		switch across {
		case v1beta1.SpreadAcrossCoresThreads:
			return []string{"cores", "threads"}, string(across)
		case v1beta1.SpreadAcrossSocketsCoresThreads:
			return []string{"sockets", "cores", "threads"}, string(across)
		default:
			return []string{"sockets", "cores"}, string(across)
		}
	default:
		return []string{"sockets"}, "sockets"
	}
}

// count returns the number of sockets, cores or threads of a VM. The default is 1. In KubeVirt it is 0, so that a VM
// that sets only cores has no CPUs.
func count(spec *v1.VirtualMachineInstanceSpec, dimension string) uint32 {
	cpu := ptr.Deref(spec.Domain.CPU, v1.CPU{})
	if cpu.Sockets == 0 && cpu.Cores == 0 && cpu.Threads == 0 {
		cpu.Sockets = Sockets(spec.Domain.Resources)
	}
	return max(map[string]uint32{"sockets": cpu.Sockets, "cores": cpu.Cores, "threads": cpu.Threads}[dimension], 1)
}

// Sockets returns the number of CPUs that follows from the resources of a VMI. Each is a socket, because sockets can be
// hotplugged.
func Sockets(resources v1.ResourceRequirements) uint32 {
	for _, list := range []corev1.ResourceList{resources.Limits, resources.Requests} {
		if q := list.Cpu(); q.Sign() > 0 {
			return uint32(min(q.Value(), 1<<16))
		}
	}
	return 1
}

func (p *preference) checkMemory(
	expanded *v1.VirtualMachineInstanceSpec, instancetype *v1beta1.VirtualMachineInstancetypeSpec,
) *RequirementError {
	required := p.Requirements.Memory
	if required == nil {
		return nil
	}
	if instancetype != nil {
		if provided := instancetype.Memory.Guest; provided.Cmp(required.Guest) < 0 {
			return unmet([]string{"spec.instancetype"}, "insufficient Memory resources of %s provided by instance type, "+
				"preference requires %s", &provided, &required.Guest)
		}
		return nil
	}
	provided := quantity.GuestMemory(&expanded.Domain)
	if provided == nil {
		provided = &resource.Quantity{}
	}
	if provided.Cmp(required.Guest) < 0 {
		return unmet([]string{"spec.template.spec.domain.memory"},
			"insufficient Memory resources of %s provided by VirtualMachine, "+
				"preference requires %s", provided, &required.Guest)
	}
	return nil
}

func (p *preference) checkArchitecture(
	expanded *v1.VirtualMachineInstanceSpec, _ *v1beta1.VirtualMachineInstancetypeSpec,
) *RequirementError {
	required := p.Requirements.Architecture
	if required == nil || expanded.Architecture == "" || expanded.Architecture == *required {
		return nil
	}
	return unmet([]string{"spec.template.spec.architecture"},
		"preference requires architecture %s but %s is being requested",
		*required, expanded.Architecture)
}

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

// arrange returns the layout of the CPUs of an instance type. If they cannot be spread, it also returns the reason, and
// each CPU is a socket. A single CPU is always accepted, although KubeVirt refuses to spread it.
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
			return sockets, fmt.Sprintf(indivisible, cpus,
				fmt.Sprintf("number of threads per core %d and %s", threadsPerCore, ratioText))
		}
		return layout{cpus / threadsPerCore / ratio, ratio, threadsPerCore}, ""
	default:
		if cpus%ratio != 0 {
			return sockets, fmt.Sprintf(indivisible, cpus, ratioText+" provided by the preference")
		}
		return layout{cpus / ratio, ratio, 1}, ""
	}
}

// CheckTopology returns an error, with KubeVirt's field and message, if the CPUs of an instance type cannot be spread
// as the preference requires. Each of the two may be nil.
func CheckTopology(
	instancetype *v1beta1.VirtualMachineInstancetypeSpec, spec *v1beta1.VirtualMachinePreferenceSpec,
) *field.Error {
	if instancetype == nil {
		return nil
	}
	p := complete(spec)
	if _, problem := p.arrange(instancetype.CPU.Guest); problem != "" {
		return field.Invalid(field.NewPath("instancetype", "spec", "cpu", "guest"), instancetype.CPU.Guest, problem)
	}
	return nil
}

// ValidateInstancetype returns the errors of an instance type, and the warnings about it. path is the path of the spec.
// The messages are KubeVirt's.
func ValidateInstancetype(
	spec *v1beta1.VirtualMachineInstancetypeSpec, path *field.Path,
) (errs field.ErrorList, warnings []string) {
	overcommit := path.Child("memory", "overcommitPercent")
	percent := spec.Memory.OvercommitPercent
	if percent < 0 || percent > 100 {
		errs = append(errs, field.Invalid(overcommit, percent,
			fmt.Sprintf("%s '%d': must be in range between 0 and 100.", overcommit, percent)))
	}
	if percent != 0 && spec.Memory.Hugepages != nil {
		errs = append(errs, field.Invalid(overcommit, percent,
			fmt.Sprintf("%s and %s should not be requested together.", overcommit, path.Child("memory", "hugepages"))))
	}
	if spec.LaunchSecurity != nil {
		warnings = append(warnings,
			"launchSecurity is deprecated and will be removed in a future release. Use preference instead.")
	}
	return errs, warnings
}

// ValidatePreference returns the errors of a preference, and the warnings about it. path is the path of the spec. The
// messages are KubeVirt's. KubeVirt accepts a ratio of 0, and fails when it divides by it.
func ValidatePreference(
	spec *v1beta1.VirtualMachinePreferenceSpec, path *field.Path,
) (errs field.ErrorList, warnings []string) {
	p := complete(spec)
	cpu := path.Child("cpu")
	if given := p.cpu.PreferredCPUTopology; given != nil {
		if today := p.topology(); today != *given {
			warnings = append(warnings, fmt.Sprintf(
				"PreferredCPUTopology %s is deprecated for removal in a future release, please use %s instead", *given, today))
		}
	}
	switch topology := p.topology(); topology {
	case v1beta1.Sockets, v1beta1.Cores, v1beta1.Threads, v1beta1.Any:
		return nil, warnings
	case v1beta1.Spread:
	default:
		return field.ErrorList{field.Invalid(cpu.Child("preferredCPUTopology"), topology,
			fmt.Sprintf("unknown preferredCPUTopology %s", topology))}, warnings
	}
	across, ratio := p.spread()
	options := cpu.Child("spreadOptions")
	switch across {
	case v1beta1.SpreadAcrossSocketsCores, v1beta1.SpreadAcrossSocketsCoresThreads:
		if ratio == 0 {
			errs = append(errs, field.Invalid(options.Child("ratio"), ratio, "must be 1 or more"))
		}
	case v1beta1.SpreadAcrossCoresThreads:
		if ratio != threadsPerCore {
			errs = append(errs, field.Invalid(options.Child("ratio"), ratio,
				"only a ratio of 2 (1 core 2 threads) is allowed when spreading vCPUs over cores and threads"))
		}
	default:
		errs = append(errs, field.Invalid(options.Child("across"), across, fmt.Sprintf("across %s is not supported", across)))
	}
	return errs, warnings
}
