// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// configureRNG adds a random number generator if the spec has one.
func configureRNG(vmi *v1.VirtualMachineInstance, _ Facts, domain *libvirtxml.Domain) error {
	if vmi.Spec.Domain.Devices.Rng == nil {
		return nil
	}
	domain.Devices.RNGs = []libvirtxml.DomainRNG{{
		Model:   virtioModel(vmi),
		Backend: &libvirtxml.DomainRNGBackend{Random: &libvirtxml.DomainRNGBackendRandom{Device: "/dev/urandom"}},
	}}
	return nil
}
