// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/decide/firmware"
	"github.com/vireo-project/vireo/internal/decide/instancetype/reference"
	"github.com/vireo-project/vireo/internal/quantity"
	"github.com/vireo-project/vireo/internal/revisiondata"
)

// addVMMetadata adds the finalizer, and the record of the guest's identity. Admission adds both, so that a start costs
// no write for them; but a name that the API server generates is not known then, and VMs that were created before there
// were records have none.
func addVMMetadata(ctx context.Context, s *Scope) error {
	record, recorded := firmware.RecordOf(s.VM.Namespace, s.VM.Name, s.VM.Annotations)
	if !recorded {
		revisions, err := listStartRevisions(ctx, s)
		if err != nil {
			return err
		}
		record = firmware.Derive(s.VM.Namespace, s.VM.Name, s.VM.UID, identityOf(s.VM, revisions))
	}
	s.identity = record
	if recorded && controllerutil.ContainsFinalizer(s.VM, v1.VirtualMachineControllerFinalizer) {
		return nil
	}
	return s.patchVM(ctx, func(vm *v1.VirtualMachine) {
		record.Annotate(&vm.ObjectMeta)
		controllerutil.AddFinalizer(vm, v1.VirtualMachineControllerFinalizer)
	})
}

// identityOf returns what the identity of a VM without a record is derived from. revisions are those of its earlier
// starts. VMs that started before the choice was recorded keep their UUID, and so do those that KubeVirt's controller
// ran, which have its annotation.
func identityOf(vm *v1.VirtualMachine, revisions []metav1.PartialObjectMetadata) firmware.Identity {
	for i := range revisions {
		switch recorded := firmware.Identity(revisions[i].Annotations[firmware.IdentityAnnotation]); recorded {
		case firmware.FromUID, firmware.FromName:
			return recorded
		}
	}
	_, ranByKubeVirt := vm.Annotations[v1.ControllerAPIStorageVersionObservedAnnotation]
	if len(revisions) > 0 || ranByKubeVirt {
		return firmware.FromName
	}
	return firmware.FromUID
}

// revisionData is the content of a start revision. Source: kubevirt/kubevirt pkg/virt-controller/watch/vm,
// VirtualMachineRevisionData.
type revisionData struct {
	Spec v1.VirtualMachineSpec `json:"spec"`
}

// recordRevision stores the spec of which an instance is about to be made. A second start from the same generation
// reuses the revision of the first. What the identity of a VM without a record is derived from, each new revision takes
// over from the earlier ones.
func recordRevision(ctx context.Context, s *Scope) error {
	revisions, err := listStartRevisions(ctx, s)
	if err != nil {
		return err
	}
	name := v1.StartRevisionName(s.VM.UID, s.VM.Generation)
	for i := range revisions {
		if revisions[i].Name == name {
			return nil
		}
	}
	spec, err := s.storedSpec(ctx)
	if err != nil {
		return err
	}
	annotations := map[string]string{
		firmware.IdentityAnnotation: string(identityOf(s.VM, revisions)),
	}
	for _, class := range reference.Classes {
		matcher, ref := class.MatcherOf(&s.VM.Spec), class.RefOf(&s.Status)
		if matcher != nil && ref != nil && ref.ControllerRevisionRef != nil {
			matcher = matcher.DeepCopy()
			matcher.Name, matcher.Kind, matcher.RevisionName = ref.Name, ref.Kind, ref.ControllerRevisionRef.Name
			spec[class.Field] = matcher
			annotations[referenceAnnotation(class)] = matcher.RevisionName
		}
	}
	revision := &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: s.VM.Namespace,
			// KubeVirt's have no label. It keeps those of other controllers out of the cache.
			Labels:      map[string]string{v1.CreatedByLabel: string(s.VM.UID)},
			Annotations: annotations,
			OwnerReferences: []metav1.OwnerReference{
				*metav1.NewControllerRef(s.VM, v1.VirtualMachineGroupVersionKind),
			},
		},
		Revision: s.VM.Generation,
	}
	if err := revisiondata.SetData(revision, map[string]any{"spec": spec}); err != nil {
		return fmt.Errorf("encode the spec of VirtualMachine %s: %w", client.ObjectKeyFromObject(s.VM), err)
	}
	if err := s.Client.Create(ctx, revision); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create ControllerRevision %s: %w", name, err)
	}
	return nil
}

// storedSpec returns the VM's spec as the API server has it. The decoded spec has quantities in their canonical form,
// and clients compare those of the revision with those of the VM.
func (s *Scope) storedSpec(ctx context.Context) (map[string]any, error) {
	key, stored := client.ObjectKeyFromObject(s.VM), &unstructured.Unstructured{}
	stored.SetGroupVersionKind(v1.VirtualMachineGroupVersionKind)
	if err := s.APIReader.Get(ctx, key, stored); err != nil {
		return nil, fmt.Errorf("get VirtualMachine %s: %w", key, err)
	}
	if stored.GetUID() != s.VM.UID || stored.GetGeneration() != s.VM.Generation {
		return nil, apierrors.NewConflict(v1.GroupVersion.WithResource("virtualmachines").GroupResource(), s.VM.Name,
			errors.New("its spec changed meanwhile"))
	}
	spec, _, err := unstructured.NestedMap(stored.Object, "spec")
	if err != nil {
		return nil, fmt.Errorf("read the spec of VirtualMachine %s: %w", key, err)
	}
	return spec, nil
}

// deleteOldRevisions deletes the revisions of earlier starts. It runs after the instance was created: nothing refers to
// them any more, and the start is not delayed.
func deleteOldRevisions(ctx context.Context, s *Scope) error {
	revisions, err := listStartRevisions(ctx, s)
	if err != nil {
		return err
	}
	current := v1.StartRevisionName(s.VM.UID, s.VM.Generation)
	for i := range revisions {
		if revisions[i].Name == current {
			continue
		}
		if err := s.deleteRevision(ctx, &appsv1.ControllerRevision{ObjectMeta: revisions[i].ObjectMeta}); err != nil {
			return err
		}
	}
	return nil
}

// listStartRevisions lists the VM's start revisions without their data.
func listStartRevisions(ctx context.Context, s *Scope) ([]metav1.PartialObjectMetadata, error) {
	revisions, err := listRevisions(ctx, s)
	return slices.DeleteFunc(revisions,
		func(r metav1.PartialObjectMetadata) bool { return reference.IsRevision(r.Labels) }), err
}

// listRevisions lists the metadata of the VM's revisions: those of its starts, and those of its instance type and
// preference. The cache does not store their data.
func listRevisions(ctx context.Context, s *Scope) ([]metav1.PartialObjectMetadata, error) {
	return kit.OwnRevisions(ctx, s.Client, s.VM)
}

// sorter sorts the keys of the VM's revisions.
func (s *Scope) sorter() kit.RevisionSorter {
	return kit.RevisionSorter{Client: s.Client, APIReader: s.APIReader, Owner: s.VM}
}

// sortRevisions sorts the keys of the VM's revisions that are not sorted.
func sortRevisions(ctx context.Context, s *Scope) error {
	revisions, err := listRevisions(ctx, s)
	if err != nil {
		return err
	}
	return s.sorter().SortAll(ctx, revisions)
}

// startedFrom returns the name of the start revision of the instance, or "".
func startedFrom(s *Scope) string {
	if name := s.VMI.Status.VirtualMachineRevisionName; name != "" {
		return name
	}
	if generation := madeFrom(s.VMI); generation != 0 {
		return v1.StartRevisionName(s.VM.UID, generation)
	}
	return ""
}

// StoredIdentity returns what the firmware UUID and serial number of a VM without a record are derived from.
func StoredIdentity(ctx context.Context, s *Scope) (firmware.Identity, error) {
	revisions, err := listStartRevisions(ctx, s)
	return identityOf(s.VM, revisions), err
}

// StartedSpec returns the spec that the instance was made from, or nil if it is unknown, as for an adopted instance.
func StartedSpec(ctx context.Context, s *Scope) (*v1.VirtualMachineSpec, error) {
	name := startedFrom(s)
	if name == "" {
		return nil, nil
	}
	revision := &appsv1.ControllerRevision{}
	key := client.ObjectKey{Namespace: s.VM.Namespace, Name: name}
	if err := s.APIReader.Get(ctx, key, revision); err != nil {
		return nil, client.IgnoreNotFound(fmt.Errorf("get ControllerRevision %s: %w", key, err))
	}
	data := revisionData{}
	if err := quantity.Unmarshal(revision.Data, &data); err != nil {
		return nil, fmt.Errorf("decode the spec in ControllerRevision %s: %w", key, err)
	}
	if data.Spec.Template == nil {
		return nil, nil // Not written by virt-controller.
	}
	return &data.Spec, nil
}

// madeFrom returns the generation of the VM's spec that is in effect in an instance, or 0 if it is unknown.
func madeFrom(vmi *v1.VirtualMachineInstance) int64 {
	generation, err := strconv.ParseInt(vmi.Annotations[v1.VirtualMachineGenerationAnnotation], 10, 64)
	if err != nil || generation < 1 {
		return 0
	}
	return generation
}
