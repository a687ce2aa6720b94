// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// machine is a VM and its instance, or nil, as they were read.
type machine struct {
	vm  *v1.VirtualMachine
	vmi *v1.VirtualMachineInstance
}

// lives says that there is an instance that has not ended.
func (m machine) lives() bool { return m.vmi != nil && !m.vmi.IsFinal() }

// mustOwn refuses what would be done to an instance that only has the VM's name: the rights to a VM are none to that.
func (m machine) mustOwn() error {
	if metav1.IsControlledBy(m.vmi, m.vm) {
		return nil
	}
	return m.conflict("the VMI of that name is not of this VM")
}

// recoveryRequired is KubeVirt's message for a VM whose volumes were left half-way between two places.
const recoveryRequired = "VM recovery required: Volume migration failed, leaving some volumes pointing to non-consistent targets; " +
	"manual intervention is needed to reassign them to their original volumes."

// has says that a condition of the VM is true.
func (m machine) has(kind v1.VirtualMachineConditionType) bool {
	return slices.ContainsFunc(m.vm.Status.Conditions, func(c v1.VirtualMachineCondition) bool {
		return c.Type == kind && c.Status == corev1.ConditionTrue
	})
}

// conflict refuses what does not go with the VM's state.
func (m machine) conflict(format string, args ...any) error {
	return apierrors.NewConflict(vmResource, m.vm.Name, fmt.Errorf(format, args...))
}

// plan is what a verb wants to change: fields of the VM's spec or requests in its status, and the time that the instance
// has to shut down.
type plan struct {
	// strategy is the run strategy to be; empty leaves it.
	strategy v1.VirtualMachineRunStrategy
	// requests are handed to virt-controller.
	requests []v1.VirtualMachineStateChangeRequest
	// grace is the instance's grace period in seconds to be; nil leaves it.
	grace *int64
}

// serveChange answers a request for a change of a VM, of which the options that every such request has are left.
func (a *API) serveChange(w http.ResponseWriter, r *http.Request, dryRun []string, decide func(machine) (plan, error)) error {
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

// change looks at a VM, decides and writes. Somebody who writes the VM in between is no reason to fail: it is decided anew
// with what is there then.
func (a *API) change(ctx context.Context, key types.NamespacedName, dry bool, decide func(machine) (plan, error)) error {
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		vm, err := a.vm(ctx, key)
		if err != nil {
			return err
		}
		vmi, err := a.vmi(ctx, key)
		if err != nil {
			return err
		}
		m := machine{vm, vmi}
		p, err := decide(m)
		if err != nil {
			return &refusal{err}
		}
		return a.apply(ctx, m, p, dry)
	})
	var refused *refusal
	if errors.As(err, &refused) {
		return refused.why
	}
	return err
}

// refusal is what was decided. It may be a conflict with the VM's state, which another attempt would not change, and so it must
// not look like one of writers: it does not unwrap.
type refusal struct{ why error }

// Error is that of the decision.
func (r *refusal) Error() string { return r.why.Error() }

func (a *API) apply(ctx context.Context, m machine, p plan, dry bool) error {
	undo := func() error { return nil }
	if p.grace != nil && m.lives() {
		if err := m.mustOwn(); err != nil {
			return &refusal{err}
		}
		before := m.vmi.Spec.TerminationGracePeriodSeconds
		if err := a.setGrace(ctx, m.vmi, p.grace, dry); err != nil {
			return err
		}
		undo = func() error { return a.setGrace(context.WithoutCancel(ctx), m.vmi, before, dry) }
	}
	err := a.write(ctx, m.vm, p, dry)
	if err != nil {
		// The instance must not be left with a grace period for a stop that did not happen.
		return errors.Join(err, undo())
	}
	return nil
}

func (a *API) setGrace(ctx context.Context, vmi *v1.VirtualMachineInstance, seconds *int64, dry bool) error {
	changed := vmi.DeepCopy()
	changed.Spec.TerminationGracePeriodSeconds = seconds
	options := []client.PatchOption{}
	if dry {
		options = append(options, client.DryRunAll)
	}
	err := a.Client.Patch(ctx, changed, client.MergeFromWithOptions(vmi, client.MergeFromWithOptimisticLock{}), options...)
	if err == nil && !dry {
		*vmi = *changed
	}
	return err
}

func (a *API) write(ctx context.Context, vm *v1.VirtualMachine, p plan, dry bool) error {
	lock := client.MergeFromWithOptions(vm, client.MergeFromWithOptimisticLock{})
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
	// Who asks for a start does not wait for what failed before.
	changed.Status.StartFailure = nil
	options := []client.SubResourcePatchOption{}
	if dry {
		options = append(options, client.DryRunAll)
	}
	return a.Client.Status().Patch(ctx, changed, lock, options...)
}

// request adds to the requests of a VM. A stop takes the place of what is asked for already; nothing else goes with it.
func (m machine) request(requests ...v1.VirtualMachineStateChangeRequest) (plan, error) {
	onlyStop := len(requests) == 1 && requests[0].Action == v1.StopRequest
	if slices.ContainsFunc(m.vm.Status.StateChangeRequests, m.underway) && !onlyStop {
		return plan{}, m.conflict("unable to complete request: stop/start already underway")
	}
	return plan{requests: requests}, nil
}

// underway says that a request is still to be carried out. virt-controller takes a stop back a moment after the instance is
// gone; until then it looks as if it were to come, and who saw the instance go and starts the VM would be refused.
func (m machine) underway(request v1.VirtualMachineStateChangeRequest) bool {
	return request.Action != v1.StopRequest || request.UID != nil && m.vmi != nil && m.vmi.UID == *request.UID
}

// stopRequest asks for the end of the instance that is there.
func (m machine) stopRequest() v1.VirtualMachineStateChangeRequest {
	return v1.VirtualMachineStateChangeRequest{Action: v1.StopRequest, UID: &m.vmi.UID}
}
