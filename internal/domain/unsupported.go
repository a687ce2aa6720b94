// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"errors"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/fieldsupport"
)

// refuseUnsupported names every field that asks for something that nothing implements. A guest never runs with less
// than its spec says, even if the controller that lets it start is of another version.
func refuseUnsupported(vmi *v1.VirtualMachineInstance, _ Facts, _ *libvirtxml.Domain) error {
	errs := fieldsupport.Refusals(fieldsupport.InVMI(specPath, &vmi.Spec))
	errs = append(errs, fieldsupport.Refusals(fieldsupport.InAnnotations(field.NewPath("metadata"), vmi.Annotations))...)
	joined := make([]error, 0, len(errs))
	for _, err := range errs {
		joined = append(joined, err)
	}
	return errors.Join(joined...)
}
