// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package firmware derives the UUID and the serial number of a guest's firmware from its VM. It is pure.
package firmware

import (
	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// IdentityAnnotation of a start revision is the identity, one of those below, from which the VM's firmware UUID and serial
// number are derived. A revision without it was created before there was a choice. It is also on the VM in the content of a
// snapshot. The annotation is Vireo's own.
const IdentityAnnotation = "kubevirt.io/firmware-identity"

// Identity is what a VM's firmware UUID and serial number are derived from, unless its template has them. KubeVirt writes random
// ones into the template; docs/adr/0050 has the reasons for deriving them and the compatibility rules.
type Identity string

const (
	// FromUID derives UUID and serial number from the VM's UID: VMs never share them, and a VM that is created again gets new
	// ones.
	FromUID Identity = "vm-uid"
	// FromName derives the UUID from the VM's name and sets no serial number, as KubeVirt did for VMs without a UUID.
	FromName Identity = "vm-name"
)

var (
	// uuidsOfNames is the name space of firmware UUIDs derived from a VM's name.
	// Source: kubevirt/kubevirt pkg/virt-controller/watch/vm, firmwareUUIDns.
	uuidsOfNames = uuid.MustParse("6a1a24a1-4061-4607-8bf4-a3963d0c5895")
	// uuidsOfUIDs and serialsOfUIDs are the name spaces of those derived from a VM's UID.
	uuidsOfUIDs   = uuid.MustParse("0e35a5a4-9ff9-4ee9-a83a-2a7cbd9d2a51")
	serialsOfUIDs = uuid.MustParse("c9b9b0d7-5a1f-4b43-b3a4-7b1a1f0f4c68")
)

// SetIdentity sets the firmware UUID and the serial number that a spec leaves open to those of the VM with a name and a UID.
// They are the same at each start.
func SetIdentity(spec *v1.VirtualMachineInstanceSpec, name string, uid types.UID, from Identity) {
	if spec.Domain.Firmware == nil {
		spec.Domain.Firmware = &v1.Firmware{}
	}
	firmware := spec.Domain.Firmware
	if from == FromName {
		if firmware.UUID == "" {
			firmware.UUID = types.UID(uuid.NewSHA1(uuidsOfNames, []byte(name)).String())
		}
		return
	}
	if firmware.UUID == "" {
		firmware.UUID = types.UID(uuid.NewSHA1(uuidsOfUIDs, []byte(uid)).String())
	}
	if firmware.Serial == "" {
		firmware.Serial = uuid.NewSHA1(serialsOfUIDs, []byte(uid)).String()
	}
}
