// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/liveupdate"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// keepsInterfaces reports whether a running guest keeps its interfaces and networks as they are because of a change
// that needs a restart: one of them is changed, or what a guest needs for plugging some.
func keepsInterfaces(changed string) bool {
	changed = liveupdate.Generic(changed)
	return slices.ContainsFunc([]string{"domain.devices.interfaces", "networks", "domain.devices.disableHotplug"},
		func(field string) bool {
			return liveupdate.Covers(field, changed)
		})
}

// followInterfaces copies to the instance the interfaces of the template that can be plugged into a running guest, the
// state absent of those that can be unplugged, and the networks of the others. An interface that the template does not
// have is removed from the instance once the guest has released it. Unlike in KubeVirt, the VM's spec does not change.
// During a migration nothing changes.
//
// started is the template of the start: the guest had its interfaces before its agent reported any.
func (s *Scope) followInterfaces(
	ctx context.Context, desired *v1.VirtualMachineInstance, started, template *v1.VirtualMachineInstanceSpec,
) error {
	if s.migrates || desired.Status.Phase != v1.Running {
		s.diff.resizing = s.diff.resizing || !liveupdate.SameInterfaces(&desired.Spec, template)
		return nil
	}
	liveupdate.CopyInterfaces(&desired.Spec, template,
		func(name string) bool { return vmistatus.HasInterface(&desired.Status, name) })
	for i := range desired.Spec.Domain.Devices.Interfaces {
		iface := &desired.Spec.Domain.Devices.Interfaces[i]
		wanted, has := iface.State != v1.InterfaceStateAbsent, vmistatus.HasInterface(&desired.Status, iface.Name)
		plugging := wanted && !has && !liveupdate.HasConnected(started, iface.Name)
		unplugging := !wanted && (has || liveupdate.Interface(template, iface.Name) == nil)
		if liveupdate.IsPluggable(&desired.Spec, iface) && (plugging || unplugging) {
			s.diff.resizing = true
		}
	}
	onOthers, err := s.isOnOtherNetworks(ctx, desired)
	if err != nil {
		return err
	}
	s.diff.resizing = s.diff.resizing || onOthers
	required := vmistatus.FindCondition(&desired.Status, v1.VirtualMachineInstanceMigrationRequired)
	if required != nil && required.Status == corev1.ConditionFalse &&
		required.Reason == v1.VirtualMachineInstanceReasonRestartRequired &&
		s.diff.restart == "" {
		s.diff.restart = required.Message
	}
	return nil
}

// isOnOtherNetworks reports whether the Pod of a running guest is attached to other networks than those of the
// instance's spec. No status reports that until the instance's reconciler has read the spec.
func (s *Scope) isOnOtherNetworks(ctx context.Context, vmi *v1.VirtualMachineInstance) (bool, error) {
	if !slices.ContainsFunc(vmi.Spec.Domain.Devices.Interfaces,
		func(i v1.Interface) bool { return liveupdate.IsPluggable(&vmi.Spec, &i) }) {
		return false, nil
	}
	pod, key := &corev1.Pod{}, client.ObjectKey{Namespace: vmi.Namespace, Name: podspec.OwnPodName(vmi)}
	if err := s.Client.Get(ctx, key, pod); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return false, nil
		}
		return false, fmt.Errorf("get launcher Pod %s: %w", key, err)
	}
	changes := podspec.PendingNetworks(vmi, pod)
	return podspec.IsOf(pod, vmi) && len(changes.Replace) > 0, nil
}
