// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1alpha1

import (
	"github.com/vireo-project/vireo/api/clone/v1beta1"
)

// The parts of the kind are those of v1beta1, under the names that clients of this version use.
type (
	// VirtualMachineCloneSpec is that of v1beta1.
	VirtualMachineCloneSpec = v1beta1.VirtualMachineCloneSpec
	// VirtualMachineCloneTemplateFilters is that of v1beta1.
	VirtualMachineCloneTemplateFilters = v1beta1.VirtualMachineCloneTemplateFilters
	// VirtualMachineCloneStatus is that of v1beta1.
	VirtualMachineCloneStatus = v1beta1.VirtualMachineCloneStatus
	// VirtualMachineClonePhase is that of v1beta1.
	VirtualMachineClonePhase = v1beta1.VirtualMachineClonePhase
	// ConditionType is that of v1beta1.
	ConditionType = v1beta1.ConditionType
	// Condition is that of v1beta1.
	Condition = v1beta1.Condition
)

// The constants are those of v1beta1.
const (
	PhaseUnset         = v1beta1.PhaseUnset
	SnapshotInProgress = v1beta1.SnapshotInProgress
	CreatingTargetVM   = v1beta1.CreatingTargetVM
	RestoreInProgress  = v1beta1.RestoreInProgress
	Succeeded          = v1beta1.Succeeded
	Failed             = v1beta1.Failed
	Unknown            = v1beta1.Unknown

	ConditionReady       = v1beta1.ConditionReady
	ConditionProgressing = v1beta1.ConditionProgressing
)
