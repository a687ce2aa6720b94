// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinepool

import (
	"context"
	"errors"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	poolapi "github.com/vireo-project/vireo/api/pool"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/optimistic"
	"github.com/vireo-project/vireo/internal/outcome"
)

// Reasons of events about VMs. KubeVirt's names.
const (
	ReasonSuccessfulCreate = "SuccessfulCreate"
	ReasonFailedCreate     = "FailedCreate"
	ReasonSuccessfulDelete = "SuccessfulDelete"
	ReasonFailedDelete     = "FailedDelete"
)

// Actions of events.
const (
	actionScaleOut = "ScaleOut"
	actionScaleIn  = "ScaleIn"
	actionHeal     = "Heal"
	actionUpdate   = "Update"
	actionPrune    = "PruneRevisions"
	actionPause    = "Pause"
	actionResume   = "Resume"
)

// create creates VMs in batches of one, two, four and so on, so that a problem that affects all of them costs few
// requests.
func create(ctx context.Context, s *Scope, count int) error {
	free := &ordinals{pool: s.Pool.Name, taken: s.taken}
	made, err := kit.CreateInBatches(count, func() (*v1.VirtualMachine, error) { return createOne(ctx, s, free) })
	for _, vm := range made {
		_, ordinal := splitName(vm.Name)
		s.members = append(s.members, &member{vm: vm, ordinal: ordinal})
	}
	s.fail(failedScaleOut, err)
	return err
}

// createOne creates one VM with the lowest free ordinal.
func createOne(ctx context.Context, s *Scope, free *ordinals) (*v1.VirtualMachine, error) {
	for {
		vm := newVM(s.Pool, free.take(), s.revisions.current)
		err := s.Client.Create(ctx, vm)
		if err == nil {
			s.record(vm, ReasonSuccessfulCreate, actionScaleOut, "Created VM %s/%s", vm.Namespace, vm.Name)
			return vm, nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return nil, fmt.Errorf("create VirtualMachine %s: %w", client.ObjectKeyFromObject(vm), err)
		}
		other := &v1.VirtualMachine{}
		switch err := s.APIReader.Get(ctx, client.ObjectKeyFromObject(vm), other); {
		case client.IgnoreNotFound(err) != nil:
			return nil, fmt.Errorf("get VirtualMachine %s, which exists: %w", client.ObjectKeyFromObject(vm), err)
		case err == nil && metav1.IsControlledBy(other, s.Pool):
			return other, nil // another reconciliation has just created it
		}
	}
}

// ordinals returns the ordinals of new VMs: the lowest ones whose names are free. A name may be taken by a VM that is
// not the pool's.
type ordinals struct {
	mu    sync.Mutex
	pool  string
	next  int
	taken map[string]bool
}

// take returns a free ordinal. It returns each ordinal only once.
func (o *ordinals) take() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.taken[vmName(o.pool, o.next)] {
		o.next++
	}
	o.next++
	return o.next - 1
}

// remove deletes surplus VMs, those that fail, and those that get other disks. It deletes in the foreground: the disks
// of a VM are deleted before the VM is, and so before a new VM gets its name.
func remove(ctx context.Context, s *Scope, p *plan) error {
	deletes := func(members []*member, action string, options ...client.DeleteOption) error {
		return kit.InBatches(len(members), func(i int) error { return removeOne(ctx, s, members[i].vm, action, options...) })
	}
	surplus := deletes(p.scaleIn, actionScaleIn)
	s.fail(failedScaleIn, surplus)
	foreground := client.PropagationPolicy(metav1.DeletePropagationForeground)
	failing := deletes(p.heal, actionHeal, foreground)
	s.fail(failedDelete, failing)
	outdated := deletes(p.recreate, actionUpdate, foreground)
	s.fail(failedUpdate, outdated)
	return errors.Join(surplus, failing, outdated)
}

// removeOne deletes a VM unless it has changed since it was read: it may have been detached or become ready.
func removeOne(
	ctx context.Context, s *Scope, vm *v1.VirtualMachine, action string, options ...client.DeleteOption,
) error {
	options = append(options, kit.Unchanged(vm))
	err := s.Client.Delete(ctx, vm, options...)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete VirtualMachine %s: %w", client.ObjectKeyFromObject(vm), err)
	}
	if err == nil {
		s.record(vm, ReasonSuccessfulDelete, action, "Deleted VM %s/%s with uid %s from pool", vm.Namespace, vm.Name, vm.UID)
	}
	return nil
}

// update changes VMs to the current template, and restarts guests.
func update(ctx context.Context, s *Scope, p *plan) error {
	err := kit.InBatches(len(p.rewrite), func(i int) error { return rewrite(ctx, s, p.rewrite[i]) })
	if err == nil {
		err = kit.InBatches(len(p.relabel), func(i int) error {
			return patch(ctx, s, p.relabel[i].vm, func(vm *v1.VirtualMachine) { setRevision(vm, s.revisions.current) })
		})
	}
	if err == nil {
		err = kit.InBatches(len(p.relabelInstance), func(i int) error { return relabel(ctx, s, p.relabelInstance[i].vmi) })
	}
	if err == nil {
		// VMs restart one after another. The first failure ends this.
		for _, m := range p.restart {
			if err = restart(ctx, s, m); err != nil {
				break
			}
		}
	}
	s.fail(failedUpdate, err)
	return err
}

// rewrite applies to a VM the changes of the template since the VM was created or last updated. If the VM's revision is
// unknown, the VM keeps everything that the template does not have.
func rewrite(ctx context.Context, s *Scope, m *member) error {
	base := rendered{}
	if from := s.revisions.specs[m.revision()]; from != nil {
		base = render(from, m.ordinal)
	}
	changed := m.vm.DeepCopy()
	if err := applyTemplate(changed, base, render(&s.Pool.Spec, m.ordinal)); err != nil {
		return err
	}
	setRevision(changed, s.revisions.current)
	switch err := s.Client.Patch(ctx, changed, optimistic.MergeFrom(m.vm)); {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("update VirtualMachine %s: %w", client.ObjectKeyFromObject(m.vm), err)
	}
	m.vm = changed
	s.record(m.vm, poolapi.SuccessfulUpdateReason, actionUpdate, "Updated VM %s/%s", m.vm.Namespace, m.vm.Name)
	return nil
}

// relabel labels a VMI, which already matches the current revision, with that revision.
func relabel(ctx context.Context, s *Scope, vmi *v1.VirtualMachineInstance) error {
	_, err := optimistic.Patch(ctx, s.Client, vmi, func(vmi *v1.VirtualMachineInstance) {
		metav1.SetMetaDataLabel(&vmi.ObjectMeta, v1.VirtualMachinePoolRevisionName, s.revisions.current)
	})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("label VirtualMachineInstance %s: %w", client.ObjectKeyFromObject(vmi), err)
	}
	return nil
}

// restart replaces the VMI of a VM. Run strategies that do not start a VM by themselves need a start request for it.
func restart(ctx context.Context, s *Scope, m *member) error {
	var err error
	switch strategy, _ := m.vm.RunStrategy(); strategy {
	case v1.RunStrategyManual, v1.RunStrategyRerunOnFailure:
		changed := m.vm.DeepCopy()
		changed.Status.StateChangeRequests = []v1.VirtualMachineStateChangeRequest{
			v1.VirtualMachineStateChangeRequest{Action: v1.StopRequest, UID: ptr.To(m.vmi.UID)}.MadeUnder(strategy),
			v1.VirtualMachineStateChangeRequest{Action: v1.StartRequest}.MadeUnder(strategy),
		}
		err = s.Client.Status().Patch(ctx, changed, optimistic.MergeFrom(m.vm))
	default:
		err = s.Client.Delete(ctx, m.vmi, client.Preconditions{UID: ptr.To(m.vmi.UID)})
	}
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("restart VirtualMachine %s: %w", client.ObjectKeyFromObject(m.vm), err)
	}
	if err == nil {
		// KubeVirt's reason and message.
		s.record(m.vm, ReasonSuccessfulDelete, actionUpdate, "Successfully updated resource %s/%s", m.vm.Namespace, m.vm.Name)
	}
	return nil
}

// failure is a kind of failure: the reason of the condition, and the event about VMs that goes with it.
type failure struct {
	condition, event, action, note string
}

var (
	failedScaleOut = failure{poolapi.FailedScaleOutReason, ReasonFailedCreate, actionScaleOut, "Error creating VM: %v"}
	failedScaleIn  = failure{poolapi.FailedScaleInReason, ReasonFailedDelete, actionScaleIn, "Error deleting VM: %v"}
	failedDelete   = failure{condition: ReasonFailedDelete, action: actionHeal}
	failedUpdate   = failure{condition: poolapi.FailedUpdateReason, action: actionUpdate}
	failedPruning  = failure{condition: poolapi.FailedRevisionPruningReason, action: actionPrune}
)

// fail stores the first failure, for the condition and its events. A conflict is not a failure: the next reconciliation
// starts from the state on the API server.
func (s *Scope) fail(kind failure, err error) {
	if err = outcome.Failure(err); err == nil || s.Failure != nil {
		return
	}
	s.Failure = &kit.Failure{Reason: kind.condition, Message: err.Error()}
	if kind.event != "" {
		s.Failure.Events = append(s.Failure.Events,
			kit.FailureEvent{Reason: kind.event, Action: kind.action, Note: fmt.Sprintf(kind.note, err)})
	}
	s.Failure.Events = append(s.Failure.Events,
		kit.FailureEvent{Reason: kind.condition, Action: kind.action, Note: err.Error()})
}
