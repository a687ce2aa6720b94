// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reconciler

import (
	"context"
	"fmt"
	"time"

	"libvirt.org/go/libvirtxml"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/handler/media"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// growRetry is the pause before a disk that could not grow is tried again.
const growRetry = 5 * time.Minute

// growth is the last attempt to make a disk larger.
type growth struct {
	// bytes is the size that was wanted.
	bytes uint64
	// retry is when to try again, or zero after a success.
	retry time.Time
}

// grow makes the disks of a running guest as large as their claims have become, which virt-controller says in the status. It never fails: a disk that
// cannot grow is no reason to hold anything else up. Nothing but the sizes decides, so that an agent that was replaced goes on. docs/adr/0051
func (r *Reconciler) grow(ctx context.Context, s *scope) error {
	if s.vmi == nil || s.memory.sizes == nil || !s.domain.Active() || isTransient(s.domain) || moves(s.vmi) {
		return nil
	}
	grown := false
	for i := range s.vmi.Spec.Volumes {
		volume := &s.vmi.Spec.Volumes[i]
		target, want := growing(s, volume)
		if want == 0 || want <= s.memory.sizes[target] {
			continue
		}
		last, tried := s.memory.grown[volume.Name]
		switch {
		case tried && last.bytes == want && last.retry.IsZero():
			continue // The device is not larger, whatever its claim says.
		case tried && last.bytes == want && s.now.Before(last.retry):
			s.lookAgain(last.retry.Sub(s.now))
			continue
		}
		attempt := growth{bytes: want}
		if err := r.growDisk(ctx, s, volume, target, want); err != nil {
			log.FromContext(ctx).Error(err, "Cannot make a disk as large as its claim", "volume", volume.Name, "bytes", want)
			attempt.retry = s.now.Add(growRetry)
			s.lookAgain(growRetry)
		}
		if s.memory.grown == nil {
			s.memory.grown = map[string]growth{}
		}
		s.memory.grown[volume.Name] = attempt
		grown = true
	}
	if grown {
		s.memory.sizes = nil
		r.measure(ctx, s)
	}
	return nil
}

// growing is the target of the disk on a claim and the size that it is to have, or 0 if it stays as it is.
func growing(s *scope, volume *v1.Volume) (target string, bytes uint64) {
	info := claimInfo(s.vmi, volume.Name)
	if info == nil || !media.Grows(s.vmi, volume) {
		return "", 0
	}
	disk := diskOf(s.domain.XML, domain.DiskAlias(volume.Name))
	// A disk that moved to a larger volume shows a slice of it until the next start.
	if disk == nil || disk.Target == nil || disk.Source == nil || disk.Source.Slices != nil {
		return "", 0
	}
	return disk.Target.Dev, media.GuestBytes(info)
}

func (r *Reconciler) growDisk(ctx context.Context, s *scope, volume *v1.Volume, target string, want uint64) error {
	if vmistatus.IsBlock(claimInfo(s.vmi, volume.Name)) {
		// Only libvirt can tell how large the device is.
		return s.machine.GrowDisk(ctx, s.domainName(), target, 0)
	}
	pool, err := s.machine.Pool(ctx, media.PoolName(volume.Name), launcherpod.DiskDir(volume.Name))
	if err != nil {
		return err
	}
	if more := want - s.memory.sizes[target]; more > pool.Available {
		return fmt.Errorf("its file system has %d bytes left, and the disk would need %d more", pool.Available, more)
	}
	return s.machine.GrowDisk(ctx, s.domainName(), target, want)
}

// moves says that the guest is on its way to another Pod: libvirt changes no disks then.
func moves(vmi *v1.VirtualMachineInstance) bool {
	m := vmi.Status.MigrationState
	return m != nil && !vmistatus.HasEnded(m) || vmistatus.MovesVolumes(&vmi.Status)
}

// claimInfo is what the controller says about the claim of a volume, or nil.
func claimInfo(vmi *v1.VirtualMachineInstance, volume string) *v1.PersistentVolumeClaimInfo {
	for i := range vmi.Status.VolumeStatus {
		if s := &vmi.Status.VolumeStatus[i]; s.Name == volume {
			return s.PersistentVolumeClaimInfo
		}
	}
	return nil
}

func diskOf(d *libvirtxml.Domain, alias string) *libvirtxml.DomainDisk {
	if d == nil || d.Devices == nil {
		return nil
	}
	for i := range d.Devices.Disks {
		if disk := &d.Devices.Disks[i]; disk.Alias != nil && disk.Alias.Name == alias {
			return disk
		}
	}
	return nil
}

// lookAgain makes the next reconcile come after a while, if none comes before.
func (s *scope) lookAgain(after time.Duration) {
	if after > 0 && (s.again == 0 || after < s.again) {
		s.again = after
	}
}
