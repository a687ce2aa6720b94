// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package health computes what tools that deploy objects and wait for them conclude from our statuses: kstatus, which
// Flux and kpt use, and Argo CD. docs/health.md describes the result.
package health

import (
	"testing"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/conditions"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// What kstatus concludes from an object.
const (
	Current     = string(status.CurrentStatus)
	InProgress  = string(status.InProgressStatus)
	Failed      = string(status.FailedStatus)
	Terminating = string(status.TerminatingStatus)
)

// What Argo CD concludes from an object.
const (
	Healthy     = "Healthy"
	Progressing = "Progressing"
	Degraded    = "Degraded"
	Suspended   = "Suspended"
)

// Kstatus returns what kstatus concludes from an object.
func Kstatus(t *testing.T, object runtime.Object) string {
	t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		t.Fatal(err)
	}
	result, err := status.Compute(&unstructured.Unstructured{Object: content})
	if err != nil {
		t.Fatal(err)
	}
	return result.Status.String()
}

// ArgoVM returns what Argo CD concludes from a VM. These are the facts of its rule for the kind (argo-cd
// resource_customizations/kubevirt.io/VirtualMachine): a pause comes first, then the condition Ready; without it,
// nothing is known.
func ArgoVM(vm *v1.VirtualMachine) string {
	ready := conditions.Find(vm.Status.Conditions, v1.VirtualMachineReady)
	switch {
	case vm.DeletionTimestamp != nil:
		return Progressing
	case conditions.IsTrue(vm.Status.Conditions, v1.VirtualMachineConditionType(v1.VirtualMachineInstancePaused)):
		return Suspended
	case ready != nil && ready.Status == corev1.ConditionTrue:
		return Healthy
	case ready != nil && !vm.Status.Created:
		return Suspended
	default:
		return Progressing
	}
}

// ArgoVMI returns what Argo CD concludes from a VMI. These are the facts of its rule for the kind (argo-cd
// resource_customizations/kubevirt.io/VirtualMachineInstance): the phase decides, and for a running guest its
// conditions.
func ArgoVMI(vmi *v1.VirtualMachineInstance) string {
	if vmi.DeletionTimestamp != nil {
		return Progressing
	}
	switch vmi.Status.Phase {
	case v1.Failed:
		return Degraded
	case v1.Succeeded:
		return Suspended
	case v1.Pending, v1.Scheduling, v1.Scheduled:
		return Progressing
	}
	ready := vmistatus.FindCondition(&vmi.Status, v1.VirtualMachineInstanceReady)
	switch {
	case vmistatus.IsConditionTrue(&vmi.Status, v1.VirtualMachineInstancePaused):
		return Suspended
	case ready == nil:
		return Progressing
	case ready.Status == corev1.ConditionTrue:
		return Healthy
	default:
		return Degraded
	}
}
