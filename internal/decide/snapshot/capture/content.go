// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package capture decides what a snapshot of a VM consists of: which volumes it includes and why it omits others, when
// the VM can be locked, the content with the copy of the VM and of its claims, and the statuses of both objects. It is
// pure: virt-controller calls it with what it has read. Names, reasons and messages are KubeVirt's
// (pkg/storage/snapshot) unless a comment says otherwise.
package capture

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/csi"
	"github.com/vireo-project/vireo/api/snapshot"
	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/firmware"
	"github.com/vireo-project/vireo/internal/decide/instancetype/reference"
	"github.com/vireo-project/vireo/internal/revisiondata"
)

// maxVolumes is how many volumes a content may have: those that admission allows for a VM, and the persistent state.
const maxVolumes = 256 + 1

// maxContent is how many bytes the spec of a content may have. A VM that admission allows has 512 KiB of spec and 256
// KiB of annotations.
const maxContent = 1 << 20

// Stored is the VM from which a content is created.
type Stored struct {
	// VM is the VM, with its instance type and preference as references.
	VM *v1.VirtualMachine
	// Started is the spec with which the VM's guest was started; nil if it does not run.
	Started *v1.VirtualMachineSpec
	// Identity is the value from which the VM's firmware UUID and serial number are derived.
	Identity firmware.Identity
	// Volumes are the volumes of the VM.
	Volumes []Volume
}

// RevisionCopy describes the copy of a ControllerRevision with the VM's instance type or preference.
type RevisionCopy struct {
	// From is the name of the ControllerRevision, and To that of the copy.
	From, To string
}

// ContentName returns the name of the content of a snapshot.
func ContentName(vmSnapshot *v1beta1.VirtualMachineSnapshot) string {
	if vmSnapshot.Status != nil && vmSnapshot.Status.VirtualMachineSnapshotContentName != nil {
		return *vmSnapshot.Status.VirtualMachineSnapshotContentName
	}
	return "vmsnapshot-content-" + string(vmSnapshot.UID)
}

// IsContentOf reports whether a content belongs to a snapshot. Its name alone does not prove that, because users may
// create contents.
func IsContentOf(content *v1beta1.VirtualMachineSnapshotContent, vmSnapshot *v1beta1.VirtualMachineSnapshot) bool {
	return content.Namespace == vmSnapshot.Namespace && content.Name == ContentName(vmSnapshot) &&
		ptr.Deref(content.Spec.VirtualMachineSnapshotName, "") == vmSnapshot.Name
}

// TooManyVolumes returns the problem of a content that has more volumes than a VM can have, or "". Users may write
// contents, and each volume causes requests.
func TooManyVolumes(content *v1beta1.VirtualMachineSnapshotContent) string {
	if count := len(content.Spec.VolumeBackups); count > maxVolumes {
		return fmt.Sprintf("VMSnapshotContent %s/%s has %d volumes, and a VirtualMachine has at most %d", content.Namespace,
			content.Name, count, maxVolumes)
	}
	return ""
}

// TooLarge returns the problem of a content that is larger than those of VMs that admission allows, or has more
// volumes, or "". Users may write contents, also as large as the API server permits. It is checked before anything else
// is done with a content.
func TooLarge(content *v1beta1.VirtualMachineSnapshotContent) string {
	if problem := TooManyVolumes(content); problem != "" {
		return problem
	}
	// What was decoded can be encoded, so an error means that it was changed.
	if raw, err := json.Marshal(&content.Spec); err != nil || len(raw) > maxContent {
		return fmt.Sprintf("VMSnapshotContent %s/%s has %d bytes, and at most %d are possible", content.Namespace,
			content.Name, len(raw), maxContent)
	}
	return ""
}

// Content returns the content of a snapshot, and the ControllerRevisions of which it needs copies.
func Content(
	vmSnapshot *v1beta1.VirtualMachineSnapshot, stored Stored,
) (*v1beta1.VirtualMachineSnapshotContent, []RevisionCopy) {
	vm := &v1beta1.VirtualMachine{ObjectMeta: storedMeta(&stored.VM.ObjectMeta), Spec: *stored.spec()}
	if stored.Identity != "" {
		metav1.SetMetaDataAnnotation(&vm.ObjectMeta, firmware.IdentityAnnotation, string(stored.Identity))
	}
	copies := storeReferences(vmSnapshot.Name, stored.VM, &vm.Spec)
	content := &v1beta1.VirtualMachineSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: vmSnapshot.Namespace, Name: ContentName(vmSnapshot),
			Finalizers: []string{snapshot.VirtualMachineSnapshotContentFinalizer},
		},
		Spec: v1beta1.VirtualMachineSnapshotContentSpec{
			VirtualMachineSnapshotName: ptr.To(vmSnapshot.Name),
			Source:                     v1beta1.SourceSpec{VirtualMachine: vm},
		},
	}
	for i := range stored.Volumes {
		v := &stored.Volumes[i]
		if v.Class == "" {
			continue
		}
		content.Spec.VolumeBackups = append(content.Spec.VolumeBackups, v1beta1.VolumeBackup{
			VolumeName: v.Name,
			PersistentVolumeClaim: v1beta1.PersistentVolumeClaim{
				ObjectMeta: storedMeta(&v.Claim.ObjectMeta), Spec: *v.Claim.Spec.DeepCopy(),
			},
			VolumeSnapshotName: ptr.To("vmsnapshot-" + string(vmSnapshot.UID) + "-volume-" + v.Name),
		})
	}
	return content, copies
}

func storedMeta(meta *metav1.ObjectMeta) metav1.ObjectMeta {
	out := *meta.DeepCopy()
	out.ManagedFields = nil
	return out
}

// spec returns the spec to store. A running guest is restored with the CPU, memory and devices with which it was
// started, but with the current volumes of the VM, because these are in the snapshot. What uses the volumes has to
// match: admission refuses a file system without a volume, and a volume that nothing uses gets a hard disk.
func (s Stored) spec() *v1.VirtualMachineSpec {
	now := s.VM.Spec.DeepCopy()
	if s.Started == nil || s.Started.Template == nil || now.Template == nil {
		return now
	}
	spec := s.Started.DeepCopy()
	spec.Template.Spec.Volumes = now.Template.Spec.Volumes
	devices := &now.Template.Spec.Domain.Devices
	spec.Template.Spec.Domain.Devices.Disks, spec.Template.Spec.Domain.Devices.Filesystems = devices.Disks,
		devices.Filesystems
	spec.DataVolumeTemplates = now.DataVolumeTemplates
	return spec
}

// storeReferences changes the matchers of a stored spec to copies of the ControllerRevisions that the VM uses, which
// are named in the VM's status or in the spec of a start revision. KubeVirt reads only the spec, and so restores a VM
// that does not run with the current state of its instance type.
func storeReferences(name string, vm *v1.VirtualMachine, spec *v1.VirtualMachineSpec) []RevisionCopy {
	var copies []RevisionCopy
	for _, class := range reference.Classes {
		matcher, ref := class.MatcherOf(spec), class.RefOf(&vm.Status)
		if matcher == nil {
			continue
		}
		from := matcher.RevisionName
		if from == "" {
			if from = class.RevisionOf(&v1.VirtualMachine{Spec: *spec, Status: vm.Status}); from == "" {
				continue
			}
			matcher.Name, matcher.Kind = ref.Name, ref.Kind
		}
		// Admission rejects a matcher that both names and infers an object.
		matcher.InferFromVolume, matcher.InferFromVolumeFailurePolicy = "", nil
		to := Rename(from, vm.Name, name)
		matcher.RevisionName = to
		copies = append(copies, RevisionCopy{From: from, To: to})
	}
	return copies
}

// Rename returns the name of the copy of a ControllerRevision, in which the name of the new owner replaces that of the
// old one.
func Rename(revision, from, to string) string {
	return to + "-" + strings.TrimPrefix(revision, from+"-")
}

// Revision returns a copy of a ControllerRevision that the snapshot owns.
func Revision(
	vmSnapshot *v1beta1.VirtualMachineSnapshot, revision *appsv1.ControllerRevision, name string,
) *appsv1.ControllerRevision {
	return CopyRevision(revision, vmSnapshot.Namespace, name, vmSnapshot.UID,
		metav1.NewControllerRef(vmSnapshot, v1beta1.GroupVersion.WithKind("VirtualMachineSnapshot")))
}

// SameData reports whether two revisions have the same data, regardless of the order of its keys.
func SameData(a, b *appsv1.ControllerRevision) bool {
	ofA, ofB := a.Data.Raw, b.Data.Raw //nolint:forbidigo // only the order of keys changes
	first, err := revisiondata.SortKeys(ofA)
	if err != nil {
		return bytes.Equal(ofA, ofB)
	}
	second, err := revisiondata.SortKeys(ofB)
	return err == nil && bytes.Equal(first, second)
}

// CopyRevision returns a copy of a ControllerRevision for an owner, which may be nil. The keys of its data are sorted.
func CopyRevision(
	revision *appsv1.ControllerRevision, namespace, name string, uid types.UID, owner *metav1.OwnerReference,
) *appsv1.ControllerRevision {
	out := &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Data:       *revision.Data.DeepCopy(),
		Revision:   revision.Revision,
	}
	if sorted, err := revisiondata.SortKeys(revision.Data.Raw); err == nil { //nolint:forbidigo // only the order of keys changes
		out.Data.Raw = sorted //nolint:forbidigo // this does not decode them
		revisiondata.MarkSorted(out)
	}
	// Other labels are not copied. A VM can also refer to the revision of a workload, whose controller would adopt a copy
	// with these labels.
	for key, value := range revision.Labels {
		if prefix, _, _ := strings.Cut(key, "/"); prefix == v1.GroupVersion.Group ||
			strings.HasSuffix(prefix, "."+v1.GroupVersion.Group) {
			metav1.SetMetaDataLabel(&out.ObjectMeta, key, value)
		}
	}
	delete(out.Labels, v1.CreatedByLabel)
	if owner != nil {
		metav1.SetMetaDataLabel(&out.ObjectMeta, v1.CreatedByLabel, string(uid))
		out.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	return out
}

// VolumeSnapshot returns the snapshot of a volume of a content.
func VolumeSnapshot(
	content *v1beta1.VirtualMachineSnapshotContent, backup *v1beta1.VolumeBackup, class string,
) *csi.VolumeSnapshot {
	vm := content.Spec.Source.VirtualMachine
	out := &csi.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: content.Namespace, Name: ptr.Deref(backup.VolumeSnapshotName, ""),
			Labels: map[string]string{snapshot.SourceNamespaceLabel: vm.Namespace},
			OwnerReferences: []metav1.OwnerReference{
				*metav1.NewControllerRef(content, v1beta1.GroupVersion.WithKind("VirtualMachineSnapshotContent")),
			},
		},
		Spec: csi.VolumeSnapshotSpec{
			Source: csi.VolumeSnapshotSource{PersistentVolumeClaimName: ptr.To(
				backup.PersistentVolumeClaim.Name)},
			VolumeSnapshotClassName: ptr.To(class),
		},
	}
	SetSourceName(&out.ObjectMeta, snapshot.SourceNameLabel, vm.Name)
	return out
}

// Source is the current state of the VM of a snapshot.
type Source struct {
	// VM is nil if it does not exist.
	VM *v1.VirtualMachine
	// Volumes are its volumes.
	Volumes []Volume
	// Unfilled are the claims that the importer has not filled, by name, with what users have to do, or "" if they only
	// have to wait.
	Unfilled map[string]string
	// Online reports whether it has a VMI, even a finished one.
	Online bool
	// Pods is how many unfinished Pods use its claims. If it is greater than 0, there may be more.
	Pods int
}

// Locked reports whether the VM is locked for a snapshot. The lock is two writes: the status and the finalizer.
func (s Source) Locked(name string) bool {
	return s.VM != nil && s.VM.Status.SnapshotInProgress != nil && *s.VM.Status.SnapshotInProgress == name &&
		slices.Contains(s.VM.Finalizers, snapshot.SourceFinalizer)
}

// Obstacle returns why the VM cannot be locked for a snapshot now, or "".
func (s Source) Obstacle(name string) string {
	for i := range s.Volumes {
		v := &s.Volumes[i]
		obstacle := s.obstacleOf(v)
		if obstacle == "" {
			continue
		}
		text := fmt.Sprintf("source %s/%s %s: %s", s.VM.Namespace, s.VM.Name, obstacle, v.ClaimName)
		if problem := s.Unfilled[v.ClaimName]; problem != "" && obstacle == notPopulated {
			text += ": " + problem
		}
		return text
	}
	status := &s.VM.Status
	switch {
	case !s.Online && s.Pods > 0:
		return fmt.Sprintf("source is offline but %d pods using PVCs %v", s.Pods, s.claims())
	case status.SnapshotInProgress != nil && *status.SnapshotInProgress != name:
		return fmt.Sprintf("snapshot %q in progress", *status.SnapshotInProgress)
	case status.RestoreInProgress != nil:
		// KubeVirt would store a partially restored VM.
		return fmt.Sprintf("restore %q in progress", *status.RestoreInProgress)
	}
	return ""
}

// notPopulated is the obstacle of a claim that the importer has not filled.
const notPopulated = "volume not populated"

func (s Source) obstacleOf(v *Volume) string {
	_, unfilled := s.Unfilled[v.ClaimName]
	switch {
	case v.ClaimName == "":
		return ""
	case v.Claim == nil:
		return "volume doesnt exist"
	case v.Claim.DeletionTimestamp != nil:
		return "volume is being deleted"
	case v.Claim.Status.Phase != corev1.ClaimBound:
		return "volume not bound"
	case unfilled:
		return notPopulated
	case v.Undecided:
		return v.Reason
	default:
		return ""
	}
}

func (s Source) claims() []string {
	var names []string
	for i := range s.Volumes {
		if name := s.Volumes[i].ClaimName; name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}
