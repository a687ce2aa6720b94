// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/apiserver/agentclient"
	"github.com/vireo-project/vireo/internal/conditions"
	"github.com/vireo-project/vireo/internal/wire/agentapi"
)

// pause pauses a guest's vCPUs.
func (a *API) pause(w http.ResponseWriter, r *http.Request) error {
	options := &v1.PauseOptions{}
	if err := decode(r, options); err != nil {
		return err
	}
	dry, err := isDryRun(options.DryRun)
	if err != nil {
		return err
	}
	return a.putIf(w, r, checkPause, agentclient.Request{Verb: agentapi.Pause}, dry)
}

func checkPause(vmi *v1.VirtualMachineInstance) error {
	switch probe := vmi.Spec.LivenessProbe; {
	case !vmi.IsRunning():
		return vmiConflict(vmi, notRunning)
	case probe != nil && probe.GuestAgentPing == nil:
		// A paused guest would fail the probe and be killed.
		return apierrors.NewForbidden(vmiResource, vmi.Name, errors.New("Pausing VMIs with a non-GuestAgentPing LivenessProbe is not supported")) //nolint:staticcheck // KubeVirt's message
	case condition(vmi, v1.VirtualMachineInstancePaused) != nil:
		return vmiConflict(vmi, "VMI is already paused")
	}
	return nil
}

// unpause resumes a guest's vCPUs, unless a snapshot in progress has paused them.
func (a *API) unpause(w http.ResponseWriter, r *http.Request) error {
	vm, err := a.vm(r.Context(), key(r))
	switch {
	case apierrors.IsNotFound(err): // a VMI without a VM
	case err != nil:
		return err
	case vm.Status.SnapshotInProgress != nil:
		return vmWithVMI{vm: vm}.conflict(snapshotUnderway)
	}
	options := &v1.UnpauseOptions{}
	if err := decode(r, options); err != nil {
		return err
	}
	dry, err := isDryRun(options.DryRun)
	if err != nil {
		return err
	}
	return a.putIf(w, r, checkUnpause, agentclient.Request{Verb: agentapi.Unpause}, dry)
}

func checkUnpause(vmi *v1.VirtualMachineInstance) error {
	switch paused := condition(vmi, v1.VirtualMachineInstancePaused); {
	case !vmi.IsRunning():
		return vmiConflict(vmi, vmiNotRunning)
	case paused == nil:
		return vmiConflict(vmi, vmiNotPaused)
	case paused.Reason == v1.PausedByMigrationMonitorReason:
		// The guest may resume on the target node at any moment.
		return vmiConflict(vmi, "VMI was paused by the migration monitor, which also resumes it")
	}
	return nil
}

// softReboot requests that the guest reboots, through the guest agent or ACPI.
func (a *API) softReboot(w http.ResponseWriter, r *http.Request) error {
	return a.putIf(w, r, checkSoftReboot, agentclient.Request{Verb: agentapi.SoftReboot}, false)
}

func checkSoftReboot(vmi *v1.VirtualMachineInstance) error {
	features := vmi.Spec.Domain.Features
	withoutACPI := features != nil && features.ACPI.Enabled != nil && !*features.ACPI.Enabled
	switch {
	case !vmi.IsRunning():
		return vmiConflict(vmi, notRunning)
	case conditions.IsTrue(vmi.Status.Conditions, v1.VirtualMachineInstancePaused):
		return vmiConflict(vmi, vmiPaused)
	case withoutACPI && condition(vmi, v1.VirtualMachineInstanceAgentConnected) == nil:
		return vmiConflict(vmi, "VMI neither have the agent connected nor the ACPI feature enabled")
	}
	return nil
}

// reset resets the guest without its cooperation, like a reset button.
func (a *API) reset(w http.ResponseWriter, r *http.Request) error {
	vmi, err := a.requireVMI(r.Context(), key(r))
	if err != nil {
		return err
	}
	err = a.putToAgent(w, r, vmi, agentclient.Request{Verb: agentapi.Reset}, false)
	var status *apierrors.StatusError
	if errors.As(err, &status) && !vmi.IsRunning() {
		status.ErrStatus.Message = fmt.Sprintf("Failed to reset non-running VMI with phase %s: %s", vmi.Status.Phase,
			status.ErrStatus.Message)
	}
	return err
}

// freeze freezes the guest's file systems. The agent thaws them after a timeout.
func (a *API) freeze(w http.ResponseWriter, r *http.Request) error {
	options := &v1.FreezeUnfreezeTimeout{}
	if err := decode(r, options); err != nil {
		return err
	}
	check := func(vmi *v1.VirtualMachineInstance) error {
		if !vmi.IsRunning() {
			return vmiConflict(vmi, notRunning)
		}
		return nil
	}
	return a.putIf(w, r, check, agentclient.Request{Verb: agentapi.Freeze, Body: options}, false)
}

// unfreeze thaws the guest's file systems.
func (a *API) unfreeze(w http.ResponseWriter, r *http.Request) error {
	check := func(vmi *v1.VirtualMachineInstance) error {
		if !vmi.IsRunning() {
			return vmiConflict(vmi, vmiNotRunning)
		}
		return nil
	}
	return a.putIf(w, r, check, agentclient.Request{Verb: agentapi.Unfreeze}, false)
}

// putIf sends a request to the agent of the request's VMI if check returns no error for the VMI.
func (a *API) putIf(
	w http.ResponseWriter, r *http.Request, check func(*v1.VirtualMachineInstance) error, request agentclient.Request,
	dry bool,
) error {
	vmi, err := a.checkedVMI(r, check)
	if err != nil {
		return err
	}
	return a.putToAgent(w, r, vmi, request, dry)
}
