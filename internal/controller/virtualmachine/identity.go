// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine

import (
	"github.com/google/uuid"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// FirmwareIdentityAnnotation of a start revision is the identity, one of those below, from which the VM's firmware UUID and
// serial number are derived. A revision without it was created before there was a choice. The annotation is Vireo's own.
const FirmwareIdentityAnnotation = "kubevirt.io/firmware-identity"

// identity is what a VM's firmware UUID and serial number are derived from, unless its template has them. KubeVirt writes random
// ones into the template; docs/adr/0050 has the reasons for deriving them and the compatibility rules.
type identity string

const (
	// fromUID derives UUID and serial number from the VM's UID: VMs never share them, and a VM that is created again gets new
	// ones.
	fromUID identity = "vm-uid"
	// fromName derives the UUID from the VM's name and sets no serial number, as KubeVirt did for VMs without a UUID.
	fromName identity = "vm-name"
)

var (
	// uuidsOfNames is the name space of firmware UUIDs derived from a VM's name.
	// Source: kubevirt/kubevirt pkg/virt-controller/watch/vm, firmwareUUIDns.
	uuidsOfNames = uuid.MustParse("6a1a24a1-4061-4607-8bf4-a3963d0c5895")
	// uuidsOfUIDs and serialsOfUIDs are the name spaces of those derived from a VM's UID.
	uuidsOfUIDs   = uuid.MustParse("0e35a5a4-9ff9-4ee9-a83a-2a7cbd9d2a51")
	serialsOfUIDs = uuid.MustParse("c9b9b0d7-5a1f-4b43-b3a4-7b1a1f0f4c68")
)

// identityOf returns a VM's identity. revisions are those of its earlier starts. VMs that started before the choice was recorded
// keep their UUID, and so do those that KubeVirt's controller ran, which have its annotation.
func identityOf(vm *v1.VirtualMachine, revisions []metav1.PartialObjectMetadata) identity {
	for i := range revisions {
		switch recorded := identity(revisions[i].Annotations[FirmwareIdentityAnnotation]); recorded {
		case fromUID, fromName:
			return recorded
		}
	}
	_, ranByKubeVirt := vm.Annotations[v1.ControllerAPIStorageVersionObservedAnnotation]
	if len(revisions) > 0 || ranByKubeVirt {
		return fromName
	}
	return fromUID
}

// setIdentity sets the firmware UUID and the serial number that the template leaves open. They are the same at each start.
func setIdentity(vmi *v1.VirtualMachineInstance, vm *v1.VirtualMachine, from identity) {
	if vmi.Spec.Domain.Firmware == nil {
		vmi.Spec.Domain.Firmware = &v1.Firmware{}
	}
	firmware := vmi.Spec.Domain.Firmware
	if from == fromName {
		if firmware.UUID == "" {
			firmware.UUID = types.UID(uuid.NewSHA1(uuidsOfNames, []byte(vm.Name)).String())
		}
		return
	}
	if firmware.UUID == "" {
		firmware.UUID = types.UID(uuid.NewSHA1(uuidsOfUIDs, []byte(vm.UID)).String())
	}
	if firmware.Serial == "" {
		firmware.Serial = uuid.NewSHA1(serialsOfUIDs, []byte(vm.UID)).String()
	}
}
