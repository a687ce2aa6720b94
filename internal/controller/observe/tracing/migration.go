// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package tracing

import (
	"cmp"

	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/component/otlp"
)

const (
	migrationSpan = "VirtualMachineInstance migration"
	// transferSpan is the transfer of the guest, from its start by libvirt until the guest has ended on the source.
	transferSpan = "Transfer"
)

// migrationKey is the key of the trace of a migration.
func migrationKey(migration types.UID) string { return "migration/" + string(migration) }

// migrationEnd returns the timestamp of a migration's final phase, or nil.
func migrationEnd(m *v1.VirtualMachineInstanceMigration) *v1.VirtualMachineInstanceMigrationPhaseTransitionTimestamp {
	for i := range m.Status.PhaseTransitionTimestamps {
		switch stamp := &m.Status.PhaseTransitionTimestamps[i]; stamp.Phase {
		case v1.MigrationSucceeded, v1.MigrationFailed:
			return stamp
		}
	}
	return nil
}

// migration returns the trace of a migration that has ended. Target is the target's launcher Pod, and vmi the guest's
// VMI; both may be nil.
func migration(m *v1.VirtualMachineInstanceMigration, target *corev1.Pod, vmi *v1.VirtualMachineInstance) *otlp.Span {
	end := migrationEnd(m)
	t := timeline{{string(v1.MigrationPhaseUnset), m.CreationTimestamp.Time}}
	for _, stamp := range m.Status.PhaseTransitionTimestamps {
		if stamp.Phase == end.Phase {
			break
		}
		t = append(t, step{string(stamp.Phase), stamp.PhaseTransitionTimestamp.Time})
	}
	root := t.trace(migrationSpan, end.PhaseTransitionTimestamp.Time)
	root.Attributes = append(root.Attributes, semconv.K8SNamespaceName(m.Namespace),
		otlp.Text("kubevirt.vmi.name", m.Spec.VMIName), otlp.Text("kubevirt.migration.name", m.Name),
		otlp.Text("kubevirt.migration.uid", string(m.UID)))
	if vmi != nil {
		root.Attributes = append(root.Attributes, otlp.Text("kubevirt.vmi.uid", string(vmi.UID)))
		root.Links = append(root.Links, startKey(vmi.UID))
	}
	if target != nil {
		t.addPod(root, string(v1.MigrationScheduling), target)
	}
	state := m.Status.MigrationState
	if end.Phase == v1.MigrationFailed {
		reason := ""
		if state != nil {
			reason = state.FailureReason
		}
		fail(root, cmp.Or(reason, "The migration failed."))
	}
	if state != nil {
		root.Attributes = append(root.Attributes, attributes(state)...)
		addTransfer(root, state)
	}
	return root
}

func attributes(state *v1.VirtualMachineInstanceMigrationState) []attribute.KeyValue {
	var out []attribute.KeyValue
	for _, a := range []struct{ key, value string }{
		{"kubevirt.migration.source.node", state.SourceNode}, {"kubevirt.migration.source.pod", state.SourcePod},
		{"kubevirt.migration.target.node", state.TargetNode}, {"kubevirt.migration.target.pod", state.TargetPod},
		{"kubevirt.migration.mode", string(state.Mode)},
	} {
		if a.value != "" {
			out = append(out, otlp.Text(a.key, a.value))
		}
	}
	return out
}

// addTransfer adds the span of the transfer, if there was one, with the timestamps of the agents.
func addTransfer(root *otlp.Span, state *v1.VirtualMachineInstanceMigrationState) {
	if state.StartTimestamp == nil || state.EndTimestamp == nil {
		return
	}
	from := later(state.StartTimestamp.Time, root.Start)
	root.Children = append(root.Children, otlp.Span{
		Name: transferSpan, Start: from, End: later(from, state.EndTimestamp.Time), Failure: root.Failure,
	})
}
