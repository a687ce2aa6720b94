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
	"github.com/vireo-project/vireo/internal/backup"
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

// limitedBytes is how many bytes the overlays of a Pod may have whose ephemeral storage is limited by its VMI: half of what virt-controller adds
// to such a limit for the launcher. The kubelet evicts a Pod that exceeds it, and with it the guest.
const limitedBytes = 25_000_000

// Track lays overlays over the prepared disks of a VMI, with which QEMU can track their changed blocks. They are new ones: nothing but the
// overlay can have written to a disk since it was made. A disk that cannot have one stays as it is, and its backups are full ones.
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
		t := tracker{storage: s, files: files, vmi: vmi, volume: name, fact: fact, room: room}
		err := t.track(ctx)
		if errors.Is(err, hypervisor.ErrUnreachable) || errors.Is(err, errUnknown) || err != nil && ctx.Err() != nil {
			return fmt.Errorf("volume %q: track its changed blocks: %w", name, err)
		}
		if err != nil {
			// Such as in the Pod of an earlier version, which has no directory for overlays. The guest can do without.
			t.problem = err.Error()
		}
		if t.problem != "" {
			log.FromContext(ctx).Info("The changed blocks of a disk are not tracked", "volume", name, "reason", t.problem)
			result.Untracked = append(result.Untracked, name+": "+t.problem)
			continue
		}
		result.Disks[name], room = t.fact, t.room
	}
	return nil
}

// errUnknown means that virt-broker has not told what a file is, and may do so later.
var errUnknown = errors.New("virt-broker has not responded")

// tracker lays an overlay over one disk.
type tracker struct {
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

func (t *tracker) track(ctx context.Context) error {
	bytes, err := t.bytes(ctx)
	if err != nil || t.problem != "" {
		return err
	}
	content, size, err := overlay.Overlay{DiskBytes: bytes, DataFile: t.fact.Path}.Open()
	if err != nil {
		return err
	}
	if size > t.room {
		t.problem = fmt.Sprintf("its overlay would take %d bytes of the Pod's limit for ephemeral storage", size)
		return nil
	}
	t.room -= size
	pool, err := t.storage.Pool(ctx, launcherpod.TrackedPool, launcherpod.TrackedDisksDir)
	if err != nil {
		return err
	}
	file := hypervisor.Volume{Name: overlay.FileName(t.volume, bytes), Format: hypervisor.FormatRaw, Capacity: size}
	if pool.Find(file.Name) == nil {
		if err := t.storage.Create(ctx, launcherpod.TrackedPool, file); err != nil {
			return err
		}
	}
	// Always: an earlier attempt may have been interrupted, or QEMU may have changed the overlay.
	if err := t.storage.UploadFrom(ctx, launcherpod.TrackedPool, file.Name, size, content); err != nil {
		return err
	}
	return t.setOverlay(ctx, path.Join(launcherpod.TrackedDisksDir, file.Name), bytes)
}

// setOverlay makes an overlay the guest's disk, unless QEMU would have to cache it, and with it the data.
func (t *tracker) setOverlay(ctx context.Context, file string, bytes uint64) error {
	direct, err := t.files.DirectIO(ctx, file)
	if err != nil {
		return fmt.Errorf("%w: %w", errUnknown, err)
	}
	if !direct {
		t.problem = "the Pod's ephemeral storage does not support direct I/O"
		return nil
	}
	t.fact.DataPath, t.fact.DataBlock = t.fact.Path, t.fact.Block
	t.fact.Path, t.fact.Block, t.fact.Format = file, false, hypervisor.FormatQCOW2
	t.fact.CapacityBytes = int64(bytes)
	return nil
}

// bytes returns the size of the disk without an overlay. An overlay with another size would change what the guest sees.
func (t *tracker) bytes(ctx context.Context) (bytes uint64, err error) {
	if t.fact.Block {
		if bytes, err = t.files.DeviceBytes(ctx, t.fact.Path); err != nil {
			err = fmt.Errorf("%w: %w", errUnknown, err)
		}
	} else {
		bytes, err = t.fileBytes(ctx)
	}
	if err != nil || t.problem != "" {
		return 0, err
	}
	status := vmistatus.FindVolume(&t.vmi.Status, t.volume)
	claim := claimBytes(status)
	switch {
	case bytes == 0:
		t.problem = "the size of the disk is not known"
	case !t.fact.Block && claim > 0 && bytes > claim:
		// The launcher has reported the size, and the tables of the overlay grow with it.
		t.problem = fmt.Sprintf("its image has %d bytes, and its claim only %d", bytes, claim)
	case t.vmi.Status.Phase == v1.Running && status != nil && uint64(status.Size) != bytes:
		// A disk that was migrated to a larger volume keeps its size until the guest's next start.
		t.problem = fmt.Sprintf("the running guest has a disk of %d bytes, and its volume has %d", status.Size, bytes)
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

func (t *tracker) fileBytes(ctx context.Context) (uint64, error) {
	pool, err := t.storage.Pool(ctx, PoolName(t.volume), launcherpod.DiskDir(t.volume))
	if err != nil {
		return 0, err
	}
	image := pool.Find(path.Base(t.fact.Path))
	if image == nil {
		return 0, fmt.Errorf("the image %s is gone", t.fact.Path)
	}
	if image.Format != hypervisor.FormatRaw && image.Format != hypervisor.FormatISO {
		// libvirt then reports another size than that of the file.
		t.problem = fmt.Sprintf("its content looks like an image of the format %q", image.Format)
		return 0, nil
	}
	return image.Capacity, nil
}
