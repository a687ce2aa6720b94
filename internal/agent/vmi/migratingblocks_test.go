// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi_test

import (
	"bytes"
	"errors"
	"path"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/media/overlay"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/test/fakes/libvirt"
)

var _ = Describe("The migration of a guest with tracked disks", func() {
	// migrating starts a guest that has tracked a disk since a checkpoint, and prepares its migration.
	migrating := func() (c *migratingGuest, file string) {
		GinkgoHelper()
		claim := onClaim(corev1.PersistentVolumeFilesystem)
		c = newMigratingGuest(func(vmi *v1.VirtualMachineInstance) {
			claim(vmi)
			vmi.Status.ChangedBlockTracking = &v1.ChangedBlockTrackingStatus{State: v1.ChangedBlockTrackingInitializing}
		})
		disk := domain.FindDisk(c.launcher.Snapshot().XML, domain.DiskAlias("data"))
		Expect(domain.IsTracked(disk)).To(BeTrue())
		file = path.Base(disk.Source.File.File)
		size, _, err := overlay.ReadBitmaps(bytes.NewReader(c.launcher.Content(file)))
		Expect(err).NotTo(HaveOccurred())
		// A bit for each 64 KiB: less than a part.
		changed := overlay.Bitmap{Name: "of-a", Granularity: 16,
			Parts: []overlay.Part{{Bits: bytes.Repeat([]byte{5}, int(size/65536+7)/8)}}}
		ranges, err := overlay.Overlay{DiskBytes: size,
			DataFile: disk.Source.DataStore.Source.File.File}.AddBitmaps([]overlay.Bitmap{changed})
		Expect(err).NotTo(HaveOccurred())
		for _, r := range ranges {
			Expect(c.launcher.UploadAt(ctx, launcherpod.TrackedPool, file, r.At, r.Bytes)).To(Succeed())
		}
		c.prepare(func(target *libvirt.Launcher) {
			target.AddFile(launcherpod.DiskDir("data"),
				hypervisor.Volume{Name: launcherpod.DiskImage, Format: hypervisor.FormatRaw, Capacity: size})
		})
		return c, file
	}
	bitmapsOf := func(l *libvirt.Launcher, file string) []overlay.Bitmap {
		GinkgoHelper()
		_, found, err := overlay.ReadBitmaps(bytes.NewReader(l.Content(file)))
		Expect(err).NotTo(HaveOccurred())
		return found
	}

	It("takes along which blocks have changed", func() {
		c, file := migrating()
		c.assignMigration()
		c.expectMigrated()
		Expect(bitmapsOf(c.targetLauncher, file)).To(And(HaveLen(1), Equal(bitmapsOf(c.launcher, file))))
	})

	It("succeeds without them if they can neither be read nor written", func() {
		c, file := migrating()
		c.launcher.Fail("overlay", errors.New("no such file"))
		c.assignMigration()
		c.expectMigrated()
		Expect(bitmapsOf(c.targetLauncher, file)).To(BeEmpty())

		c, file = migrating()
		c.targetLauncher.Fail("part", errors.New("no space left on device"))
		c.assignMigration()
		c.expectMigrated()
		Expect(bitmapsOf(c.targetLauncher, file)).To(BeEmpty())
	})

	It("fails if it is not known whether they are still being written", func() {
		c, _ := migrating()
		c.targetLauncher.Fail("part", hypervisor.ErrUnreachable)
		c.assignMigration()
		c.expectNotMigrated()
	})
})
