// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1alpha1

import (
	"github.com/vireo-project/vireo/api/pool/v1beta1"
)

// The parts of the kind are those of v1beta1, under the names that clients of this version use.
type (
	// VirtualMachineTemplateSpec is that of v1beta1.
	VirtualMachineTemplateSpec = v1beta1.VirtualMachineTemplateSpec
	// VirtualMachinePoolSpec is that of v1beta1.
	VirtualMachinePoolSpec = v1beta1.VirtualMachinePoolSpec
	// VirtualMachinePoolNameGeneration is that of v1beta1.
	VirtualMachinePoolNameGeneration = v1beta1.VirtualMachinePoolNameGeneration
	// VirtualMachinePoolAutohealingStrategy is that of v1beta1.
	VirtualMachinePoolAutohealingStrategy = v1beta1.VirtualMachinePoolAutohealingStrategy
	// VirtualMachinePoolStatus is that of v1beta1.
	VirtualMachinePoolStatus = v1beta1.VirtualMachinePoolStatus
	// VirtualMachinePoolCondition is that of v1beta1.
	VirtualMachinePoolCondition = v1beta1.VirtualMachinePoolCondition
	// VirtualMachinePoolConditionType is that of v1beta1.
	VirtualMachinePoolConditionType = v1beta1.VirtualMachinePoolConditionType
	// VirtualMachinePoolScaleInStrategy is that of v1beta1.
	VirtualMachinePoolScaleInStrategy = v1beta1.VirtualMachinePoolScaleInStrategy
	// VirtualMachinePoolOpportunisticScaleInStrategy is that of v1beta1.
	VirtualMachinePoolOpportunisticScaleInStrategy = v1beta1.VirtualMachinePoolOpportunisticScaleInStrategy
	// VirtualMachinePoolProactiveScaleInStrategy is that of v1beta1.
	VirtualMachinePoolProactiveScaleInStrategy = v1beta1.VirtualMachinePoolProactiveScaleInStrategy
	// VirtualMachinePoolSelectionPolicy is that of v1beta1.
	VirtualMachinePoolSelectionPolicy = v1beta1.VirtualMachinePoolSelectionPolicy
	// VirtualMachinePoolSelectors is that of v1beta1.
	VirtualMachinePoolSelectors = v1beta1.VirtualMachinePoolSelectors
	// VirtualMachinePoolSortPolicy is that of v1beta1.
	VirtualMachinePoolSortPolicy = v1beta1.VirtualMachinePoolSortPolicy
	// VirtualMachinePoolUpdateStrategy is that of v1beta1.
	VirtualMachinePoolUpdateStrategy = v1beta1.VirtualMachinePoolUpdateStrategy
	// VirtualMachinePoolUnmanagedStrategy is that of v1beta1.
	VirtualMachinePoolUnmanagedStrategy = v1beta1.VirtualMachinePoolUnmanagedStrategy
	// VirtualMachineOpportunisticUpdateStrategy is that of v1beta1.
	VirtualMachineOpportunisticUpdateStrategy = v1beta1.VirtualMachineOpportunisticUpdateStrategy
	// VirtualMachinePoolProactiveUpdateStrategy is that of v1beta1.
	VirtualMachinePoolProactiveUpdateStrategy = v1beta1.VirtualMachinePoolProactiveUpdateStrategy
	// StatePreservation is that of v1beta1.
	StatePreservation = v1beta1.StatePreservation
)

// The constants are those of v1beta1.
const (
	VirtualMachinePoolReplicaFailure = v1beta1.VirtualMachinePoolReplicaFailure
	VirtualMachinePoolReplicaPaused  = v1beta1.VirtualMachinePoolReplicaPaused

	VirtualMachinePoolSortPolicyAscendingOrder  = v1beta1.VirtualMachinePoolSortPolicyAscendingOrder
	VirtualMachinePoolSortPolicyDescendingOrder = v1beta1.VirtualMachinePoolSortPolicyDescendingOrder
	VirtualMachinePoolSortPolicyNewest          = v1beta1.VirtualMachinePoolSortPolicyNewest
	VirtualMachinePoolSortPolicyOldest          = v1beta1.VirtualMachinePoolSortPolicyOldest
	VirtualMachinePoolSortPolicyRandom          = v1beta1.VirtualMachinePoolSortPolicyRandom

	StatePreservationDisabled = v1beta1.StatePreservationDisabled
	StatePreservationOffline  = v1beta1.StatePreservationOffline
	StatePreservationOnline   = v1beta1.StatePreservationOnline
)
