// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain_test

import (
	"testing"

	"k8s.io/utils/ptr"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func TestTPM(t *testing.T) {
	emulated := func(model string, emulator libvirtxml.DomainTPMBackendEmulator) []libvirtxml.DomainTPM {
		return []libvirtxml.DomainTPM{{Model: model, Backend: &libvirtxml.DomainTPMBackend{Emulator: &emulator}}}
	}
	transient := emulated("tpm-tis", libvirtxml.DomainTPMBackendEmulator{Version: "2.0"})
	lasting := emulated("tpm-crb", libvirtxml.DomainTPMBackendEmulator{
		Version: "2.0", PersistentState: "yes",
		Source: &libvirtxml.DomainTPMBackendSource{Dir: &libvirtxml.DomainTPMBackendSourceDir{
			Path: "/var/run/kubevirt-private/vm-state/swtpm/" + testUUID + "/tpm2",
		}},
	})
	for name, tc := range map[string]struct {
		tpm  *v1.TPMDevice
		want []libvirtxml.DomainTPM
	}{
		"none":                 {nil, nil},
		"default":              {&v1.TPMDevice{}, transient},
		"enabled":              {&v1.TPMDevice{Enabled: ptr.To(true)}, transient},
		"not persistent":       {&v1.TPMDevice{Persistent: ptr.To(false)}, transient},
		"persistent":           {&v1.TPMDevice{Persistent: ptr.To(true)}, lasting},
		"disabled":             {&v1.TPMDevice{Enabled: ptr.To(false)}, nil},
		"disabled, persistent": {&v1.TPMDevice{Enabled: ptr.To(false), Persistent: ptr.To(true)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			g := makeGuest().devices(func(d *v1.Devices) { d.TPM = tc.tpm })
			expectEqual(t, g.build(t).Devices.TPMs, tc.want)
		})
	}
}
