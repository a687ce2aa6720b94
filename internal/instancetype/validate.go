// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package instancetype

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/vireo-project/vireo/api/instancetype/v1beta1"
)

// ValidateInstancetype returns the errors of an instance type, and the warnings about it. path is the path of the spec. The messages are
// KubeVirt's.
func ValidateInstancetype(spec *v1beta1.VirtualMachineInstancetypeSpec, path *field.Path) (errs field.ErrorList, warnings []string) {
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
		warnings = append(warnings, "launchSecurity is deprecated and will be removed in a future release. Use preference instead.")
	}
	return errs, warnings
}

// ValidatePreference returns the errors of a preference, and the warnings about it. path is the path of the spec. The messages are
// KubeVirt's. KubeVirt accepts a ratio of 0, and fails when it divides by it.
func ValidatePreference(spec *v1beta1.VirtualMachinePreferenceSpec, path *field.Path) (errs field.ErrorList, warnings []string) {
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
