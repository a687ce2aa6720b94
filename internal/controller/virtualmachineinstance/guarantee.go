// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// ReasonFailedGuarantee is status.reason, and the reason of the event, of a VMI with dedicated CPUs whose Pod is not
// Guaranteed. KubeVirt's name.
const ReasonFailedGuarantee = "FailedGuaranteeResources"

// requireGuaranteed ends a VMI with dedicated CPUs whose Pod is not Guaranteed: the kubelet would give it shared CPUs.
// The Pod is rendered as Guaranteed, but a webhook can change that, for instance by adding a container.
func (s *scope) requireGuaranteed(ctx context.Context) error {
	if s.pod == nil || !s.vmi.IsCPUDedicated() || s.deleting() {
		return nil
	}
	switch {
	case s.stage() == vmistatus.Ended && s.vmi.Status.Reason == ReasonFailedGuarantee:
		// The guest never ran, so that nothing in the Pod is worth keeping.
		return s.deletePod(ctx)
	case s.stage() != vmistatus.Preparing || !podstate.Running(s.pod):
		return nil
	}
	// The API server sets the class when the Pod is created.
	if class := s.pod.Status.QOSClass; class != "" && class != corev1.PodQOSGuaranteed {
		s.final = &finalState{
			phase: v1.Failed, reason: ReasonFailedGuarantee,
			message: fmt.Sprintf("The launcher Pod %s is %s and not Guaranteed, so that it gets no CPUs of its own: "+
				"each of its containers needs requests and limits that are equal, for CPU and memory.", s.pod.Name, class),
		}
	}
	return nil
}
