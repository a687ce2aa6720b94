// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package media

import (
	"context"
	"strconv"

	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// GuestBytes is how large the disk on a claim can be: the claim's size, without what a file system keeps for itself. 0 means that it is not known.
// KubeVirt's figure, rounded as there (pkg/virt-launcher/virtwrap, possibleGuestSize).
func GuestBytes(info *v1.PersistentVolumeClaimInfo) uint64 {
	size := claimBytes(info)
	if size <= 0 || vmistatus.IsBlock(info) {
		return uint64(max(size, 0))
	}
	if info.FilesystemOverhead == nil {
		return 0
	}
	overhead, err := strconv.ParseFloat(string(*info.FilesystemOverhead), 64)
	if err != nil || !(overhead >= 0 && overhead < 1) { // NaN is neither
		return 0
	}
	return alignDown(uint64((1-overhead)*float64(size)), imageAlignment)
}

// Grows says that the disk on a volume follows the size of its claim: a hard disk that the guest may write.
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

// growImage makes an image as large as its claim allows before the guest starts. One that cannot be made larger is no reason not to start: the guest
// keeps the disk that it has. What looks like another format than raw is left for the time when QEMU runs, which has been told the format.
func (p *preparer) growImage(ctx context.Context, v *v1.Volume, poolName string, pool *hypervisor.Pool, image *hypervisor.Volume) {
	if p.vmi.Status.Phase == v1.Running {
		return // It comes from another Pod, whose QEMU has the image open.
	}
	info, err := p.claimInfo(v.Name)
	if err != nil || !Grows(p.vmi, v) || image.Format != hypervisor.FormatRaw {
		return
	}
	size := GuestBytes(info)
	if size <= image.Capacity || size-image.Capacity > pool.Available {
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
