// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// configureLifecycle sets the actions on the guest's power events. A domain that has stopped is not started again in
// its Pod: the VM's run strategy decides about the next start, which has a new Pod.
func configureLifecycle(vmi *v1.VirtualMachineInstance, _ Facts, domain *libvirtxml.Domain) error {
	domain.OnPoweroff, domain.OnReboot, domain.OnCrash = "destroy", "restart", "destroy"
	if policy := vmi.Spec.Domain.RebootPolicy; policy != nil && *policy == v1.RebootPolicyTerminate {
		domain.OnReboot = "destroy"
	}
	return nil
}
