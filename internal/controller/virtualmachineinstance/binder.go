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
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/outcome"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// binderPause is the least age of a failed Pod that binds volumes before it is replaced.
const binderPause = 10 * time.Second

// mustWaitForBinding creates a Pod that uses the claims that are bound or filled only when a Pod uses them, and deletes
// it when it is no longer needed. It reports whether the launcher Pod has to wait.
func (s *scope) mustWaitForBinding(ctx context.Context) (bool, error) {
	binder := &corev1.Pod{}
	key := client.ObjectKey{Namespace: s.vmi.Namespace, Name: podspec.BinderName(s.vmi)}
	err := s.client.Get(ctx, key, binder)
	exists := err == nil
	switch {
	case client.IgnoreNotFound(err) != nil:
		return true, fmt.Errorf("get Pod %s: %w", key, err)
	case exists && !podspec.IsOf(binder, s.vmi):
		err := fmt.Errorf("pod %s %w", key, errForeignPod)
		s.failCreate(err)
		return true, err
	case exists && !s.waitsForConsumer:
		return false, s.deleteBinder(ctx, binder)
	case exists:
		return true, s.awaitBinder(ctx, binder)
	case s.waitsForConsumer:
		return true, s.createBinder(ctx)
	default:
		return false, nil
	}
}

func (s *scope) createBinder(ctx context.Context) error {
	pod, err := podspec.BuildBinder(s.vmi, s.podConfig)
	if err != nil {
		s.failCreate(err)
		return fmt.Errorf("render the Pod that binds the volumes: %w", err)
	}
	err = s.client.Create(ctx, pod)
	switch {
	case apierrors.IsAlreadyExists(err):
		return nil // The cache is stale.
	case err != nil:
		err = fmt.Errorf("create Pod %s, which binds the volumes: %w", pod.Name, err)
		s.failCreate(err)
		return err
	}
	s.event(corev1.EventTypeNormal, ReasonSuccessfulCreate, actionCreate,
		"Created virtual machine pod %s, which binds the volumes",
		pod.Name)
	return nil
}

// awaitBinder reports why the Pod does not bind the volumes, and deletes it if it failed, for another one to be
// created.
func (s *scope) awaitBinder(ctx context.Context, pod *corev1.Pod) error {
	if pod.Status.Phase != corev1.PodFailed {
		s.problem = podProblem(pod)
		return nil
	}
	end := finalStateOf(pod)
	s.problem = &problem{reason: ReasonFailedCreate, message: fmt.Sprintf(
		"Pod %s, which binds the volumes, failed and is created again: %s", pod.Name, end.message)}
	if wait := pod.CreationTimestamp.Add(binderPause).Sub(s.now); wait > 0 {
		s.requeueAfter = outcome.Sooner(s.requeueAfter, wait)
		return nil
	}
	return s.deleteBinder(ctx, pod)
}

func (s *scope) deleteBinder(ctx context.Context, pod *corev1.Pod) error {
	if pod.DeletionTimestamp != nil {
		return nil
	}
	return kit.Delete(ctx, s.client, pod)
}

// setProvisioning sets the condition Provisioning while a Pod binds the VMI's volumes.
func setProvisioning(o *observed, status *v1.VirtualMachineInstanceStatus) {
	if !o.waitsForConsumer || o.importing {
		vmistatus.RemoveCondition(status, v1.VirtualMachineInstanceProvisioning)
		return
	}
	vmistatus.SetCondition(status, v1.VirtualMachineInstanceCondition{
		Type: v1.VirtualMachineInstanceProvisioning, Status: corev1.ConditionTrue,
		Message: "A Pod binds the VMI's volumes, so that the importer can fill them",
	}, metav1.NewTime(o.now))
}
