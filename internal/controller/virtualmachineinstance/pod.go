// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"context"
	"errors"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
	"github.com/vireo-project/vireo/internal/optimistic"
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
	// actionCreateState is about the state claim.
	actionCreateState = "CreateClaim"
	actionAssign      = "Assign"
	actionWait        = "Wait"
	actionEnd         = "End"
)

// errForeignPod is the problem of a Pod that has the launcher Pod's name and is not the VMI's.
var errForeignPod = errors.New("belongs to another owner: delete it, or give the VirtualMachineInstance another name")

// errSecondPod is the problem of a launcher Pod of the VMI that has another name than the one to be created.
var errSecondPod = errors.New("already is a launcher of this VirtualMachineInstance: delete it if no guest runs in it")

// reconcilePod creates the launcher Pod of a VMI that prepares and deletes that of a deleted VMI. The Pod of a VMI that
// ended by itself is kept for its logs. A Pod whose containers never ran has no logs and is replaced.
func (s *scope) reconcilePod(ctx context.Context) error {
	switch {
	case s.podNameTaken && s.deleting():
		return nil // The VMI has no Pod that would have to be deleted.
	case s.podNameTaken:
		err := fmt.Errorf("pod %s/%s %w", s.vmi.Namespace, podspec.OwnPodName(s.vmi), errForeignPod)
		s.failCreate(err)
		return err
	case s.pod != nil && !podspec.IsOf(s.pod, s.vmi):
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
	case !s.preparing() || s.pod != nil || s.problem != nil || s.final != nil || s.importing:
		return nil
	case s.vmi.Status.Phase == v1.Scheduling:
		return nil // The Pod was deleted, which ends the VMI.
	}
	if len(s.dataVolumes) > 0 {
		if wait, err := s.mustWaitForBinding(ctx); err != nil || wait {
			return err
		}
	}
	return s.createPod(ctx)
}

func (s *scope) createPod(ctx context.Context) error {
	pod, err := podspec.Build(s.vmi, s.podConfig)
	switch {
	case errors.Is(err, podspec.ErrNoLauncherImage):
		s.failCreate(err)
		return fmt.Errorf("render launcher Pod: %w", err)
	case err != nil:
		// A retry does not help, only a change of the VMI.
		s.failCreate(err)
		return reconcile.TerminalError(fmt.Errorf("render launcher Pod: %w", err))
	}
	if err := s.refuseSecondPod(ctx, pod.Name); err != nil {
		s.failCreate(err)
		return err
	}
	podspec.NoteLauncherImage(pod)
	err = kit.CreatePod(ctx, s.client, s.apiReader, pod, launcherpod.ConsoleLogContainer)
	if apierrors.IsAlreadyExists(err) {
		return s.findPod(ctx, pod)
	}
	if err != nil {
		err = fmt.Errorf("create launcher Pod %s: %w", pod.Name, err)
		s.failCreate(err)
		return err // Also if it is invalid: that may depend on a LimitRange or a webhook, whose changes trigger nothing.
	}
	s.pod = pod
	s.event(corev1.EventTypeNormal, ReasonSuccessfulCreate, actionCreate, "Created virtual machine pod %s", pod.Name)
	s.warnOfUnusedState()
	return nil
}

// refuseSecondPod fails while this VMI has an unfinished launcher Pod of another name than the one to be created: two
// guests would write to the same disks. The end of that Pod triggers another reconciliation. The API server refuses a
// second Pod of the same name.
func (s *scope) refuseSecondPod(ctx context.Context, name string) error {
	pods, err := s.listPods(ctx)
	if err != nil {
		return err
	}
	for i := range pods {
		if pod := &pods[i]; pod.Name != name && s.owns(pod) && !podstate.Finished(pod) {
			return fmt.Errorf("pod %s/%s %w", pod.Namespace, pod.Name, errSecondPod)
		}
	}
	return nil
}

// findPod reads the Pod that exists although the cache does not have it: the cache is older than our own creation, or
// the name is taken.
func (s *scope) findPod(ctx context.Context, wanted *corev1.Pod) error {
	pod := &corev1.Pod{}
	key := client.ObjectKeyFromObject(wanted)
	if err := s.apiReader.Get(ctx, key, pod); err != nil {
		return fmt.Errorf("get launcher Pod %s, which exists: %w", key, err)
	}
	if !s.owns(pod) {
		err := fmt.Errorf("pod %s %w", key, errForeignPod)
		s.failCreate(err)
		return err
	}
	s.pod = pod
	if podspec.IsOf(pod, s.vmi) {
		return nil
	}
	if err := s.adoptPod(ctx); err != nil {
		s.failCreate(err)
		return err
	}
	return nil
}

// owns reports whether a Pod is a launcher Pod of this VMI, even if it has lost its owner reference.
func (o *observed) owns(pod *corev1.Pod) bool {
	return podspec.IsOf(pod, o.vmi) || podspec.IsOrphanOf(pod, o.vmi)
}

// adoptPod adopts the launcher Pod that the guest is in.
func (s *scope) adoptPod(ctx context.Context) error {
	adopted, err := s.adopt(ctx, s.pod)
	if err == nil {
		s.pod = adopted
	}
	return err
}

// adopt restores the owner reference of a launcher Pod of this VMI, which is lost when the VMI is restored from a
// backup.
func (s *scope) adopt(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	adopted, err := optimistic.Patch(ctx, s.client, pod, func(pod *corev1.Pod) {
		pod.OwnerReferences = append(pod.OwnerReferences,
			*metav1.NewControllerRef(s.vmi, v1.VirtualMachineInstanceGroupVersionKind))
	})
	if err != nil {
		return nil, fmt.Errorf("adopt Pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return adopted, nil
}

// syncPodMetadata copies the VMI's annotations and labels to the Pod that others read while it runs.
func (s *scope) syncPodMetadata(ctx context.Context) error {
	if s.pod == nil || s.pod.DeletionTimestamp != nil || podstate.Finished(s.pod) || s.deleting() {
		return nil
	}
	changed := s.pod.DeepCopy()
	s.podConfig.Live.Copy(&changed.ObjectMeta, &s.vmi.ObjectMeta)
	// An older launcher may not have the program of the hooks.
	if podspec.LauncherImage(s.pod) == s.podConfig.LauncherImage && changed.Annotations != nil {
		podspec.SwitchBackupHooks(changed.Annotations, s.vmi, s.podConfig)
	}
	if err := s.forgetEviction(ctx, changed); err != nil {
		return err
	}
	if maps.Equal(s.pod.Annotations, changed.Annotations) && maps.Equal(s.pod.Labels, changed.Labels) {
		return nil
	}
	if err := s.client.Patch(ctx, changed, optimistic.MergeFrom(s.pod)); err != nil {
		return fmt.Errorf("patch annotations and labels of launcher Pod %s: %w", s.pod.Name, err)
	}
	s.pod = changed
	return nil
}

func (s *scope) failCreate(err error) {
	s.problem = &problem{reason: ReasonFailedCreate, message: err.Error()}
}

// stopPod deletes the Pod of a deleted VMI. A finished Pod is kept until its outcome is in the status.
func (s *scope) stopPod(ctx context.Context) error {
	if s.pod == nil || podstate.Finished(s.pod) {
		return nil
	}
	return s.deletePod(ctx)
}

// deletePod deletes the Pod. virt-launcher shuts the guest down when the kubelet stops it.
func (s *scope) deletePod(ctx context.Context) error {
	if s.pod == nil || s.pod.DeletionTimestamp != nil {
		return nil
	}
	err := s.client.Delete(ctx, s.pod, client.Preconditions{UID: ptr.To(s.pod.UID)})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		s.event(corev1.EventTypeWarning, ReasonFailedDelete, actionDelete, "Error deleting virtual machine pod %s: %v",
			s.pod.Name, err)
		return fmt.Errorf("delete launcher Pod %s: %w", s.pod.Name, err)
	}
	s.event(corev1.EventTypeNormal, ReasonSuccessfulDelete, actionDelete, "Deleted virtual machine pod %s", s.pod.Name)
	return nil
}
