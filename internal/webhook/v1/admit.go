// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
)

// Admit does to a new VMI what the webhooks do, without an API server: it resolves the defaults and returns the faults.
func Admit(vmi *v1.VirtualMachineInstance, config clusterconfig.Config) field.ErrorList {
	setDefaults(vmi, config)
	return validateInstance(field.NewPath("spec"), &vmi.Spec, config)
}
