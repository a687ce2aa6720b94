// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"fmt"
	"strconv"

	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// configureVSOCK adds a vsock device with the context ID of the VMI's status.
func configureVSOCK(vmi *v1.VirtualMachineInstance, _ Facts, domain *libvirtxml.Domain) error {
	if !isTrue(vmi.Spec.Domain.Devices.AutoattachVSOCK) {
		return nil
	}
	if vmi.Status.VSOCKCID == nil {
		return fmt.Errorf("%s: status.VSOCKCID is %w", devicesPath.Child("autoattachVSOCK"), ErrNotPrepared)
	}
	domain.Devices.VSock = &libvirtxml.DomainVSock{
		Model: virtioModel(vmi),
		CID:   &libvirtxml.DomainVSockCID{Auto: "no", Address: strconv.FormatUint(uint64(*vmi.Status.VSOCKCID), 10)},
	}
	return nil
}
