// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// volumesChange is the message of the condition VolumesChange. KubeVirt's words.
const volumesChange = "migrate volumes"

// setVolumesChange asks for a migration once all is said that it needs: the claims that volumes move to are in the spec, of which the
// target's Pod is made. Who gets the guest takes the condition away.
func setVolumesChange(s *Scope, status *v1.VirtualMachineInstanceStatus) {
	if !vmistatus.MovesVolumes(status) || !vmistatus.NamesDestinations(s.VMI) {
		return
	}
	vmistatus.SetCondition(status, v1.VirtualMachineInstanceCondition{
		Type: v1.VirtualMachineInstanceVolumesChange, Status: corev1.ConditionTrue, Message: volumesChange,
	}, metav1.NewTime(s.Now))
}
