// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine

import (
	"slices"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/hotplug"
	"github.com/vireo-project/vireo/internal/decide/liveupdate"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// ReasonHotPlugVolume is the reason of the condition Failure if a running instance cannot have the template's volumes.
// KubeVirt's name.
const ReasonHotPlugVolume = "HotPlugVolumeError"

// plugs reports whether a running guest follows the hotpluggable volumes of the template. As in KubeVirt, it does so
// with any rollout strategy, and with another strategy for changed claims a migration moves the volumes.
func (s *Scope) plugs() bool {
	return s.HotplugVolumes && !s.wantsVolumeMigration() && !vmistatus.MovesVolumes(&s.VMI.Status) &&
		!s.VMI.Spec.Domain.Devices.DisableHotplug
}

// plugVolumes gives the instance the hotpluggable volumes of the template. It waits for a guest that starts or
// migrates.
func (s *Scope) plugVolumes(desired *v1.VirtualMachineInstance, template *v1.VirtualMachineInstanceSpec) {
	if !s.plugs() {
		return
	}
	if s.EphemeralVolumes {
		template = hotplug.WithEphemeral(desired, template)
	}
	follower := desired
	waits := desired.Status.Phase != v1.Running || s.migrates
	if waits {
		follower = desired.DeepCopy()
	}
	result := hotplug.Follow(follower, template)
	s.diff.plugging = result.Pending
	if result.Problem != "" && len(s.diff.changed) > 0 {
		s.diff.restart = liveupdate.WithReason(s.diff.restart, result.Problem)
	}
}

// withoutPlugs returns a template without the volumes that are plugged and unplugged: their claims do not move.
func (s *Scope) withoutPlugs(template *v1.VirtualMachineInstanceTemplateSpec) *v1.VirtualMachineInstanceTemplateSpec {
	if !s.plugs() {
		return template
	}
	out := template.DeepCopy()
	out.Spec.Volumes = slices.DeleteFunc(out.Spec.Volumes,
		func(v v1.Volume) bool { return v.IsHotpluggable() && hotplug.IsLive(s.VMI, v.Name) })
	return out
}
