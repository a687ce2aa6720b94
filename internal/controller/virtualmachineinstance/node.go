// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/node"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// ReasonNodeUnresponsive is status.reason, and the reason of the event, of a VMI whose node's agent is silent. It is
// KubeVirt's name.
const ReasonNodeUnresponsive = "NodeUnresponsive"

// lookAtNode finds out whether the agent of a live VMI's node is silent. That ends nothing: the guest may well run.
// But what the status says may be old, and a Pod that is gone as well went with its node.
func lookAtNode(ctx context.Context, s *Scope) error {
	if s.stage() != vmistatus.Live || s.VMI.Status.NodeName == "" {
		return nil
	}
	host := &metav1.PartialObjectMetadata{}
	host.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
	err := s.Client.Get(ctx, client.ObjectKey{Name: s.VMI.Status.NodeName}, host)
	switch {
	case apierrors.IsNotFound(err):
		return nil // Kubernetes takes the Pods of a Node that was removed away, and that decides.
	case err != nil:
		return fmt.Errorf("get Node %s: %w", s.VMI.Status.NodeName, err)
	}
	s.NodeSilent, s.RequeueAfter = node.Silent(&host.ObjectMeta, s.Now)
	return nil
}

// setLive notes that the node's agent is silent, for as long as it is, and where a guest that migrates is.
func setLive(s *Scope, status *v1.VirtualMachineInstanceStatus) {
	switch {
	case s.NodeSilent:
		status.Reason = ReasonNodeUnresponsive
	case status.Reason == ReasonNodeUnresponsive:
		status.Reason = ""
	}
	setEvacuation(s, status)
	setMigration(s, status)
}
