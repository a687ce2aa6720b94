// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package virtualmachineinstancereplicaset keeps the number of VMIs of a replica set at spec.replicas, and reports in
// its status how many there are. Each file has one concern; Run has the order.
//
// It does not remember what earlier reconciliations did. A reconciliation that has to create or delete VMIs according
// to the cache first lists them from the API server. The names of new VMIs follow from the set's UID, so two
// reconciliations at the same time create the same VMI.
package virtualmachineinstancereplicaset

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/outcome"
)

// defaultReplicas applies to a set without spec.replicas. KubeVirt's value.
const defaultReplicas = 1

// Reasons of events and of the condition ReplicaFailure. KubeVirt's names.
const (
	ReasonSuccessfulCreate  = "SuccessfulCreate"
	ReasonFailedCreate      = "FailedCreate"
	ReasonSuccessfulDelete  = "SuccessfulDelete"
	ReasonFailedDelete      = "FailedDelete"
	ReasonSuccessfulPaused  = "SuccessfulPaused"
	ReasonSuccessfulResumed = "SuccessfulResumed"
	// ReasonFailedAdoption means that the set's owner reference could not be added to a VMI, or removed from one. KubeVirt
	// does not have it.
	ReasonFailedAdoption = "FailedAdoption"
)

// Actions of events.
const (
	actionScaleUp   = "ScaleUp"
	actionScaleDown = "ScaleDown"
	actionReplace   = "ReplaceFinished"
	actionAdopt     = "Adopt"
	actionPause     = "Pause"
	actionResume    = "Resume"
)

// Scope is one reconciliation of one replica set.
type Scope struct {
	// Client reads from the cache and writes to the API server. APIReader reads from the API server.
	Client    client.Client
	APIReader client.Reader
	// Recorder records events, each after the change that it reports.
	Recorder events.EventRecorder
	// Now is the time of the reconciliation.
	Now time.Time

	// Set is the object. Its status stays as it was read until the status is written.
	Set *v1.VirtualMachineInstanceReplicaSet
	// Selector matches the set's VMIs; nil while the spec has no valid one.
	Selector labels.Selector
	// Neighbors are all VMIs of the namespace. They belong to the cache and must not be changed.
	Neighbors []v1.VirtualMachineInstance
	// Instances are the VMIs that belong to the set, in whatever phase.
	Instances []*v1.VirtualMachineInstance
	// Status is the status to write.
	Status v1.VirtualMachineInstanceReplicaSetStatus
	// Failure is why the number of VMIs is wrong, or nil.
	Failure *kit.Failure
}

// Load reads the VMIs of the set's namespace.
func (s *Scope) Load(ctx context.Context) error {
	list := &v1.VirtualMachineInstanceList{}
	// There may be thousands, and none of them is changed in place.
	if err := s.Client.List(ctx, list, client.InNamespace(s.Set.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list VirtualMachineInstances of namespace %s: %w", s.Set.Namespace, err)
	}
	s.Neighbors = list.Items
	return nil
}

// Run reconciles the set. The order matters where a numbered comment gives the reason.
func Run(ctx context.Context, s *Scope) error {
	s.Status = *s.Set.Status.DeepCopy()
	err := act(ctx, s)
	// 1. The status is written even if something failed: it reports what failed.
	computeStatus(s)
	if statusErr := writeStatus(ctx, s); statusErr != nil {
		return errors.Join(err, statusErr)
	}
	return err
}

func act(ctx context.Context, s *Scope) error {
	if !readSelector(s) {
		return nil // until the spec changes
	}
	// 1. VMIs are adopted before they are counted.
	adoptErr := adoptAndRelease(ctx, s)
	if s.Set.Spec.Paused || s.Set.DeletionTimestamp != nil || s.settled() {
		return adoptErr
	}
	// 2. The cache may be stale, so the state on the API server decides which VMIs are created and deleted.
	if err := refresh(ctx, s); err != nil {
		return errors.Join(adoptErr, err)
	}
	// 3. Replacements are created before finished VMIs are deleted, as in KubeVirt. Finished VMIs are deleted even if the
	//    creation
	// failed, because they may be what exhausts a quota.
	return errors.Join(adoptErr, scale(ctx, s), removeFinished(ctx, s))
}

// readSelector reports whether template and selector are valid. Admission rejects a spec where they are not.
func readSelector(s *Scope) bool {
	spec := &s.Set.Spec
	var wrong string
	selector, err := metav1.LabelSelectorAsSelector(spec.Selector)
	switch {
	case spec.Template == nil:
		wrong = "spec.template is missing"
	case err != nil:
		wrong = "spec.selector: " + err.Error()
	case len(spec.Template.ObjectMeta.Labels) == 0:
		wrong = "spec.template.metadata.labels is empty: without a label the set would not know its VMIs"
	case !selector.Matches(labels.Set(spec.Template.ObjectMeta.Labels)):
		wrong = "spec.selector does not match spec.template.metadata.labels: the set would not know its VMIs"
	default:
		s.Selector = selector
		return true
	}
	s.Failure = &kit.Failure{Reason: ReasonFailedCreate, Message: wrong}
	return false
}

// refresh replaces the VMIs of the cache by those of the API server.
func refresh(ctx context.Context, s *Scope) error {
	owned := func(vmi metav1.Object) bool {
		return metav1.IsControlledBy(vmi, s.Set) && s.Selector.Matches(labels.Set(vmi.GetLabels()))
	}
	current, err := kit.Current(ctx, s.APIReader, v1.VirtualMachineInstanceGroupVersionKind, s.Set.Namespace, s.Neighbors,
		owned)
	if err != nil {
		return err
	}
	s.Instances = nil
	for i := range current {
		s.Instances = append(s.Instances, &current[i])
	}
	return nil
}

// wanted returns the number of VMIs that the set should have.
func (s *Scope) wanted() int {
	if s.Set.Spec.Replicas == nil {
		return defaultReplicas
	}
	return max(0, int(*s.Set.Spec.Replicas))
}

// settled reports whether nothing is to be created or deleted.
func (s *Scope) settled() bool {
	return len(s.pick(active)) == s.wanted() && len(s.pick(finished)) == 0
}

func (s *Scope) pick(which func(*v1.VirtualMachineInstance) bool) []*v1.VirtualMachineInstance {
	var picked []*v1.VirtualMachineInstance
	for _, vmi := range s.Instances {
		if which(vmi) {
			picked = append(picked, vmi)
		}
	}
	return picked
}

// fail stores the first failure, for the condition and its event. A conflict is not a failure: the next reconciliation
// starts from the state on the API server.
func (s *Scope) fail(reason, action, message string, err error) {
	if err = outcome.Failure(err); err == nil || s.Failure != nil {
		return
	}
	s.Failure = &kit.Failure{
		Reason: reason, Message: err.Error(),
		Events: []kit.FailureEvent{{Reason: reason, Action: action, Note: fmt.Sprintf(message, err)}},
	}
}
