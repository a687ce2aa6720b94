// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// App is the value of the label app on what belongs to an export.
const App = "virt-exporter"

// DefaultDurationTTL is the lifetime of an export by default.
const DefaultDurationTTL = 2 * time.Hour

// VirtualMachineExport serves volumes for download, each under an address that a token opens, until its time is over.
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=virtualmachineexports,singular=virtualmachineexport,scope=Namespaced,shortName=vmexport;vmexports,categories=all
// +kubebuilder:printcolumn:name="SourceKind",type=string,JSONPath=.spec.source.kind
// +kubebuilder:printcolumn:name="SourceName",type=string,JSONPath=.spec.source.name
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=.status.phase
type VirtualMachineExport struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec is what to export. Set by the user, and not changed afterwards.
	Spec VirtualMachineExportSpec `json:"spec"`
	// status is where to find it. Set by virt-controller.
	// +optional
	Status *VirtualMachineExportStatus `json:"status,omitempty"`
}

// VirtualMachineExportList is a list of VirtualMachineExports.
// +kubebuilder:object:root=true
type VirtualMachineExportList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []VirtualMachineExport `json:"items"`
}

// VirtualMachineExportSpec is what to export.
type VirtualMachineExportSpec struct {
	// source is what to export, in the same namespace: a PersistentVolumeClaim (no apiGroup), a VirtualMachine (apiGroup
	// kubevirt.io), a VirtualMachineSnapshot (apiGroup snapshot.kubevirt.io) or a VirtualMachineBackup (apiGroup
	// backup.kubevirt.io). Required.
	Source corev1.TypedLocalObjectReference `json:"source"`
	// tokenSecretRef names the Secret whose key token has the token that opens the export. Default: a generated one, whose
	// name is in status.tokenSecretRef.
	// +optional
	TokenSecretRef *string `json:"tokenSecretRef,omitempty"`
	// ttlDuration is how long the export lives from its creation, such as 30m. It is then deleted. Default: 2h.
	// +optional
	TTLDuration *metav1.Duration `json:"ttlDuration,omitempty"`
}

// VirtualMachineExportStatus is where to find what is exported.
type VirtualMachineExportStatus struct {
	// phase is Pending, Ready, Terminated or Skipped.
	// +optional
	Phase VirtualMachineExportPhase `json:"phase,omitempty"`
	// links are the addresses of what is exported, once the export is ready.
	// +optional
	Links *VirtualMachineExportLinks `json:"links,omitempty"`
	// tokenSecretRef names the Secret whose key token has the token that opens the export.
	// +optional
	TokenSecretRef *string `json:"tokenSecretRef,omitempty"`
	// ttlExpirationTime is when the export is deleted.
	TTLExpirationTime *metav1.Time `json:"ttlExpirationTime,omitempty"`
	// serviceName names the Service of the internal addresses.
	// +optional
	ServiceName string `json:"serviceName,omitempty"`
	// virtualMachineName names the VM, if a VM or a snapshot of one is exported.
	// +optional
	VirtualMachineName *string `json:"virtualMachineName,omitempty"`
	// conditions are Ready, PVCReady, VolumesCreated, OCIReady and BackupRead.
	// +optional
	// +listType=atomic
	Conditions []Condition `json:"conditions,omitempty"`
}

// VirtualMachineExportPhase is the state of an export.
type VirtualMachineExportPhase string

// Values of VirtualMachineExportPhase.
const (
	// Pending: it is being set up, or waits for a volume.
	Pending VirtualMachineExportPhase = "Pending"
	// Ready: it can be downloaded.
	Ready VirtualMachineExportPhase = "Ready"
	// Terminated: it cannot be downloaded any more.
	Terminated VirtualMachineExportPhase = "Terminated"
	// Skipped: there is nothing that can be exported.
	Skipped VirtualMachineExportPhase = "Skipped"
)

// ConditionType is a type of condition of an export.
type ConditionType string

// Values of ConditionType.
const (
	// ConditionReady is True while the export can be downloaded.
	ConditionReady ConditionType = "Ready"
	// ConditionPVC is True once the claims that are exported are bound.
	ConditionPVC ConditionType = "PVCReady"
	// ConditionVolumesCreated is True once volumes were made of the snapshots that are exported.
	ConditionVolumesCreated ConditionType = "VolumesCreated"
	// ConditionOCIReady is True once the export can be downloaded as an OCI image.
	ConditionOCIReady ConditionType = "OCIReady"
	// ConditionBackupRead reports whether clients have read all of a backup that is pulled, once that is known.
	// KubeVirt does not have it.
	ConditionBackupRead ConditionType = "BackupRead"
)

// Condition is one aspect of the state of an export.
type Condition struct {
	// type is the condition's type: Ready, PVCReady, VolumesCreated or OCIReady.
	Type ConditionType `json:"type"`
	// status is True, False or Unknown.
	Status corev1.ConditionStatus `json:"status"`
	// lastProbeTime is not kept up to date.
	// +optional
	// +nullable
	LastProbeTime metav1.Time `json:"lastProbeTime,omitempty"`
	// lastTransitionTime is when status last changed.
	// +optional
	// +nullable
	LastTransitionTime metav1.Time `json:"lastTransitionTime,omitempty"`
	// reason is the reason in one word, for programs.
	// +optional
	Reason string `json:"reason,omitempty"`
	// message is the explanation and the remedy, for people.
	// +optional
	Message string `json:"message,omitempty"`
}
