// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/migration/eviction"
)

// setEvacuation brings the condition EvictionRequested in step with status.evacuationNodeName, which the webhook and
// others set and remove. A name that is not that of the guest's node is removed.
func setEvacuation(o *observed, status *v1.VirtualMachineInstanceStatus) {
	if status.EvacuationNodeName != status.NodeName {
		status.EvacuationNodeName = ""
	}
	eviction.Observe(status, metav1.NewTime(o.now))
}

// forgetEviction removes the annotations of an evicted Pod when the eviction was canceled. The webhook sets them after
// status.evacuationNodeName, so that a stale cache could look like a cancellation: the API server has to confirm it.
func (s *scope) forgetEviction(ctx context.Context, pod *corev1.Pod) error {
	if !eviction.IsAnnotated(&pod.ObjectMeta) || eviction.IsMarked(s.vmi) {
		return nil
	}
	vmi := &v1.VirtualMachineInstance{}
	if err := s.apiReader.Get(ctx, client.ObjectKeyFromObject(s.vmi), vmi); err != nil {
		return client.IgnoreNotFound(err)
	}
	if !eviction.IsMarked(vmi) {
		eviction.Forget(&pod.ObjectMeta)
	}
	return nil
}
