// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"net/http"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// start starts a VM: it changes the run strategy Halted, and adds a state change request with the strategies that need one.
func (a *API) start(w http.ResponseWriter, r *http.Request) error {
	options := &v1.StartOptions{}
	if err := decode(r, options); err != nil {
		return err
	}
	return a.serveChange(w, r, options.DryRun, func(m vmWithVMI) (plan, error) { return decideStart(m, options.Paused) })
}

func decideStart(m vmWithVMI, paused bool) (plan, error) {
	if m.isActive() && m.vmi.Status.Phase != v1.Unknown && m.vmi.Status.Phase != v1.VmPhaseUnset {
		return plan{}, m.conflict("VM is already running")
	}
	if m.isConditionTrue(v1.VirtualMachineManualRecoveryRequired) {
		return plan{}, m.conflict(recoveryRequired)
	}
	strategy, err := m.vm.RunStrategy()
	if err != nil {
		return plan{}, err
	}
	startRequest := v1.VirtualMachineStateChangeRequest{Action: v1.StartRequest}
	if paused {
		startRequest.Data = map[string]string{v1.StartRequestDataPausedKey: v1.StartRequestDataPausedTrue}
	}
	switch strategy {
	case v1.RunStrategyHalted:
		if paused && !startsPaused(m.vm) {
			// virt-controller changes the strategy when it observes the request.
			return m.request(startRequest)
		}
		return plan{strategy: v1.RunStrategyAlways}, nil
	case v1.RunStrategyManual:
		if m.vmi != nil && m.vmi.IsFinal() {
			return m.request(m.stopRequest(), startRequest)
		}
		return m.request(startRequest)
	case v1.RunStrategyRerunOnFailure:
		switch {
		case m.vmi != nil && m.vmi.Status.Phase == v1.Failed:
			return plan{}, m.conflict("%v does not support starting VM from failed state", strategy)
		case m.vmi != nil && m.vmi.Status.Phase == v1.Succeeded:
			return m.request(m.stopRequest(), startRequest)
		}
		return m.request(startRequest)
	default:
		return plan{}, m.conflict("%v does not support manual start requests", strategy)
	}
}

// startsPaused reports whether the VM's template makes every VMI start paused.
func startsPaused(vm *v1.VirtualMachine) bool {
	return vm.Spec.Template != nil && vm.Spec.Template.Spec.StartStrategy != nil &&
		*vm.Spec.Template.Spec.StartStrategy == v1.StartStrategyPaused
}
