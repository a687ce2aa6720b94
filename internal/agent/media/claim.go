// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package media

import (
	"context"
	"fmt"
	"path"
	"strconv"

	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/launcherpod/imagesize"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// claim prepares a claim's block device or disk.img. Its format is always raw: if a guest writes a qcow2 header to its
// disk, QEMU must not open the files that the header names.
func (p *preparer) claim(ctx context.Context, v *v1.Volume) (*domain.DiskFact, error) {
	if moved := vmistatus.Migrated(&p.vmi.Status, v.Name); moved != nil {
		return p.destination(ctx, v, moved.DestinationPVCInfo)
	}
	info, err := p.claimInfo(v.Name)
	if err != nil {
		return nil, err
	}
	if vmistatus.IsBlock(info) {
		return &domain.DiskFact{
			Path: launcherpod.BlockDevice(v.Name), Block: true, Format: hypervisor.FormatRaw, DirectIO: true,
			CapacityBytes: vmistatus.ClaimBytes(info.Capacity, info.Requests), KeepsSpace: info.Preallocated,
		}, nil
	}
	fact, err := p.rawImage(ctx, v, launcherpod.DiskImage, uint64(vmistatus.ClaimBytes(info.Capacity, info.Requests)))
	if err != nil {
		return nil, err
	}
	fact.KeepsSpace = info.Preallocated
	return fact, nil
}

// ephemeralClaim creates an overlay on a claim's block device or disk.img, which does not change.
func (p *preparer) ephemeralClaim(ctx context.Context, v *v1.Volume) (*domain.DiskFact, error) {
	info, err := p.claimInfo(v.Name)
	if err != nil {
		return nil, err
	}
	if vmistatus.IsBlock(info) {
		return p.overlayOfDevice(ctx, v.Name)
	}
	pool, err := p.storage.Pool(ctx, PoolName(v.Name), launcherpod.DiskDir(v.Name))
	if err != nil {
		return nil, err
	}
	image := pool.Find(launcherpod.DiskImage)
	if image == nil {
		return nil, invalid("claim %q has no %s under its ephemeral overlay", info.ClaimName, launcherpod.DiskImage)
	}
	capacity, err := rawCapacity(image)
	if err != nil {
		return nil, err
	}
	return p.overlay(ctx, v.Name, capacity, image.Path, hypervisor.FormatRaw)
}

// overlayOfDevice creates an overlay on a block device. Its size is that of the device, which may differ from the
// claim's and which only QEMU can read.
func (p *preparer) overlayOfDevice(ctx context.Context, volume string) (*domain.DiskFact, error) {
	fact, err := p.overlay(ctx, volume, 0, launcherpod.BlockDevice(volume), hypervisor.FormatRaw)
	if err != nil {
		return nil, err
	}
	pool, err := p.storage.Pool(ctx, launcherpod.EphemeralPool, launcherpod.EphemeralDisksDir)
	if err != nil {
		return nil, err
	}
	created := pool.Find(path.Base(fact.Path))
	if created == nil {
		return nil, fmt.Errorf("the overlay %s is gone", path.Base(fact.Path))
	}
	fact.BackingBlock, fact.CapacityBytes = true, int64(created.Capacity)
	return fact, nil
}

// rawCapacity returns the size of a raw image. If the content looks like another format, libvirt reports the virtual
// size, and the size of the file is not known.
func rawCapacity(image *hypervisor.Volume) (uint64, error) {
	if image.Format != hypervisor.FormatRaw && image.Format != hypervisor.FormatISO {
		return 0, invalid("%s has the format %q, but only raw images may be on a claim", path.Base(image.Path), image.Format)
	}
	return image.Capacity, nil
}

// hostDisk prepares a file of the node. QEMU's user creates it, so that it is created only where that user may write.
// The owner of an existing file does not change: the administrator who allows host disks must set it.
func (p *preparer) hostDisk(ctx context.Context, v *v1.Volume) (*domain.DiskFact, error) {
	if v.HostDisk.Type == v1.HostDiskExistsOrCreate {
		fact, err := p.rawImage(ctx, v, path.Base(v.HostDisk.Path), uint64(v.HostDisk.Capacity.Value()))
		if err != nil {
			return nil, fmt.Errorf("the node's file %s: %w", v.HostDisk.Path, err)
		}
		return fact, nil
	}
	pool, err := p.storage.Pool(ctx, PoolName(v.Name), launcherpod.DiskDir(v.Name))
	if err != nil {
		return nil, err
	}
	image := pool.Find(path.Base(v.HostDisk.Path))
	if image == nil {
		return nil, invalid("the node has no file %s: make it, or use type %s", v.HostDisk.Path, v1.HostDiskExistsOrCreate)
	}
	return &domain.DiskFact{
		Path: image.Path, Format: hypervisor.FormatRaw, CapacityBytes: int64(image.Capacity), Filled: isFilled(image),
	}, nil
}

// rawImage finds a raw image in a volume's directory, or creates one of about the wanted size. It resizes an image on a
// claim that was expanded.
func (p *preparer) rawImage(ctx context.Context, v *v1.Volume, name string, want uint64) (*domain.DiskFact, error) {
	poolName, dir := PoolName(v.Name), launcherpod.DiskDir(v.Name)
	pool, err := p.storage.Pool(ctx, poolName, dir)
	if err != nil {
		return nil, err
	}
	fact := &domain.DiskFact{Path: path.Join(dir, name), Format: hypervisor.FormatRaw}
	if found := pool.Find(name); found != nil {
		p.growImage(ctx, v, poolName, pool, found)
		fact.CapacityBytes, fact.Filled = int64(found.Capacity), isFilled(found)
		return fact, nil
	}
	if v.HostDisk != nil {
		// Before anything can fail: for the next Pod, the kubelet's directory is not a new one.
		if err := p.storage.GiveHostDir(ctx, dir); err != nil {
			return nil, err
		}
	}
	size, err := p.limits.imageSize(want, pool.Available)
	if err != nil {
		return nil, err
	}
	fact.CapacityBytes = int64(size)
	return fact, p.storage.Create(ctx, poolName,
		hypervisor.Volume{Name: name, Format: hypervisor.FormatRaw, Capacity: size})
}

// isFilled reports whether a raw image has no holes. If its content looks like another format, libvirt's capacity is
// not the file's size.
func isFilled(image *hypervisor.Volume) bool {
	return image.Format == hypervisor.FormatRaw && image.Capacity > 0 && image.Allocation >= image.Capacity
}

// imageSize returns the size of a new image. It accepts a little less than wanted, because of the overhead of file
// systems.
func (l Limits) imageSize(want, free uint64) (uint64, error) {
	if want == 0 {
		return 0, invalid("the size of its disk is not known")
	}
	return imagesize.Of(want, free, l.ReserveBytes, l.TolerateLessPercent)
}

func (p *preparer) claimInfo(volume string) (*v1.PersistentVolumeClaimInfo, error) {
	if status := vmistatus.FindVolume(&p.vmi.Status, volume); status != nil && status.PersistentVolumeClaimInfo != nil {
		return status.PersistentVolumeClaimInfo, nil
	}
	return nil, fmt.Errorf("description of its claim in status.volumeStatus: %w", ErrWait)
}

// destination prepares the claim to which a storage migration copies a running guest's disk. Its content is
// overwritten. If it is larger than the disk, the guest's disk size does not change.
func (p *preparer) destination(
	ctx context.Context, v *v1.Volume, claim *v1.PersistentVolumeClaimInfo,
) (*domain.DiskFact, error) {
	if claim == nil || claim.ClaimName != v.WrittenClaim() {
		return nil, fmt.Errorf("status.migratedVolumes to name the claim %q: %w", v.WrittenClaim(), ErrWait)
	}
	size := p.diskSize(v.Name)
	if size <= 0 {
		return nil, fmt.Errorf("the size of the guest's disk in status.volumeStatus: %w", ErrWait)
	}
	if vmistatus.IsBlock(claim) {
		// Only QEMU can read the size of the device. It rejects one that is smaller.
		return &domain.DiskFact{
			Path: launcherpod.BlockDevice(v.Name), Block: true, Format: hypervisor.FormatRaw, DirectIO: true,
			CapacityBytes: size, Sliced: true, KeepsSpace: claim.Preallocated,
		}, nil
	}
	fact, err := p.destinationImage(ctx, v.Name, claim.ClaimName, uint64(size))
	if err != nil {
		return nil, err
	}
	fact.KeepsSpace = claim.Preallocated
	return fact, nil
}

// destinationImage finds or creates the image to which a disk is copied, and enlarges one that is smaller than the
// disk.
func (p *preparer) destinationImage(ctx context.Context, volume, claim string, size uint64) (*domain.DiskFact, error) {
	poolName, dir := PoolName(volume), launcherpod.DiskDir(volume)
	pool, err := p.storage.Pool(ctx, poolName, dir)
	if err != nil {
		return nil, err
	}
	fact := &domain.DiskFact{
		Path: path.Join(dir, launcherpod.DiskImage), Format: hypervisor.FormatRaw, CapacityBytes: int64(size),
	}
	found := pool.Find(launcherpod.DiskImage)
	if found == nil {
		if size > pool.Available {
			return nil, invalid("the guest's disk has %d bytes, and on claim %q only %d are free", size, claim, pool.Available)
		}
		return fact, p.storage.Create(ctx, poolName,
			hypervisor.Volume{Name: launcherpod.DiskImage, Format: hypervisor.FormatRaw, Capacity: size})
	}
	has, err := rawCapacity(found)
	if err != nil {
		return nil, err
	}
	if has < size {
		// The importer makes images that have room for the overhead of other file systems than the source's.
		if room := found.Allocation + pool.Available; size > room {
			return nil, invalid("the guest's disk has %d bytes, and claim %q has room for %d", size, claim, room)
		}
		return fact, p.storage.Resize(ctx, poolName, found.Name, size, isFilled(found))
	}
	fact.Sliced = has > size
	return fact, nil
}

// diskSize returns the size of the guest's disk on the source volume.
func (p *preparer) diskSize(volume string) int64 {
	for i := range p.vmi.Status.VolumeStatus {
		if s := &p.vmi.Status.VolumeStatus[i]; s.Name == volume {
			return s.Size
		}
	}
	return 0
}

// DiskBytes returns the largest size of a disk on a claim: the claim's size without the file system's overhead. 0 means
// that it is not known. It is rounded as in KubeVirt (pkg/virt-launcher/virtwrap, possibleGuestSize).
func DiskBytes(info *v1.PersistentVolumeClaimInfo) uint64 {
	size := uint64(max(vmistatus.ClaimBytes(info.Capacity, info.Requests), 0))
	if vmistatus.IsBlock(info) {
		return size
	}
	return withoutOverhead(info, size)
}

// ImageBytes returns the largest size of a disk in the file system of a claim that has this much left, besides what the
// disk's image occupies. Some file systems need more for themselves than their configured overhead, as ext4 with blocks
// that only root may use: a disk of DiskBytes would be full before the guest expects it. KubeVirt and the importer have
// the same limit.
func ImageBytes(info *v1.PersistentVolumeClaimInfo, image *hypervisor.Volume, available uint64) uint64 {
	return min(DiskBytes(info), withoutOverhead(info, image.Allocation+available))
}

// withoutOverhead returns the size of an image in a number of bytes of a file system, or 0 if its overhead is not
// known.
func withoutOverhead(info *v1.PersistentVolumeClaimInfo, bytes uint64) uint64 {
	if info.FilesystemOverhead == nil {
		return 0
	}
	overhead, err := strconv.ParseFloat(string(*info.FilesystemOverhead), 64)
	if err != nil || !(overhead >= 0 && overhead < 1) { // NaN is neither
		return 0
	}
	return alignDown(uint64((1-overhead)*float64(bytes)), imagesize.Alignment)
}

// Grows reports whether the disk on a volume grows with its claim: true for a hard disk that is not read-only.
func Grows(vmi *v1.VirtualMachineInstance, v *v1.Volume) bool {
	switch {
	case v.PersistentVolumeClaim != nil:
		if v.PersistentVolumeClaim.ReadOnly {
			return false
		}
	case v.DataVolume == nil:
		return false
	}
	for i := range vmi.Spec.Domain.Devices.Disks {
		if d := &vmi.Spec.Domain.Devices.Disks[i]; d.Name == v.Name {
			return d.CDRom == nil && d.LUN == nil && (d.Disk == nil || !d.Disk.ReadOnly)
		}
	}
	return false
}

// growImage resizes an image to its claim before the guest starts. If that fails, the guest starts with the present
// size. An image whose content looks like another format is resized when QEMU runs, which knows its format.
func (p *preparer) growImage(
	ctx context.Context, v *v1.Volume, poolName string, pool *hypervisor.Pool, image *hypervisor.Volume,
) {
	if p.vmi.Status.Phase == v1.Running {
		return // It migrates from another Pod, whose QEMU has the image open.
	}
	info, err := p.claimInfo(v.Name)
	if err != nil || !Grows(p.vmi, v) || image.Format != hypervisor.FormatRaw {
		return
	}
	size := ImageBytes(info, image, pool.Available)
	if size <= image.Capacity {
		return
	}
	filled := isFilled(image)
	if err := p.storage.Resize(ctx, poolName, image.Name, size, filled); err != nil {
		log.FromContext(ctx).Error(err, "Cannot make a disk as large as its claim", "volume", v.Name, "bytes", size)
		return
	}
	image.Capacity = size
	if filled {
		image.Allocation = size
	}
}
