// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"context"
	"errors"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/subresource/agent"
)

// KubeVirt's messages (kubevirt/kubevirt pkg/virt-api/rest).
const (
	vmiNotRunning    = "VMI is not running"
	vmiNotPaused     = "VMI is not paused"
	vmiPaused        = "VMI is paused"
	noGuestAgent     = "VMI does not have guest agent connected"
	snapshotUnderway = "VM snapshot is in progress"
)

// requireVMI returns the instance of a name. That there is none is an error.
func (a *API) requireVMI(ctx context.Context, key types.NamespacedName) (*v1.VirtualMachineInstance, error) {
	vmi, err := a.vmi(ctx, key)
	if err == nil && vmi == nil {
		return nil, apierrors.NewNotFound(vmiResource, key.Name)
	}
	return vmi, err
}

// vmiThat returns the instance that a request is about, if its state goes with it.
func (a *API) vmiThat(r *http.Request, may func(*v1.VirtualMachineInstance) error) (*v1.VirtualMachineInstance, error) {
	vmi, err := a.requireVMI(r.Context(), key(r))
	if err != nil {
		return nil, err
	}
	return vmi, may(vmi)
}

// vmiOfVM returns the instance that a VM runs.
func (a *API) vmiOfVM(ctx context.Context, key types.NamespacedName) (*v1.VirtualMachineInstance, error) {
	vm, err := a.vm(ctx, key)
	if err != nil {
		return nil, err
	}
	if !vm.Status.Created {
		return nil, apierrors.NewConflict(vmResource, vm.Name, errors.New("VMI is not started"))
	}
	vmi, err := a.requireVMI(ctx, key)
	if err != nil {
		return nil, err
	}
	return vmi, machine{vm, vmi}.mustOwn()
}

// vmiConflict refuses what does not go with the instance's state.
func vmiConflict(vmi *v1.VirtualMachineInstance, message string) error {
	return apierrors.NewConflict(vmiResource, vmi.Name, errors.New(message))
}

// condition returns an instance's condition, or nil.
func condition(vmi *v1.VirtualMachineInstance, kind v1.VirtualMachineInstanceConditionType) *v1.VirtualMachineInstanceCondition {
	for i := range vmi.Status.Conditions {
		if vmi.Status.Conditions[i].Type == kind {
			return &vmi.Status.Conditions[i]
		}
	}
	return nil
}

func holds(vmi *v1.VirtualMachineInstance, kind v1.VirtualMachineInstanceConditionType) bool {
	c := condition(vmi, kind)
	return c != nil && c.Status == corev1.ConditionTrue
}

// target is where the agent of an instance is found. There is one from the hand-over until the instance ended.
func target(vmi *v1.VirtualMachineInstance) (agent.Target, error) {
	if !vmi.IsRunning() && !vmi.IsScheduled() {
		return agent.Target{}, apierrors.NewBadRequest("Unable to connect to VirtualMachineInstance because phase is " +
			string(vmi.Status.Phase) + " instead of " + string(v1.Running) + " or " + string(v1.Scheduled))
	}
	return agent.Target{
		NamespacedName: types.NamespacedName{Namespace: vmi.Namespace, Name: vmi.Name}, UID: vmi.UID, Node: vmi.Status.NodeName,
	}, nil
}

// tell asks the agent of an instance for a change, unless it is a dry run.
func (a *API) tell(w http.ResponseWriter, r *http.Request, vmi *v1.VirtualMachineInstance, request agent.Request, dry bool) error {
	var err error
	if request.Target, err = target(vmi); err != nil {
		return err
	}
	if !dry {
		if err := a.Agents.Put(r.Context(), request); err != nil {
			return err
		}
	}
	// KubeVirt accepts what is done to a VM, and confirms what was done to an instance.
	w.WriteHeader(http.StatusOK)
	return nil
}
