// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/podspec"
)

// Reasons of the condition Failure when a running instance cannot follow its template. KubeVirt's names.
const (
	ReasonAffinityChange    = "AffinityChangeError"
	ReasonTolerationsChange = "TolerationsChangeError"
)

// specNeedsRestart is the message of the condition RestartRequired. KubeVirt's.
const specNeedsRestart = "a non-live-updatable field was changed in the template spec"

// errMigrating keeps the scheduling of an instance as it is while its next node is being chosen.
var errMigrating = errors.New("should not be changed during VMI migration")

// step says how an instance relates to its VM's template.
type step struct {
	// known says that it is known what the instance was made from.
	known bool
	// restart is what waits for the next start, in words, or empty.
	restart string
	// moving says that its volumes are to move to other claims and have not done so.
	moving bool
	// relabeled says that the template has other labels or annotations, which an instance gets at its start. As in KubeVirt no
	// condition says so; the generation in effect does.
	relabeled bool
}

// inStep says that the instance is what the template describes.
func (s step) inStep() bool { return s.known && s.restart == "" && !s.moving && !s.relabeled }

// syncInstance gives a living instance what can change while it lives, and finds out what cannot.
func syncInstance(ctx context.Context, s *Scope) error {
	if !alive(s) || s.VMI.DeletionTimestamp != nil || s.VM.Spec.Template == nil {
		return nil
	}
	if madeFrom(s.VMI) == s.VM.Generation {
		s.step = step{known: true}
		return nil
	}
	base, err := startedTemplate(ctx, s)
	if err != nil {
		return err
	}
	if base != nil {
		s.step = compare(base, s.VM.Spec.Template, s.VMI, s.LiveUpdate, s.LiveMetadata)
	}
	if known, err := s.followVolumes(ctx); err != nil || !known {
		return err
	}
	wanted := s.VMI.DeepCopy()
	if s.LiveUpdate && s.step.restart != specNeedsRestart {
		if s.Failure = setScheduling(wanted, &s.VM.Spec.Template.Spec); s.Failure != nil {
			s.step = step{}
			return nil
		}
	}
	s.LiveMetadata.Copy(&wanted.ObjectMeta, &s.VM.Spec.Template.ObjectMeta)
	// Until the status names the revision, its name follows from the annotation, which must not run ahead.
	if s.step.inStep() && s.VMI.Status.VirtualMachineRevisionName != "" {
		metav1.SetMetaDataAnnotation(&wanted.ObjectMeta, v1.VirtualMachineGenerationAnnotation, strconv.FormatInt(s.VM.Generation, 10))
	}
	return s.replaceVMI(ctx, wanted)
}

// compare tells whether the template that an instance was made from differs from the one that there is now in more than a
// living instance can follow. CPU sockets and memory are not among that: they need a migration.
func compare(base, current *v1.VirtualMachineInstanceTemplateSpec, vmi *v1.VirtualMachineInstance, live bool, follows podspec.LiveMetadata) step {
	before, now := base.DeepCopy(), current.DeepCopy()
	if live {
		before.Spec.NodeSelector = now.Spec.NodeSelector
		before.Spec.Affinity = now.Spec.Affinity
		before.Spec.Tolerations = now.Spec.Tolerations
	}
	equalizeClaims(&before.Spec, &now.Spec)
	// A UUID or a serial number that was written down is not another one.
	if before.Spec.Domain.Firmware == nil && now.Spec.Domain.Firmware != nil {
		before.Spec.Domain.Firmware = &v1.Firmware{}
	}
	if is, to := vmi.Spec.Domain.Firmware, now.Spec.Domain.Firmware; is != nil && to != nil {
		if is.UUID == to.UUID {
			before.Spec.Domain.Firmware.UUID = to.UUID
		}
		if is.Serial == to.Serial {
			before.Spec.Domain.Firmware.Serial = to.Serial
		}
	}
	if !equality.Semantic.DeepEqual(before.Spec, now.Spec) {
		return step{known: true, restart: specNeedsRestart}
	}
	follows.Remove(&before.ObjectMeta)
	follows.Remove(&now.ObjectMeta)
	return step{known: true, relabeled: !maps.Equal(before.ObjectMeta.Labels, now.ObjectMeta.Labels) ||
		!maps.Equal(before.ObjectMeta.Annotations, now.ObjectMeta.Annotations)}
}

// equalizeClaims leaves out that a volume has another claim: what is to be done about that, syncVolumes says.
func equalizeClaims(before, now *v1.VirtualMachineInstanceSpec) {
	wanted := map[string]*v1.Volume{}
	for i := range now.Volumes {
		wanted[now.Volumes[i].Name] = &now.Volumes[i]
	}
	for i := range before.Volumes {
		had, to := before.Volumes[i].WrittenClaim(), wanted[before.Volumes[i].Name]
		if to != nil && had != "" && to.WrittenClaim() != "" && to.WrittenClaim() != had {
			before.Volumes[i] = *to.DeepCopy()
		}
	}
}

// setScheduling copies what counts when the instance next looks for a node.
func setScheduling(vmi *v1.VirtualMachineInstance, spec *v1.VirtualMachineInstanceSpec) *Failure {
	affinity := !equality.Semantic.DeepEqual(vmi.Spec.Affinity, spec.Affinity) ||
		!equality.Semantic.DeepEqual(vmi.Spec.NodeSelector, spec.NodeSelector)
	tolerations := !equality.Semantic.DeepEqual(vmi.Spec.Tolerations, spec.Tolerations)
	if migrating(vmi) && affinity {
		return &Failure{Reason: ReasonAffinityChange, Message: fmt.Sprintf(
			"Error encountered while handling node affinity change request: Node affinity %v", errMigrating)}
	}
	if migrating(vmi) && tolerations {
		return &Failure{Reason: ReasonTolerationsChange, Message: fmt.Sprintf(
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

// replaceVMI writes the instance as it is to be, if it differs.
func (s *Scope) replaceVMI(ctx context.Context, wanted *v1.VirtualMachineInstance) error {
	if equality.Semantic.DeepEqual(s.VMI, wanted) {
		return nil
	}
	err := s.patchVMI(ctx, func(vmi *v1.VirtualMachineInstance) { *vmi = *wanted })
	if err != nil {
		return fmt.Errorf("follow the template of VirtualMachine %s: %w", client.ObjectKeyFromObject(s.VM), err)
	}
	return nil
}
