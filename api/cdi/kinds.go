// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package cdi

import (
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vireo-project/vireo/api/cdi/v1beta1"
)

// Annotations of the importer. Source: containerized-data-importer pkg/controller/common/util.go.
const (
	// AllowClaimAdoptionAnnotation of a DataVolume with the value true lets it own an existing claim of its name, as after
	// a restore.
	AllowClaimAdoptionAnnotation = "cdi.kubevirt.io/allowClaimAdoption"
	// ContentTypeAnnotation of a claim is the format of its content: kubevirt or archive.
	ContentTypeAnnotation = "cdi.kubevirt.io/storage.contentType"
)

// DataVolume is a PersistentVolumeClaim of the same name and what it is filled with, by the importer.
// +kubebuilder:object:root=true
type DataVolume struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec is what the claim is and what fills it. Set by the user.
	Spec DataVolumeSpec `json:"spec"`
	// status is the state of the importer.
	// +optional
	Status DataVolumeStatus `json:"status,omitempty"`
}

// DataVolumeSpec is the spec of a DataVolume. Only source and sourceRef are decoded, because nothing else is read: a
// user who may create DataVolumes could otherwise block the components that read them. The importer's schema admits
// quantities such as 1e-1000000000, for which Kubernetes' parser needs hours.
type DataVolumeSpec struct {
	v1beta1.DataVolumeSpec `json:",inline"`
}

// UnmarshalJSON implements json.Unmarshaler.
func (s *DataVolumeSpec) UnmarshalJSON(raw []byte) error {
	read := struct {
		Source    *v1beta1.DataVolumeSource    `json:"source"`
		SourceRef *v1beta1.DataVolumeSourceRef `json:"sourceRef"`
	}{}
	if err := json.Unmarshal(raw, &read); err != nil {
		return err
	}
	s.Source, s.SourceRef = read.Source, read.SourceRef
	return nil
}

// DataVolumeList is a list of DataVolumes.
// +kubebuilder:object:root=true
type DataVolumeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	// items are the DataVolumes.
	Items []DataVolume `json:"items"`
}

// DataVolumeStatus is the part of a DataVolume's status that matters to a VM.
type DataVolumeStatus struct {
	// phase is the state of the importer, in one word.
	Phase DataVolumePhase `json:"phase,omitempty"`
	// conditions are Ready, Bound and Running.
	Conditions []DataVolumeCondition `json:"conditions,omitempty"`
}

// DataVolumePhase is the state of the importer. There are more than have a name here: those all mean that it is at
// work.
type DataVolumePhase string

// Phases that a VM does not just wait through.
const (
	// DataVolumePending: it waits for something, such as a source or the quota.
	DataVolumePending DataVolumePhase = "Pending"
	// DataVolumeSucceeded: the claim is filled.
	DataVolumeSucceeded DataVolumePhase = "Succeeded"
	// DataVolumeFailed: the claim will not be filled.
	DataVolumeFailed DataVolumePhase = "Failed"
	// DataVolumeWaitForFirstConsumer: the claim is bound when a Pod uses it, and filled after that.
	DataVolumeWaitForFirstConsumer DataVolumePhase = "WaitForFirstConsumer"
	// DataVolumePendingPopulation: the claim is filled when a Pod wants it, and bound after that.
	DataVolumePendingPopulation DataVolumePhase = "PendingPopulation"
)

// DataVolumeCondition is a condition of a DataVolume.
type DataVolumeCondition struct {
	// type is the condition's type.
	Type DataVolumeConditionType `json:"type"`
	// status is True, False or Unknown.
	Status corev1.ConditionStatus `json:"status"`
	// reason is the reason in one word, for programs.
	Reason string `json:"reason,omitempty"`
	// message is the explanation for people.
	Message string `json:"message,omitempty"`
}

// DataVolumeConditionType is a kind of condition.
type DataVolumeConditionType string

// Kinds of conditions.
const (
	// DataVolumeReady: the claim is filled.
	DataVolumeReady DataVolumeConditionType = "Ready"
	// DataVolumeBound: the claim is bound.
	DataVolumeBound DataVolumeConditionType = "Bound"
	// DataVolumeRunning: something is filling the claim.
	DataVolumeRunning DataVolumeConditionType = "Running"
)

// Condition is the condition of a kind, or nil.
func (s *DataVolumeStatus) Condition(kind DataVolumeConditionType) *DataVolumeCondition {
	for i := range s.Conditions {
		if s.Conditions[i].Type == kind {
			return &s.Conditions[i]
		}
	}
	return nil
}

// DataSource is a name for a claim or a snapshot that DataVolumes are copied from.
// +kubebuilder:object:root=true
type DataSource struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec defines the source. Set by the user.
	Spec DataSourceSpec `json:"spec"`
	// status is the resolved source.
	// +optional
	Status DataSourceStatus `json:"status,omitempty"`
}

// DataSourceList is a list of DataSources.
// +kubebuilder:object:root=true
type DataSourceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	// items are the DataSources.
	Items []DataSource `json:"items"`
}

// DataSourceSpec defines the source of a DataSource.
type DataSourceSpec struct {
	// source is the source. Set by the user.
	Source DataSourceSource `json:"source"`
}

// DataSourceSource is a claim, a snapshot or another DataSource.
type DataSourceSource struct {
	// pvc is a claim.
	// +optional
	PVC *v1beta1.DataVolumeSourcePVC `json:"pvc,omitempty"`
	// snapshot is a VolumeSnapshot.
	// +optional
	Snapshot *v1beta1.DataVolumeSourceSnapshot `json:"snapshot,omitempty"`
	// dataSource is another DataSource. The status then has the source of that one.
	// +optional
	DataSource *DataSourceReference `json:"dataSource,omitempty"`
}

// DataSourceReference names a DataSource.
type DataSourceReference struct {
	// namespace is its namespace.
	Namespace string `json:"namespace"`
	// name is its name.
	Name string `json:"name"`
}

// DataSourceStatus is the resolved source of a DataSource.
type DataSourceStatus struct {
	// source is a claim or a snapshot.
	Source DataSourceSource `json:"source,omitempty"`
}

// StorageProfile is what the importer knows about the storage class of its name.
// +kubebuilder:object:root=true
type StorageProfile struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// status is what the importer knows.
	// +optional
	Status StorageProfileStatus `json:"status,omitempty"`
}

// StorageProfileStatus is the part of a profile's status that matters to snapshots.
type StorageProfileStatus struct {
	// snapshotClass names the VolumeSnapshotClass for the storage class.
	// +optional
	SnapshotClass *string `json:"snapshotClass,omitempty"`
}

// StorageProfileList is a list of StorageProfiles.
// +kubebuilder:object:root=true
type StorageProfileList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	// items are the StorageProfiles.
	Items []StorageProfile `json:"items"`
}
