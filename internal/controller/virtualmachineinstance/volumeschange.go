// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// volumesChange is the message of the condition VolumesChange. KubeVirt's.
const volumesChange = "migrate volumes"

// setVolumesChange sets the condition that requests a migration once the spec names the claims that volumes move to:
// the target's Pod is rendered from them. Transferring ownership removes the condition.
func setVolumesChange(o *observed, status *v1.VirtualMachineInstanceStatus) {
	if !vmistatus.MovesVolumes(status) || !vmistatus.NamesDestinations(o.vmi) {
		return
	}
	vmistatus.SetCondition(status, v1.VirtualMachineInstanceCondition{
		Type: v1.VirtualMachineInstanceVolumesChange, Status: corev1.ConditionTrue, Message: volumesChange,
	}, metav1.NewTime(o.now))
}
