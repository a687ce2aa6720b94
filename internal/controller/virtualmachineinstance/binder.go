// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// binderPause is how old a Pod that could not bind the volumes gets before there is another.
const binderPause = 10 * time.Second

// bindVolumes sees to claims that are filled only after a Pod has used them, by a Pod that uses them and ends. It says
// whether the launcher Pod has to wait for that. The Pod that is not needed any more goes.
func (s *Scope) bindVolumes(ctx context.Context) (bool, error) {
	binder := &corev1.Pod{}
	key := client.ObjectKey{Namespace: s.VMI.Namespace, Name: podspec.BinderName(s.VMI)}
	err := s.Client.Get(ctx, key, binder)
	exists := err == nil
	switch {
	case client.IgnoreNotFound(err) != nil:
		return true, fmt.Errorf("get Pod %s: %w", key, err)
	case exists && !podspec.IsOf(binder, s.VMI):
		err := fmt.Errorf("pod %s %w", key, errForeignPod)
		s.failCreate(err)
		return true, err
	case exists && !s.unconsumed:
		return false, s.deleteBinder(ctx, binder)
	case exists:
		return true, s.awaitBinder(ctx, binder)
	case s.unconsumed:
		return true, s.createBinder(ctx)
	default:
		return false, nil
	}
}

func (s *Scope) createBinder(ctx context.Context) error {
	pod, err := podspec.BuildBinder(s.VMI, s.Config)
	if err != nil {
		s.failCreate(err)
		return fmt.Errorf("render the Pod that binds the volumes: %w", err)
	}
	err = s.Client.Create(ctx, pod)
	switch {
	case apierrors.IsAlreadyExists(err):
		return nil // The cache is behind.
	case err != nil:
		err = fmt.Errorf("create Pod %s, which binds the volumes: %w", pod.Name, err)
		s.failCreate(err)
		return err
	}
	s.event(corev1.EventTypeNormal, ReasonSuccessfulCreate, actionCreate, "Created virtual machine pod %s, which binds the volumes",
		pod.Name)
	return nil
}

// awaitBinder tells why a Pod does not bind the volumes, and makes room for another if it cannot any more.
func (s *Scope) awaitBinder(ctx context.Context, pod *corev1.Pod) error {
	if pod.Status.Phase != corev1.PodFailed {
		s.Problem = podProblem(pod)
		return nil
	}
	end := EndOf(pod)
	s.Problem = &Problem{Reason: ReasonFailedCreate, Message: fmt.Sprintf(
		"Pod %s, which binds the volumes, failed and is made again: %s", pod.Name, end.Message)}
	if wait := pod.CreationTimestamp.Add(binderPause).Sub(s.Now); wait > 0 {
		s.RequeueAfter = wait
		return nil
	}
	return s.deleteBinder(ctx, pod)
}

func (s *Scope) deleteBinder(ctx context.Context, pod *corev1.Pod) error {
	if pod.DeletionTimestamp != nil {
		return nil
	}
	err := s.Client.Delete(ctx, pod, client.Preconditions{UID: ptr.To(pod.UID)})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete Pod %s, which bound the volumes: %w", pod.Name, err)
	}
	return nil
}

// setProvisioning says that a Pod binds the VMI's volumes.
func setProvisioning(s *Scope, status *v1.VirtualMachineInstanceStatus) {
	if !s.unconsumed || s.importing {
		vmistatus.RemoveCondition(status, v1.VirtualMachineInstanceProvisioning)
		return
	}
	vmistatus.SetCondition(status, v1.VirtualMachineInstanceCondition{
		Type: v1.VirtualMachineInstanceProvisioning, Status: corev1.ConditionTrue,
		Message: "A Pod has the VMI's volumes bound, for the importer to fill them",
	}, metav1.NewTime(s.Now))
}
