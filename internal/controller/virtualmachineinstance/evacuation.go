// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/eviction"
)

// setEvacuation has the condition EvictionRequested follow the mark: others than the webhook set and remove it as well. A mark for a
// node that the guest has left is of no use to anybody.
func setEvacuation(s *Scope, status *v1.VirtualMachineInstanceStatus) {
	if status.EvacuationNodeName != status.NodeName {
		status.EvacuationNodeName = ""
	}
	eviction.Observe(status, metav1.NewTime(s.Now))
}

// forgetEviction takes the annotations of an evicted Pod away from one that may stay. Those of one that is evicted are the webhook's,
// which writes them after the mark: only the API server knows that there is none.
func forgetEviction(ctx context.Context, s *Scope, pod *corev1.Pod) error {
	if !eviction.IsAnnotated(&pod.ObjectMeta) || eviction.IsMarked(s.VMI) {
		return nil
	}
	vmi := &v1.VirtualMachineInstance{}
	if err := s.Live.Get(ctx, client.ObjectKeyFromObject(s.VMI), vmi); err != nil {
		return client.IgnoreNotFound(err)
	}
	if !eviction.IsMarked(vmi) {
		eviction.Forget(&pod.ObjectMeta)
	}
	return nil
}
