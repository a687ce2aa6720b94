// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package virtualmachinepool keeps the number of VMs of a pool at spec.replicas, and updates the VMs to the pool's
// template. Each file has one concern; Run has the order.
//
// What to do follows from the pool's VMs alone: classify.go finds and describes them, plan.go decides about creation,
// deletion, healing and updates under one budget, render.go and merge.go compute VMs. All of these are pure. As with
// replica sets, no state is kept between reconciliations: a plan that was made from the cache is made again from the
// API server's state before it is carried out, and the names of VMs are deterministic.
package virtualmachinepool

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	poolv1 "github.com/vireo-project/vireo/api/pool/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
)

// Scope is one reconciliation of one pool.
type Scope struct {
	// Client reads from the cache and writes to the API server. APIReader reads from the API server, without the cache.
	Client    client.Client
	APIReader client.Reader
	// Recorder records events, each after the change that it reports.
	Recorder events.EventRecorder
	// Now is the time of the reconciliation.
	Now time.Time

	// Key is the name of the pool. Pool is the object, or nil if it does not exist. Its status stays as it was read until
	// the status is written.
	Key  client.ObjectKey
	Pool *poolv1.VirtualMachinePool
	// Selector matches the pool's VMs; nil while the spec has no valid one.
	Selector labels.Selector
	// VMs and VMIs are all VMs and VMIs of the namespace, and those of the pool after refresh. They belong to the cache
	// and must not be changed.
	VMs  []v1.VirtualMachine
	VMIs []v1.VirtualMachineInstance
	// taken are the names of all VMs of the namespace.
	taken map[string]bool
	// Status is the status to write.
	Status poolv1.VirtualMachinePoolStatus
	// Failure is why the VMs are not in the wanted state, or nil.
	Failure *kit.Failure
	// After is the time after which the pool is reconciled again, or 0.
	After time.Duration

	members   []*member
	revisions *revisions
	// pending reports whether the plan changes VMs.
	pending bool
}

// Load reads the VMs and VMIs of the pool's namespace.
func (s *Scope) Load(ctx context.Context) error {
	// There may be thousands, and none of them is changed in place.
	options := []client.ListOption{client.InNamespace(s.Key.Namespace), client.UnsafeDisableDeepCopy}
	vms, vmis := &v1.VirtualMachineList{}, &v1.VirtualMachineInstanceList{}
	if err := s.Client.List(ctx, vms, options...); err != nil {
		return fmt.Errorf("list VirtualMachines of namespace %s: %w", s.Key.Namespace, err)
	}
	if err := s.Client.List(ctx, vmis, options...); err != nil {
		return fmt.Errorf("list VirtualMachineInstances of namespace %s: %w", s.Key.Namespace, err)
	}
	s.VMs, s.VMIs = vms.Items, vmis.Items
	return nil
}

// refresh replaces the VMs and VMIs by those that the pool has on the API server. The cache may be stale.
func (s *Scope) refresh(ctx context.Context) (err error) {
	s.taken = map[string]bool{}
	members := map[types.UID]bool{}
	s.VMs, err = kit.Current(ctx, s.APIReader, v1.VirtualMachineGroupVersionKind, s.Key.Namespace, s.VMs,
		func(vm metav1.Object) bool {
			s.taken[vm.GetName()] = true
			isMember := metav1.IsControlledBy(vm, s.Pool)
			members[vm.GetUID()] = isMember
			return isMember
		})
	if err != nil {
		return err
	}
	kind := v1.VirtualMachineInstanceGroupVersionKind
	s.VMIs, err = kit.Current(ctx, s.APIReader, kind, s.Key.Namespace, s.VMIs, func(vmi metav1.Object) bool {
		owner := metav1.GetControllerOf(vmi)
		return owner != nil && members[owner.UID]
	})
	return err
}

// Run reconciles the pool. The order matters where a numbered comment gives the reason.
func Run(ctx context.Context, s *Scope) error {
	// 1. VMs of a pool that does not exist any more, and detached VMs, are released first: this depends on nothing else.
	err := releaseLeftovers(ctx, s)
	if s.Pool == nil {
		return err
	}
	s.Status = *s.Pool.Status.DeepCopy()
	err = errors.Join(err, act(ctx, s))
	// 2. The status is written even if something failed: it reports what failed.
	computeStatus(s)
	return errors.Join(err, writeStatus(ctx, s))
}

// act changes the pool's VMs.
func act(ctx context.Context, s *Scope) error {
	valid := readSelector(s)
	found := s.classify()
	// 1. VMs that are being deleted, and those that no longer match the selector, are released even if the pool is paused.
	err := releaseDeleting(ctx, s)
	// 2. The garbage collector must be able to orphan the revisions. That they cannot be replaced delays nothing else.
	sortErr := sortRevisions(ctx, s)
	if s.Pool.DeletionTimestamp != nil {
		return errors.Join(err, sortErr, releasePool(ctx, s))
	}
	err = errors.Join(err, detach(ctx, s, found.detached))
	if s.Pool.Spec.Paused || !valid || err != nil {
		return errors.Join(err, sortErr)
	}
	return errors.Join(applyPlan(ctx, s), sortErr)
}

// applyPlan makes a plan and carries it out.
func applyPlan(ctx context.Context, s *Scope) error {
	if err := loadRevisions(ctx, s); err != nil {
		return err
	}
	p, err := s.plan(ctx)
	if err != nil {
		return err
	}
	s.After = p.after
	if p.isEmpty() {
		s.reportPlan(p)
		return pruneRevisions(ctx, s)
	}
	// 1. The cache may be stale, so the plan is made again from the API server's state before it is carried out.
	if err := s.refresh(ctx); err != nil {
		return err
	}
	s.classify()
	if p, err = s.plan(ctx); err != nil {
		return err
	}
	s.After, s.pending = p.after, !p.isEmpty()
	s.reportPlan(p)
	// 2. VMs are created even if others could not be deleted, and vice versa.
	return errors.Join(remove(ctx, s, p), create(ctx, s, p.create), update(ctx, s, p))
}

// classify finds the pool's VMs among those that were read.
func (s *Scope) classify() classified {
	selector := s.Selector
	if selector == nil {
		selector = labels.Everything() // no VM is detached because the selector is invalid
	}
	found := classify(s.Pool.UID, selector, s.VMs, s.VMIs)
	s.members = found.members
	return found
}

// plan makes the plan for the VMs that were read.
func (s *Scope) plan(ctx context.Context) (*plan, error) {
	if err := s.revisions.read(ctx, s); err != nil {
		return nil, err
	}
	return decide(&state{
		spec: &s.Pool.Spec, now: s.Now, members: s.members, current: s.revisions.current, revisions: s.revisions.specs,
	}), nil
}

// reportPlan reports what the plan cannot do.
func (s *Scope) reportPlan(p *plan) {
	if p.kept > 0 {
		s.fail(failedScaleIn, fmt.Errorf(
			"%d of the VMs to delete do not match spec.scaleInStrategy.proactive.selectionPolicy.selectors: "+
				"change the selectors or the labels in the templates of VMs", p.kept))
	}
	s.fail(failedScaleIn, p.scaleInErr)
	s.fail(failedUpdate, p.updateErr)
}

// readSelector reports whether template and selector are valid. Admission rejects a spec where they are not.
func readSelector(s *Scope) bool {
	spec := &s.Pool.Spec
	var wrong string
	selector, err := metav1.LabelSelectorAsSelector(spec.Selector)
	switch {
	case spec.VirtualMachineTemplate == nil || spec.VirtualMachineTemplate.Spec.Template == nil:
		wrong = "spec.virtualMachineTemplate is missing"
	case err != nil:
		wrong = "spec.selector: " + err.Error()
	case !selector.Matches(labels.Set(spec.VirtualMachineTemplate.ObjectMeta.Labels)):
		wrong = "spec.selector does not match spec.virtualMachineTemplate.metadata.labels"
	default:
		s.Selector = selector
		return true
	}
	s.Failure = &kit.Failure{Reason: failedScaleOut.condition, Message: wrong}
	return false
}

// record records an event of the type Normal about the pool; vm, if not nil, is the related object.
func (s *Scope) record(vm *v1.VirtualMachine, reason, action, note string, args ...any) {
	if vm == nil {
		s.Recorder.Eventf(s.Pool, nil, corev1.EventTypeNormal, reason, action, note, args...)
		return
	}
	s.Recorder.Eventf(s.Pool, vm, corev1.EventTypeNormal, reason, action, note, args...)
}
