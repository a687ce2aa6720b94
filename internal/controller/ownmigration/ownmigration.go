// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package ownmigration is what the controllers that move guests of their own accord have in common: they know the migrations that
// guests have had, and make one where the API server says that it is still needed.
package ownmigration

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/naming"
	"github.com/vireo-project/vireo/internal/podspec"
)

// Reasons of events. KubeVirt's names.
const (
	ReasonSuccessfulCreate = "SuccessfulCreate"
	ReasonFailedCreate     = "FailedCreate"
)

// Active is the first of some migrations that has not ended, whoever asked for it, or nil.
func Active(of []*v1.VirtualMachineInstanceMigration) *v1.VirtualMachineInstanceMigration {
	for _, m := range of {
		if !m.IsFinal() {
			return m
		}
	}
	return nil
}

// Evacuates says that a migration is of the controller that empties nodes. The annotation alone does not say so: everybody may write it.
// Only virt-controller gives a migration a priority.
func Evacuates(m *v1.VirtualMachineInstanceMigration) bool {
	_, annotated := m.Annotations[v1.EvacuationMigrationAnnotation]
	return annotated && m.Spec.Priority != nil
}

// Updates says that a migration is of the controller that updates launchers. As with Evacuates, the annotation alone does not say so.
func Updates(m *v1.VirtualMachineInstanceMigration) bool {
	_, annotated := m.Annotations[v1.WorkloadUpdateMigrationAnnotation]
	return annotated && m.Spec.Priority != nil
}

// Rejected says that a quota keeps a migration from beginning. It keeps no other one waiting.
func Rejected(m *v1.VirtualMachineInstanceMigration) bool {
	return slices.ContainsFunc(m.Status.Conditions, func(c v1.VirtualMachineInstanceMigrationCondition) bool {
		return c.Type == v1.VirtualMachineInstanceMigrationRejectedByResourceQuota && c.Status == corev1.ConditionTrue
	})
}

// Share chooses which of the guests that wait, in the order of their need, get a migration now, and counts the others: there are as many
// as slots, and one more for each namespace that has none. That one may have to wait for its slot in the queue, which is fair to
// namespaces, but only to those that are in it. Without it, a namespace with enough guests would keep those of all others here.
func Share[G any](waiting []G, namespace func(*G) string, slots int, has map[string]bool) (now []G, later int) {
	served := map[string]bool{}
	for i := range waiting {
		of := namespace(&waiting[i])
		if len(now) >= slots && (has[of] || served[of]) {
			later++
			continue
		}
		served[of] = true
		now = append(now, waiting[i])
	}
	return now, later
}

// History is all migrations that there are.
type History struct {
	of    map[client.ObjectKey][]*v1.VirtualMachineInstanceMigration
	taken map[client.ObjectKey]bool
}

// NewHistory sorts migrations, which it does not change.
func NewHistory(all []v1.VirtualMachineInstanceMigration) History {
	h := History{of: map[client.ObjectKey][]*v1.VirtualMachineInstanceMigration{}, taken: make(map[client.ObjectKey]bool, len(all))}
	for i := range all {
		m := &all[i]
		key := client.ObjectKey{Namespace: m.Namespace, Name: m.Spec.VMIName}
		h.of[key] = append(h.of[key], m)
		h.taken[client.ObjectKeyFromObject(m)] = true
	}
	return h
}

// Of is a VMI's migrations, without those of a VMI that had the name before.
func (h History) Of(vmi *v1.VirtualMachineInstance) []*v1.VirtualMachineInstanceMigration {
	var of []*v1.VirtualMachineInstanceMigration
	for _, m := range h.of[client.ObjectKeyFromObject(vmi)] {
		if !m.CreationTimestamp.Before(&vmi.CreationTimestamp) {
			of = append(of, m)
		}
	}
	return of
}

// freeName is the first name of the VMI's own sequence that no migration has.
func (h History) freeName(prefix string, vmi *v1.VirtualMachineInstance) string {
	for place := uint64(0); ; place++ {
		name := prefix + naming.Suffix(vmi.UID, place)
		if !h.taken[client.ObjectKey{Namespace: vmi.Namespace, Name: name}] {
			return name
		}
	}
}

// Author makes migrations.
type Author struct {
	// Client writes to the API server, and Live reads from it.
	Client client.Client
	Live   client.Reader
	// Recorder takes events, after what they tell about has happened. Action is theirs, and Purpose the end of what they say, or nothing.
	Recorder        events.EventRecorder
	Action, Purpose string
	// Prefix begins the migrations' names.
	Prefix string
}

// Migrate makes the migration of a guest. Whether it is needed is seen in the API server, as the cache may be behind whatever made it
// needless: complete is given the VMI as that has it, and says no, or adds what the migration is to have beside its name and its guest.
func (a *Author) Migrate(
	ctx context.Context, h History, known *v1.VirtualMachineInstance,
	complete func(vmi *v1.VirtualMachineInstance, m *v1.VirtualMachineInstanceMigration) bool,
) error {
	vmi := &v1.VirtualMachineInstance{}
	if err := a.Live.Get(ctx, client.ObjectKeyFromObject(known), vmi); err != nil {
		return client.IgnoreNotFound(err)
	}
	m := &v1.VirtualMachineInstanceMigration{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: vmi.Namespace, Name: h.freeName(a.Prefix, vmi), GenerateName: a.Prefix,
			Labels: map[string]string{v1.MigrationSelectorLabel: podspec.LabelValue(vmi.Name)},
		},
		Spec: v1.VirtualMachineInstanceMigrationSpec{VMIName: vmi.Name},
	}
	if vmi.UID != known.UID || vmi.Status.NodeName != known.Status.NodeName || !complete(vmi, m) {
		return nil
	}
	err := a.Client.Create(ctx, m)
	switch {
	case apierrors.IsAlreadyExists(err):
		return nil // The cache does not show it yet.
	case err != nil:
		a.Recorder.Eventf(vmi, nil, corev1.EventTypeWarning, ReasonFailedCreate, a.Action, "Error creating a Migration%s: %v", a.Purpose, err)
		return fmt.Errorf("create a migration of VirtualMachineInstance %s/%s away from node %s: %w", vmi.Namespace, vmi.Name, vmi.Status.NodeName, err)
	}
	a.Recorder.Eventf(vmi, m, corev1.EventTypeNormal, ReasonSuccessfulCreate, a.Action, "Created Migration %s%s", m.Name, a.Purpose)
	return nil
}
