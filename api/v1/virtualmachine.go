// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"errors"
	"fmt"
	"maps"

	"k8s.io/apimachinery/pkg/types"
)

// RunStrategy returns the strategy in force: spec.runStrategy, or that of the older spec.running (true is
// Always, false is Halted). Neither means Halted; both is an error that admission refuses.
func (vm *VirtualMachine) RunStrategy() (VirtualMachineRunStrategy, error) {
	switch {
	case vm.Spec.Running != nil && vm.Spec.RunStrategy != nil:
		return RunStrategyUnknown, errors.New("running and runstrategy are mutually exclusive")
	case vm.Spec.RunStrategy != nil:
		return *vm.Spec.RunStrategy, nil
	case vm.Spec.Running != nil && *vm.Spec.Running:
		return RunStrategyAlways, nil
	default:
		return RunStrategyHalted, nil
	}
}

// SetRunStrategy writes the strategy into the field that the VM uses: spec.runStrategy, or spec.running, which knows
// Always and not Always only.
func (vm *VirtualMachine) SetRunStrategy(strategy VirtualMachineRunStrategy) {
	if vm.Spec.RunStrategy != nil {
		vm.Spec.RunStrategy = &strategy
		return
	}
	always := strategy == RunStrategyAlways
	vm.Spec.Running = &always
}

// MadeUnder returns a request that records the run strategy of the VM.
func (r VirtualMachineStateChangeRequest) MadeUnder(
	strategy VirtualMachineRunStrategy,
) VirtualMachineStateChangeRequest {
	data := map[string]string{}
	maps.Copy(data, r.Data)
	data[RequestDataRunStrategyKey] = string(strategy)
	r.Data = data
	return r
}

// AppliesTo reports whether a request is still to be carried out when the VM has a run strategy. A change of the
// strategy replaces the requests that were made before it. A start with options that was made under Halted sets the
// strategy Always, and is carried out under it.
func (r VirtualMachineStateChangeRequest) AppliesTo(strategy VirtualMachineRunStrategy) bool {
	start := r.Action == StartRequest
	switch made := VirtualMachineRunStrategy(r.Data[RequestDataRunStrategyKey]); made {
	case strategy:
		return true
	case RunStrategyHalted:
		return start && strategy == RunStrategyAlways
	// Another client made it. Under Halted, KubeVirt makes no request for a start without options: it changes the
	// strategy.
	case "":
		return strategy != RunStrategyHalted || !start || len(r.Data) > 0
	default:
		return false
	}
}

// StartRevisionName is the name of the ControllerRevision with the spec that a VM was started with. KubeVirt's.
func StartRevisionName(vm types.UID, generation int64) string {
	return fmt.Sprintf("revision-start-vm-%s-%d", vm, generation)
}
