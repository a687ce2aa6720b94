// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agentapi"
	"github.com/vireo-project/vireo/internal/subresource/agent"
)

// pause stops the CPUs of a guest.
func (a *API) pause(w http.ResponseWriter, r *http.Request) error {
	options := &v1.PauseOptions{}
	if err := decode(r, options); err != nil {
		return err
	}
	dry, err := isDryRun(options.DryRun)
	if err != nil {
		return err
	}
	return a.tellIf(w, r, mayPause, agent.Request{Verb: agentapi.Pause}, dry)
}

func mayPause(vmi *v1.VirtualMachineInstance) error {
	switch probe := vmi.Spec.LivenessProbe; {
	case !vmi.IsRunning():
		return vmiConflict(vmi, notRunning)
	case probe != nil && probe.GuestAgentPing == nil:
		// A guest that stands still fails it, and would be killed.
		return apierrors.NewForbidden(vmiResource, vmi.Name, errors.New("Pausing VMIs with a non-GuestAgentPing LivenessProbe is not supported")) //nolint:staticcheck // KubeVirt's message
	case condition(vmi, v1.VirtualMachineInstancePaused) != nil:
		return vmiConflict(vmi, "VMI is already paused")
	}
	return nil
}

// unpause lets them run again. A snapshot that is being taken has paused the guest for itself.
func (a *API) unpause(w http.ResponseWriter, r *http.Request) error {
	vm, err := a.vm(r.Context(), key(r))
	switch {
	case apierrors.IsNotFound(err): // an instance without a VM
	case err != nil:
		return err
	case vm.Status.SnapshotInProgress != nil:
		return machine{vm: vm}.conflict(snapshotUnderway)
	}
	options := &v1.UnpauseOptions{}
	if err := decode(r, options); err != nil {
		return err
	}
	dry, err := isDryRun(options.DryRun)
	if err != nil {
		return err
	}
	return a.tellIf(w, r, mayUnpause, agent.Request{Verb: agentapi.Unpause}, dry)
}

func mayUnpause(vmi *v1.VirtualMachineInstance) error {
	switch paused := condition(vmi, v1.VirtualMachineInstancePaused); {
	case !vmi.IsRunning():
		return vmiConflict(vmi, vmiNotRunning)
	case paused == nil:
		return vmiConflict(vmi, vmiNotPaused)
	case paused.Reason == v1.PausedByMigrationMonitorReason:
		// It may run on the other node in a moment.
		return vmiConflict(vmi, "VMI was paused by the migration monitor, which lets it go on")
	}
	return nil
}

// softReboot asks the guest to reboot, through its agent or by ACPI.
func (a *API) softReboot(w http.ResponseWriter, r *http.Request) error {
	return a.tellIf(w, r, maySoftReboot, agent.Request{Verb: agentapi.SoftReboot}, false)
}

func maySoftReboot(vmi *v1.VirtualMachineInstance) error {
	features := vmi.Spec.Domain.Features
	withoutACPI := features != nil && features.ACPI.Enabled != nil && !*features.ACPI.Enabled
	switch {
	case !vmi.IsRunning():
		return vmiConflict(vmi, notRunning)
	case holds(vmi, v1.VirtualMachineInstancePaused):
		return vmiConflict(vmi, vmiPaused)
	case withoutACPI && condition(vmi, v1.VirtualMachineInstanceAgentConnected) == nil:
		return vmiConflict(vmi, "VMI neither have the agent connected nor the ACPI feature enabled")
	}
	return nil
}

// reset is the button on the case.
func (a *API) reset(w http.ResponseWriter, r *http.Request) error {
	vmi, err := a.requireVMI(r.Context(), key(r))
	if err != nil {
		return err
	}
	err = a.tell(w, r, vmi, agent.Request{Verb: agentapi.Reset}, false)
	var status *apierrors.StatusError
	if errors.As(err, &status) && !vmi.IsRunning() {
		status.ErrStatus.Message = fmt.Sprintf("Failed to reset non-running VMI with phase %s: %s", vmi.Status.Phase, status.ErrStatus.Message)
	}
	return err
}

// freeze freezes the guest's file systems, for a while.
func (a *API) freeze(w http.ResponseWriter, r *http.Request) error {
	options := &v1.FreezeUnfreezeTimeout{}
	if err := decode(r, options); err != nil {
		return err
	}
	may := func(vmi *v1.VirtualMachineInstance) error {
		if !vmi.IsRunning() {
			return vmiConflict(vmi, notRunning)
		}
		return nil
	}
	return a.tellIf(w, r, may, agent.Request{Verb: agentapi.Freeze, Body: options}, false)
}

// unfreeze thaws them.
func (a *API) unfreeze(w http.ResponseWriter, r *http.Request) error {
	may := func(vmi *v1.VirtualMachineInstance) error {
		if !vmi.IsRunning() {
			return vmiConflict(vmi, vmiNotRunning)
		}
		return nil
	}
	return a.tellIf(w, r, may, agent.Request{Verb: agentapi.Unfreeze}, false)
}

// tellIf asks the agent of the instance for a change if the instance's state goes with it.
func (a *API) tellIf(
	w http.ResponseWriter, r *http.Request, may func(*v1.VirtualMachineInstance) error, request agent.Request, dry bool,
) error {
	vmi, err := a.vmiThat(r, may)
	if err != nil {
		return err
	}
	return a.tell(w, r, vmi, request, dry)
}
