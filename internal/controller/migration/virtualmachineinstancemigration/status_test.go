// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstancemigration

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/conditions"
)

// A false condition of another writer is replaced: the list must not grow with each reconciliation.
func TestSetReplacesAFalseCondition(t *testing.T) {
	const kind = v1.VirtualMachineInstanceMigrationRejectedByResourceQuota
	status := v1.VirtualMachineInstanceMigrationStatus{Conditions: []v1.VirtualMachineInstanceMigrationCondition{
		{Type: kind, Status: corev1.ConditionFalse},
	}}
	s := &Scope{Now: time.Unix(1, 0)}
	for _, message := range []string{"2 of 1", "3 of 1"} {
		s.set(&status, kind, "Exceeded", message)
	}
	if len(status.Conditions) != 1 || !conditions.IsTrue(status.Conditions, kind) ||
		status.Conditions[0].Message != "2 of 1" {
		t.Errorf("conditions %+v, want one that is true with the first message", status.Conditions)
	}
}
