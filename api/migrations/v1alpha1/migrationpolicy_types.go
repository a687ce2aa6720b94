// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// MigrationPolicy changes how the VMs that it selects migrate, in place of the cluster's configuration. Of all policies
// that select a VM the one with the most labels in its selectors counts; of those, the one with the most labels for the
// VM; of those, the first by name.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=migrationpolicies,singular=migrationpolicy,scope=Cluster
type MigrationPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec selects VMs and defines how they migrate. Fields that are not set are taken from configuration.migrations of
	// the KubeVirt object. Set by the administrator.
	Spec MigrationPolicySpec `json:"spec"`
	// status is empty.
	// +nullable
	Status MigrationPolicyStatus `json:"status,omitempty"`
}

// MigrationPolicyList is a list of MigrationPolicies.
// +kubebuilder:object:root=true
type MigrationPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []MigrationPolicy `json:"items"`
}

// MigrationPolicySpec selects VMs and defines how they migrate. A migration adopts the policy when it starts.
type MigrationPolicySpec struct {
	// selectors choose the VMs. Required. Without any label they choose all.
	Selectors *Selectors `json:"selectors"`
	// allowAutoConverge slows the guest's CPUs down as far as the migration needs to get to an end.
	// +optional
	AllowAutoConverge *bool `json:"allowAutoConverge,omitempty"`
	// bandwidthPerMigration is the most that one migration sends per second, such as 64Mi. 0 is no limit. It must not be
	// negative.
	// +optional
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('0')) >= 0",message="must not be negative"
	BandwidthPerMigration *resource.Quantity `json:"bandwidthPerMigration,omitempty"`
	// completionTimeoutPerGiB is the time, in seconds for each GiB of the guest's memory, after which the migration is
	// helped to its end, if allowPostCopy or allowWorkloadDisruption lets it, and aborted otherwise. It must not be
	// negative.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 0",message="must not be negative"
	CompletionTimeoutPerGiB *int64 `json:"completionTimeoutPerGiB,omitempty"`
	// maxDowntimeMs is the time, in milliseconds, that the guest may be paused when it changes nodes, from 1 to 2000000.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2000000
	MaxDowntimeMs *uint64 `json:"maxDowntimeMs,omitempty"`
	// allowPostCopy lets the guest run on the target before all of its memory is there. If the connection breaks then, the
	// guest is lost.
	// +optional
	AllowPostCopy *bool `json:"allowPostCopy,omitempty"`
	// allowWorkloadDisruption lets the migration pause the guest until it is over, or use post-copy if allowPostCopy is
	// set. Default: as allowPostCopy.
	// +optional
	AllowWorkloadDisruption *bool `json:"allowWorkloadDisruption,omitempty"`
	// experimental contains options that may change or go without notice.
	// +optional
	ExperimentalMigrationOptions *v1.ExperimentalMigrationOptions `json:"experimental,omitempty"`
}

// Selectors choose VMs. If both are set, both must match.
type Selectors struct {
	// namespaceSelector contains labels that the VM's namespace must have.
	// +optional
	NamespaceSelector LabelSelector `json:"namespaceSelector,omitempty"`
	// virtualMachineInstanceSelector contains labels that the VM's instance must have.
	// +optional
	VirtualMachineInstanceSelector LabelSelector `json:"virtualMachineInstanceSelector,omitempty"`
}

// LabelSelector contains labels, all of which an object must have with these values. An expression, as in other
// selectors of Kubernetes, is not possible.
type LabelSelector map[string]string

// MigrationPolicyStatus is empty.
type MigrationPolicyStatus struct{}
