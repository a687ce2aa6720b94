// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/conditions"
	"github.com/vireo-project/vireo/internal/optimistic"
)

// vmWithVMI is a VM and its VMI as read from the API server. vmi is nil if the VM has none.
type vmWithVMI struct {
	vm  *v1.VirtualMachine
	vmi *v1.VirtualMachineInstance
}

// isActive reports whether there is a VMI that is not in a final phase.
func (m vmWithVMI) isActive() bool { return m.vmi != nil && !m.vmi.IsFinal() }

// checkOwner returns an error if the VMI has the VM's name but another owner: permissions for a VM do not include that
// VMI.
func (m vmWithVMI) checkOwner() error {
	if metav1.IsControlledBy(m.vmi, m.vm) {
		return nil
	}
	return m.conflict("VirtualMachineInstance %s exists but belongs to another owner", m.vmi.Name)
}

// recoveryRequired is KubeVirt's message for a VM after a failed volume migration.
const recoveryRequired = "VM recovery required: Volume migration failed, leaving some volumes pointing to non-consistent targets; " +
	"manual intervention is needed to reassign them to their original volumes."

// isConditionTrue reports whether a condition of the VM is true.
func (m vmWithVMI) isConditionTrue(kind v1.VirtualMachineConditionType) bool {
	return conditions.IsTrue(m.vm.Status.Conditions, kind)
}

// conflict returns the error of a request that the VM's state does not allow.
func (m vmWithVMI) conflict(format string, args ...any) error {
	return apierrors.NewConflict(vmResource, m.vm.Name, fmt.Errorf(format, args...))
}

// plan contains the changes that a verb makes: either the VM's run strategy or its state change requests, then the
// VMI's grace period.
type plan struct {
	// strategy is the new run strategy; empty keeps the current one.
	strategy v1.VirtualMachineRunStrategy
	// requests are the new status.stateChangeRequests, which virt-controller carries out. They are written if strategy
	// is empty.
	requests []v1.VirtualMachineStateChangeRequest
	// grace is the VMI's new grace period in seconds; nil keeps the current one.
	grace *int64
}

// serveChange serves a verb that changes a VM, and makes the change that decide returns.
func (a *API) serveChange(
	w http.ResponseWriter, r *http.Request, dryRun []string, decide func(vmWithVMI) (plan, error),
) error {
	dry, err := isDryRun(dryRun)
	if err != nil {
		return err
	}
	if err := a.change(r.Context(), key(r), dry, decide); err != nil {
		return err
	}
	w.WriteHeader(http.StatusAccepted)
	return nil
}

// change reads a VM and its VMI, calls decide and applies the plan. On a write conflict it starts over.
func (a *API) change(
	ctx context.Context, key types.NamespacedName, dry bool, decide func(vmWithVMI) (plan, error),
) error {
	return retryConflicts(func() error {
		m, err := a.vmWithVMI(ctx, key)
		if err != nil {
			return err
		}
		p, err := decide(m)
		if err == nil && p.strategy != "" && m.vm.Status.RestoreInProgress != nil {
			// In KubeVirt, a webhook refuses the write.
			err = m.conflict("Cannot update VM runStrategy until restore %q completes", *m.vm.Status.RestoreInProgress)
		}
		if err != nil {
			return &decisionError{err}
		}
		return a.apply(ctx, m, p, dry)
	})
}

// vmWithVMI reads a VM and its VMI, if it has one.
func (a *API) vmWithVMI(ctx context.Context, key types.NamespacedName) (vmWithVMI, error) {
	vm, err := a.vm(ctx, key)
	if err != nil {
		return vmWithVMI{}, err
	}
	vmi, err := a.vmi(ctx, key)
	return vmWithVMI{vm, vmi}, err
}

// retryConflicts makes a change, and starts over on a write conflict. A decisionError is final, and its error is
// returned.
func retryConflicts(change func() error) error {
	err := retry.RetryOnConflict(retry.DefaultBackoff, change)
	var decision *decisionError
	if errors.As(err, &decision) {
		return decision.err
	}
	return err
}

// decisionError hides an error of decide from retry.RetryOnConflict, so it does not unwrap: the error may be a conflict
// with the VM's state, which must not be retried like a write conflict.
type decisionError struct{ err error }

// Error implements error.
func (e *decisionError) Error() string { return e.err.Error() }

func (a *API) apply(ctx context.Context, m vmWithVMI, p plan, dry bool) error {
	changesGrace := p.grace != nil && m.isActive()
	if changesGrace {
		if err := m.checkOwner(); err != nil {
			return &decisionError{err}
		}
	}
	if err := a.write(ctx, m.vm, p, dry); err != nil || !changesGrace {
		return err
	}
	// After the stop, and also if the client is gone: a VMI that nothing stops must keep its grace period. The agent
	// applies the new one to a guest that is shutting down already.
	if err := a.setGrace(context.WithoutCancel(ctx), m.vmi, p.grace, dry); err != nil {
		err = fmt.Errorf("the VM is being stopped, but within the grace period that it had: %w", err)
		return &decisionError{apierrors.NewInternalError(err)}
	}
	return nil
}

// setGrace changes the grace period of a VMI, unless the VMI is gone. Status writes of the agent cause conflicts.
func (a *API) setGrace(ctx context.Context, vmi *v1.VirtualMachineInstance, seconds *int64, dry bool) error {
	options := []client.PatchOption{}
	if dry {
		options = append(options, client.DryRunAll)
	}
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		changed := vmi.DeepCopy()
		changed.Spec.TerminationGracePeriodSeconds = seconds
		err := a.Client.Patch(ctx, changed, optimistic.MergeFrom(vmi), options...)
		if !apierrors.IsConflict(err) {
			return err
		}
		fresh, readErr := a.vmi(ctx, client.ObjectKeyFromObject(vmi))
		switch {
		case readErr != nil:
			return readErr
		case fresh == nil || fresh.UID != vmi.UID:
			return nil
		}
		vmi = fresh
		return err
	})
	return client.IgnoreNotFound(err)
}

func (a *API) write(ctx context.Context, vm *v1.VirtualMachine, p plan, dry bool) error {
	lock := optimistic.MergeFrom(vm)
	changed := vm.DeepCopy()
	if p.strategy != "" {
		changed.SetRunStrategy(p.strategy)
		options := []client.PatchOption{}
		if dry {
			options = append(options, client.DryRunAll)
		}
		return a.Client.Patch(ctx, changed, lock, options...)
	}
	changed.Status.StateChangeRequests = p.requests
	// A start that a user requests is not delayed by the backoff of earlier failures.
	changed.Status.StartFailure = nil
	options := []client.SubResourcePatchOption{}
	if dry {
		options = append(options, client.DryRunAll)
	}
	return a.Client.Status().Patch(ctx, changed, lock, options...)
}

// request returns a plan that replaces the VM's state change requests. Only a stop may replace requests that are
// underway.
func (m vmWithVMI) request(requests ...v1.VirtualMachineStateChangeRequest) (plan, error) {
	strategy, err := m.vm.RunStrategy()
	if err != nil {
		return plan{}, err
	}
	onlyStop := len(requests) == 1 && requests[0].Action == v1.StopRequest
	for _, r := range m.vm.Status.StateChangeRequests {
		if !onlyStop && r.AppliesTo(strategy) && m.underway(r) {
			return plan{}, m.conflict("unable to complete request: stop/start already underway")
		}
	}
	for i := range requests {
		requests[i] = requests[i].MadeUnder(strategy)
	}
	return plan{requests: requests}, nil
}

// startPending reports whether a start was requested and not carried out yet.
func (m vmWithVMI) startPending(strategy v1.VirtualMachineRunStrategy) bool {
	return slices.ContainsFunc(m.vm.Status.StateChangeRequests, func(r v1.VirtualMachineStateChangeRequest) bool {
		return r.Action == v1.StartRequest && r.AppliesTo(strategy)
	})
}

// underway reports whether a request has not been carried out yet. virt-controller removes a stop request shortly after
// it has deleted the VMI. So a request to stop a VMI that does not exist any more is not underway: a client that
// observed the deletion can start the VM at once.
func (m vmWithVMI) underway(request v1.VirtualMachineStateChangeRequest) bool {
	return request.Action != v1.StopRequest || request.UID != nil && m.vmi != nil && m.vmi.UID == *request.UID
}

// stopRequest returns a request to stop the current VMI.
func (m vmWithVMI) stopRequest() v1.VirtualMachineStateChangeRequest {
	return v1.VirtualMachineStateChangeRequest{Action: v1.StopRequest, UID: &m.vmi.UID}
}

// start starts a VM: it changes the run strategy Halted, and adds a state change request with the strategies that need
// one.
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

// notRunning is KubeVirt's message for a VM without an active VMI.
const notRunning = "VM is not running"

// stop stops a VM: it changes run strategies that would start the VM again, and adds a state change request with the
// others.
func (a *API) stop(w http.ResponseWriter, r *http.Request) error {
	options := &v1.StopOptions{}
	if err := decode(r, options); err != nil {
		return err
	}
	if options.GracePeriod != nil && *options.GracePeriod < 0 {
		return apierrors.NewBadRequest("gracePeriod has to be greater or equal to 0")
	}
	return a.serveChange(w, r, options.DryRun,
		func(m vmWithVMI) (plan, error) { return decideStop(m, options.GracePeriod) })
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

// forcedGrace is the grace period in seconds of a restart that does not wait for the guest. With 0 the launcher would
// be killed before it reports how the guest ended. KubeVirt's value.
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
