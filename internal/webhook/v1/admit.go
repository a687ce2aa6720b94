// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
)

// Admit sets the defaults of a new VMI and returns its errors, as the webhooks do. Only tests without an API server
// call it.
func Admit(vmi *v1.VirtualMachineInstance, config clusterconfig.Config) field.ErrorList {
	setDefaults(vmi, config)
	return validateInstance(field.NewPath("spec"), &vmi.Spec, config)
}
