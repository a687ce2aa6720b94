// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package firmware has the identity of a guest's firmware, its UUID and serial number: their record on the VM, and how they are derived
// for a VM without one. It is pure.
package firmware

import (
	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/types"
)

// IdentityAnnotation of a start revision is the identity, one of those below, from which the firmware UUID and serial number of a VM
// without a Record are derived. A revision without it was created before there was a choice. It is also on the VM in the content of a
// snapshot. The annotation is Vireo's own.
const IdentityAnnotation = "kubevirt.io/firmware-identity"

// Identity is what the firmware UUID and serial number of a VM without a Record are derived from. docs/adr/0050 has the compatibility
// rules.
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

// Derive returns the record of the VM with a namespace, a name and a UID that has none yet. It is the same each time.
func Derive(namespace, name string, uid types.UID, from Identity) Record {
	record := Record{VM: recordedVM(namespace, name)}
	if from == FromName {
		record.UUID = uuid.NewSHA1(uuidsOfNames, []byte(name)).String()
		return record
	}
	record.UUID = uuid.NewSHA1(uuidsOfUIDs, []byte(uid)).String()
	record.Serial = uuid.NewSHA1(serialsOfUIDs, []byte(uid)).String()
	return record
}
