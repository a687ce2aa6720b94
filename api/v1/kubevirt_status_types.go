// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

type KubeVirtStatus struct {
	Phase                                   KubeVirtPhase       `json:"phase,omitempty"`
	Conditions                              []KubeVirtCondition `json:"conditions,omitempty"`
	OperatorVersion                         string              `json:"operatorVersion,omitempty"`
	TargetKubeVirtRegistry                  string              `json:"targetKubeVirtRegistry,omitempty"`
	TargetKubeVirtVersion                   string              `json:"targetKubeVirtVersion,omitempty"`
	TargetDeploymentConfig                  string              `json:"targetDeploymentConfig,omitempty"`
	TargetDeploymentID                      string              `json:"targetDeploymentID,omitempty"`
	ObservedKubeVirtRegistry                string              `json:"observedKubeVirtRegistry,omitempty"`
	ObservedKubeVirtVersion                 string              `json:"observedKubeVirtVersion,omitempty"`
	ObservedDeploymentConfig                string              `json:"observedDeploymentConfig,omitempty"`
	ObservedDeploymentID                    string              `json:"observedDeploymentID,omitempty"`
	OutdatedVirtualMachineInstanceWorkloads *int                `json:"outdatedVirtualMachineInstanceWorkloads,omitempty"`
	ObservedGeneration                      *int64              `json:"observedGeneration,omitempty"`
	DefaultArchitecture                     string              `json:"defaultArchitecture,omitempty"`
	// +listType=atomic
	Generations []GenerationStatus `json:"generations,omitempty"`
	// +optional
	// +listType=atomic
	SynchronizationAddresses []string `json:"synchronizationAddresses,omitempty"`
}

type KubeVirtPhase string

// Values of KubeVirtPhase.
const (
	KubeVirtPhaseDeploying KubeVirtPhase = "Deploying"
	KubeVirtPhaseDeployed  KubeVirtPhase = "Deployed"
	KubeVirtPhaseDeleting  KubeVirtPhase = "Deleting"
	KubeVirtPhaseDeleted   KubeVirtPhase = "Deleted"
)

type KubeVirtCondition struct {
	// type is which one it is.
	Type KubeVirtConditionType `json:"type"`
	// status is True, False or Unknown.
	Status corev1.ConditionStatus `json:"status"`
	// lastProbeTime is when it was looked at last.
	// +optional
	// +nullable
	LastProbeTime metav1.Time `json:"lastProbeTime,omitempty"`
	// lastTransitionTime is when the status changed last.
	// +optional
	// +nullable
	LastTransitionTime metav1.Time `json:"lastTransitionTime,omitempty"`
	// reason says why in one word.
	Reason string `json:"reason,omitempty"`
	// message says why in words for people.
	Message string `json:"message,omitempty"`
}

type KubeVirtConditionType string

// Values of KubeVirtConditionType.
const (
	KubeVirtConditionSynchronized KubeVirtConditionType = "Synchronized"
	KubeVirtConditionCreated      KubeVirtConditionType = "Created"
	KubeVirtConditionAvailable    KubeVirtConditionType = "Available"
	KubeVirtConditionProgressing  KubeVirtConditionType = "Progressing"
	KubeVirtConditionDegraded     KubeVirtConditionType = "Degraded"
)

type GenerationStatus struct {
	Group    string `json:"group"`
	Resource string `json:"resource"`
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// name is its name.
	Name           string `json:"name"`
	LastGeneration int64  `json:"lastGeneration"`
	// +optional
	Hash string `json:"hash,omitempty"`
}
