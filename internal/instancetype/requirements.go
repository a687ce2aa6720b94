// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package instancetype

import (
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

// CheckRequirements returns a RequirementError for the first requirement of a preference that the expanded spec of a VM does not meet, or
// nil. For fields that the spec does not set, it uses the defaults of a VMI, except that an unset architecture is not checked.
func CheckRequirements(
	expanded *v1.VirtualMachineInstanceSpec, instancetype *v1beta1.VirtualMachineInstancetypeSpec,
	spec *v1beta1.VirtualMachinePreferenceSpec,
) error {
	if spec == nil || spec.Requirements == nil {
		return nil
	}
	p := complete(spec)
	for _, check := range []func(*v1.VirtualMachineInstanceSpec, *v1beta1.VirtualMachineInstancetypeSpec) *RequirementError{
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

// counted returns the fields of a VM's CPU that provide its vCPUs with the preferred topology, and KubeVirt's name for them.
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

// count returns the number of sockets, cores or threads of a VM. The default is 1. In KubeVirt it is 0, so that a VM that sets only cores
// has no CPUs.
func count(spec *v1.VirtualMachineInstanceSpec, dimension string) uint32 {
	cpu := ptr.Deref(spec.Domain.CPU, v1.CPU{})
	if cpu.Sockets == 0 && cpu.Cores == 0 && cpu.Threads == 0 {
		cpu.Sockets = Sockets(spec.Domain.Resources)
	}
	return max(map[string]uint32{"sockets": cpu.Sockets, "cores": cpu.Cores, "threads": cpu.Threads}[dimension], 1)
}

// Sockets returns the number of CPUs that follows from the resources of a VMI. Each is a socket, because sockets can be hotplugged.
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
		return unmet([]string{"spec.template.spec.domain.memory"}, "insufficient Memory resources of %s provided by VirtualMachine, "+
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
	return unmet([]string{"spec.template.spec.architecture"}, "preference requires architecture %s but %s is being requested",
		*required, expanded.Architecture)
}
