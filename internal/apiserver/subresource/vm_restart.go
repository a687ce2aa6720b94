// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// forcedGrace is the grace period in seconds of a restart that does not wait for the guest. With 0 the launcher would be killed
// before it reports how the guest ended. KubeVirt's value.
const forcedGrace int64 = 1

// restart requests that virt-controller stops a VM's VMI and starts another.
func (a *API) restart(w http.ResponseWriter, r *http.Request) error {
	options := &v1.RestartOptions{}
	if err := decode(r, options); err != nil {
		return err
	}
	if grace := options.GracePeriodSeconds; grace != nil {
		switch {
		case *grace > 0:
			return apierrors.NewBadRequest("For force restart, only gracePeriod=0 is supported for now")
		case *grace < 0:
			return apierrors.NewBadRequest("gracePeriod has to be greater or equal to 0")
		}
	}
	return a.serveChange(w, r, options.DryRun, func(m vmWithVMI) (plan, error) {
		return decideRestart(m, options.GracePeriodSeconds != nil)
	})
}

func decideRestart(m vmWithVMI, force bool) (plan, error) {
	if m.isConditionTrue(v1.VirtualMachineConditionType(v1.VirtualMachineInstanceVolumesChange)) {
		return plan{}, m.conflict(recoveryRequired)
	}
	strategy, err := m.vm.RunStrategy()
	if err != nil {
		return plan{}, err
	}
	if strategy == v1.RunStrategyHalted || strategy == v1.RunStrategyOnce {
		return plan{}, m.conflict("RunStategy %v does not support manual restart requests", strategy) // KubeVirt's spelling
	}
	if m.vmi == nil {
		return plan{}, m.conflict("VM is not running: %v", v1.RunStrategyHalted)
	}
	p, err := m.request(m.stopRequest(), v1.VirtualMachineStateChangeRequest{Action: v1.StartRequest})
	if force {
		p.grace = ptr.To(forcedGrace)
	}
	return p, err
}
