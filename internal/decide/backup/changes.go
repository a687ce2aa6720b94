// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package backup

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/component/printable"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// Changes is what the agent knows about the changed blocks of a running guest's disks.
type Changes struct {
	// Tracked are the volumes whose disks have an overlay.
	Tracked []string
	// Checkpoints are the guest's checkpoints by name, with the volumes whose changed blocks are known since.
	Checkpoints map[string][]string
}

// maxBecause is how many characters a reason may have: the limit in the schema of the VMI's status.
const maxBecause = 1024

// maxNamed is how many volumes a text names.
const maxNamed = 5

// record returns the record with which a backup begins. It is an incremental one only if all of its disks have been
// tracked since the checkpoint: the images of one backup belong together. What kind of backup it is only changes if
// libvirt refuses an incremental one.
func (i *Intent) record(now time.Time, c Changes) Record {
	r := Record{ID: i.ID, Stage: Requested, StartedAt: now, Pull: i.Pull}
	if i.Checkpoint == "" {
		return r
	}
	if missing := i.without(c.Tracked); len(missing) > 0 {
		r.FullBecause = "changed blocks are not tracked of " + named(missing)
		return r
	}
	r.Checkpoint = i.Checkpoint
	if i.Since == "" {
		return r
	}
	since, found := c.Checkpoints[i.Since]
	switch missing := i.without(since); {
	case !found:
		r.FullBecause = fmt.Sprintf(
			"the running guest does not have the checkpoint %s: it was started after that, or migrated without it, "+
				"or had more checkpoints than a guest keeps", i.Since)
	case len(missing) > 0:
		r.FullBecause = fmt.Sprintf("the checkpoint %s does not have %s", i.Since, named(missing))
	default:
		r.Since = i.Since
	}
	return r
}

// full returns the record of a full backup instead of an incremental one that has not begun. If the checkpoint is the
// cause, such as one with a broken bitmap, later backups would be refused, too. The tracker gets the checkpoint of this
// one instead.
func (r Record) full(because string) Record {
	r.Since, r.FullBecause = "", printable.Text(because, maxBecause)
	return r
}

// Obsolete returns the checkpoints from which no backup will start any more. A backup that creates none deletes none.
func (i *Intent) Obsolete(r Record, c Changes) []string {
	if r.Checkpoint == "" {
		return nil
	}
	var names []string
	for name := range c.Checkpoints {
		if name != r.Since && name != r.Checkpoint && !slices.Contains(i.Kept, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// without returns the volumes of the backup that are not in a list.
func (i *Intent) without(list []string) []string {
	var missing []string
	for _, volume := range i.Volumes {
		if !slices.Contains(list, volume) {
			missing = append(missing, volume)
		}
	}
	return missing
}

func named(volumes []string) string {
	if len(volumes) == 1 {
		return "the volume " + volumes[0]
	}
	text := "the volumes " + strings.Join(volumes[:min(len(volumes), maxNamed)], ", ")
	if more := len(volumes) - maxNamed; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// Trackable returns the volumes of a VMI whose disks can have an overlay, with which QEMU tracks their changed blocks:
// hard disks on claims and hostDisks that only this guest writes to. Volumes that were plugged into the running guest,
// and those that are being migrated to other claims, have none until the next start or migration.
func Trackable(vmi *v1.VirtualMachineInstance) []string {
	var names []string
	for i := range vmi.Spec.Volumes {
		volume := &vmi.Spec.Volumes[i]
		status := vmistatus.FindVolume(&vmi.Status, volume.Name)
		switch {
		case !IsStored(volume), status != nil && vmistatus.IsHotplugged(status),
			vmistatus.Migrated(&vmi.Status, volume.Name) != nil,
			!isTrackable(vmistatus.FindDisk(&vmi.Spec, volume.Name)):
		default:
			names = append(names, volume.Name)
		}
	}
	return names
}

// isTrackable reports whether a volume has a disk, or nil, that is a hard disk to which this guest writes, and no other
// one.
func isTrackable(d *v1.Disk) bool {
	return d != nil && IsWritten(d) && d.LUN == nil && !ptr.Deref(d.Shareable, false)
}

// IsStored reports whether a volume is one of those of which backups have copies: a claim, or a hostDisk.
func IsStored(v *v1.Volume) bool { return v.WrittenClaim() != "" || v.HostDisk != nil }

// IsWritten reports whether the guest can write to a disk. A backup has no others: nothing of the guest is on them.
func IsWritten(d *v1.Disk) bool {
	return d.CDRom == nil && (d.Disk == nil || !d.Disk.ReadOnly) && (d.LUN == nil || !d.LUN.ReadOnly)
}

// Disks returns the volumes of claims and hostDisks to whose disks the guest can write: those of which a backup has
// copies, unless it fails because of one of them.
func Disks(spec *v1.VirtualMachineInstanceSpec) []string {
	var names []string
	for i := range spec.Volumes {
		volume := &spec.Volumes[i]
		if disk := vmistatus.FindDisk(spec, volume.Name); IsStored(volume) && disk != nil && IsWritten(disk) {
			names = append(names, volume.Name)
		}
	}
	return names
}

// WantsTracking reports whether the changed blocks of a guest that is being prepared are to be tracked.
func WantsTracking(status *v1.VirtualMachineInstanceStatus) bool {
	if status.ChangedBlockTracking == nil {
		return false
	}
	state := status.ChangedBlockTracking.State
	return state == v1.ChangedBlockTrackingInitializing || state == v1.ChangedBlockTrackingEnabled
}

const (
	// scratchTables is which part of a disk the tables of its scratch file need at most: a qcow2 image has 8 bytes for
	// each cluster of 64 KiB, and 2 for its reference count. scratchHeader is what it has beside them, rounded up.
	scratchTables = 4096
	scratchHeader = 1 << 20
	// reserveAtStart and reserve are which part of the file system is not counted as free, at the start of a pull and
	// while it runs: ext4 keeps a 20th for root by default, which libvirt does not subtract, and file systems need some
	// space for large files. The difference is there so that a pull that has begun does not end because of a rounding.
	reserveAtStart = 16
	reserve        = 20
	// overhead is which part of a claim its file system needs for itself, so that it has less room than the claim: ext4 a
	// 20th up to 2 GiB, and less of larger ones; XFS a 50th, but at least minOverhead, for its log and what it reserves.
	overhead    = 16
	minOverhead = 128 * mebibyte
	mebibyte    = 1 << 20
)

// Scratch is the room for the scratch files of a pull. When their file system is full, QEMU cannot keep what the guest
// overwrites any more, and the guest's writes fail.
type Scratch struct {
	// Claim is the claim's name, for texts.
	Claim string
	// Need is the size that the files may reach, the sum of ScratchBytes, and Used what they occupy.
	Need, Used uint64
	// Capacity and Available are the size and the free space of the file system.
	Capacity, Available uint64
}

// ScratchBytes returns the size that the scratch file of a disk may reach. The guest may overwrite all of the disk.
func ScratchBytes(disk uint64) uint64 {
	return sum(disk, disk/scratchTables+scratchHeader)
}

// Add adds the scratch file of a disk that may reach a size and occupies some of it.
func (s *Scratch) Add(need, used uint64) {
	s.Need, s.Used = sum(s.Need, need), sum(s.Used, used)
}

// Refusal returns why no pull can begin, or "".
func (s *Scratch) Refusal() string {
	if s.Available >= sum(s.Need, s.Capacity/reserveAtStart) {
		return ""
	}
	return s.explain("the guest could overwrite all of its disks, and its writes would fail as soon as the claim is full")
}

// Shortage returns why a pull has to end now, or "". While nothing but the pull writes to the claim, there is none.
func (s *Scratch) Shortage() string {
	if sum(s.Available, s.Used) >= sum(s.Need, s.Capacity/reserve) {
		return ""
	}
	return s.explain("something else has filled the claim since the backup began, and the guest's writes would fail as soon as it is full")
}

func (s *Scratch) explain(why string) string {
	return fmt.Sprintf("the claim %s has too little room: %s are free, and the scratch files need up to %s, since %s. "+
		"Delete files from the claim, or use one with at least %s", s.Claim, binary(sum(s.Available, s.Used)), binary(s.Need),
		why, binary(s.enough()))
}

// enough returns the size of an empty claim that is not refused.
func (s *Scratch) enough() uint64 {
	fileSystem := sum(s.Need, s.Need/(reserveAtStart-1)+1)
	return sum(fileSystem, max(fileSystem/(overhead-1), minOverhead))
}

// binary returns a size for people, rounded up.
func binary(bytes uint64) string {
	bytes = min(bytes, 1<<62)
	if bytes > mebibyte {
		bytes = (bytes + mebibyte - 1) / mebibyte * mebibyte
	}
	return resource.NewQuantity(int64(bytes), resource.BinarySI).String()
}

// sum adds without an overflow: a launcher reports the sizes.
func sum(a, b uint64) uint64 {
	total, carry := bits.Add64(a, b, 0)
	if carry != 0 {
		return ^uint64(0)
	}
	return total
}
