// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/cdi"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/storage/datavolume"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// ReasonImportFailed is the reason when a DataVolume cannot be filled. KubeVirt's name.
const ReasonImportFailed = "FailedDataVolumeImport"

// dataVolumeKind is the kind that owns claims which the importer fills.
const dataVolumeKind = "DataVolume"

// errNoDataVolume is the problem of a claim whose DataVolume is gone: its content is unknown.
var errNoDataVolume = errors.New(
	"does not exist: create it again, or remove the owner reference from the claim if the claim is filled")

// dataVolumeName returns the name of the DataVolume that the volume names or that owns its claim, or "".
func dataVolumeName(volume *v1.Volume, claim *corev1.PersistentVolumeClaim) string {
	if volume.DataVolume != nil {
		return volume.DataVolume.Name
	}
	if owner := dataVolumeOwner(claim); owner != nil {
		return owner.Name
	}
	return ""
}

// dataVolumeOwner returns the DataVolume that owns a claim, or nil.
func dataVolumeOwner(claim *corev1.PersistentVolumeClaim) *metav1.OwnerReference {
	if claim == nil {
		return nil
	}
	owner := metav1.GetControllerOf(claim)
	if owner == nil || owner.Kind != dataVolumeKind {
		return nil
	}
	group, err := schema.ParseGroupVersion(owner.APIVersion)
	if err != nil || group.Group != cdi.GroupVersion.Group {
		return nil
	}
	return owner
}

// readDataVolume reads the DataVolume behind a volume, if there is one. The launcher Pod has to wait until the claim is
// filled, or until it would be filled for that Pod.
func (s *scope) readDataVolume(ctx context.Context, volume *v1.Volume, claim *corev1.PersistentVolumeClaim) error {
	name := dataVolumeName(volume, claim)
	if name == "" {
		return nil
	}
	dv, err := s.importer.Get(ctx, client.ObjectKey{Namespace: s.vmi.Namespace, Name: name})
	switch {
	case apierrors.IsNotFound(err), errors.Is(err, datavolume.ErrNotInstalled):
		s.noDataVolumes = errors.Is(err, datavolume.ErrNotInstalled)
		s.missingDataVolume(volume, claim, name, err)
		return nil
	case err != nil:
		return err
	}
	if owner := dataVolumeOwner(claim); owner != nil && owner.Name == dv.Name && owner.UID != dv.UID {
		// The claim belongs to an earlier DataVolume of this name, with which it is deleted. This one fills another claim.
		s.missingDataVolume(volume, claim, name, nil)
		return nil
	}
	s.dataVolumes = append(s.dataVolumes, dv)
	switch {
	case datavolume.Failed(dv) && s.pod == nil:
		s.final = &finalState{phase: v1.Failed, reason: ReasonImportFailed, message: fmt.Sprintf(
			"DataVolume %s for volume %s failed to import its disk image.", dv.Name, volume.Name)}
	case dv.DeletionTimestamp != nil:
		s.importing = true
	case datavolume.WaitsForConsumer(dv):
		s.waitsForConsumer = true
	case !datavolume.Usable(dv):
		s.importing = true
	}
	return nil
}

// missingDataVolume reports a claim that belongs to a DataVolume which does not exist. A claim that only has the name
// of a DataVolume is used as it is: a user made or restored it.
func (s *scope) missingDataVolume(volume *v1.Volume, claim *corev1.PersistentVolumeClaim, name string, cause error) {
	if dataVolumeOwner(claim) == nil || s.problem != nil {
		return // A missing claim is a problem of its own.
	}
	if !errors.Is(cause, datavolume.ErrNotInstalled) {
		cause = fmt.Errorf("DataVolume %s/%s (UID %s) %w", s.vmi.Namespace, name, dataVolumeOwner(claim).UID, errNoDataVolume)
	}
	s.problem = &problem{reason: ReasonImportFailed, message: fmt.Sprintf(
		"PersistentVolumeClaim %s of volume %s belongs to DataVolume %s: %v", claim.Name, volume.Name, name, cause)}
}

// hint returns why the claim of a DataVolume's volume may never exist.
func (s *scope) hint(volume *v1.Volume) string {
	if volume.DataVolume == nil || !s.noDataVolumes {
		return ""
	}
	return ": " + datavolume.ErrNotInstalled.Error()
}

// setImports reports whether the DataVolumes behind a VMI's volumes are ready, with KubeVirt's messages.
func setImports(o *observed, status *v1.VirtualMachineInstanceStatus) {
	if len(o.dataVolumes) == 0 {
		return
	}
	condition := v1.VirtualMachineInstanceCondition{
		Type: v1.VirtualMachineInstanceDataVolumesReady, Status: corev1.ConditionTrue,
		Reason: v1.VirtualMachineInstanceReasonAllDVsReady, Message: "All of the VMI's DVs are bound and ready",
	}
	for _, dv := range o.dataVolumes {
		ready := corev1.ConditionUnknown
		if c := dv.Status.Condition(cdi.DataVolumeReady); c != nil {
			ready = c.Status
		}
		if ready == corev1.ConditionTrue {
			continue
		}
		condition.Reason = v1.VirtualMachineInstanceReasonNotAllDVsReady
		condition.Message = "Not all of the VMI's DVs are ready"
		if ready == corev1.ConditionFalse || condition.Status == corev1.ConditionTrue {
			condition.Status = ready
		}
	}
	vmistatus.SetCondition(status, condition, metav1.NewTime(o.now))
}

// importNames returns the names of the DataVolumes that a VMI's volumes name.
func importNames(vmi *v1.VirtualMachineInstance) []string {
	var names []string
	for i := range vmi.Spec.Volumes {
		if vmi.Spec.Volumes[i].DataVolume != nil {
			names = append(names, podspec.ClaimName(&vmi.Spec.Volumes[i]))
		}
	}
	return names
}
