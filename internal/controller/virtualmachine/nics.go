// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine

import (
	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/liveupdate"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// followInterfaces gives the instance the interfaces of the template that a running guest can get, and makes those absent that it can lose.
// One that the template does not have is removed from the instance once the guest has released it. Unlike in KubeVirt,
// the VM's spec is left as it is. During a migration nothing changes: the target Pod was made for the spec of its start.
//
// started is the template of the start: the guest had its interfaces before its agent reported any.
func (s *Scope) followInterfaces(desired *v1.VirtualMachineInstance, started, template *v1.VirtualMachineInstanceSpec) {
	if migrating(desired) || desired.Status.Phase != v1.Running {
		s.diff.resizing = s.diff.resizing || !liveupdate.SameInterfaces(&desired.Spec, template)
		return
	}
	liveupdate.CopyInterfaces(&desired.Spec, template, func(name string) bool { return vmistatus.HasInterface(&desired.Status, name) })
	for i := range desired.Spec.Domain.Devices.Interfaces {
		iface := &desired.Spec.Domain.Devices.Interfaces[i]
		wanted, has := iface.State != v1.InterfaceStateAbsent, vmistatus.HasInterface(&desired.Status, iface.Name)
		plugging := wanted && !has && !liveupdate.HasConnected(started, iface.Name)
		leaving := !wanted && (has || liveupdate.Interface(template, iface.Name) == nil)
		if liveupdate.IsPluggable(&desired.Spec, iface) && (plugging || leaving) {
			s.diff.resizing = true
		}
	}
	required := vmistatus.FindCondition(&desired.Status, v1.VirtualMachineInstanceMigrationRequired)
	if required != nil && required.Status == corev1.ConditionFalse && required.Reason == v1.VirtualMachineInstanceReasonRestartRequired &&
		s.diff.restart == "" {
		s.diff.restart = required.Message
	}
}
