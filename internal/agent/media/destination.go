// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package media

import (
	"context"
	"fmt"
	"path"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// destination prepares the claim to which a storage migration copies a running guest's disk. Its content is overwritten. If it is
// larger than the disk, the guest's disk size does not change.
func (p *preparer) destination(ctx context.Context, v *v1.Volume, claim *v1.PersistentVolumeClaimInfo) (*domain.DiskFact, error) {
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

// destinationImage finds or creates the image to which a disk is copied, and enlarges one that is smaller than the disk.
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
		return fact, p.storage.Create(ctx, poolName, hypervisor.Volume{Name: launcherpod.DiskImage, Format: hypervisor.FormatRaw, Capacity: size})
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
