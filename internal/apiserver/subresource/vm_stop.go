// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// notRunning is KubeVirt's message for a VM without an active VMI.
const notRunning = "VM is not running"

// stop stops a VM: it changes run strategies that would start the VM again, and adds a state change request with the others.
func (a *API) stop(w http.ResponseWriter, r *http.Request) error {
	options := &v1.StopOptions{}
	if err := decode(r, options); err != nil {
		return err
	}
	if options.GracePeriod != nil && *options.GracePeriod < 0 {
		return apierrors.NewBadRequest("gracePeriod has to be greater or equal to 0")
	}
	return a.serveChange(w, r, options.DryRun, func(m vmWithVMI) (plan, error) { return decideStop(m, options.GracePeriod) })
}

func decideStop(m vmWithVMI, grace *int64) (plan, error) {
	strategy, err := m.vm.RunStrategy()
	if err != nil {
		return plan{}, err
	}
	switch strategy {
	case v1.RunStrategyHalted:
		if !m.isActive() && m.startPending(strategy) {
			return m.cancelStart()
		}
		if !m.isActive() {
			return plan{}, m.conflict(notRunning)
		}
		// The VM is being stopped already. Only the grace period can be shortened.
		if now := m.vmi.Spec.TerminationGracePeriodSeconds; grace == nil || now != nil && *grace >= *now {
			return plan{}, m.conflict("%v only supports manual stop requests with a shorter graceperiod", strategy)
		}
	case v1.RunStrategyManual, v1.RunStrategyRerunOnFailure:
		if !m.isActive() && m.startPending(strategy) {
			return m.cancelStart()
		}
		if !m.isActive() {
			return plan{}, m.conflict(notRunning)
		}
	default:
		return plan{strategy: v1.RunStrategyHalted, grace: grace}, nil
	}
	p, err := m.request(m.stopRequest())
	p.grace = grace
	return p, err
}

// cancelStart returns a plan that removes the requests of a VM that is about to start. KubeVirt refuses this stop, and
// the VM starts. A VMI that has ended is removed, or the strategy RerunOnFailure would request another start.
func (m vmWithVMI) cancelStart() (plan, error) {
	if m.vmi == nil {
		return plan{}, nil
	}
	return m.request(m.stopRequest())
}
