// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package media

import (
	"context"
	"strconv"

	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/launcherpod/imagesize"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// DiskBytes returns the largest size of a disk on a claim: the claim's size without the file system's overhead. 0 means that it
// is not known. It is rounded as in KubeVirt (pkg/virt-launcher/virtwrap, possibleGuestSize).
func DiskBytes(info *v1.PersistentVolumeClaimInfo) uint64 {
	size := uint64(max(vmistatus.ClaimBytes(info.Capacity, info.Requests), 0))
	if vmistatus.IsBlock(info) {
		return size
	}
	return withoutOverhead(info, size)
}

// ImageBytes returns the largest size of a disk in the file system of a claim that has this much left, besides what the disk's image
// occupies. Some file systems need more for themselves than their configured overhead, as ext4 with blocks that only root may use: a disk of
// DiskBytes would be full before the guest expects it. KubeVirt and the importer have the same limit.
func ImageBytes(info *v1.PersistentVolumeClaimInfo, image *hypervisor.Volume, available uint64) uint64 {
	return min(DiskBytes(info), withoutOverhead(info, image.Allocation+available))
}

// withoutOverhead returns the size of an image in a number of bytes of a file system, or 0 if its overhead is not known.
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

// growImage resizes an image to its claim before the guest starts. If that fails, the guest starts with the present size. An
// image whose content looks like another format is resized when QEMU runs, which knows its format.
func (p *preparer) growImage(ctx context.Context, v *v1.Volume, poolName string, pool *hypervisor.Pool, image *hypervisor.Volume) {
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
