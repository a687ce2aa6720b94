// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package media

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/media/overlay"
	"github.com/vireo-project/vireo/internal/decide/backup"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// DeviceFiles inspects files of the launcher Pod.
type DeviceFiles interface {
	// DeviceBytes returns the size of a block device of the Pod, or 0 if it is not known.
	DeviceBytes(ctx context.Context, path string) (uint64, error)
	// DirectIO reports whether a file of the Pod can be opened with O_DIRECT.
	DirectIO(ctx context.Context, path string) (bool, error)
}

// limitedBytes is how many bytes the overlays of a Pod may have whose ephemeral storage is limited by its VMI: half of
// what virt-controller adds to such a limit for the launcher. The kubelet evicts a Pod that exceeds it, and with it the
// guest.
const limitedBytes = 25_000_000

// Track lays overlays over the prepared disks of a VMI, with which QEMU can track their changed blocks. They are new
// ones: nothing but the overlay can have written to a disk since it was made. A disk that cannot have one stays as it
// is, and its backups are full ones.
func Track(ctx context.Context, s Storage, files DeviceFiles, vmi *v1.VirtualMachineInstance, result *Result) error {
	room := uint64(math.MaxUint64)
	if _, limited := vmi.Spec.Domain.Resources.Limits[corev1.ResourceEphemeralStorage]; limited {
		room = limitedBytes
	}
	for _, name := range backup.Trackable(vmi) {
		fact, found := result.Disks[name]
		if !found || fact.Format != hypervisor.FormatRaw {
			continue
		}
		if fact.Sliced {
			result.Untracked = append(result.Untracked, name+": the guest sees only a part of its image")
			continue
		}
		o := overlayer{storage: s, files: files, vmi: vmi, volume: name, fact: fact, room: room}
		err := o.track(ctx)
		if errors.Is(err, hypervisor.ErrUnreachable) || errors.Is(err, errUnknown) || err != nil && ctx.Err() != nil {
			return fmt.Errorf("volume %q: track its changed blocks: %w", name, err)
		}
		if err != nil {
			// Such as in the Pod of an earlier version, which has no directory for overlays. The guest can do without.
			o.problem = err.Error()
		}
		if o.problem != "" {
			log.FromContext(ctx).Info("The changed blocks of a disk are not tracked", "volume", name, "reason", o.problem)
			result.Untracked = append(result.Untracked, name+": "+o.problem)
			continue
		}
		result.Disks[name], room = o.fact, o.room
	}
	return nil
}

// errUnknown means that virt-broker has not reported what a file is, and may do so later.
var errUnknown = errors.New("virt-broker has not responded")

// overlayer lays an overlay over one disk.
type overlayer struct {
	storage Storage
	files   DeviceFiles
	vmi     *v1.VirtualMachineInstance
	volume  string
	// fact is the disk: without its overlay at first, and then with it.
	fact domain.DiskFact
	// room is how many bytes the overlay may have, and then how many are left.
	room uint64
	// problem is why the disk has no overlay.
	problem string
}

func (o *overlayer) track(ctx context.Context) error {
	bytes, err := o.bytes(ctx)
	if err != nil || o.problem != "" {
		return err
	}
	content, size, err := overlay.Overlay{DiskBytes: bytes, DataFile: o.fact.Path}.Open()
	if err != nil {
		return err
	}
	if size > o.room {
		o.problem = fmt.Sprintf("its overlay would take %d bytes of the Pod's limit for ephemeral storage", size)
		return nil
	}
	o.room -= size
	pool, err := o.storage.Pool(ctx, launcherpod.TrackedPool, launcherpod.TrackedDisksDir)
	if err != nil {
		return err
	}
	file := hypervisor.Volume{Name: overlay.FileName(o.volume, bytes), Format: hypervisor.FormatRaw, Capacity: size}
	if pool.Find(file.Name) == nil {
		if err := o.storage.Create(ctx, launcherpod.TrackedPool, file); err != nil {
			return err
		}
	}
	// Always: an earlier attempt may have been interrupted, or QEMU may have changed the overlay.
	if err := o.storage.UploadFrom(ctx, launcherpod.TrackedPool, file.Name, size, content); err != nil {
		return err
	}
	return o.setOverlay(ctx, path.Join(launcherpod.TrackedDisksDir, file.Name), bytes)
}

// setOverlay makes an overlay the guest's disk, unless QEMU would have to cache it, and with it the data.
func (o *overlayer) setOverlay(ctx context.Context, file string, bytes uint64) error {
	direct, err := o.files.DirectIO(ctx, file)
	if err != nil {
		return fmt.Errorf("%w: %w", errUnknown, err)
	}
	if !direct {
		o.problem = "the Pod's ephemeral storage does not support direct I/O"
		return nil
	}
	o.fact.DataPath, o.fact.DataBlock = o.fact.Path, o.fact.Block
	o.fact.Path, o.fact.Block, o.fact.Format = file, false, hypervisor.FormatQCOW2
	o.fact.CapacityBytes = int64(bytes)
	return nil
}

// bytes returns the size of the disk without an overlay. An overlay with another size would change what the guest sees.
func (o *overlayer) bytes(ctx context.Context) (bytes uint64, err error) {
	if o.fact.Block {
		if bytes, err = o.files.DeviceBytes(ctx, o.fact.Path); err != nil {
			err = fmt.Errorf("%w: %w", errUnknown, err)
		}
	} else {
		bytes, err = o.fileBytes(ctx)
	}
	if err != nil || o.problem != "" {
		return 0, err
	}
	status := vmistatus.FindVolume(&o.vmi.Status, o.volume)
	claim := claimBytes(status)
	switch {
	case bytes == 0:
		o.problem = "the size of the disk is not known"
	case !o.fact.Block && claim > 0 && bytes > claim:
		// The launcher has reported the size, and the tables of the overlay grow with it.
		o.problem = fmt.Sprintf("its image has %d bytes, and its claim only %d", bytes, claim)
	case o.vmi.Status.Phase == v1.Running && status != nil && uint64(status.Size) != bytes:
		// A disk that was migrated to a larger volume keeps its size until the guest's next start.
		o.problem = fmt.Sprintf("the running guest has a disk of %d bytes, and its volume has %d", status.Size, bytes)
	}
	return bytes, nil
}

// claimBytes returns the size of a volume's claim, or 0 if there is none.
func claimBytes(status *v1.VolumeStatus) uint64 {
	if status == nil || status.PersistentVolumeClaimInfo == nil {
		return 0
	}
	return uint64(max(status.PersistentVolumeClaimInfo.Capacity.Storage().Value(), 0))
}

func (o *overlayer) fileBytes(ctx context.Context) (uint64, error) {
	pool, err := o.storage.Pool(ctx, PoolName(o.volume), launcherpod.DiskDir(o.volume))
	if err != nil {
		return 0, err
	}
	image := pool.Find(path.Base(o.fact.Path))
	if image == nil {
		return 0, fmt.Errorf("the image %s is gone", o.fact.Path)
	}
	if image.Format != hypervisor.FormatRaw && image.Format != hypervisor.FormatISO {
		// libvirt then reports another size than that of the file.
		o.problem = fmt.Sprintf("its content looks like an image of the format %q", image.Format)
		return 0, nil
	}
	return image.Capacity, nil
}
