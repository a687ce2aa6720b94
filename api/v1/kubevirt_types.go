// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// KubeVirt is the installation: what is installed, and how it behaves. A cluster has one, in the install namespace.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=kubevirts,singular=kubevirt,scope=Namespaced,shortName=kv;kvs,categories=all
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=.metadata.creationTimestamp
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=.status.phase
type KubeVirt struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec is the desired state.
	Spec KubeVirtSpec `json:"spec"`
	// status is the observed state. Set by virt-controller.
	// +optional
	Status KubeVirtStatus `json:"status,omitempty"`
}

// KubeVirtList is a list of KubeVirts.
// +kubebuilder:object:root=true
type KubeVirtList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []KubeVirt `json:"items"`
}

// KubeVirtSpec is what is installed and how it behaves. Set by the administrator.
type KubeVirtSpec struct {
	// imageTag is the tag of the components' images. Default: the manager's own.
	ImageTag string `json:"imageTag,omitempty"`
	// imageRegistry is the registry of the components' images. Default: the manager's own.
	ImageRegistry string `json:"imageRegistry,omitempty"`
	// imagePullPolicy is the pull policy of the components' images. Default: the cluster's.
	ImagePullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`
	// imagePullSecrets name the Secrets with the registry's credentials.
	// +listType=atomic
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets,omitempty"`
	// monitorNamespace is the namespace of the monitoring stack.
	MonitorNamespace string `json:"monitorNamespace,omitempty"`
	// serviceMonitorNamespace is where the ServiceMonitor is put.
	ServiceMonitorNamespace string `json:"serviceMonitorNamespace,omitempty"`
	// monitorAccount is the service account of the monitoring stack.
	MonitorAccount string `json:"monitorAccount,omitempty"`
	// workloadUpdateStrategy defines how running guests get a new launcher. Default: when they restart.
	WorkloadUpdateStrategy KubeVirtWorkloadUpdateStrategy `json:"workloadUpdateStrategy,omitempty"`
	// uninstallStrategy defines what a deletion does while there are VMs: RemoveWorkloads (the default) or
	// BlockUninstallIfWorkloadsExist.
	UninstallStrategy KubeVirtUninstallStrategy `json:"uninstallStrategy,omitempty"`
	// certificateRotateStrategy defines how long certificates live.
	CertificateRotationStrategy KubeVirtCertificateRotateStrategy `json:"certificateRotateStrategy,omitempty"`
	// productVersion is put on everything installed as app.kubernetes.io/version.
	ProductVersion string `json:"productVersion,omitempty"`
	// productName is put on everything installed as app.kubernetes.io/part-of.
	ProductName string `json:"productName,omitempty"`
	// productComponent is put on everything installed as app.kubernetes.io/component.
	ProductComponent string `json:"productComponent,omitempty"`
	// synchronizationPort is the port for migrations between clusters. Default: 9185.
	SynchronizationPort string `json:"synchronizationPort,omitempty"`
	// configuration is how VMs behave.
	Configuration KubeVirtConfiguration `json:"configuration,omitempty"`
	// infra defines where the control plane's Pods run.
	// +optional
	Infra *ComponentConfig `json:"infra,omitempty"`
	// workloads defines on which nodes the agent and so the VMs run.
	// +optional
	Workloads *ComponentConfig `json:"workloads,omitempty"`
	// customizeComponents changes what is installed.
	CustomizeComponents CustomizeComponents `json:"customizeComponents,omitempty"`
}

// KubeVirtUninstallStrategy defines what a deletion does while there are VMs.
type KubeVirtUninstallStrategy string

// Values of KubeVirtUninstallStrategy.
const (
	// KubeVirtUninstallStrategyRemoveWorkloads deletes them.
	KubeVirtUninstallStrategyRemoveWorkloads KubeVirtUninstallStrategy = "RemoveWorkloads"
	// KubeVirtUninstallStrategyBlockUninstallIfWorkloadsExist refuses the deletion.
	KubeVirtUninstallStrategyBlockUninstallIfWorkloadsExist KubeVirtUninstallStrategy = "BlockUninstallIfWorkloadsExist"
)

// KubeVirtCertificateRotateStrategy defines how long certificates live.
type KubeVirtCertificateRotateStrategy struct {
	// selfSigned is for certificates that are made here.
	SelfSigned *KubeVirtSelfSignConfiguration `json:"selfSigned,omitempty"`
}

// KubeVirtSelfSignConfiguration is the lifetimes of certificates.
type KubeVirtSelfSignConfiguration struct {
	// caRotateInterval is the older form of ca.duration.
	// +kubebuilder:validation:XValidation:rule="self.matches('^[-+]?(0|([0-9]*[.]?[0-9]+[.]?(ns|us|µs|ms|s|m|h))+)$')",message="must be a duration, such as 24h or 1h30m"
	CARotateInterval *metav1.Duration `json:"caRotateInterval,omitempty"`
	// certRotateInterval is the older form of server.duration.
	// +kubebuilder:validation:XValidation:rule="self.matches('^[-+]?(0|([0-9]*[.]?[0-9]+[.]?(ns|us|µs|ms|s|m|h))+)$')",message="must be a duration, such as 24h or 1h30m"
	CertRotateInterval *metav1.Duration `json:"certRotateInterval,omitempty"`
	// caOverlapInterval is the older form of ca.renewBefore.
	// +kubebuilder:validation:XValidation:rule="self.matches('^[-+]?(0|([0-9]*[.]?[0-9]+[.]?(ns|us|µs|ms|s|m|h))+)$')",message="must be a duration, such as 24h or 1h30m"
	CAOverlapInterval *metav1.Duration `json:"caOverlapInterval,omitempty"`
	// ca is for the authority. Default: 168h.
	CA *CertConfig `json:"ca,omitempty"`
	// server is for certificates that it signs. Default: 24h.
	Server *CertConfig `json:"server,omitempty"`
}

// CertConfig is the lifetime of a certificate.
type CertConfig struct {
	// duration is how long it is valid.
	// +kubebuilder:validation:XValidation:rule="self.matches('^[-+]?(0|([0-9]*[.]?[0-9]+[.]?(ns|us|µs|ms|s|m|h))+)$')",message="must be a duration, such as 24h or 1h30m"
	Duration *metav1.Duration `json:"duration,omitempty"`
	// renewBefore is how long before its end it is replaced. Default: a fifth of duration.
	// +kubebuilder:validation:XValidation:rule="self.matches('^[-+]?(0|([0-9]*[.]?[0-9]+[.]?(ns|us|µs|ms|s|m|h))+)$')",message="must be a duration, such as 24h or 1h30m"
	RenewBefore *metav1.Duration `json:"renewBefore,omitempty"`
}

// KubeVirtWorkloadUpdateStrategy defines how running guests get a new launcher.
type KubeVirtWorkloadUpdateStrategy struct {
	// workloadUpdateMethods are LiveMigrate and Evict. Default: none.
	// +listType=atomic
	// +optional
	WorkloadUpdateMethods []WorkloadUpdateMethod `json:"workloadUpdateMethods,omitempty"`
	// batchEvictionSize is how many are evicted at once. Default: 10.
	// +optional
	BatchEvictionSize *int `json:"batchEvictionSize,omitempty"`
	// batchEvictionInterval is the time between. Default: 1m.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self.matches('^[-+]?(0|([0-9]*[.]?[0-9]+[.]?(ns|us|µs|ms|s|m|h))+)$')",message="must be a duration, such as 24h or 1h30m"
	BatchEvictionInterval *metav1.Duration `json:"batchEvictionInterval,omitempty"`
}

// WorkloadUpdateMethod is a way to give a guest a new launcher.
type WorkloadUpdateMethod string

// Values of WorkloadUpdateMethod.
const (
	// WorkloadUpdateMethodLiveMigrate migrates it.
	WorkloadUpdateMethodLiveMigrate WorkloadUpdateMethod = "LiveMigrate"
	// WorkloadUpdateMethodEvict shuts it down.
	WorkloadUpdateMethodEvict WorkloadUpdateMethod = "Evict"
)

// ComponentConfig defines where Pods run and how many.
type ComponentConfig struct {
	// nodePlacement defines where they run.
	// +optional
	NodePlacement *NodePlacement `json:"nodePlacement,omitempty"`
	// replicas is the number of Pods of each Deployment. Default: by the number of nodes.
	// +optional
	Replicas *uint8 `json:"replicas,omitempty"`
}

// NodePlacement defines where Pods run.
type NodePlacement struct {
	// nodeSelector are labels that a node must have.
	// +kubebuilder:validation:Optional
	// +optional
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// affinity defines which nodes and Pods to be near to or far from.
	// +kubebuilder:validation:Optional
	// +optional
	Affinity *corev1.Affinity `json:"affinity,omitempty"`
	// tolerations are taints of nodes that are tolerated.
	// +kubebuilder:validation:Optional
	// +optional
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
}

// CustomizeComponents changes what is installed.
type CustomizeComponents struct {
	// patches are applied to the manifests.
	// +listType=atomic
	Patches []CustomizeComponentsPatch `json:"patches,omitempty"`
	// flags are added to the command lines.
	Flags *Flags `json:"flags,omitempty"`
}

// CustomizeComponentsPatch is a patch of a manifest.
type CustomizeComponentsPatch struct {
	// resourceName is the object's name, or *.
	// +kubebuilder:validation:MinLength=1
	ResourceName string `json:"resourceName"`
	// resourceType is the object's kind.
	// +kubebuilder:validation:MinLength=1
	ResourceType string `json:"resourceType"`
	// patch is the patch.
	Patch string `json:"patch"`
	// type is json, merge or strategic.
	Type PatchType `json:"type"`
}

// PatchType is the form of a patch.
type PatchType string

// Values of PatchType.
const (
	// JSONPatchType is a JSON patch, RFC 6902.
	JSONPatchType PatchType = "json"
	// MergePatchType is a JSON merge patch, RFC 7396.
	MergePatchType PatchType = "merge"
	// StrategicMergePatchType is Kubernetes' strategic merge patch.
	StrategicMergePatchType PatchType = "strategic"
)

// Flags are added to command lines, by name without dashes.
type Flags struct {
	// api is for virt-api.
	API map[string]string `json:"api,omitempty"`
	// controller is for virt-controller.
	Controller map[string]string `json:"controller,omitempty"`
	// handler is for virt-handler.
	Handler map[string]string `json:"handler,omitempty"`
}
