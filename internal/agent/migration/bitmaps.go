// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package migration

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

	"k8s.io/apimachinery/pkg/types"
	"libvirt.org/go/libvirtxml"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/media/overlay"
	"github.com/vireo-project/vireo/internal/agent/migration/peer"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

const (
	// readBitmapsTimeout and sendBitmapsTimeout bound what is done about bitmaps while the guest is paused. If they cannot be read in time,
	// the next backup is a full one. If the target's agent does not respond, the migration fails.
	readBitmapsTimeout = 200 * time.Millisecond
	sendBitmapsTimeout = 3 * time.Second
	// maxTrackedDisks is of how many disks bitmaps are sent.
	maxTrackedDisks = 32
	// untrackedTime is for how long a guest migrates without bitmaps after a migration that has failed because of them.
	untrackedTime = time.Hour
)

// trackedDisk is a disk that has an overlay in both Pods.
type trackedDisk struct {
	volume string
	// overlay is the name of its file in the source's Pod.
	overlay string
}

// keepBitmaps returns what sends the bitmaps of the guest's tracked disks, so that the next backups can still be incremental ones, or nil.
// The target must not complete the guest if it is unknown whether they are still being written (docs/adr/0090). Any other failure only
// makes the next backup a full one. After one that has failed a migration, the next ones are without bitmaps, or a target that is slow would
// fail each of them.
func (t *Transfers) keepBitmaps(
	transfer *Transfer, target bitmapKeeper, d *peer.Destination, r *hypervisor.TransferRequest, live, built *libvirtxml.Domain,
) func(context.Context) error {
	if !d.Bitmaps || len(trackedDisks(live, built, r.CopyDisks)) == 0 {
		return nil
	}
	if t.isUntracked(transfer.vmi.UID) {
		return func(ctx context.Context) error {
			log.FromContext(ctx).Info("The changed blocks of the guest's disks are not migrated: a migration has failed because of them")
			return nil
		}
	}
	return func(ctx context.Context) error {
		logger := log.FromContext(ctx)
		begin := time.Now()
		limited, cancel := context.WithTimeout(ctx, readBitmapsTimeout)
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
			logger.V(1).Info("The changed blocks of the guest's disks were migrated", "disks", len(disks), "elapsed", time.Since(begin).String())
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

// noteUntracked remembers that a migration of a VMI has failed because of bitmaps. It is forgotten with the process: then one more may fail.
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

// trackedDisks returns the disks that have an overlay in both Pods and share their data. libvirt writes to those that it copies before the
// guest is complete.
func trackedDisks(live, built *libvirtxml.Domain, copied []string) []trackedDisk {
	if live.Devices == nil {
		return nil
	}
	var tracked []trackedDisk
	for i := range live.Devices.Disks {
		disk := &live.Devices.Disks[i]
		if disk.Alias == nil || disk.Target == nil || !domain.IsTracked(disk) || disk.Source.File == nil || slices.Contains(copied, disk.Target.Dev) {
			continue
		}
		volume, ours := strings.CutPrefix(disk.Alias.Name, domain.DiskAlias(""))
		there := domain.FindDisk(built, disk.Alias.Name)
		dir, name := path.Split(disk.Source.File.File)
		if ours && there != nil && domain.IsTracked(there) && path.Clean(dir) == launcherpod.TrackedDisksDir && len(tracked) < maxTrackedDisks {
			tracked = append(tracked, trackedDisk{volume: volume, overlay: name})
		}
	}
	return tracked
}

// ReadBitmaps returns the bitmaps of a guest's disks that have an overlay in both Pods, and are not copied. QEMU has stored them in the
// overlays of the source when it had sent everything.
func ReadBitmaps(ctx context.Context, source overlayReader, live, built *libvirtxml.Domain, copied []string) ([]peer.DiskBitmaps, error) {
	var disks []peer.DiskBitmaps
	left := overlay.MaxBits
	for _, disk := range trackedDisks(live, built, copied) {
		result := make(chan peer.DiskBitmaps, 1)
		if err := source.ReadTracked(ctx, disk.overlay, func(file io.ReaderAt) error {
			bytes, bitmaps, err := overlay.ReadBitmaps(file)
			result <- peer.DiskBitmaps{Volume: disk.volume, Bytes: bytes, Bitmaps: bitmaps}
			return err
		}); err != nil {
			return nil, err
		}
		found := <-result
		if len(found.Bitmaps) == 0 {
			continue
		}
		for i := range found.Bitmaps {
			left -= overlay.PartBytes * len(found.Bitmaps[i].Parts)
		}
		if left < 0 {
			return nil, fmt.Errorf("the bitmaps of all disks have more than %d bytes that are not 0", overlay.MaxBits)
		}
		disks = append(disks, found)
	}
	return disks, nil
}
