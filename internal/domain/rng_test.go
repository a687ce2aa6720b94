// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain_test

import (
	"testing"

	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func TestRNG(t *testing.T) {
	expectEqual(t, makeGuest().build(t).Devices.RNGs, nil)
	expectEqual(t, makeGuest().devices(func(d *v1.Devices) { d.Rng = &v1.Rng{} }).build(t).Devices.RNGs,
		[]libvirtxml.DomainRNG{{
			Model:   "virtio-non-transitional",
			Backend: &libvirtxml.DomainRNGBackend{Random: &libvirtxml.DomainRNGBackendRandom{Device: "/dev/urandom"}},
		}})
}
