// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package builder

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// Migration builds a VirtualMachineInstanceMigration.
type Migration struct {
	migration v1.VirtualMachineInstanceMigration
}

// MakeMigration returns a builder that starts with a migration of a VMI.
func MakeMigration(name, vmi string) *Migration {
	b := &Migration{}
	b.migration.Name, b.migration.Namespace, b.migration.Spec.VMIName = name, Namespace, vmi
	return b
}

// Obj returns a copy of the object.
func (b *Migration) Obj() *v1.VirtualMachineInstanceMigration { return b.migration.DeepCopy() }

// Namespace sets the namespace.
func (b *Migration) Namespace(ns string) *Migration { b.migration.Namespace = ns; return b }

// UID sets the UID, for tests without an API server.
func (b *Migration) UID(uid string) *Migration { b.migration.UID = types.UID(uid); return b }

// Created sets the creation timestamp, for tests without an API server.
func (b *Migration) Created(at time.Time) *Migration {
	b.migration.CreationTimestamp = metav1.NewTime(at)
	return b
}

// Priority sets the priority.
func (b *Migration) Priority(p v1.MigrationPriority) *Migration {
	b.migration.Spec.Priority = &p
	return b
}

// Annotation adds an annotation.
func (b *Migration) Annotation(key, value string) *Migration {
	metav1.SetMetaDataAnnotation(&b.migration.ObjectMeta, key, value)
	return b
}

// NodeSelector sets the added node selector.
func (b *Migration) NodeSelector(key, value string) *Migration {
	if b.migration.Spec.AddedNodeSelector == nil {
		b.migration.Spec.AddedNodeSelector = map[string]string{}
	}
	b.migration.Spec.AddedNodeSelector[key] = value
	return b
}

// Phase sets the phase and its time stamp.
func (b *Migration) Phase(phase v1.VirtualMachineInstanceMigrationPhase, since time.Time) *Migration {
	b.migration.Status.Phase = phase
	b.migration.Status.PhaseTransitionTimestamps = append(b.migration.Status.PhaseTransitionTimestamps,
		v1.VirtualMachineInstanceMigrationPhaseTransitionTimestamp{Phase: phase,
			PhaseTransitionTimestamp: metav1.NewTime(since)})
	return b
}
