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
	"github.com/vireo-project/vireo/internal/datavolume"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// ReasonImportFailed is the reason when a DataVolume cannot be filled. KubeVirt's name.
const ReasonImportFailed = "FailedDataVolumeImport"

// dataVolumeKind is the kind of the owner of claims that the importer fills.
const dataVolumeKind = "DataVolume"

// errNoDataVolume is that of a claim whose DataVolume is gone. What is in it, nobody knows.
var errNoDataVolume = errors.New("does not exist: create it again, or take the owner off the claim if the claim is filled")

// importOf is the name of the DataVolume behind a volume, or nothing: the volume names it, or its claim belongs to it.
func importOf(volume *v1.Volume, claim *corev1.PersistentVolumeClaim) string {
	if volume.DataVolume != nil {
		return volume.DataVolume.Name
	}
	if owner := importerOf(claim); owner != nil {
		return owner.Name
	}
	return ""
}

// importerOf is the DataVolume that a claim belongs to, or nil.
func importerOf(claim *corev1.PersistentVolumeClaim) *metav1.OwnerReference {
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

// awaitImport looks at the DataVolume behind a volume. The launcher Pod waits until the claim is filled, or until it would be
// filled for that Pod.
func (s *Scope) awaitImport(ctx context.Context, volume *v1.Volume, claim *corev1.PersistentVolumeClaim) error {
	name := importOf(volume, claim)
	if name == "" {
		return nil
	}
	dv, err := s.DataVolumes.Get(ctx, client.ObjectKey{Namespace: s.VMI.Namespace, Name: name})
	switch {
	case apierrors.IsNotFound(err), errors.Is(err, datavolume.ErrNotInstalled):
		s.noImporter = errors.Is(err, datavolume.ErrNotInstalled)
		s.missingImport(volume, claim, name, err)
		return nil
	case err != nil:
		return err
	}
	if owner := importerOf(claim); owner != nil && owner.Name == dv.Name && owner.UID != dv.UID {
		// It belongs to an earlier one of that name, and goes with it. This one fills a claim of its own.
		s.missingImport(volume, claim, name, nil)
		return nil
	}
	s.imports = append(s.imports, dv)
	switch {
	case datavolume.Failed(dv) && s.Pod == nil:
		s.End = &End{Phase: v1.Failed, Reason: ReasonImportFailed, Message: fmt.Sprintf(
			"DataVolume %s for volume %s failed to import its disk image.", dv.Name, volume.Name)}
	case dv.DeletionTimestamp != nil:
		s.importing = true
	case datavolume.WaitsForConsumer(dv):
		s.unconsumed = true
	case !datavolume.Usable(dv):
		s.importing = true
	}
	return nil
}

// missingImport tells what keeps a claim from being trusted: it belongs to a DataVolume that is not there. A claim of the
// DataVolume's name that belongs to none is used as it is: somebody made or restored it.
func (s *Scope) missingImport(volume *v1.Volume, claim *corev1.PersistentVolumeClaim, name string, why error) {
	if importerOf(claim) == nil || s.Problem != nil {
		return // That a claim is missing is told already.
	}
	if !errors.Is(why, datavolume.ErrNotInstalled) {
		why = fmt.Errorf("DataVolume %s/%s (UID %s) %w", s.VMI.Namespace, name, importerOf(claim).UID, errNoDataVolume)
	}
	s.Problem = &Problem{Reason: ReasonImportFailed, Message: fmt.Sprintf(
		"PersistentVolumeClaim %s of volume %s belongs to DataVolume %s: %v", claim.Name, volume.Name, name, why)}
}

// hint says why the claim of a DataVolume's volume may never come.
func (s *Scope) hint(volume *v1.Volume) string {
	if volume.DataVolume == nil || !s.noImporter {
		return ""
	}
	return ": " + datavolume.ErrNotInstalled.Error()
}

// setImports tells whether the DataVolumes behind a VMI's volumes are ready. KubeVirt's words.
func setImports(s *Scope, status *v1.VirtualMachineInstanceStatus) {
	if len(s.imports) == 0 {
		return
	}
	condition := v1.VirtualMachineInstanceCondition{
		Type: v1.VirtualMachineInstanceDataVolumesReady, Status: corev1.ConditionTrue,
		Reason: v1.VirtualMachineInstanceReasonAllDVsReady, Message: "All of the VMI's DVs are bound and ready",
	}
	for _, dv := range s.imports {
		is := corev1.ConditionUnknown
		if ready := dv.Status.Condition(cdi.DataVolumeReady); ready != nil {
			is = ready.Status
		}
		if is == corev1.ConditionTrue {
			continue
		}
		condition.Reason = v1.VirtualMachineInstanceReasonNotAllDVsReady
		condition.Message = "Not all of the VMI's DVs are ready"
		if is == corev1.ConditionFalse || condition.Status == corev1.ConditionTrue {
			condition.Status = is
		}
	}
	vmistatus.SetCondition(status, condition, metav1.NewTime(s.Now))
}

// ImportNames are the names of the DataVolumes that a VMI's volumes name.
func ImportNames(vmi *v1.VirtualMachineInstance) []string {
	var names []string
	for i := range vmi.Spec.Volumes {
		if vmi.Spec.Volumes[i].DataVolume != nil {
			names = append(names, podspec.ClaimName(&vmi.Spec.Volumes[i]))
		}
	}
	return names
}
