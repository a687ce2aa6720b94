// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/export/v1"
)

// VirtualMachineExport serves volumes for download, each under an address that a token opens, until its time is over.
// +kubebuilder:object:root=true
// +kubebuilder:deprecatedversion:warning="export.kubevirt.io/v1beta1 VirtualMachineExport is now deprecated and will be removed in a future version."
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=virtualmachineexports,singular=virtualmachineexport,scope=Namespaced,shortName=vmexport;vmexports,categories=all
// +kubebuilder:printcolumn:name="SourceKind",type=string,JSONPath=.spec.source.kind
// +kubebuilder:printcolumn:name="SourceName",type=string,JSONPath=.spec.source.name
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=.status.phase
type VirtualMachineExport struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec is what to export. Set by the user, and not changed afterwards.
	Spec v1.VirtualMachineExportSpec `json:"spec"`
	// status is where to find it. Set by virt-controller.
	// +optional
	Status *v1.VirtualMachineExportStatus `json:"status,omitempty"`
}

// VirtualMachineExportList is a list of VirtualMachineExports.
// +kubebuilder:object:root=true
type VirtualMachineExportList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []VirtualMachineExport `json:"items"`
}
