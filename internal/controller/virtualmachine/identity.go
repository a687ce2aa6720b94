// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/firmware"
)

// identityOf returns a VM's identity. revisions are those of its earlier starts. VMs that started before the choice was recorded
// keep their UUID, and so do those that KubeVirt's controller ran, which have its annotation.
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
