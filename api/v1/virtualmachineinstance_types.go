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

// Probe checks the guest periodically.
type Probe struct {
	Handler `json:",inline"`
	// initialDelaySeconds is the time in seconds before the first check. Default: 0.
	// +optional
	InitialDelaySeconds int32 `json:"initialDelaySeconds,omitempty"`
	// timeoutSeconds is the time in seconds that a check may take. Default: 1.
	// +optional
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`
	// periodSeconds is the time in seconds between checks. Default: 10.
	// +optional
	PeriodSeconds int32 `json:"periodSeconds,omitempty"`
	// successThreshold is the number of consecutive successes for the probe to succeed. Default: 1.
	// +optional
	SuccessThreshold int32 `json:"successThreshold,omitempty"`
	// failureThreshold is the number of consecutive failures for the probe to fail. Default: 3.
	// +optional
	FailureThreshold int32 `json:"failureThreshold,omitempty"`
}

// Handler is what a probe checks. One member is set.
type Handler struct {
	// exec runs a command in the guest, by the guest agent.
	// +optional
	Exec *corev1.ExecAction `json:"exec,omitempty"`
	// guestAgentPing pings the guest agent.
	// +optional
	GuestAgentPing *GuestAgentPing `json:"guestAgentPing,omitempty"`
	// httpGet gets a page.
	// +optional
	HTTPGet *corev1.HTTPGetAction `json:"httpGet,omitempty"`
	// tcpSocket opens a connection.
	// +optional
	TCPSocket *corev1.TCPSocketAction `json:"tcpSocket,omitempty"`
}

// GuestAgentPing has no options.
type GuestAgentPing struct{}

// IsFinal reports whether the VMI has finished. It is never run again.
func (v *VirtualMachineInstance) IsFinal() bool {
	return v.Status.Phase == Succeeded || v.Status.Phase == Failed
}

// IsRunning reports whether the agent reports a running guest; a paused one counts.
func (v *VirtualMachineInstance) IsRunning() bool {
	return v.Status.Phase == Running
}

// IsScheduled reports whether the VMI was assigned to the agent, which has not started the guest yet.
func (v *VirtualMachineInstance) IsScheduled() bool {
	return v.Status.Phase == Scheduled
}

// IsUnprocessed reports whether there is no launcher Pod yet.
func (v *VirtualMachineInstance) IsUnprocessed() bool {
	return v.Status.Phase == Pending || v.Status.Phase == VmPhaseUnset
}

// IsMarkedForDeletion reports whether a user deleted the VMI.
func (v *VirtualMachineInstance) IsMarkedForDeletion() bool {
	return v.DeletionTimestamp != nil
}

// IsCPUDedicated reports whether each virtual CPU gets a whole CPU of the node.
func (v *VirtualMachineInstance) IsCPUDedicated() bool {
	return v.Spec.Domain.CPU != nil && v.Spec.Domain.CPU.DedicatedCPUPlacement
}

// IsBootloaderEFI reports whether the guest boots by EFI rather than BIOS.
func (v *VirtualMachineInstance) IsBootloaderEFI() bool {
	fw := v.Spec.Domain.Firmware
	return fw != nil && fw.Bootloader != nil && fw.Bootloader.EFI != nil
}

// ShouldStartPaused reports whether the guest starts paused.
func (v *VirtualMachineInstance) ShouldStartPaused() bool {
	return v.Spec.StartStrategy != nil && *v.Spec.StartStrategy == StartStrategyPaused
}

// PersistentStateLabel is on the claim with a VM's persistent state, and names the VM. The claim's name begins
// with it. Source: kubevirt/kubevirt pkg/storage/backend-storage, PVCPrefix.
const PersistentStateLabel = "persistent-state-for"

// HasTPM reports whether the guest has a TPM. A preference's TPM can be turned off again.
func (s *VirtualMachineInstanceSpec) HasTPM() bool {
	tpm := s.Domain.Devices.TPM
	return tpm != nil && (tpm.Enabled == nil || *tpm.Enabled)
}

// HasPersistentTPM reports whether the TPM keeps its state across starts.
func (s *VirtualMachineInstanceSpec) HasPersistentTPM() bool {
	return s.HasTPM() && s.Domain.Devices.TPM.Persistent != nil && *s.Domain.Devices.TPM.Persistent
}

// HasPersistentEFI reports whether the EFI variables are kept across starts.
func (s *VirtualMachineInstanceSpec) HasPersistentEFI() bool {
	firmware := s.Domain.Firmware
	if firmware == nil || firmware.Bootloader == nil || firmware.Bootloader.EFI == nil {
		return false
	}
	persistent := firmware.Bootloader.EFI.Persistent
	return persistent != nil && *persistent
}

// HasPersistentState reports whether TPM or EFI state is kept across starts.
func (s *VirtualMachineInstanceSpec) HasPersistentState() bool {
	return s.HasPersistentTPM() || s.HasPersistentEFI()
}
