// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"errors"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/specsupport"
)

// refuseUnsupported returns an error for each unimplemented field of the spec. virt-controller refuses them before, but
// it can have another version than the agent.
func refuseUnsupported(vmi *v1.VirtualMachineInstance, _ Facts, _ *libvirtxml.Domain) error {
	errs := specsupport.Refusals(specsupport.UnimplementedInVMI(specPath, &vmi.Spec))
	errs = append(errs, specsupport.Refusals(
		specsupport.UnimplementedInAnnotations(field.NewPath("metadata"), vmi.Annotations))...)
	joined := make([]error, 0, len(errs))
	for _, err := range errs {
		joined = append(joined, err)
	}
	return errors.Join(joined...)
}
