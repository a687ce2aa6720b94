// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package plan

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"

	backupapi "github.com/vireo-project/vireo/api/backup"
	"github.com/vireo-project/vireo/api/backup/v1alpha1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/backup"
	"github.com/vireo-project/vireo/internal/decide/snapshot/freeze"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// maxName is the limit for the name of a backup: the names of its files, with those of the longest volume, have at most
// 255 bytes. Those of a pull are the longest.
const maxName = 255 - len("-.scratch.qcow2") - 63

// timeInNames is the format of the time in the names of directories and checkpoints, which is that of the backup's
// creation. No other backup has both its name and its time, unless it was deleted and created again within a second;
// libvirt then refuses to write to existing files. Source: KubeVirt pkg/virt-launcher/virtwrap/storage/backup.go.
const timeInNames = "2006-01-02_15-04-05"

// SourceVM returns the name of the VM of a backup. It is empty if the backup's tracker does not exist.
func SourceVM(b *v1alpha1.VirtualMachineBackup, tracker *v1alpha1.VirtualMachineBackupTracker) string {
	switch {
	case ptr.Deref(b.Spec.Source.APIGroup, "") != backupapi.GroupName:
		return b.Spec.Source.Name
	case tracker == nil:
		return ""
	default:
		return tracker.Spec.Source.Name
	}
}

// prepare waits until the backup can start, attaches its claim, has the guest frozen, and requests the backup.
func (p *planner) prepare() {
	// It was decided for an intent that could not be written.
	meta.RemoveStatusCondition(&p.step.Status.Conditions, string(v1alpha1.ConditionQuiesced))
	if problem := p.unsupported(); problem != "" {
		p.fail(v1alpha1.ReasonFailed, problem)
		return
	}
	if IsPull(p.Backup) {
		p.waitFor(Expiry(p.Backup))
	}
	if reason := p.waitsFor(); reason != "" {
		p.progress(v1alpha1.ReasonInitializing, reason)
		p.withdraw()
		return
	}
	volumes, problem := disksOf(p.VMI)
	if problem != "" {
		p.fail(v1alpha1.ReasonFailed, problem)
		return
	}
	if !p.attached() {
		p.progress(v1alpha1.ReasonInitializing, "The claim is being attached"+p.claimProblem())
		return
	}
	p.progress(v1alpha1.ReasonInitializing, "The guest is being frozen"+p.silence())
	if p.frozen() {
		if !p.requestedFreeze() {
			p.setUnfrozen() // now, since the guest's agent may connect before the backup has begun
		}
		name := p.Backup.Name + "-" + p.Backup.CreationTimestamp.UTC().Format(timeInNames)
		p.step.Intent = &backup.Intent{
			ID: p.id, Pull: IsPull(p.Backup), UtilityVolume: p.volume, FilePrefix: p.Backup.Name + "-", Volumes: volumes,
			Directory: SourceVM(p.Backup, p.Tracker) + "/" + name,
		}
		p.track(name)
	}
}

// withdraw removes from the VMI what others would wait for while the backup waits: its freeze and its claim.
func (p *planner) withdraw() {
	if p.VMI != nil && p.freezeEnded() {
		p.detached()
	}
}

// unsupported returns why there will never be such a backup.
func (p *planner) unsupported() string {
	switch {
	case IsPull(p.Backup) && !p.Now.Before(Expiry(p.Backup)):
		return "The backup did not start before its ttlDuration expired"
	case p.VMI != nil && p.VMI.Spec.Domain.Devices.DisableHotplug:
		return "The VM has spec.template.spec.domain.devices.disableHotplug set, and the claim of a backup is attached while the guest runs"
	case len(p.Backup.Name) > maxName:
		return fmt.Sprintf("The name of the backup has more than %d characters, which the names of its files cannot have",
			maxName)
	case p.Claim != nil && vmistatus.IsBlockClaim(p.Claim):
		return fmt.Sprintf("PVC %s/%s has no file system: the backup consists of files", p.Claim.Namespace, p.Claim.Name)
	case p.Claim != nil && p.VMI != nil &&
		slices.ContainsFunc(p.VMI.Spec.Volumes, func(v v1.Volume) bool { return v.WrittenClaim() == p.Claim.Name }):
		return fmt.Sprintf("PVC %s/%s is a disk of the VM: use another one", p.Claim.Namespace, p.Claim.Name)
	default:
		return ""
	}
}

// waitsFor returns what the backup waits for. KubeVirt's texts, as far as it has them.
func (p *planner) waitsFor() string {
	spec := &p.Backup.Spec
	vm := SourceVM(p.Backup, p.Tracker)
	claim := ptr.Deref(spec.PvcName, "")
	switch {
	case vm == "":
		return fmt.Sprintf("BackupTracker %s does not exist", spec.Source.Name)
	case p.VMI != nil && p.VMI.Name != vm:
		return fmt.Sprintf("BackupTracker %s was replaced by one of the vm %s", spec.Source.Name, vm)
	case p.VMI == nil && p.NoVM:
		return fmt.Sprintf("VM %s/%s doesnt exist", p.Backup.Namespace, vm)
	case p.VMI == nil || !p.VMI.IsRunning() || p.VMI.DeletionTimestamp != nil:
		return fmt.Sprintf("vm %s is not running, cannot do backup", vm)
	case p.Claim == nil:
		return fmt.Sprintf("PVC %s/%s doesnt exist", p.Backup.Namespace, claim)
	case p.Claim.DeletionTimestamp != nil:
		return fmt.Sprintf("PVC %s/%s is being deleted", p.Backup.Namespace, claim)
	// Once the claim is in the Pod, a migration waits for the backup, unless it is urgent. Until then the backup does: its
	// claim may never get there.
	case vmistatus.Migrating(&p.VMI.Status) || p.MigrationUrgent || p.MigrationPending && !p.isMounted():
		return fmt.Sprintf("vm %s is currently migrating, waiting for migration to complete before starting backup", vm)
	case p.VMI.Status.DiskBackup != nil:
		// That of another backup, which removes it when its claim has been detached.
		return fmt.Sprintf("vm %s is being backed up by another VirtualMachineBackup", vm)
	default:
		return p.beingPlugged()
	}
}

// beingPlugged returns that a disk is being plugged into the running guest, which does not have it yet.
func (p *planner) beingPlugged() string {
	for i := range p.VMI.Spec.Volumes {
		volume := &p.VMI.Spec.Volumes[i]
		status := vmistatus.FindVolume(&p.VMI.Status, volume.Name)
		plugged := vmistatus.IsHotplugged(status) || status == nil && volume.IsHotpluggable()
		if !plugged || status != nil && status.Phase == v1.VolumeReady ||
			!slices.Contains(backup.Disks(&p.VMI.Spec), volume.Name) {
			continue
		}
		message := fmt.Sprintf("Volume %s is being plugged into the vm %s", volume.Name, p.VMI.Name)
		if status != nil && status.Message != "" {
			message += ": " + status.Message
		}
		return message
	}
	return ""
}

// disksOf returns the volumes of a VMI that are in a backup: those of claims and hostDisks, except CD-ROMs and other
// disks to which the guest cannot write. The problem says why one of them cannot be.
func disksOf(vmi *v1.VirtualMachineInstance) (names []string, problem string) {
	spec := &vmi.Spec
	for i := range spec.Volumes {
		volume := &spec.Volumes[i]
		if !backup.IsStored(volume) {
			continue
		}
		switch disk := vmistatus.FindDisk(spec, volume.Name); {
		case disk == nil:
			return nil, fmt.Sprintf("Volume %s is no disk, and would be missing in the backup", volume.Name)
		case !backup.IsWritten(disk):
			continue
		case disk.LUN != nil:
			return nil, fmt.Sprintf("Volume %s is a LUN, which QEMU passes through and cannot copy", volume.Name)
		case ptr.Deref(disk.Shareable, false):
			return nil, fmt.Sprintf("Volume %s is shareable: what other guests write meanwhile would be mixed into its copy",
				volume.Name)
		}
		names = append(names, volume.Name)
	}
	if len(names) == 0 {
		return nil, fmt.Sprintf(
			"vm %s has no volumes to backup: none of the disks to which its guest can write is on a claim", vmi.Name)
	}
	return names, ""
}

// attached attaches the claim, and returns true once it is in the launcher Pod.
func (p *planner) attached() bool {
	if vmistatus.FindUtility(&p.VMI.Spec, p.volume) == nil {
		p.step.AddVolume = &v1.UtilityVolume{
			Name: p.volume, Type: ptr.To(v1.Backup),
			PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: p.Claim.Name},
		}
		return false
	}
	return p.isMounted()
}

// isMounted reports whether the claim is in the launcher Pod, and is to be there.
func (p *planner) isMounted() bool {
	status := vmistatus.FindVolume(&p.VMI.Status, p.volume)
	return vmistatus.FindUtility(&p.VMI.Spec, p.volume) != nil && status != nil && status.Phase == v1.HotplugVolumeMounted
}

// wantsFreeze reports whether the guest is to be frozen, and otherwise why not.
func (p *planner) wantsFreeze() (bool, string) {
	agent := vmistatus.FindCondition(&p.VMI.Status, v1.VirtualMachineInstanceAgentConnected)
	switch {
	case p.Backup.Spec.SkipQuiesce:
		return false, "skipQuiesce is set"
	case agent == nil || agent.Status != corev1.ConditionTrue:
		return false, "The guest has no agent"
	case vmistatus.IsConditionTrue(&p.VMI.Status, v1.VirtualMachineInstancePaused):
		return false, "The guest is paused"
	default:
		return true, ""
	}
}

// requestedFreeze reports whether the VMI has the request of this backup to freeze the guest.
func (p *planner) requestedFreeze() bool {
	intent := freeze.IntentOf(&p.VMI.Status)
	return intent != nil && intent.ID == p.id
}

// frozen has the guest frozen, and returns true once it is, or will not be.
func (p *planner) frozen() bool {
	view := p.freezeView(freeze.NoSnapshot)
	if wanted, _ := p.wantsFreeze(); !wanted && !p.requestedFreeze() {
		return true
	}
	action, intent := freeze.DecideController(view)
	switch action {
	case freeze.WriteIntent:
		p.step.Freeze = intent
		return false
	case freeze.Await:
		if p.Now.Before(view.Intent.Deadline) {
			p.waitFor(view.Intent.Deadline)
		}
		return false
	default:
		return true
	}
}

// volumePrefix is how the names of the utility volumes of backups begin.
const volumePrefix = "backup-"

// VolumeName is the name of a backup's utility volume.
func VolumeName(b *v1alpha1.VirtualMachineBackup) string { return volumePrefix + string(b.UID) }

// UIDs returns the UIDs of the backups that have left something in a VMI: an intent, a volume, or a freeze. UIDs of
// snapshots may be among them. A backup is found by it even if its tracker is gone, or was replaced by one of another
// VM.
func UIDs(vmi *v1.VirtualMachineInstance) []string {
	uids := Holders(vmi)
	if freeze := vmi.Status.SnapshotFreeze; freeze != nil {
		uids = append(uids, freeze.ID)
	}
	for i := range vmi.Status.VolumeStatus {
		uids = appendUID(uids, vmi.Status.VolumeStatus[i].Name)
	}
	slices.Sort(uids)
	return slices.Compact(uids)
}

// Holders returns the UIDs of the backups that have an intent or a utility volume in a VMI. Until both are removed,
// others wait: migrations for either, and backups for the intent. A freeze is only requested while the volume is there,
// and ends by itself.
func Holders(vmi *v1.VirtualMachineInstance) []string {
	var uids []string
	if intent := vmi.Status.DiskBackup; intent != nil {
		uids = append(uids, intent.ID)
	}
	for i := range vmi.Spec.UtilityVolumes {
		if u := &vmi.Spec.UtilityVolumes[i]; ptr.Deref(u.Type, "") == v1.Backup {
			uids = appendUID(uids, u.Name)
		}
	}
	slices.Sort(uids)
	return slices.Compact(uids)
}

func appendUID(uids []string, volume string) []string {
	if uid, is := strings.CutPrefix(volume, volumePrefix); is {
		return append(uids, uid)
	}
	return uids
}

// Has reports whether something of a backup is in a VMI.
func Has(vmi *v1.VirtualMachineInstance, b *v1alpha1.VirtualMachineBackup) bool {
	return slices.Contains(UIDs(vmi), string(b.UID))
}
