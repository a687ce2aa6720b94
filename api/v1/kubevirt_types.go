// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=kubevirts,singular=kubevirt,scope=Namespaced,shortName=kv;kvs,categories=all
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=.metadata.creationTimestamp
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=.status.phase
type KubeVirt struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              KubeVirtSpec `json:"spec"`
	// status is True, False or Unknown.
	// +optional
	Status KubeVirtStatus `json:"status,omitempty"`
}

// +kubebuilder:object:root=true
type KubeVirtList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []KubeVirt `json:"items"`
}

type KubeVirtSpec struct {
	ImageTag        string            `json:"imageTag,omitempty"`
	ImageRegistry   string            `json:"imageRegistry,omitempty"`
	ImagePullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`
	// +listType=atomic
	ImagePullSecrets            []corev1.LocalObjectReference     `json:"imagePullSecrets,omitempty"`
	MonitorNamespace            string                            `json:"monitorNamespace,omitempty"`
	ServiceMonitorNamespace     string                            `json:"serviceMonitorNamespace,omitempty"`
	MonitorAccount              string                            `json:"monitorAccount,omitempty"`
	WorkloadUpdateStrategy      KubeVirtWorkloadUpdateStrategy    `json:"workloadUpdateStrategy,omitempty"`
	UninstallStrategy           KubeVirtUninstallStrategy         `json:"uninstallStrategy,omitempty"`
	CertificateRotationStrategy KubeVirtCertificateRotateStrategy `json:"certificateRotateStrategy,omitempty"`
	ProductVersion              string                            `json:"productVersion,omitempty"`
	ProductName                 string                            `json:"productName,omitempty"`
	ProductComponent            string                            `json:"productComponent,omitempty"`
	SynchronizationPort         string                            `json:"synchronizationPort,omitempty"`
	Configuration               KubeVirtConfiguration             `json:"configuration,omitempty"`
	// +optional
	Infra *ComponentConfig `json:"infra,omitempty"`
	// +optional
	Workloads           *ComponentConfig    `json:"workloads,omitempty"`
	CustomizeComponents CustomizeComponents `json:"customizeComponents,omitempty"`
}

type KubeVirtUninstallStrategy string

// Values of KubeVirtUninstallStrategy.
const (
	KubeVirtUninstallStrategyRemoveWorkloads                KubeVirtUninstallStrategy = "RemoveWorkloads"
	KubeVirtUninstallStrategyBlockUninstallIfWorkloadsExist KubeVirtUninstallStrategy = "BlockUninstallIfWorkloadsExist"
)

type KubeVirtCertificateRotateStrategy struct {
	SelfSigned *KubeVirtSelfSignConfiguration `json:"selfSigned,omitempty"`
}

type KubeVirtSelfSignConfiguration struct {
	CARotateInterval   *metav1.Duration `json:"caRotateInterval,omitempty"`
	CertRotateInterval *metav1.Duration `json:"certRotateInterval,omitempty"`
	CAOverlapInterval  *metav1.Duration `json:"caOverlapInterval,omitempty"`
	CA                 *CertConfig      `json:"ca,omitempty"`
	Server             *CertConfig      `json:"server,omitempty"`
}

type CertConfig struct {
	Duration    *metav1.Duration `json:"duration,omitempty"`
	RenewBefore *metav1.Duration `json:"renewBefore,omitempty"`
}

type KubeVirtWorkloadUpdateStrategy struct {
	// +listType=atomic
	// +optional
	WorkloadUpdateMethods []WorkloadUpdateMethod `json:"workloadUpdateMethods,omitempty"`
	// +optional
	BatchEvictionSize *int `json:"batchEvictionSize,omitempty"`
	// +optional
	BatchEvictionInterval *metav1.Duration `json:"batchEvictionInterval,omitempty"`
}

type WorkloadUpdateMethod string

// Values of WorkloadUpdateMethod.
const (
	WorkloadUpdateMethodLiveMigrate WorkloadUpdateMethod = "LiveMigrate"
	WorkloadUpdateMethodEvict       WorkloadUpdateMethod = "Evict"
)

type ComponentConfig struct {
	// +optional
	NodePlacement *NodePlacement `json:"nodePlacement,omitempty"`
	// +optional
	Replicas *uint8 `json:"replicas,omitempty"`
}

type NodePlacement struct {
	// +kubebuilder:validation:Optional
	// +optional
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// +kubebuilder:validation:Optional
	// +optional
	Affinity *corev1.Affinity `json:"affinity,omitempty"`
	// +kubebuilder:validation:Optional
	// +optional
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
}

type CustomizeComponents struct {
	// +listType=atomic
	Patches []CustomizeComponentsPatch `json:"patches,omitempty"`
	Flags   *Flags                     `json:"flags,omitempty"`
}

type CustomizeComponentsPatch struct {
	// +kubebuilder:validation:MinLength=1
	ResourceName string `json:"resourceName"`
	// +kubebuilder:validation:MinLength=1
	ResourceType string `json:"resourceType"`
	Patch        string `json:"patch"`
	// type is which one it is.
	Type PatchType `json:"type"`
}

type PatchType string

// Values of PatchType.
const (
	JSONPatchType           PatchType = "json"
	MergePatchType          PatchType = "merge"
	StrategicMergePatchType PatchType = "strategic"
)

type Flags struct {
	API        map[string]string `json:"api,omitempty"`
	Controller map[string]string `json:"controller,omitempty"`
	Handler    map[string]string `json:"handler,omitempty"`
}
