// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// configureLifecycle says what follows the guest's own power events. A domain that ended is never started
// again in its Pod: whether there is a next start is the VM's run strategy to say.
func configureLifecycle(vmi *v1.VirtualMachineInstance, _ Facts, domain *libvirtxml.Domain) error {
	domain.OnPoweroff, domain.OnReboot, domain.OnCrash = "destroy", "restart", "destroy"
	if policy := vmi.Spec.Domain.RebootPolicy; policy != nil && *policy == v1.RebootPolicyTerminate {
		domain.OnReboot = "destroy"
	}
	return nil
}
