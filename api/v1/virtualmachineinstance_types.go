// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=virtualmachineinstances,singular=virtualmachineinstance,scope=Namespaced,shortName=vmi;vmis,categories=all
// +kubebuilder:selectablefield:JSONPath=.status.nodeName
// +kubebuilder:selectablefield:JSONPath=.status.phase
// +kubebuilder:selectablefield:JSONPath=.status.migrationState.targetNode
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=.metadata.creationTimestamp
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=.status.phase
// +kubebuilder:printcolumn:name="IP",type=string,JSONPath=.status.interfaces[0].ipAddress
// +kubebuilder:printcolumn:name="NodeName",type=string,JSONPath=.status.nodeName
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=.status.conditions[?(@.type=='Ready')].status
// +kubebuilder:printcolumn:name="Live-Migratable",type=string,priority=1,JSONPath=.status.conditions[?(@.type=='LiveMigratable')].status
// +kubebuilder:printcolumn:name="Paused",type=string,priority=1,JSONPath=.status.conditions[?(@.type=='Paused')].status
type VirtualMachineInstance struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              VirtualMachineInstanceSpec `json:"spec"`
	// +kubebuilder:default={phase: Pending}
	// +optional
	Status VirtualMachineInstanceStatus `json:"status,omitempty"`
}

// +kubebuilder:object:root=true
type VirtualMachineInstanceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VirtualMachineInstance `json:"items"`
}

type VirtualMachineInstanceSpec struct {
	// +optional
	PriorityClassName string     `json:"priorityClassName,omitempty"`
	Domain            DomainSpec `json:"domain"`
	// +optional
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	Affinity     *corev1.Affinity  `json:"affinity,omitempty"`
	// +optional
	SchedulerName string `json:"schedulerName,omitempty"`
	// +optional
	ServiceAccountName string              `json:"serviceAccountName,omitempty"`
	Tolerations        []corev1.Toleration `json:"tolerations,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=topologyKey
	// +listMapKey=whenUnsatisfiable
	TopologySpreadConstraints []corev1.TopologySpreadConstraint `json:"topologySpreadConstraints,omitempty" patchStrategy:"merge" patchMergeKey:"topologyKey"`
	// +optional
	EvictionStrategy *EvictionStrategy `json:"evictionStrategy,omitempty"`
	// +optional
	StartStrategy                 *StartStrategy `json:"startStrategy,omitempty"`
	TerminationGracePeriodSeconds *int64         `json:"terminationGracePeriodSeconds,omitempty"`
	// +kubebuilder:validation:MaxItems:=256
	Volumes []Volume `json:"volumes,omitempty"`
	// +optional
	LivenessProbe *Probe `json:"livenessProbe,omitempty"`
	// +optional
	ReadinessProbe *Probe `json:"readinessProbe,omitempty"`
	// +optional
	Hostname string `json:"hostname,omitempty"`
	// +optional
	Subdomain string `json:"subdomain,omitempty"`
	// +kubebuilder:validation:MaxItems:=256
	Networks []Network `json:"networks,omitempty"`
	// +optional
	DNSPolicy corev1.DNSPolicy `json:"dnsPolicy,omitempty"`
	// +optional
	DNSConfig *corev1.PodDNSConfig `json:"dnsConfig,omitempty"`
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems:=256
	AccessCredentials []AccessCredential `json:"accessCredentials,omitempty"`
	Architecture      string             `json:"architecture,omitempty"`
	// +listType=map
	// +listMapKey=name
	// +optional
	ResourceClaims []VirtualMachineInstanceResourceClaim `json:"resourceClaims,omitempty"`
	// +kubebuilder:validation:MaxItems:=256
	// +listType=map
	// +listMapKey=name
	// +optional
	UtilityVolumes []UtilityVolume `json:"utilityVolumes,omitempty"`
}

type EvictionStrategy string

// Values of EvictionStrategy.
const (
	EvictionStrategyNone                  EvictionStrategy = "None"
	EvictionStrategyLiveMigrate           EvictionStrategy = "LiveMigrate"
	EvictionStrategyLiveMigrateIfPossible EvictionStrategy = "LiveMigrateIfPossible"
	EvictionStrategyExternal              EvictionStrategy = "External"
)

type StartStrategy string

// Values of StartStrategy.
const (
	StartStrategyPaused StartStrategy = "Paused"
)

type VirtualMachineInstanceResourceClaim struct {
	Name                      string  `json:"name"`
	ResourceClaimName         *string `json:"resourceClaimName,omitempty"`
	ResourceClaimTemplateName *string `json:"resourceClaimTemplateName,omitempty"`
}
