// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// ReasonFailedGuarantee is status.reason, and the reason of the event, of a VMI whose dedicated CPUs no kubelet gives to
// its Pod. KubeVirt's name.
const ReasonFailedGuarantee = "FailedGuaranteeResources"

// requireGuaranteed ends a VMI with dedicated CPUs whose Pod is not Guaranteed: it would share all of its CPUs. The Pod
// is rendered to be, but others can change it on its way, such as by a container beside the guest.
func requireGuaranteed(ctx context.Context, s *Scope) error {
	if s.Pod == nil || !s.VMI.IsCPUDedicated() || s.deleting() {
		return nil
	}
	switch {
	case s.stage() == vmistatus.Ended && s.VMI.Status.Reason == ReasonFailedGuarantee:
		// The guest never ran: the Pod has nothing to tell, and waits for a guest in vain.
		return s.deletePod(ctx)
	case s.stage() != vmistatus.Preparing || !Running(s.Pod):
		return nil
	}
	// The API server sets the class when it takes the Pod.
	if class := s.Pod.Status.QOSClass; class != "" && class != corev1.PodQOSGuaranteed {
		s.End = &End{
			Phase: v1.Failed, Reason: ReasonFailedGuarantee,
			Message: fmt.Sprintf("The launcher Pod %s is %s and not Guaranteed, so that it gets no CPUs of its own: "+
				"each of its containers needs requests and limits that are equal, for CPU and memory.", s.Pod.Name, class),
		}
	}
	return nil
}
