// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/podspec"
)

// Reasons of events and of the condition Synchronized about the launcher Pod. KubeVirt's names.
const (
	ReasonSuccessfulCreate = "SuccessfulCreate"
	ReasonFailedCreate     = "FailedCreate"
	ReasonSuccessfulDelete = "SuccessfulDelete"
	ReasonFailedDelete     = "FailedDelete"
)

// Actions of events.
const (
	actionCreate = "CreatePod"
	actionDelete = "DeletePod"
	// actionCreateState is about the claim with the machine's state.
	actionCreateState = "CreateClaim"
	actionHandOver    = "HandOver"
	actionWait        = "Wait"
	actionEnd         = "End"
)

// errForeignPod is a Pod of the launcher's name that belongs to somebody else.
var errForeignPod = errors.New("belongs to somebody else: delete it, or give the VirtualMachineInstance another name")

// errSecondPod is a launcher Pod of the VMI's that has another name than the one that would be made.
var errSecondPod = errors.New("already is a launcher of this VirtualMachineInstance: delete it if no guest runs in it")

// reconcilePod makes the launcher Pod of a VMI that prepares and deletes that of a deleted one. The Pod of a VMI that
// ended by itself stays: its logs are the guest's last words. One that never ran has none, and is replaced.
func reconcilePod(ctx context.Context, s *Scope) error {
	switch {
	case s.foreign && s.deleting():
		return nil // None of ours is there, and so none is in the way.
	case s.foreign:
		err := fmt.Errorf("pod %s/%s %w", s.VMI.Namespace, podspec.OwnPodName(s.VMI), errForeignPod)
		s.failCreate(err)
		return err
	case s.Pod != nil && !podspec.IsOf(s.Pod, s.VMI):
		if err := s.adoptPod(ctx); err != nil {
			s.failCreate(err)
			return err
		}
	}
	switch {
	case s.deleting():
		return s.stopPod(ctx)
	case s.refused():
		if gone, err := s.removeRefused(ctx); err != nil || !gone {
			return err
		}
	case !s.preparing() || s.Pod != nil || s.Problem != nil || s.End != nil || s.importing:
		return nil
	case s.VMI.Status.Phase == v1.Scheduling:
		return nil // There was a Pod, and somebody took it away. That ends the VMI.
	}
	if len(s.imports) > 0 {
		if wait, err := s.bindVolumes(ctx); err != nil || wait {
			return err
		}
	}
	return s.createPod(ctx)
}

func (s *Scope) createPod(ctx context.Context) error {
	pod, err := podspec.Build(s.VMI, s.Config)
	switch {
	case errors.Is(err, podspec.ErrNoLauncherImage):
		s.failCreate(err)
		return fmt.Errorf("render launcher Pod: %w", err)
	case err != nil:
		// Trying again does not help. A change of the VMI does.
		s.failCreate(err)
		return reconcile.TerminalError(fmt.Errorf("render launcher Pod: %w", err))
	}
	if err := s.refuseSecondPod(ctx, pod.Name); err != nil {
		s.failCreate(err)
		return err
	}
	podspec.NoteLauncherImage(pod)
	err = s.Client.Create(ctx, pod)
	if apierrors.IsAlreadyExists(err) {
		return s.findPod(ctx, pod)
	}
	if err != nil {
		err = fmt.Errorf("create launcher Pod %s: %w", pod.Name, err)
		s.failCreate(err)
		if apierrors.IsInvalid(err) {
			return reconcile.TerminalError(err)
		}
		return err
	}
	s.Pod = pod
	s.event(corev1.EventTypeNormal, ReasonSuccessfulCreate, actionCreate, "Created virtual machine pod %s", pod.Name)
	return nil
}

// refuseSecondPod fails while this VMI has a launcher Pod of another name than the one to be made: two guests would write to the same disks.
// The end of that Pod wakes us. The API server refuses a second one of the same name.
func (s *Scope) refuseSecondPod(ctx context.Context, name string) error {
	pods, err := s.listPods(ctx)
	if err != nil {
		return err
	}
	for i := range pods {
		if pod := &pods[i]; pod.Name != name && s.owns(pod) && !finished(pod) {
			return fmt.Errorf("pod %s/%s %w", pod.Namespace, pod.Name, errSecondPod)
		}
	}
	return nil
}

// findPod takes the Pod that exists although the cache does not show it: the cache is behind our own creation, or the
// name is taken.
func (s *Scope) findPod(ctx context.Context, wanted *corev1.Pod) error {
	pod := &corev1.Pod{}
	key := client.ObjectKeyFromObject(wanted)
	if err := s.Live.Get(ctx, key, pod); err != nil {
		return fmt.Errorf("get launcher Pod %s, which exists: %w", key, err)
	}
	if !s.owns(pod) {
		err := fmt.Errorf("pod %s %w", key, errForeignPod)
		s.failCreate(err)
		return err
	}
	s.Pod = pod
	if podspec.IsOf(pod, s.VMI) {
		return nil
	}
	if err := s.adoptPod(ctx); err != nil {
		s.failCreate(err)
		return err
	}
	return nil
}

// owns says that a Pod is a launcher Pod of this VMI, though it may have lost its owner. One of somebody else is left alone.
func (s *Scope) owns(pod *corev1.Pod) bool {
	return podspec.IsOf(pod, s.VMI) || podspec.IsOrphanOf(pod, s.VMI)
}

// adoptPod takes over the launcher Pod that the guest is in.
func (s *Scope) adoptPod(ctx context.Context) error {
	adopted, err := s.adopt(ctx, s.Pod)
	if err == nil {
		s.Pod = adopted
	}
	return err
}

// adopt takes over a launcher Pod of this VMI that lost its owner, as after a restore.
func (s *Scope) adopt(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	adopted := pod.DeepCopy()
	adopted.OwnerReferences = append(adopted.OwnerReferences,
		*metav1.NewControllerRef(s.VMI, v1.VirtualMachineInstanceGroupVersionKind))
	lock := client.MergeFromWithOptions(pod, client.MergeFromWithOptimisticLock{})
	if err := s.Client.Patch(ctx, adopted, lock); err != nil {
		return nil, fmt.Errorf("adopt Pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return adopted, nil
}

// describePod gives the Pod the annotations and labels of the VMI that others read while it runs.
func describePod(ctx context.Context, s *Scope) error {
	if s.Pod == nil || s.Pod.DeletionTimestamp != nil || finished(s.Pod) || s.deleting() {
		return nil
	}
	changed := s.Pod.DeepCopy()
	s.Config.Live.Copy(&changed.ObjectMeta, &s.VMI.ObjectMeta)
	if podspec.LauncherImage(s.Pod) == s.Config.LauncherImage && changed.Annotations != nil { // An older launcher may not have the program.
		podspec.SwitchBackupHooks(changed.Annotations, s.VMI, s.Config)
	}
	if err := forgetEviction(ctx, s, changed); err != nil {
		return err
	}
	if equalMaps(s.Pod.Annotations, changed.Annotations) && equalMaps(s.Pod.Labels, changed.Labels) {
		return nil
	}
	lock := client.MergeFromWithOptions(s.Pod, client.MergeFromWithOptimisticLock{})
	if err := s.Client.Patch(ctx, changed, lock); err != nil {
		return fmt.Errorf("patch annotations and labels of launcher Pod %s: %w", s.Pod.Name, err)
	}
	s.Pod = changed
	return nil
}

func (s *Scope) failCreate(err error) {
	s.Problem = &Problem{Reason: ReasonFailedCreate, Message: err.Error()}
}

// stopPod deletes the Pod of a deleted VMI. One that has ended says how, and goes once that is in the status.
func (s *Scope) stopPod(ctx context.Context) error {
	if s.Pod == nil || finished(s.Pod) {
		return nil
	}
	return s.deletePod(ctx)
}

// deletePod asks the kubelet to stop the Pod. virt-launcher turns that into a shutdown of the guest.
func (s *Scope) deletePod(ctx context.Context) error {
	if s.Pod == nil || s.Pod.DeletionTimestamp != nil {
		return nil
	}
	err := s.Client.Delete(ctx, s.Pod, client.Preconditions{UID: ptr.To(s.Pod.UID)})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		s.event(corev1.EventTypeWarning, ReasonFailedDelete, actionDelete, "Error deleting virtual machine pod %s: %v",
			s.Pod.Name, err)
		return fmt.Errorf("delete launcher Pod %s: %w", s.Pod.Name, err)
	}
	s.event(corev1.EventTypeNormal, ReasonSuccessfulDelete, actionDelete, "Deleted virtual machine pod %s", s.Pod.Name)
	return nil
}

// compute returns the status of the Pod's compute container, or nil.
func compute(pod *corev1.Pod) *corev1.ContainerStatus {
	for i := range pod.Status.ContainerStatuses {
		if pod.Status.ContainerStatuses[i].Name == launcherpod.ComputeContainer {
			return &pod.Status.ContainerStatuses[i]
		}
	}
	return nil
}

// finished says that nothing of the Pod runs any more, nor will.
func finished(pod *corev1.Pod) bool {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return true
	}
	container := compute(pod)
	return container != nil && container.State.Terminated != nil
}

// Running says that virt-launcher runs on a node.
func Running(pod *corev1.Pod) bool {
	container := compute(pod)
	return pod.Spec.NodeName != "" && pod.Status.Phase == corev1.PodRunning &&
		container != nil && container.State.Running != nil
}

func podCondition(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == kind {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}
