// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1beta1

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DefaultGracePeriod is the time that a restore waits for its target to stop if the policy is WaitGracePeriod.
const DefaultGracePeriod = 5 * time.Minute

// VirtualMachineRestore restores a VM from a snapshot, or creates a new VM from it.
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=virtualmachinerestores,singular=virtualmachinerestore,scope=Namespaced,shortName=vmrestore;vmrestores,categories=all
// +kubebuilder:printcolumn:name="TargetKind",type=string,JSONPath=.spec.target.kind
// +kubebuilder:printcolumn:name="TargetName",type=string,JSONPath=.spec.target.name
// +kubebuilder:printcolumn:name="Complete",type=boolean,JSONPath=.status.complete
// +kubebuilder:printcolumn:name="RestoreTime",type=date,JSONPath=.status.restoreTime
type VirtualMachineRestore struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec defines the snapshot, the target and the options. Set by the user, and not changed afterwards.
	Spec VirtualMachineRestoreSpec `json:"spec"`
	// status is its state. Set by virt-controller.
	// +optional
	Status *VirtualMachineRestoreStatus `json:"status,omitempty"`
}

// VirtualMachineRestoreList is a list of VirtualMachineRestores.
// +kubebuilder:object:root=true
type VirtualMachineRestoreList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []VirtualMachineRestore `json:"items"`
}

// VirtualMachineRestoreSpec defines the snapshot, the target and the options.
type VirtualMachineRestoreSpec struct {
	// target is the VM to restore to: apiGroup kubevirt.io, kind VirtualMachine, and its name. It is the snapshot's VM, or
	// one that does not exist and is created. Required.
	Target corev1.TypedLocalObjectReference `json:"target"`
	// virtualMachineSnapshotName names the VirtualMachineSnapshot, in the same namespace. Required.
	VirtualMachineSnapshotName string `json:"virtualMachineSnapshotName"`
	// targetReadinessPolicy defines what to do while the target runs: WaitGracePeriod (the default) gives the user 5
	// minutes to stop it, StopTarget stops it, FailImmediate fails, WaitEventually waits forever.
	// +optional
	// +kubebuilder:default=WaitGracePeriod
	// +kubebuilder:validation:Enum=StopTarget;WaitGracePeriod;FailImmediate;WaitEventually
	TargetReadinessPolicy *TargetReadinessPolicy `json:"targetReadinessPolicy,omitempty"`
	// volumeRestorePolicy defines what the restored claims are called: RandomizeNames (the default) generates names,
	// InPlace replaces existing claims, PrefixTargetName puts the target's name before the volume's.
	// +optional
	VolumeRestorePolicy *VolumeRestorePolicy `json:"volumeRestorePolicy,omitempty"`
	// volumeOwnershipPolicy defines what owns the restored claims: Vm (the default), so that they go with the VM, or None.
	// +optional
	VolumeOwnershipPolicy *VolumeOwnershipPolicy `json:"volumeOwnershipPolicy,omitempty"`
	// volumeRestoreOverrides give single restored claims another name, labels or annotations. No default.
	// +optional
	// +listType=atomic
	VolumeRestoreOverrides []VolumeRestoreOverride `json:"volumeRestoreOverrides,omitempty"`
	// patches are JSON patches (RFC 6902), one operation each, that are applied to a target that is made. They may change
	// what is under /spec/, such as {"op": "replace", "path":
	// "/spec/template/spec/domain/devices/interfaces/0/macAddress", "value": "00:00:5e:00:53:01"}. No default.
	// +optional
	// +listType=atomic
	Patches []string `json:"patches,omitempty"`
}

// TargetReadinessPolicy defines what a restore does while its target runs.
type TargetReadinessPolicy string

// Values of TargetReadinessPolicy.
const (
	// VirtualMachineRestoreStopTarget stops the target.
	VirtualMachineRestoreStopTarget TargetReadinessPolicy = "StopTarget"
	// VirtualMachineRestoreWaitGracePeriodAndFail waits DefaultGracePeriod for the user to stop it, then fails.
	VirtualMachineRestoreWaitGracePeriodAndFail TargetReadinessPolicy = "WaitGracePeriod"
	// VirtualMachineRestoreFailImmediate fails at once.
	VirtualMachineRestoreFailImmediate TargetReadinessPolicy = "FailImmediate"
	// VirtualMachineRestoreWaitEventually waits forever for the user to stop it.
	VirtualMachineRestoreWaitEventually TargetReadinessPolicy = "WaitEventually"
)

// VolumeRestorePolicy defines what restored claims are called.
type VolumeRestorePolicy string

// Values of VolumeRestorePolicy.
const (
	// VolumeRestorePolicyRandomizeNames makes new claims with generated names.
	VolumeRestorePolicyRandomizeNames VolumeRestorePolicy = "RandomizeNames"
	// VolumeRestorePolicyInPlace deletes existing claims and makes new ones of the same name.
	VolumeRestorePolicyInPlace VolumeRestorePolicy = "InPlace"
	// VolumeRestorePolicyPrefixTargetName makes new claims called <target>-<volume>.
	VolumeRestorePolicyPrefixTargetName VolumeRestorePolicy = "PrefixTargetName"
)

// VolumeOwnershipPolicy defines what owns restored claims.
type VolumeOwnershipPolicy string

// Values of VolumeOwnershipPolicy.
const (
	// VolumeOwnershipPolicyVm makes the VM their owner.
	VolumeOwnershipPolicyVm VolumeOwnershipPolicy = "Vm"
	// VolumeOwnershipPolicyNone gives them no owner.
	VolumeOwnershipPolicyNone VolumeOwnershipPolicy = "None"
)

// VolumeRestoreOverride changes one restored claim.
type VolumeRestoreOverride struct {
	// volumeName is the volume's name in the VM.
	VolumeName string `json:"volumeName,omitempty"`
	// restoreName is the name of the restored claim. Default: by volumeRestorePolicy.
	// +optional
	RestoreName string `json:"restoreName,omitempty"`
	// labels are added to the restored claim.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// annotations are added to the restored claim.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}

// VirtualMachineRestoreStatus is the state of a restore.
type VirtualMachineRestoreStatus struct {
	// restores are the volumes that are restored.
	// +optional
	// +listType=atomic
	Restores []VolumeRestore `json:"restores,omitempty"`
	// restoreTime is when the restore was completed.
	// +optional
	RestoreTime *metav1.Time `json:"restoreTime,omitempty"`
	// deletedDataVolumes are the target's DataVolumes that the restored claims made superfluous, and that are deleted.
	// +optional
	// +listType=set
	DeletedDataVolumes []string `json:"deletedDataVolumes,omitempty"`
	// complete is true once the restore is complete.
	// +optional
	Complete *bool `json:"complete,omitempty"`
	// conditions are Ready, Progressing and Failure.
	// +optional
	// +listType=atomic
	Conditions []Condition `json:"conditions,omitempty"`
}

// VolumeRestore is one volume that is restored.
type VolumeRestore struct {
	// volumeName is the volume's name in the VM.
	VolumeName string `json:"volumeName"`
	// persistentVolumeClaim is the name of the restored claim.
	PersistentVolumeClaimName string `json:"persistentVolumeClaim"`
	// volumeSnapshotName names the VolumeSnapshot with the data.
	VolumeSnapshotName string `json:"volumeSnapshotName"`
	// dataVolumeName is the name of the DataVolume that is made around the claim, for a volume that had one.
	// +optional
	DataVolumeName *string `json:"dataVolumeName,omitempty"`
}
