// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/decide/hotplug"
	"github.com/vireo-project/vireo/internal/decide/liveupdate"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// Reasons of the condition Failure when a running instance cannot follow its template. KubeVirt's names.
const (
	ReasonAffinityChange    = "AffinityChangeError"
	ReasonTolerationsChange = "TolerationsChangeError"
)

// errMigrating is returned for changes of the scheduling from the time at which the target of a migration is to be
// scheduled.
var errMigrating = errors.New("should not be changed during VMI migration")

// templateDiff is how an instance differs from its VM's template.
type templateDiff struct {
	// known reports whether the template of the instance could be determined.
	known bool
	// restart is the message of the condition RestartRequired, or empty if no restart is needed.
	restart string
	// changed are the fields of the spec for which it is needed, other than claims of volumes.
	changed []string
	// movingVolumes reports whether volumes are yet to move to other claims.
	movingVolumes bool
	// resizing reports whether the guest is yet to get the CPUs, the memory and the interfaces of the template.
	resizing bool
	// plugging reports whether volumes are yet to be plugged or unplugged.
	plugging bool
	// relabeled reports whether labels or annotations of the template changed, which take effect at the next start. As in
	// KubeVirt this sets no condition; status.observedGeneration stays behind.
	relabeled bool
}

// upToDate reports whether the instance is what the template describes.
func (d templateDiff) upToDate() bool {
	return d.known && d.restart == "" && !d.movingVolumes && !d.resizing && !d.plugging && !d.relabeled
}

// syncInstance applies changes of the template to a running instance where possible, and determines which ones need a
// restart.
func syncInstance(ctx context.Context, s *Scope) error {
	if !alive(s) || s.VMI.DeletionTimestamp != nil || s.VM.Spec.Template == nil {
		return nil
	}
	if madeFrom(s.VMI) == s.VM.Generation {
		s.diff = templateDiff{known: true}
		// No volumes move. The reconciliation that wrote the annotation may not have written the status.
		s.Status.VolumeUpdateState = nil
		return nil
	}
	if err := s.readMigrations(ctx); err != nil {
		return err
	}
	base, template, err := s.templates(ctx)
	if err != nil {
		return s.failReference(err)
	}
	compared := template
	if base != nil {
		if s.plugs() {
			base, compared = base.DeepCopy(), template.DeepCopy()
			hotplug.Equalize(&base.Spec, &compared.Spec, s.VMI)
		}
		s.diff = compare(base, compared, s.VMI, s.LiveUpdate, s.LiveMetadata)
	}
	known, err := s.updateVolumes(ctx)
	if err != nil {
		return err
	}
	desired := s.VMI.DeepCopy()
	if base != nil {
		// As in KubeVirt, links follow the template whatever else has changed or failed.
		liveupdate.CopyLinkStates(&desired.Spec, &template.Spec)
		s.plugVolumes(desired, &template.Spec)
	}
	if !known {
		return s.replaceVMI(ctx, desired)
	}
	// As in KubeVirt, interfaces are plugged and unplugged whatever else needs a restart.
	if !slices.ContainsFunc(s.diff.changed, keepsInterfaces) {
		if err := s.followInterfaces(ctx, desired, &base.Spec, &template.Spec); err != nil {
			return err
		}
	}
	if s.LiveUpdate && len(s.diff.changed) == 0 {
		if s.Failure = s.setScheduling(desired, &template.Spec); s.Failure != nil {
			s.diff = templateDiff{}
			return s.replaceVMI(ctx, desired)
		}
		if s.Failure = s.followSize(desired, &template.Spec); s.Failure != nil {
			s.diff = templateDiff{}
			return s.replaceVMI(ctx, desired)
		}
	}
	s.LiveMetadata.Copy(&desired.ObjectMeta, &template.ObjectMeta)
	// Until the status names the revision, its name is derived from this annotation, which must not change before.
	if s.diff.upToDate() && s.VMI.Status.VirtualMachineRevisionName != "" {
		metav1.SetMetaDataAnnotation(&desired.ObjectMeta, v1.VirtualMachineGenerationAnnotation,
			strconv.FormatInt(s.VM.Generation, 10))
	}
	return s.replaceVMI(ctx, desired)
}

// compare determines whether a template differs from the one that an instance was made from in fields that cannot
// change while it runs.
func compare(
	base, current *v1.VirtualMachineInstanceTemplateSpec, vmi *v1.VirtualMachineInstance, live bool,
	follows podspec.LiveMetadata,
) templateDiff {
	if changed := liveupdate.NeedRestart(&base.Spec, &current.Spec, vmi, live); len(changed) > 0 {
		return templateDiff{known: true, restart: liveupdate.Message(changed), changed: changed}
	}
	before, now := base.ObjectMeta.DeepCopy(), current.ObjectMeta.DeepCopy()
	follows.Remove(before)
	follows.Remove(now)
	return templateDiff{known: true, relabeled: !maps.Equal(before.Labels, now.Labels) ||
		!maps.Equal(before.Annotations, now.Annotations)}
}

// setScheduling copies the fields that the scheduling of a migration target uses.
func (s *Scope) setScheduling(vmi *v1.VirtualMachineInstance, spec *v1.VirtualMachineInstanceSpec) *kit.Failure {
	affinity := !equality.Semantic.DeepEqual(vmi.Spec.Affinity, spec.Affinity) ||
		!equality.Semantic.DeepEqual(vmi.Spec.NodeSelector, spec.NodeSelector)
	tolerations := !equality.Semantic.DeepEqual(vmi.Spec.Tolerations, spec.Tolerations)
	if s.migrates && affinity {
		return &kit.Failure{Reason: ReasonAffinityChange, Message: fmt.Sprintf(
			"Error encountered while handling node affinity change request: Node affinity %v", errMigrating)}
	}
	if s.migrates && tolerations {
		return &kit.Failure{Reason: ReasonTolerationsChange, Message: fmt.Sprintf(
			"Error encountered while handling tolerations change request: tolerations %v", errMigrating)}
	}
	if affinity {
		vmi.Spec.Affinity = spec.Affinity.DeepCopy()
		vmi.Spec.NodeSelector = maps.Clone(spec.NodeSelector)
	}
	if tolerations {
		copied := spec.DeepCopy()
		vmi.Spec.Tolerations = copied.Tolerations
	}
	return nil
}

// replaceVMI writes the instance if it differs from the desired one.
func (s *Scope) replaceVMI(ctx context.Context, desired *v1.VirtualMachineInstance) error {
	if equality.Semantic.DeepEqual(s.VMI, desired) {
		return nil
	}
	before := s.VMI
	err := s.patchVMI(ctx, func(vmi *v1.VirtualMachineInstance) { *vmi = *desired })
	if apierrors.IsInvalid(err) && !equality.Semantic.DeepEqual(before.Spec.Volumes, desired.Spec.Volumes) {
		// A retry does not help, only another change of the VM.
		s.Failure = &kit.Failure{
			Reason:  ReasonHotPlugVolume,
			Message: fmt.Sprintf("Error encountered while handling declarative hotplug volumes: %v", err),
		}
		s.diff = templateDiff{}
		return nil
	}
	if err != nil {
		return fmt.Errorf("follow the template of VirtualMachine %s: %w", client.ObjectKeyFromObject(s.VM), err)
	}
	return nil
}

// readMigrations finds out whether a migration of the instance has a target. Its Pod was made for the spec that the
// instance had then, so that from then on the instance does not follow the template: the migration would fail.
func (s *Scope) readMigrations(ctx context.Context) error {
	if s.migrates = vmistatus.Migrating(&s.VMI.Status); s.migrates {
		return nil
	}
	list := &v1.VirtualMachineInstanceMigrationList{}
	if err := s.Client.List(ctx, list, client.InNamespace(s.VMI.Namespace),
		client.MatchingFields{kit.VMIIndex: s.VMI.Name}); err != nil {
		return fmt.Errorf("list the migrations of VirtualMachineInstance %s: %w", client.ObjectKeyFromObject(s.VMI), err)
	}
	for i := range list.Items {
		m := &list.Items[i]
		over := s.VMI.Status.MigrationState != nil && s.VMI.Status.MigrationState.MigrationUID == m.UID
		s.migrates = s.migrates || !m.IsQueued() && !m.IsFinal() && !over
	}
	return nil
}

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
