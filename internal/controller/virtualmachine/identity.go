// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/firmware"
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
