// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package migrate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"libvirt.org/go/libvirtxml"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/media/overlay"
	"github.com/vireo-project/vireo/internal/agent/migrate/peer"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// disksToCopy returns the disks of a running domain that the nodes do not share, by their target's name: those in the
// Pod, and the volumes that migrate with the guest. CD-ROMs and read-only disks are not copied: the target's agent
// makes them itself. As KubeVirt (pkg/virt-launcher/virtwrap, getDiskTargetsForMigration).
func disksToCopy(vmi *v1.VirtualMachineInstance, live *libvirtxml.Domain) []string {
	if live.Devices == nil {
		return nil
	}
	shared := map[string]bool{}
	for i := range vmi.Spec.Volumes {
		v := &vmi.Spec.Volumes[i]
		moves := slices.ContainsFunc(vmi.Status.MigratedVolumes,
			func(m v1.StorageMigratedVolumeInfo) bool { return m.VolumeName == v.Name })
		reachable := v.PersistentVolumeClaim != nil || v.DataVolume != nil ||
			(v.HostDisk != nil && ptr.Deref(v.HostDisk.Shared, false))
		shared[domain.DiskAlias(v.Name)] = reachable && !moves
	}
	var copied []string
	for i := range live.Devices.Disks {
		disk := &live.Devices.Disks[i]
		if disk.Device == "cdrom" || disk.ReadOnly != nil || disk.Target == nil || disk.Alias == nil ||
			shared[disk.Alias.Name] {
			continue
		}
		copied = append(copied, disk.Target.Dev)
	}
	return copied
}

// verifyImages fails unless the images in the target's Pod are the same as those that the guest runs from. Only what
// the guest has written above them is transferred: on another image it would be garbage.
func (t *Transfers) verifyImages(
	ctx context.Context, transfer *Transfer, a peer.Attempt, d *peer.Destination, live, built *libvirtxml.Domain,
) error {
	// The target's files have the same paths at the source. Those of the running domain take precedence, but may be
	// incomplete: the launcher is not trusted, and a drive may be empty.
	files := peer.ImageFiles(built)
	maps.Copy(files, peer.ImageFiles(live))
	// An image that both Pods' specs name by the same digest is the same.
	maps.DeleteFunc(files, func(_ string, file peer.ImageFile) bool {
		digest := transfer.digests[file.Mount]
		return digest != "" && digest == d.Digests[file.Mount]
	})
	if len(files) == 0 {
		return nil
	}
	if !d.Images {
		return fmt.Errorf("virt-handler on node %s is of a version that does not compare images: migrate again when it is updated", a.TargetNode)
	}
	ctx, cancel := transfer.cancelable(ctx)
	defer cancel()
	var source map[string]peer.Checksum
	var target *peer.Images
	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() (err error) {
		source, err = t.Checksum.All(ctx, transfer.pod, files)
		return err
	})
	both.Go(func() error {
		return t.retry(ctx, transfer, func() (err error) {
			target, err = t.Peer.Images(ctx, a)
			return err
		})
	})
	if err := both.Wait(); err != nil {
		return fmt.Errorf("compare the images of both launcher Pods: %w", err)
	}
	if err := compareImages(transfer.vmi, source, target.Checksums); err != nil {
		t.recordEvent(transfer.vmi, reasonImagesDiffer, "CompareImages", "Aborting migration as "+err.Error())
		return err
	}
	return nil
}

// reasonImagesDiffer is the reason of the event about images that differ. KubeVirt's releases that compared them used
// it too.
const reasonImagesDiffer v1.SyncEvent = "ContainerDiskFailedChecksum"

// compareImages returns an error that names the images that differ at the target, and what to do about it.
func compareImages(vmi *v1.VirtualMachineInstance, source, target map[string]peer.Checksum) error {
	var different []string
	for key, checksum := range source {
		if other, found := target[key]; !found || other != checksum {
			different = append(different, describeImage(vmi, key))
		}
	}
	if len(different) == 0 {
		return nil
	}
	slices.Sort(different)
	return fmt.Errorf("the source and target containerdisks/kernelboot do not match: launcher Pod %s has another content of %s "+
		"than the guest was started with. The tag was moved: name the image by its digest, or move the tag back",
		vmi.Status.MigrationState.TargetPod, strings.Join(different, ", "))
}

// describeImage names an image and what uses it.
func describeImage(vmi *v1.VirtualMachineInstance, key string) string {
	if key == peer.KernelFile || key == peer.InitrdFile {
		image := ""
		if f := vmi.Spec.Domain.Firmware; f != nil && f.KernelBoot != nil && f.KernelBoot.Container != nil {
			image = f.KernelBoot.Container.Image
		}
		return fmt.Sprintf("image %s (%s)", image, key)
	}
	for i := range vmi.Spec.Volumes {
		if v := &vmi.Spec.Volumes[i]; v.Name == key && v.ContainerDisk != nil {
			return fmt.Sprintf("image %s (volume %s)", v.ContainerDisk.Image, key)
		}
	}
	return "volume " + key
}

const (
	// readBitmapsTimeout and sendBitmapsTimeout bound what is done about bitmaps while the guest is paused. If they cannot
	// be read in time, the next backup is a full one. If the target's agent does not respond, the migration fails.
	readBitmapsTimeout = 200 * time.Millisecond
	sendBitmapsTimeout = 3 * time.Second
	// maxTrackedDisks is of how many disks bitmaps are sent.
	maxTrackedDisks = 32
	// untrackedTime is for how long a guest migrates without bitmaps after a migration that has failed because of them.
	untrackedTime = time.Hour
)

// sending has an element while bitmaps are read and sent, which take much memory.
var sending = make(chan struct{}, 1)

// trackedDisk is a disk that has an overlay in both Pods.
type trackedDisk struct {
	volume string
	// overlay is the name of its file in the source's Pod.
	overlay string
}

// keepBitmaps returns what sends the bitmaps of the guest's tracked disks, so that the next backups can still be
// incremental ones, or nil. The target must not complete the guest if it is unknown whether they are still being
// written (docs/adr/0090). Any other failure only makes the next backup a full one. After one that has failed a
// migration, the next ones are without bitmaps, or a target that is slow would fail each of them.
func (t *Transfers) keepBitmaps(
	transfer *Transfer, target bitmapKeeper, d *peer.Destination, r *hypervisor.TransferRequest, live,
	built *libvirtxml.Domain,
) func(context.Context) error {
	if !d.Bitmaps || len(trackedDisks(live, built, r.CopyDisks)) == 0 {
		return nil
	}
	if t.isUntracked(transfer.vmi.UID) {
		return func(ctx context.Context) error {
			log.FromContext(ctx).Info(
				"The changed blocks of the guest's disks are not migrated: a migration has failed because of them")
			return nil
		}
	}
	return func(ctx context.Context) error {
		logger := log.FromContext(ctx)
		begin := time.Now()
		limited, cancel := context.WithTimeout(ctx, readBitmapsTimeout)
		select {
		case sending <- struct{}{}:
			defer func() { <-sending }()
		case <-limited.Done():
			cancel()
			logger.Info("The changed blocks of the guest's disks are not migrated, because those of another guest are")
			return ctx.Err()
		}
		disks, err := ReadBitmaps(limited, transfer.source, live, built, r.CopyDisks)
		cancel()
		if err != nil {
			logger.Info("The changed blocks of the guest's disks are not migrated", "error", err.Error())
			return nil
		}
		if len(disks) == 0 {
			return nil
		}
		limited, cancel = context.WithTimeout(ctx, sendBitmapsTimeout)
		defer cancel()
		err = target.KeepBitmaps(limited, transfer.attempt(), disks)
		var refused *peer.RefusedError
		switch {
		case err == nil:
			logger.V(1).Info("The changed blocks of the guest's disks were migrated", "disks", len(disks), "elapsed",
				time.Since(begin).String())
			return nil
		case errors.As(err, &refused) && !peer.IsTemporary(err):
			logger.Info("The changed blocks of the guest's disks were not accepted", "error", err.Error())
			return nil
		default:
			if ctx.Err() == nil {
				t.noteUntracked(transfer.vmi.UID)
			}
			return fmt.Errorf("migrate which blocks have changed: %w", err)
		}
	}
}

// noteUntracked remembers that a migration of a VMI has failed because of bitmaps. It is forgotten with the process:
// then one more may fail.
func (t *Transfers) noteUntracked(vmi types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.untracked, func(_ types.UID, since time.Time) bool { return t.now().Sub(since) >= untrackedTime })
	t.untracked[vmi] = t.now()
}

func (t *Transfers) isUntracked(vmi types.UID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	since, noted := t.untracked[vmi]
	return noted && t.now().Sub(since) < untrackedTime
}

// trackedDisks returns the disks that have an overlay in both Pods and share their data. libvirt writes to those that
// it copies before the guest is complete.
func trackedDisks(live, built *libvirtxml.Domain, copied []string) []trackedDisk {
	if live.Devices == nil {
		return nil
	}
	var tracked []trackedDisk
	for i := range live.Devices.Disks {
		disk := &live.Devices.Disks[i]
		if disk.Alias == nil || disk.Target == nil || !domain.IsTracked(disk) || disk.Source.File == nil ||
			slices.Contains(copied, disk.Target.Dev) {
			continue
		}
		volume, isVolume := strings.CutPrefix(disk.Alias.Name, domain.DiskAlias(""))
		there := domain.FindDisk(built, disk.Alias.Name)
		dir, name := path.Split(disk.Source.File.File)
		if isVolume && there != nil && domain.IsTracked(there) && path.Clean(dir) == launcherpod.TrackedDisksDir &&
			len(tracked) < maxTrackedDisks {
			tracked = append(tracked, trackedDisk{volume: volume, overlay: name})
		}
	}
	return tracked
}

// ReadBitmaps returns the bitmaps of a guest's disks that have an overlay in both Pods, and are not copied. QEMU has
// stored them in the overlays of the source when it had sent everything. If there are more than can be sent, the oldest
// are not among them.
func ReadBitmaps(
	ctx context.Context, source overlayReader, live, built *libvirtxml.Domain, copied []string,
) ([]peer.DiskBitmaps, error) {
	var disks []peer.DiskBitmaps
	dropped := map[string]bool{}
	for _, disk := range trackedDisks(live, built, copied) {
		result := make(chan peer.DiskBitmaps, 1)
		if err := source.ReadTracked(ctx, disk.overlay, func(file io.ReaderAt) error {
			bytes, bitmaps, err := overlay.ReadBitmaps(file)
			result <- peer.DiskBitmaps{Volume: disk.volume, Bytes: bytes, Bitmaps: bitmaps}
			return err
		}); err != nil {
			return nil, err
		}
		disks = append(disks, <-result)
		disks = without(disks, dropped)
		// A backup is an incremental one only if all of its disks have the bitmap, so the oldest is dropped of all.
		for !fits(disks) {
			dropped[oldest(disks)] = true
			disks = without(disks, dropped)
		}
	}
	if len(dropped) > 0 {
		log.FromContext(ctx).Info("The oldest bitmaps of the guest's disks are not migrated: all of them are too large",
			"bitmaps", len(dropped))
	}
	return disks, nil
}

// fits reports whether the bitmaps of all disks can be sent together.
func fits(disks []peer.DiskBitmaps) bool {
	bits, added := 0, uint64(0)
	for _, disk := range disks {
		for _, bitmap := range disk.Bitmaps {
			bits += overlay.PartBytes * len(bitmap.Parts)
		}
		added += overlay.Added(disk.Bytes, disk.Bitmaps)
	}
	return bits <= overlay.MaxBits && added <= peer.MaxAdded
}

// oldest returns the name of the oldest bitmap.
func oldest(disks []peer.DiskBitmaps) string {
	var names []string
	for i := range disks {
		for k := range disks[i].Bitmaps {
			names = append(names, disks[i].Bitmaps[k].Name)
		}
	}
	return slices.MinFunc(names, overlay.CompareAge)
}

// without returns the disks without the bitmaps of some names, and without the disks that have none.
func without(disks []peer.DiskBitmaps, names map[string]bool) []peer.DiskBitmaps {
	for i := range disks {
		disks[i].Bitmaps = slices.DeleteFunc(disks[i].Bitmaps, func(b overlay.Bitmap) bool { return names[b.Name] })
	}
	return slices.DeleteFunc(disks, func(d peer.DiskBitmaps) bool { return len(d.Bitmaps) == 0 })
}
