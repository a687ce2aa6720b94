// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// VirtualMachineInstance is one run of a virtual machine.
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
	// spec is what runs. Set at creation, with every default resolved, and then changed by virt-controller only.
	Spec VirtualMachineInstanceSpec `json:"spec"`
	// status is the observed state of the run. Starts with the phase Pending. Each field has one writer: virt-controller
	// or the node's agent.
	// +kubebuilder:default={phase: Pending}
	// +optional
	Status VirtualMachineInstanceStatus `json:"status,omitempty"`
}

// VirtualMachineInstanceList is a list of VirtualMachineInstances.
// +kubebuilder:object:root=true
type VirtualMachineInstanceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the VMIs.
	Items []VirtualMachineInstance `json:"items"`
}

// VirtualMachineInstanceSpec is the machine that runs and where it may run. Set by the user.
type VirtualMachineInstanceSpec struct {
	// priorityClassName is the priority class of the launcher Pod. Default: the cluster's.
	// +optional
	PriorityClassName string `json:"priorityClassName,omitempty"`
	// domain is the machine itself.
	Domain DomainSpec `json:"domain"`
	// nodeSelector are labels that a node must have. Default: none.
	// +optional
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// affinity defines which nodes and which other Pods to be near to or far from. Default: none.
	Affinity *corev1.Affinity `json:"affinity,omitempty"`
	// schedulerName is the scheduler of the launcher Pod. Default: the cluster's.
	// +optional
	SchedulerName string `json:"schedulerName,omitempty"`
	// serviceAccountName is the service account of the launcher Pod. Its token is not put into the Pod. Default: the
	// namespace's.
	// +optional
	ServiceAccountName string `json:"serviceAccountName,omitempty"`
	// tolerations are taints of nodes that are tolerated. Default: none.
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	// topologySpreadConstraints define how VMIs are spread over nodes and zones. Default: none.
	// +optional
	// +listType=map
	// +listMapKey=topologyKey
	// +listMapKey=whenUnsatisfiable
	TopologySpreadConstraints []corev1.TopologySpreadConstraint `json:"topologySpreadConstraints,omitempty" patchStrategy:"merge" patchMergeKey:"topologyKey"`
	// evictionStrategy defines what an eviction does: None, LiveMigrate, LiveMigrateIfPossible or External. Default: the
	// cluster's, which is None unless configured.
	// +optional
	EvictionStrategy *EvictionStrategy `json:"evictionStrategy,omitempty"`
	// startStrategy set to Paused starts the guest paused. Default: the guest runs at once.
	// +optional
	StartStrategy *StartStrategy `json:"startStrategy,omitempty"`
	// terminationGracePeriodSeconds is the time in seconds that the guest has to shut down before it is destroyed.
	// Default: 30.
	TerminationGracePeriodSeconds *int64 `json:"terminationGracePeriodSeconds,omitempty"`
	// volumes are the sources of the disks. Each goes with a disk of the same name.
	// +kubebuilder:validation:MaxItems:=256
	Volumes []Volume `json:"volumes,omitempty"`
	// livenessProbe ends the VMI when it fails. Default: none.
	// +optional
	LivenessProbe *Probe `json:"livenessProbe,omitempty"`
	// readinessProbe takes the VMI out of Services while it fails. Default: none.
	// +optional
	ReadinessProbe *Probe `json:"readinessProbe,omitempty"`
	// hostname is the host name that the guest learns. Default: the VMI's name.
	// +optional
	Hostname string `json:"hostname,omitempty"`
	// subdomain is the subdomain, for a DNS name by a headless Service of that name. Default: none.
	// +optional
	Subdomain string `json:"subdomain,omitempty"`
	// networks are what the interfaces connect to. Each goes with an interface of the same name. Default: the Pod's
	// network.
	// +kubebuilder:validation:MaxItems:=256
	Networks []Network `json:"networks,omitempty"`
	// dnsPolicy is the DNS policy of the launcher Pod, whose DNS the guest learns. Default: ClusterFirst.
	// +optional
	DNSPolicy corev1.DNSPolicy `json:"dnsPolicy,omitempty"`
	// dnsConfig adds to the DNS settings of the launcher Pod. Default: none.
	// +optional
	DNSConfig *corev1.PodDNSConfig `json:"dnsConfig,omitempty"`
	// accessCredentials are keys and passwords to bring into the guest. Default: none.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems:=256
	AccessCredentials []AccessCredential `json:"accessCredentials,omitempty"`
	// architecture is the guest's architecture: amd64, arm64 or s390x. Default: the cluster's.
	Architecture string `json:"architecture,omitempty"`
	// resourceClaims are claims of devices that the launcher Pod must have. Default: none.
	// +listType=map
	// +listMapKey=name
	// +optional
	ResourceClaims []VirtualMachineInstanceResourceClaim `json:"resourceClaims,omitempty"`
	// utilityVolumes are volumes of the launcher Pod that are no disks. Default: none.
	// +kubebuilder:validation:MaxItems:=256
	// +listType=map
	// +listMapKey=name
	// +optional
	UtilityVolumes []UtilityVolume `json:"utilityVolumes,omitempty"`
}

// EvictionStrategy defines what an eviction does to a VMI.
type EvictionStrategy string

// Values of EvictionStrategy.
const (
	// EvictionStrategyNone shuts the guest down.
	EvictionStrategyNone EvictionStrategy = "None"
	// EvictionStrategyLiveMigrate migrates the guest, and blocks the eviction if it cannot migrate.
	EvictionStrategyLiveMigrate EvictionStrategy = "LiveMigrate"
	// EvictionStrategyLiveMigrateIfPossible migrates the guest if it can migrate, and shuts it down if not.
	EvictionStrategyLiveMigrateIfPossible EvictionStrategy = "LiveMigrateIfPossible"
	// EvictionStrategyExternal leaves the guest to another controller and blocks the eviction.
	EvictionStrategyExternal EvictionStrategy = "External"
)

// StartStrategy defines how a guest starts.
type StartStrategy string

// Values of StartStrategy.
const (
	// StartStrategyPaused starts it paused.
	StartStrategyPaused StartStrategy = "Paused"
)

// VirtualMachineInstanceResourceClaim is a claim of devices. One of the two names is set.
type VirtualMachineInstanceResourceClaim struct {
	// name is how devices of the VMI refer to the claim. A DNS label.
	Name string `json:"name"`
	// resourceClaimName names a ResourceClaim of the namespace.
	ResourceClaimName *string `json:"resourceClaimName,omitempty"`
	// resourceClaimTemplateName names a template from which a claim is made for the launcher Pod.
	ResourceClaimTemplateName *string `json:"resourceClaimTemplateName,omitempty"`
}
