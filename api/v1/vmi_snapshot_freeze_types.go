// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// SnapshotFreeze requests that the guest's file systems be frozen while snapshots of its disks are taken, or a backup
// of them begins. Set by virt-controller. KubeVirt calls the subresources freeze and unfreeze instead.
type SnapshotFreeze struct {
	// id identifies the freeze: the UID of the VirtualMachineSnapshot or the VirtualMachineBackup. A guest is frozen at
	// most once for it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	ID string `json:"id"`
	// deadline is when the guest is thawed at the latest, by the clock of its node.
	Deadline metav1.Time `json:"deadline"`
	// end is how the freeze ends: Release or Cancel. It is empty until then, and does not change afterwards.
	// +kubebuilder:validation:Enum="";Release;Cancel
	// +optional
	End SnapshotFreezeEnd `json:"end,omitempty"`
}

// SnapshotFreezeEnd is how a freeze ends.
type SnapshotFreezeEnd string

// Values of SnapshotFreezeEnd.
const (
	// SnapshotFreezeOpen: the freeze has not ended.
	SnapshotFreezeOpen SnapshotFreezeEnd = ""
	// SnapshotFreezeRelease: all snapshots have been taken, or the backup has begun, and the guest is to be thawed.
	SnapshotFreezeRelease SnapshotFreezeEnd = "Release"
	// SnapshotFreezeCancel: the guest is to be thawed, and the snapshots or the backup are not consistent.
	SnapshotFreezeCancel SnapshotFreezeEnd = "Cancel"
)

// SnapshotFreezeRecord is what the agent has done for the freeze of a snapshot or a backup. It is a copy of an entry in
// the domain's metadata. Set by the agent.
type SnapshotFreezeRecord struct {
	// id is that of the freeze.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	ID string `json:"id"`
	// deadline is that of the freeze.
	Deadline metav1.Time `json:"deadline"`
	// stage is how far the freeze is: Requested, Frozen, Thawed or Failed.
	// +kubebuilder:validation:Enum=Requested;Frozen;Thawed;Failed
	Stage SnapshotFreezeStage `json:"stage"`
	// kept is true if the guest was frozen until the freeze was released. Set with the stage Thawed.
	// +optional
	Kept bool `json:"kept,omitempty"`
	// frozenAt is when the agent started to freeze the guest.
	// +optional
	FrozenAt *metav1.Time `json:"frozenAt,omitempty"`
	// thawedAt is when the agent thawed the guest, or found it thawed.
	// +optional
	ThawedAt *metav1.Time `json:"thawedAt,omitempty"`
	// problem explains, for people, why the freeze failed or did not last.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Problem string `json:"problem,omitempty"`
}

// SnapshotFreezeStage is how far a freeze is.
type SnapshotFreezeStage string

// Values of SnapshotFreezeStage.
const (
	// SnapshotFreezeRequested: the guest may be frozen or not.
	SnapshotFreezeRequested SnapshotFreezeStage = "Requested"
	// SnapshotFreezeFrozen: the guest was frozen, and may have been thawed since.
	SnapshotFreezeFrozen SnapshotFreezeStage = "Frozen"
	// SnapshotFreezeThawed: the guest was frozen, and is not any more.
	SnapshotFreezeThawed SnapshotFreezeStage = "Thawed"
	// SnapshotFreezeFailed: the guest was never frozen.
	SnapshotFreezeFailed SnapshotFreezeStage = "Failed"
)
