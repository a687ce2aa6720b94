// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package devices

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/media"
	"github.com/vireo-project/vireo/internal/decide/backup"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

const (
	// growRetry is the delay before a disk that could not grow is tried again.
	growRetry = 5 * time.Minute
	// roomRetries is how often the room of a file system is read again. It can become larger later than its claim, as
	// on storage over the network, and stays smaller than the claim's size without its configured overhead in many file
	// systems.
	roomRetries = 3
)

// errLessRoom is the error of a disk that is smaller than its claim allows, because its file system has no room for
// more.
var errLessRoom = errors.New("its file system has room for less")

// growth is the last attempt to grow a disk.
type growth struct {
	// bytes is the requested size.
	bytes uint64
	// retry is when to try again, or zero after a success.
	retry time.Time
	// lessRoom is how often the file system had room for less than that.
	lessRoom int
}

// growths are the last attempts to grow disks, by their volume as it is mounted.
type growths struct{ byMount map[mountID]growth }

// forgetOthers forgets the disks of volumes that are not in the status any more: other claims may be plugged by their
// names.
func (g *growths) forgetOthers(status *v1.VirtualMachineInstanceStatus) {
	maps.DeleteFunc(g.byMount, func(id mountID, _ growth) bool { return vmistatus.FindVolume(status, id.volume) == nil })
}

// after returns the attempt that follows, which has ended with an error or nil.
func (g growth) after(want uint64, err error, now time.Time) growth {
	attempt := growth{bytes: want}
	if errors.Is(err, errLessRoom) {
		attempt.lessRoom = 1
		if g.bytes == want {
			attempt.lessRoom += g.lessRoom
		}
	}
	if err != nil && attempt.lessRoom <= roomRetries {
		attempt.retry = now.Add(growRetry)
	}
	return attempt
}

// mountID identifies a volume in a launcher Pod. Another claim can be plugged by the name of an earlier one, then with
// another attachment Pod.
type mountID struct {
	volume     string
	attachment types.UID
}

// mountOf identifies a volume of the spec as it is in the launcher Pod now.
func (s *Guest) mountOf(volume *v1.Volume) mountID {
	id := mountID{volume: volume.Name}
	if status := vmistatus.FindVolume(&s.VMI.Status, volume.Name); vmistatus.IsHotplugged(status) {
		id.attachment = status.HotplugVolume.AttachPodUID
	}
	return id
}

// diskGrower grows disks of a running domain.
type diskGrower interface {
	DiskMeter
	// GrowDisk grows a disk, by the name of its target: to a number of bytes, or with 0 to the size of its block
	// device.
	GrowDisk(ctx context.Context, name, target string, bytes uint64) error
	// Pool returns a directory of the Pod as a storage pool.
	Pool(ctx context.Context, name, dir string) (*hypervisor.Pool, error)
}

// GrowDisks grows the disks of a running guest to the sizes of their claims, which virt-controller writes to the
// status. It never fails, because a disk that cannot grow must not block other phases. It depends on the sizes alone,
// so it also works after the agent was replaced. docs/adr/0051
func (s *Guest) GrowDisks(ctx context.Context, disks diskGrower) error {
	if s.VMI == nil || !s.state.sizes.read() || !s.Domain.Active() || s.Domain.Transient() || MigratesOrWill(s.VMI) ||
		backup.InProgress(&s.VMI.Status) {
		return nil
	}
	grown := false
	for i := range s.VMI.Spec.Volumes {
		volume := &s.VMI.Spec.Volumes[i]
		target, want := s.growing(volume)
		if want == 0 || want <= s.state.sizes.of(target) {
			continue
		}
		id := s.mountOf(volume)
		last, tried := s.state.growths.byMount[id]
		switch {
		case tried && last.bytes == want && last.retry.IsZero():
			continue // The device has not grown with its claim, or the file system still has no room for more.
		case tried && last.bytes == want && s.Now.Before(last.retry):
			s.RequeueAfter(last.retry.Sub(s.Now))
			continue
		}
		err := s.growDisk(ctx, disks, volume, target, want)
		if err != nil && !errors.Is(err, errLessRoom) {
			log.FromContext(ctx).Error(err, "Cannot grow a disk to the size of its claim", "volume", volume.Name, "bytes", want)
		}
		attempt := last.after(want, err, s.Now)
		s.RequeueAfter(attempt.retry.Sub(s.Now))
		if s.state.growths.byMount == nil {
			s.state.growths.byMount = map[mountID]growth{}
		}
		s.state.growths.byMount[id] = attempt
		grown = true
	}
	if grown {
		s.state.sizes.forget()
		s.Measure(ctx, disks)
	}
	return nil
}

// growing returns the target of the disk on a claim and the size to grow it to, or 0 if it does not grow.
func (s *Guest) growing(volume *v1.Volume) (target string, bytes uint64) {
	info := claimInfo(s.VMI, volume.Name)
	if info == nil || !media.Grows(s.VMI, volume) {
		return "", 0
	}
	disk := domain.FindDisk(s.Domain.XML, domain.DiskAlias(volume.Name))
	// A disk that was migrated to a larger volume has a slice of it until the next start.
	if disk == nil || disk.Target == nil || disk.Source == nil || disk.Source.Slices != nil {
		return "", 0
	}
	return disk.Target.Dev, media.DiskBytes(info)
}

func (s *Guest) growDisk(ctx context.Context, disks diskGrower, volume *v1.Volume, target string, want uint64) error {
	block := vmistatus.IsBlock(claimInfo(s.VMI, volume.Name))
	switch disk := domain.FindDisk(s.Domain.XML, domain.DiskAlias(volume.Name)); {
	case block && disk != nil && domain.IsTracked(disk):
		// libvirt knows the size of the overlay's file only. QEMU refuses another size than the device's.
		device, err := s.devices.Files(s.Pod.UID).DeviceBytes(ctx, launcherpod.BlockDevice(volume.Name))
		switch {
		case err != nil:
			return fmt.Errorf("read the size of its device: %w", err)
		case device == 0:
			return errors.New("the size of its device is not known")
		case device <= s.state.sizes.of(target):
			return nil // The device has not grown with its claim.
		}
		return disks.GrowDisk(ctx, s.DomainName(), target, device)
	case block:
		// Only libvirt knows the size of the device.
		return disks.GrowDisk(ctx, s.DomainName(), target, 0)
	case isHotplugged(s.VMI, s.Pod, volume):
		// The file system is not in the launcher Pod, so that its free space is not known.
		return disks.GrowDisk(ctx, s.DomainName(), target, want)
	}
	pool, err := disks.Pool(ctx, media.PoolName(volume.Name), launcherpod.DiskDir(volume.Name))
	if err != nil {
		return err
	}
	image := pool.Find(launcherpod.DiskImage)
	if image == nil {
		return fmt.Errorf("its file system has no %s", launcherpod.DiskImage)
	}
	size := media.ImageBytes(claimInfo(s.VMI, volume.Name), image, pool.Available)
	if size > s.state.sizes.of(target) {
		err = disks.GrowDisk(ctx, s.DomainName(), target, size)
	}
	if err == nil && size < want {
		return errLessRoom
	}
	return err
}

// MigratesOrWill reports whether the guest is being migrated or a migration of its volumes is due. libvirt grows no
// disks then.
func MigratesOrWill(vmi *v1.VirtualMachineInstance) bool {
	return vmistatus.Migrating(&vmi.Status) || vmistatus.MovesVolumes(&vmi.Status)
}

// claimInfo returns what virt-controller wrote about the claim of a volume, or nil.
func claimInfo(vmi *v1.VirtualMachineInstance, volume string) *v1.PersistentVolumeClaimInfo {
	if status := vmistatus.FindVolume(&vmi.Status, volume); status != nil {
		return status.PersistentVolumeClaimInfo
	}
	return nil
}

// DiskMeter measures disks.
type DiskMeter interface {
	// DiskSizes returns the sizes of the disks of a running domain in bytes, by the name of their target.
	DiskSizes(ctx context.Context, name string) (map[string]uint64, error)
}

// diskSizes are the sizes of the running guest's disks in bytes, by the name of their target.
type diskSizes struct{ byTarget map[string]uint64 }

// read reports whether the sizes have been read.
func (d *diskSizes) read() bool { return d.byTarget != nil }

// of returns the size of a disk, or 0 if it is not known.
func (d *diskSizes) of(target string) uint64 { return d.byTarget[target] }

// forget makes Measure read the sizes again.
func (d *diskSizes) forget() { d.byTarget = nil }

// Measure reads the exact sizes of the guest's disks once. A claim has only a rounded size, and a disk that moves to
// another volume has to keep its own. After a failure the next reconciliation reads them.
func (s *Guest) Measure(ctx context.Context, disks DiskMeter) {
	if s.state.sizes.read() || !s.Domain.Active() {
		return
	}
	sizes, err := disks.DiskSizes(ctx, s.DomainName())
	if err != nil {
		log.FromContext(ctx).V(3).Info("Cannot read the sizes of the guest's disks yet", "error", err.Error())
		return
	}
	s.state.sizes.byTarget = sizes
}
