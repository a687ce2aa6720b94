// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package export

import (
	"cmp"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/cdi"
	exportapi "github.com/vireo-project/vireo/api/export"
	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/instancetype"
	"github.com/vireo-project/vireo/internal/decide/snapshot/capture"
	"github.com/vireo-project/vireo/internal/exporter/content"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// contentDisk is the value of cdi.ContentTypeAnnotation for the disk of a VM.
const contentDisk = "kubevirt"

// volume is an exported claim.
type volume struct {
	content.Volume
	claim *corev1.PersistentVolumeClaim
}

// source describes what is exported, as far as it exists.
type source struct {
	volumes []volume
	// vm is the VM, for the manifests, and vmName its name. An export of a claim has none.
	vm     *v1.VirtualMachine
	vmName *string
	// obstacle is the condition Ready of a source that cannot be exported now, or nil.
	obstacle *exportv1.Condition
	// condition is the condition PVCReady, VolumesCreated or BackupRead, or nil.
	condition *exportv1.Condition
	// empty reports whether there is nothing that could be exported.
	empty bool
	// watched reports whether virt-controller watches everything that the source waits for.
	watched bool
	// missing are the claims to create from a snapshot.
	missing []*corev1.PersistentVolumeClaim
	// pulled reports whether it is a backup of this export, and ends that it is not to be read any more. backup is what
	// can be read, or nil.
	pulled, ends bool
	backup       *content.Backup
}

func condition(kind exportv1.ConditionType, status corev1.ConditionStatus, reason, message string) *exportv1.Condition {
	return &exportv1.Condition{Type: kind, Status: status, Reason: reason, Message: message}
}

// wait sets the reason why the source cannot be exported now.
func (s *source) wait(reason, format string, args ...any) {
	s.obstacle = condition(exportv1.ConditionReady, corev1.ConditionFalse, reason, fmt.Sprintf(format, args...))
}

// source returns what is exported.
func (o *Observed) source() source {
	switch SourceKind(o.Export) {
	case KindClaim:
		return o.claimSource()
	case KindVM:
		return o.vmSource()
	case KindSnapshot:
		return o.snapshotSource()
	case KindBackup:
		return o.backupSource()
	default:
		s := source{watched: true}
		s.wait(exportapi.InitializingReason,
			"sources of the kind %s are not exported: use a PersistentVolumeClaim, a VirtualMachine or a VirtualMachineSnapshot",
			o.Export.Spec.Source.Kind)
		return s
	}
}

// Contested returns the names of the claims that other Pods must not use during the export. There are none if the
// source cannot be exported for another reason, or if the claims are created for the export.
func (o *Observed) Contested() []string {
	s := o.source()
	if s.obstacle != nil || SourceKind(o.Export) == KindSnapshot {
		return nil
	}
	names := make([]string, 0, len(s.volumes))
	for i := range s.volumes {
		names = append(names, s.volumes[i].claim.Name)
	}
	return names
}

func (o *Observed) claimSource() source {
	s, name := source{}, o.Export.Spec.Source.Name
	claim := o.Claims[name]
	s.condition = o.bound(name)
	if claim == nil {
		s.wait(exportapi.InitializingReason, "")
		s.watched = true
		return s
	}
	s.volumes = []volume{newVolume(claim, isDisk(claim))}
	problem, unfilled := o.Unfilled[name]
	switch {
	case unfilled:
		s.wait(exportapi.PVCPendingReason, "PersistentVolumeClaim %s/%s is not populated%s", claim.Namespace,
			name, because(problem))
	case o.Used[name]:
		s.wait(exportapi.InUseReason, "PersistentVolumeClaim %s/%s is in use", claim.Namespace, name)
	}
	return s
}

// bound returns the condition PVCReady of claims.
func (o *Observed) bound(names ...string) *exportv1.Condition {
	pending := ""
	for _, name := range names {
		claim := o.Claims[name]
		switch {
		case claim == nil:
			return condition(exportv1.ConditionPVC, corev1.ConditionFalse, exportapi.PVCNotFoundReason,
				fmt.Sprintf("PersistentVolumeClaim %s/%s not found", o.Export.Namespace, name))
		case claim.Status.Phase != corev1.ClaimBound && pending == "":
			pending = name
		}
	}
	if pending != "" {
		return condition(exportv1.ConditionPVC, corev1.ConditionFalse, exportapi.PVCPendingReason,
			fmt.Sprintf("PersistentVolumeClaim %s/%s is not bound", o.Export.Namespace, pending))
	}
	return condition(exportv1.ConditionPVC, corev1.ConditionTrue, exportapi.PVCBoundReason, "")
}

func (o *Observed) vmSource() source {
	namespace, name := o.Export.Namespace, o.Export.Spec.Source.Name
	s := source{vm: o.VM, vmName: &name}
	if o.VM == nil {
		s.wait(exportapi.VMNotFoundReason, "Virtual Machine %s/%s not found", namespace, name)
		s.empty, s.watched = true, true
		return s
	}
	names, unfilled, problem, used := []string{}, false, "", ""
	for _, v := range capture.Volumes(o.VM, capture.Storage{Claims: o.Claims, State: o.State}) {
		if v.ClaimName == "" || contains(s.volumes, v.ClaimName) {
			continue
		}
		names = append(names, v.ClaimName)
		todo, isUnfilled := o.Unfilled[v.ClaimName]
		if v.Claim == nil || isUnfilled {
			unfilled, problem = true, cmp.Or(problem, todo) // A volume is never omitted silently.
			continue
		}
		s.volumes = append(s.volumes, newVolume(v.Claim, isDisk(v.Claim) || hasDisk(o.VM, v.Name)))
		if o.Used[v.ClaimName] && used == "" {
			used = v.ClaimName
		}
	}
	switch {
	case len(names) == 0:
		s.wait(exportapi.VMNoVolumesReason, "Virtual Machine %s/%s has no volumes", namespace, name)
		s.empty, s.watched = true, true
		return s
	case unfilled:
		s.wait(exportapi.VolumesNotPopulatedReason, "Not all volumes in the Virtual Machine %s/%s are populated%s",
			namespace, name, because(problem))
	case o.Running:
		s.wait(exportapi.InUseReason, "Virtual Machine %s/%s is running", namespace, name)
	case used != "":
		s.wait(exportapi.InUseReason, "PersistentVolumeClaim %s/%s is in use", namespace, used)
	}
	s.condition = o.bound(names...)
	return s
}

// because returns the end of a message about claims that are not filled.
func because(problem string) string {
	if problem == "" {
		return ""
	}
	return ": " + problem
}

// contains reports whether the volumes have a claim of the VM.
func contains(volumes []volume, claim string) bool {
	return find(volumes, claim) != nil
}

// find returns the volume with a claim of the VM, or nil.
func find(volumes []volume, claim string) *volume {
	for i := range volumes {
		if volumes[i].ClaimName() == claim {
			return &volumes[i]
		}
	}
	return nil
}

// hasDisk reports whether a volume is a disk of the VM, and no file system, memory dump or state. A volume without a
// disk gets one when the VM starts.
func hasDisk(vm *v1.VirtualMachine, name string) bool {
	return vm.Spec.Template != nil && instancetype.DiskOf(&vm.Spec.Template.Spec, name) != nil
}

// isDisk reports whether a claim contains the disk of a VM regardless of a VM: it is a block device, or has the
// importer's annotation.
func isDisk(claim *corev1.PersistentVolumeClaim) bool {
	if vmistatus.IsBlockClaim(claim) {
		return true
	}
	if kind, found := claim.Annotations[cdi.ContentTypeAnnotation]; found {
		return kind == contentDisk || kind == "" // KubeVirt's default
	}
	owner := metav1.GetControllerOf(claim)
	return owner != nil && owner.Kind == "DataVolume" && strings.HasPrefix(owner.APIVersion, cdi.GroupVersion.Group+"/")
}

func newVolume(claim *corev1.PersistentVolumeClaim, disk bool) volume {
	return volume{content.Volume{Name: claim.Name, Block: vmistatus.IsBlockClaim(claim), Disk: disk}, claim}
}

func (o *Observed) snapshotSource() source {
	namespace, name := o.Export.Namespace, o.Export.Spec.Source.Name
	s := source{}
	created := func(status corev1.ConditionStatus, reason, message string) {
		s.condition = condition(exportv1.ConditionVolumesCreated, status, reason, message)
	}
	none := fmt.Sprintf("VirtualMachineSnapshot %s/%s does not contain any volume snapshots", namespace, name)
	if o.Snapshot == nil {
		s.wait(exportapi.VMSnapshotNotFoundReason, "VirtualMachineSnapshot %s/%s not found", namespace, name)
		s.empty, s.watched = true, true
		created(corev1.ConditionFalse, exportapi.VMSnapshotNoVolumesReason, none)
		return s
	}
	s.vmName = ptr.To(o.Snapshot.Spec.Source.Name)
	ready := o.Snapshot.Status != nil && ptr.Deref(o.Snapshot.Status.ReadyToUse, false)
	if !ready || o.Content == nil {
		text := fmt.Sprintf("VirtualMachineSnapshot %s/%s is not ready", namespace, name)
		s.wait(exportapi.NotAllPVCsCreatedReason, "%s", text)
		created(corev1.ConditionFalse, exportapi.NotAllPVCsCreatedReason, text)
		return s
	}
	if len(o.Content.Spec.VolumeBackups) == 0 {
		s.wait(exportapi.InitializingReason, "%s", none)
		created(corev1.ConditionFalse, exportapi.VMSnapshotNoVolumesReason, none)
		s.empty, s.watched = true, true
		return s
	}
	if text := capture.TooLarge(o.Content); text != "" {
		s.wait(exportapi.NotAllPVCsCreatedReason, "%s", text)
		created(corev1.ConditionFalse, exportapi.NotAllPVCsCreatedReason, text)
		return s
	}
	s.vm = o.Stored
	bound, problem := o.restoreVolumes(&s)
	switch {
	case problem != "":
		s.volumes, s.missing = nil, nil
		s.wait(exportapi.NotAllPVCsCreatedReason, "%s", problem)
		created(corev1.ConditionFalse, exportapi.NotAllPVCsCreatedReason, problem)
	case len(s.missing) > 0:
		text := "Not all PVCs have been successfully restored"
		s.wait(exportapi.InitializingReason, "%s", text)
		created(corev1.ConditionFalse, exportapi.NotAllPVCsCreatedReason, text)
	case bound:
		created(corev1.ConditionTrue, exportapi.AllPVCsReadyReason, "")
	default: // Claims that wait for their first consumer are bound when the exporter's Pod uses them.
		created(corev1.ConditionFalse, exportapi.NotAllPVCsReadyReason, "Not all PVCs are ready")
	}
	return s
}

// restoreVolumes adds the claims that are created from a snapshot, and reports whether all are bound, or why one cannot
// be created.
func (o *Observed) restoreVolumes(s *source) (bound bool, problem string) {
	bound = true
	for i := range o.Content.Spec.VolumeBackups {
		backup := &o.Content.Spec.VolumeBackups[i]
		// Users may write contents, and the name becomes a part of paths. It is checked before it is shortened, which
		// could hide an error.
		if len(validation.IsDNS1123Subdomain(backup.PersistentVolumeClaim.Name)) > 0 {
			return false, fmt.Sprintf(
				"VirtualMachineSnapshotContent %s has a volume of PersistentVolumeClaim %q, which is not a valid name of a claim",
				o.Content.Name, short(backup.PersistentVolumeClaim.Name))
		}
		name := shortened(o.Export.Name + "-" + backup.PersistentVolumeClaim.Name)
		claim := o.Claims[name]
		switch {
		case contains(s.volumes, backup.PersistentVolumeClaim.Name):
			return false, fmt.Sprintf("VirtualMachineSnapshotContent %s has two volumes of PersistentVolumeClaim %s",
				o.Content.Name, backup.PersistentVolumeClaim.Name)
		case claim == nil:
			if claim, problem = o.restored(backup, name); problem != "" {
				return false, problem
			}
			s.missing = append(s.missing, claim)
		case !metav1.IsControlledBy(claim, o.Export):
			return false, fmt.Sprintf(
				"PersistentVolumeClaim %s/%s exists and does not belong to the export: delete or rename one of them",
				claim.Namespace, claim.Name)
		default:
			bound = bound && claim.Status.Phase == corev1.ClaimBound
		}
		disk := isDisk(claim) || o.Stored != nil && hasDisk(o.Stored, backup.VolumeName)
		v := newVolume(claim, disk)
		v.Claim = backup.PersistentVolumeClaim.Name
		s.volumes = append(s.volumes, v)
	}
	return bound, ""
}

// restored returns a claim that is created from the snapshot of a volume. Users may write contents, and virt-controller
// has more permissions than they have, so the claim can only be created from a VolumeSnapshot of its namespace.
func (o *Observed) restored(
	backup *v1beta1.VolumeBackup, name string,
) (claim *corev1.PersistentVolumeClaim, problem string) {
	taken := o.VolumeSnapshots[ptr.Deref(backup.VolumeSnapshotName, "")]
	if taken == nil {
		return nil, fmt.Sprintf("VolumeSnapshot %s/%s of volume %s does not exist", o.Export.Namespace,
			ptr.Deref(backup.VolumeSnapshotName, ""), backup.VolumeName)
	}
	old := &backup.PersistentVolumeClaim
	claim = &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: o.Export.Namespace, Name: name, OwnerReferences: []metav1.OwnerReference{ownerRef(o.Export)},
		},
		Spec: capture.ClaimSpec(&old.Spec, taken),
	}
	if kind, found := old.Annotations[cdi.ContentTypeAnnotation]; found {
		claim.Annotations = map[string]string{cdi.ContentTypeAnnotation: kind}
	}
	return claim, ""
}

// ownerRef makes an export the owner of an object.
func ownerRef(owner *exportv1.VirtualMachineExport) metav1.OwnerReference {
	return *metav1.NewControllerRef(owner, exportv1.GroupVersion.WithKind("VirtualMachineExport"))
}
