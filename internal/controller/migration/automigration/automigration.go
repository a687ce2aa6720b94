// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package automigration contains what evacuations and workload updates have in common: virt-controller creates their
// migrations itself, at most one per guest at a time, after checking on the API server that the migration is still
// needed.
package automigration

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/conditions"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/podspec"
)

// Reasons of events. KubeVirt's names.
const (
	ReasonSuccessfulCreate = "SuccessfulCreate"
	ReasonFailedCreate     = "FailedCreate"
)

// Active returns the first of some migrations that has not ended, or nil. Users' migrations count too.
func Active(migrations []*v1.VirtualMachineInstanceMigration) *v1.VirtualMachineInstanceMigration {
	for _, m := range migrations {
		if !m.IsFinal() {
			return m
		}
	}
	return nil
}

// Evacuates reports whether a migration was created by the evacuation controller. The annotation alone does not prove
// that: users may write it. Only virt-controller sets a migration's priority.
func Evacuates(m *v1.VirtualMachineInstanceMigration) bool {
	_, annotated := m.Annotations[v1.EvacuationMigrationAnnotation]
	return annotated && m.Spec.Priority != nil
}

// Updates reports whether a migration was created by the workload update controller. See Evacuates.
func Updates(m *v1.VirtualMachineInstanceMigration) bool {
	_, annotated := m.Annotations[v1.WorkloadUpdateMigrationAnnotation]
	return annotated && m.Spec.Priority != nil
}

// Rejected reports whether a quota keeps a migration from starting. It does not delay others.
func Rejected(m *v1.VirtualMachineInstanceMigration) bool {
	return conditions.IsTrue(m.Status.Conditions, v1.VirtualMachineInstanceMigrationRejectedByResourceQuota)
}

// Share returns the guests that get a migration now, and how many others wait. waiting is ordered by urgency. As many
// guests as there are slots get a migration, and also the first guest of each namespace without a migration, whose
// migration then waits for a slot in the queue: the queue is fair only among the namespaces in it, so a namespace with
// many guests could otherwise exclude others.
func Share[G any](waiting []G, namespace func(*G) string, slots int, hasMigration map[string]bool) (now []G,
	later int) {
	served := map[string]bool{}
	for i := range waiting {
		ns := namespace(&waiting[i])
		if len(now) >= slots && (hasMigration[ns] || served[ns]) {
			later++
			continue
		}
		served[ns] = true
		now = append(now, waiting[i])
	}
	return now, later
}

// History contains all existing migrations.
type History struct {
	byVMI map[client.ObjectKey][]*v1.VirtualMachineInstanceMigration
	taken map[client.ObjectKey]bool
}

// NewHistory indexes migrations. It does not change them.
func NewHistory(all []v1.VirtualMachineInstanceMigration) History {
	h := History{byVMI: map[client.ObjectKey][]*v1.VirtualMachineInstanceMigration{},
		taken: make(map[client.ObjectKey]bool, len(all))}
	for i := range all {
		m := &all[i]
		key := client.ObjectKey{Namespace: m.Namespace, Name: m.Spec.VMIName}
		h.byVMI[key] = append(h.byVMI[key], m)
		h.taken[client.ObjectKeyFromObject(m)] = true
	}
	return h
}

// Of returns the migrations of a VMI, without those of an earlier VMI with the same name.
func (h History) Of(vmi *v1.VirtualMachineInstance) []*v1.VirtualMachineInstanceMigration {
	var migrations []*v1.VirtualMachineInstanceMigration
	for _, m := range h.byVMI[client.ObjectKeyFromObject(vmi)] {
		if !m.CreationTimestamp.Before(&vmi.CreationTimestamp) {
			migrations = append(migrations, m)
		}
	}
	return migrations
}

// freeName returns the first name of the VMI's sequence of names that no migration has.
func (h History) freeName(prefix string, vmi *v1.VirtualMachineInstance) string {
	for n := uint64(0); ; n++ {
		name := prefix + kit.Suffix(vmi.UID, n)
		if !h.taken[client.ObjectKey{Namespace: vmi.Namespace, Name: name}] {
			return name
		}
	}
}

// Creator creates migrations.
type Creator struct {
	// Client writes to the API server, and APIReader reads from it.
	Client    client.Client
	APIReader client.Reader
	// Recorder records events. Action is their action, and Purpose the end of their messages, which may be empty.
	Recorder        events.EventRecorder
	Action, Purpose string
	// Prefix is the prefix of the migrations' names.
	Prefix string
}

// Migrate creates the migration of a guest. Because the cache may be stale, it calls complete with the VMI from the API
// server: complete reports whether the migration is still needed, and sets its remaining fields.
func (c *Creator) Migrate(
	ctx context.Context, h History, known *v1.VirtualMachineInstance,
	complete func(vmi *v1.VirtualMachineInstance, m *v1.VirtualMachineInstanceMigration) bool,
) error {
	vmi := &v1.VirtualMachineInstance{}
	if err := c.APIReader.Get(ctx, client.ObjectKeyFromObject(known), vmi); err != nil {
		return client.IgnoreNotFound(err)
	}
	m := &v1.VirtualMachineInstanceMigration{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: vmi.Namespace, Name: h.freeName(c.Prefix, vmi), GenerateName: c.Prefix,
			Labels: map[string]string{v1.MigrationSelectorLabel: podspec.LabelValue(vmi.Name)},
		},
		Spec: v1.VirtualMachineInstanceMigrationSpec{VMIName: vmi.Name},
	}
	if vmi.UID != known.UID || vmi.Status.NodeName != known.Status.NodeName || !complete(vmi, m) {
		return nil
	}
	err := c.Client.Create(ctx, m)
	switch {
	case apierrors.IsAlreadyExists(err), apierrors.IsBadRequest(err) && c.exists(ctx, m):
		// The cache does not contain it yet. Admission refuses a second migration of a guest before its name is looked at.
		return nil
	case err != nil:
		c.Recorder.Eventf(vmi, nil, corev1.EventTypeWarning, ReasonFailedCreate, c.Action, "Error creating a Migration%s: %v",
			c.Purpose, err)
		return fmt.Errorf("create a migration of VirtualMachineInstance %s/%s away from node %s: %w", vmi.Namespace, vmi.Name,
			vmi.Status.NodeName, err)
	}
	c.Recorder.Eventf(vmi, m, corev1.EventTypeNormal, ReasonSuccessfulCreate, c.Action, "Created Migration %s%s", m.Name,
		c.Purpose)
	return nil
}

// exists reports whether the API server has a migration of this name.
func (c *Creator) exists(ctx context.Context, m *v1.VirtualMachineInstanceMigration) bool {
	return c.APIReader.Get(ctx, client.ObjectKeyFromObject(m), &v1.VirtualMachineInstanceMigration{}) == nil
}
