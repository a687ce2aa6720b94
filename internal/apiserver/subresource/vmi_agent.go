// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"context"
	"errors"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/apiserver/agentclient"
	"github.com/vireo-project/vireo/internal/conditions"
)

// KubeVirt's messages (kubevirt/kubevirt pkg/virt-api/rest).
const (
	vmiNotRunning    = "VMI is not running"
	vmiNotPaused     = "VMI is not paused"
	vmiPaused        = "VMI is paused"
	noGuestAgent     = "VMI does not have guest agent connected"
	snapshotUnderway = "VM snapshot is in progress"
)

// requireVMI returns a VMI, or an error if it does not exist.
func (a *API) requireVMI(ctx context.Context, key types.NamespacedName) (*v1.VirtualMachineInstance, error) {
	vmi, err := a.vmi(ctx, key)
	if err == nil && vmi == nil {
		return nil, apierrors.NewNotFound(vmiResource, key.Name)
	}
	return vmi, err
}

// checkedVMI returns the VMI of a request, or an error if it does not exist or check returns one.
func (a *API) checkedVMI(r *http.Request, check func(*v1.VirtualMachineInstance) error) (*v1.VirtualMachineInstance, error) {
	vmi, err := a.requireVMI(r.Context(), key(r))
	if err != nil {
		return nil, err
	}
	return vmi, check(vmi)
}

// vmiOfVM returns the VMI of a VM.
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
	return vmi, vmWithVMI{vm, vmi}.checkOwner()
}

// vmiConflict returns the error of a request that the VMI's state does not allow.
func vmiConflict(vmi *v1.VirtualMachineInstance, message string) error {
	return apierrors.NewConflict(vmiResource, vmi.Name, errors.New(message))
}

// condition returns a condition of a VMI, or nil.
func condition(vmi *v1.VirtualMachineInstance, kind v1.VirtualMachineInstanceConditionType) *v1.VirtualMachineInstanceCondition {
	return conditions.Find(vmi.Status.Conditions, kind)
}

// vmiRef returns the reference to a VMI by which its node's agent is found. A VMI has an agent from the phase Scheduled until it
// finishes.
func vmiRef(vmi *v1.VirtualMachineInstance) (agentclient.VMIRef, error) {
	if !vmi.IsRunning() && !vmi.IsScheduled() {
		return agentclient.VMIRef{}, apierrors.NewBadRequest("Unable to connect to VirtualMachineInstance because phase is " +
			string(vmi.Status.Phase) + " instead of " + string(v1.Running) + " or " + string(v1.Scheduled))
	}
	return agentclient.VMIRef{
		NamespacedName: types.NamespacedName{Namespace: vmi.Namespace, Name: vmi.Name}, UID: vmi.UID, Node: vmi.Status.NodeName,
	}, nil
}

// putToAgent sends a request to the agent of a VMI, unless it is a dry run.
func (a *API) putToAgent(w http.ResponseWriter, r *http.Request, vmi *v1.VirtualMachineInstance, request agentclient.Request, dry bool) error {
	var err error
	if request.VMIRef, err = vmiRef(vmi); err != nil {
		return err
	}
	if !dry {
		if err := a.Agents.Put(r.Context(), request); err != nil {
			return err
		}
	}
	// KubeVirt responds 202 to changes of a VM and 200 to changes of a VMI.
	w.WriteHeader(http.StatusOK)
	return nil
}
