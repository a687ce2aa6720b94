// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// ReasonPodRefused is the reason where a kubelet gives none for refusing the launcher Pod.
const ReasonPodRefused = "PodRefused"

// The pauses between a Pod that a kubelet refused and the next one. The shortest is about what a device plugin needs to
// register again; the longest is often enough for a node that will not change its mind.
const (
	firstPause = 2 * time.Second
	lastPause  = time.Minute
)

// refused says that the launcher Pod of a VMI that prepares failed before anything of it ran. That says nothing about the
// guest, and another Pod may do: the kubelet found a device plugin gone for a moment, or less room than the scheduler had
// counted on, or was about to go down.
//
// A Pod that somebody takes away while the VMI says that it has one is not meant: as in KubeVirt, that ends the VMI.
func (s *Scope) refused() bool {
	if s.Pod == nil || !s.preparing() || !unused(s.Pod) {
		return false
	}
	return s.VMI.Labels[v1.NodeNameLabel] == "" && (s.Pod.DeletionTimestamp == nil || s.VMI.Status.Phase != v1.Scheduling)
}

// unused says that a launcher Pod failed without any of its containers having run. The readiness gate is written before an
// agent can take the guest over: it proves the contrary whatever the kubelet has forgotten when it started anew.
func unused(pod *corev1.Pod) bool {
	if pod.Status.Phase != corev1.PodFailed || podCondition(pod, v1.VirtualMachineUnpaused) != nil {
		return false
	}
	containers := slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses)
	return !slices.ContainsFunc(containers, func(c corev1.ContainerStatus) bool {
		return c.State.Running != nil || c.State.Terminated != nil || c.LastTerminationState.Terminated != nil || c.RestartCount > 0
	})
}

// retryAt is when another Pod is made in the place of one that was refused. since is when the VMI's first Pod was made, zero
// if this is the first. The pause is as long as the attempts have gone on before this Pod, so that it doubles without
// anybody counting them.
func retryAt(created, since time.Time) time.Time {
	if since.IsZero() {
		return created.Add(firstPause)
	}
	return created.Add(min(max(created.Sub(since), firstPause), lastPause))
}

// removeRefused makes room for another Pod in the place of one that was refused, as both have the same name, and says
// whether there is room. The VMI has said before that it has no Pod: so it does not end if this process does, between the one
// Pod and the other.
func (s *Scope) removeRefused(ctx context.Context) (bool, error) {
	if s.Problem != nil || s.End != nil || s.importing {
		return false, nil // Another Pod could not be made.
	}
	s.Problem = refusal(s.Pod)
	if s.Pod.DeletionTimestamp != nil {
		return false, nil
	}
	if wait := retryAt(s.Pod.CreationTimestamp.Time, s.firstPod()).Sub(s.Now); wait > 0 {
		s.RequeueAfter = wait
		return false, nil
	}
	if s.VMI.Status.Phase == v1.Scheduling {
		return false, nil // The write of the status wakes us up again.
	}
	// The API server takes away a Pod that has ended at once, without asking the kubelet.
	err := s.Client.Delete(ctx, s.Pod, client.Preconditions{UID: ptr.To(s.Pod.UID)})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		// The cache is behind: the Pod is gone, and another one may be there.
	case err != nil:
		return false, fmt.Errorf("delete launcher Pod %s, which was refused: %w", s.Pod.Name, err)
	default:
		s.event(corev1.EventTypeNormal, ReasonSuccessfulDelete, actionDelete, "Deleted virtual machine pod %s, which never ran", s.Pod.Name)
	}
	s.Pod, s.Problem = nil, nil
	return true, nil
}

func refusal(pod *corev1.Pod) *Problem {
	return &Problem{
		Reason: cmp.Or(word(pod.Status.Reason), ReasonPodRefused),
		Message: fmt.Sprintf("Launcher Pod %s failed on node %s before it ran, and is made again: %s",
			pod.Name, cmp.Or(pod.Spec.NodeName, "<none>"), sentence(pod.Status.Message)),
	}
}

// firstPod is when the VMI's first Pod was made, as far as the status tells.
func (s *Scope) firstPod() time.Time {
	for _, stamp := range s.VMI.Status.PhaseTransitionTimestamps {
		if stamp.Phase == v1.Scheduling {
			return stamp.PhaseTransitionTimestamp.Time
		}
	}
	return time.Time{}
}

// setRefused says that there is no Pod to speak of.
func setRefused(s *Scope, status *v1.VirtualMachineInstanceStatus) {
	stampPassed(s, status)
	vmistatus.SetPhase(status, v1.Pending, metav1.NewTime(s.Now))
	setNotReady(s, status, v1.PodNotExistsReason, "There is no launcher Pod: the last one failed before it ran.")
}
