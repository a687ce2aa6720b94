// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/decide/backup"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/vmistatus"
	"github.com/vireo-project/vireo/test/fakes/libvirt"
)

var _ = Describe("Tracking of changed blocks", func() {
	const mib = 1 << 20
	var launchers *libvirt.Node
	var a *agent
	BeforeEach(func() {
		launchers = libvirt.NewNode()
		a = startAgent(launchers)
	})

	// change does what virt-controller does: it writes the status.
	change := func(g *guest, do func(*v1.VirtualMachineInstanceStatus)) {
		GinkgoHelper()
		Eventually(func() error {
			before := g.read()
			after := before.DeepCopy()
			do(&after.Status)
			_, err := vmistatus.Patch(ctx, api, vmistatus.Controller, before, after)
			return err
		}).Should(Succeed())
	}
	startedWith := func(format string, mode corev1.PersistentVolumeMode, state v1.ChangedBlockTrackingState) *guest {
		GinkgoHelper()
		g := makeGuest(finalized, onClaim(mode)).schedule(launchers)
		if state != "" {
			change(g, func(s *v1.VirtualMachineInstanceStatus) {
				s.ChangedBlockTracking = &v1.ChangedBlockTrackingStatus{State: state}
			})
		}
		g.launcher.AddFile(launcherpod.DiskDir("data"),
			hypervisor.Volume{Name: "disk.img", Format: format, Capacity: 945 * mib})
		g.launcher.SetDiskSizes(map[string]uint64{"vda": mib, "vdb": mib, "vdc": 945 * mib})
		g.assign().expectPhase(v1.Running)
		return g
	}
	started := func(mode corev1.PersistentVolumeMode, state v1.ChangedBlockTrackingState) *guest {
		GinkgoHelper()
		return startedWith(hypervisor.FormatRaw, mode, state)
	}
	live := func(g *guest) (source, data string) {
		GinkgoHelper()
		disk := domain.FindDisk(g.launcher.Snapshot().XML, domain.DiskAlias("data"))
		Expect(disk).NotTo(BeNil())
		if store := disk.Source.DataStore; store != nil && store.Source.Block != nil {
			data = store.Source.Block.Dev
		} else if store != nil {
			data = store.Source.File.File
		}
		if disk.Source.File != nil {
			source = disk.Source.File.File
		}
		return source, data
	}

	It("lays an overlay over the image of a claim, and reports it", func() {
		g := started(corev1.PersistentVolumeFilesystem, v1.ChangedBlockTrackingInitializing)
		source, data := live(g)
		Expect(source).To(Equal(launcherpod.TrackedDisksDir + "/data-990904320.qcow2"))
		Expect(data).To(Equal(launcherpod.DiskDir("data") + "/disk.img"))
		Eventually(func() []string { return g.read().Status.TrackedVolumes }).Should(ConsistOf("data"))
	})

	It("lays an overlay over a device, and grows both to the size of the device", func() {
		g := started(corev1.PersistentVolumeBlock, v1.ChangedBlockTrackingEnabled)
		source, data := live(g)
		Expect(source).To(Equal(launcherpod.TrackedDisksDir + "/data-2147483648.qcow2"))
		Expect(data).To(Equal(launcherpod.BlockDevice("data")))
		g.expand("3000Mi")
		Eventually(g.size).Should(BeEquivalentTo(2 << 30))
	})

	It("says why a disk cannot have an overlay", func() {
		g := startedWith(hypervisor.FormatQCOW2, corev1.PersistentVolumeFilesystem, v1.ChangedBlockTrackingInitializing)
		a.expectEvent("Warning ChangedBlocksNotTracked Changed blocks are not tracked, so these volumes get full backups only: data: its content looks like")
		g.settle()
		Expect(g.read().Status.TrackedVolumes).To(BeEmpty())
	})

	It("leaves disks alone that are not to be tracked", func() {
		for _, state := range []v1.ChangedBlockTrackingState{"", v1.ChangedBlockTrackingFGDisabled} {
			g := started(corev1.PersistentVolumeFilesystem, state)
			source, data := live(g)
			Expect(source).To(Equal(launcherpod.DiskDir("data") + "/disk.img"))
			Expect(data).To(BeEmpty())
			g.settle()
			Expect(g.read().Status.TrackedVolumes).To(BeEmpty())
		}
	})

	It("makes an incremental backup if the guest has the checkpoint, and otherwise a full one that explains why", func() {
		g := started(corev1.PersistentVolumeFilesystem, v1.ChangedBlockTrackingInitializing)
		Eventually(func() error {
			vmi := g.read()
			vmi.Spec.UtilityVolumes = []v1.UtilityVolume{{Name: "target", Type: ptr.To(v1.Backup)}}
			vmi.Spec.UtilityVolumes[0].ClaimName = "backups"
			if err := api.Update(ctx, vmi); err != nil {
				return err
			}
			vmi.Status.VolumeStatus = append(vmi.Status.VolumeStatus, v1.VolumeStatus{
				Name: "target", Phase: v1.HotplugVolumeMounted, HotplugVolume: &v1.HotplugVolumeStatus{},
			})
			return api.Status().Update(ctx, vmi)
		}).Should(Succeed())
		backUp := func(id, since string, volumes ...string) *v1.DiskBackupRecord {
			GinkgoHelper()
			intent := &backup.Intent{
				ID: id, UtilityVolume: "target", Directory: "vm/" + id, FilePrefix: "b-", Volumes: volumes, Checkpoint: "of-" + id,
				Since: since,
			}
			if since != "" {
				intent.Kept = []string{since}
			}
			change(g, func(status *v1.VirtualMachineInstanceStatus) { status.DiskBackup = intent.Status() })
			begun := func(stage v1.DiskBackupStage) *v1.DiskBackupRecord {
				GinkgoHelper()
				var record *v1.DiskBackupRecord
				Eventually(func(e Gomega) {
					record = g.read().Status.DiskBackupRecord
					e.Expect(record).NotTo(BeNil())
					e.Expect(record.ID).To(Equal(id))
					e.Expect(record.Stage).To(Equal(stage), "%+v", record)
				}).Should(Succeed())
				return record
			}
			begun(v1.DiskBackupRunning)
			g.launcher.EndBackup("")
			return begun(v1.DiskBackupSucceeded)
		}
		Expect(backUp("a", "", "data")).To(
			And(HaveField("Checkpoint", "of-a"), HaveField("Since", ""), HaveField("FullBecause", "")))
		Expect(backUp("b", "of-a", "data")).To(And(HaveField("Checkpoint", "of-b"), HaveField("Since", "of-a")))
		Expect(g.launcher.LastBackup().Since).To(Equal("of-a"))
		Expect(backUp("c", "of-b", "data")).To(HaveField("Since", "of-b"))
		By("deleting checkpoints that no backup starts from")
		Expect(g.launcher.Checkpoints(ctx, g.launcher.Snapshot().XML.Name)).
			To(ConsistOf(HaveField("Name", "of-b"), HaveField("Name", "of-c")))

		By("after a migration, with bitmaps that libvirt does not know")
		g.launcher.KeepBitmaps()
		Expect(backUp("m", "of-c", "data")).To(
			And(HaveField("Checkpoint", "of-m"), HaveField("Since", "of-c"), HaveField("FullBecause", "")))
		Expect(backUp("c", "of-m", "data")).To(HaveField("Since", "of-m"))

		By("after the guest has lost its checkpoints")
		g.launcher.ForgetCheckpoints()
		Expect(backUp("d", "of-c", "data")).To(And(HaveField("Checkpoint", "of-d"), HaveField("Since", ""),
			HaveField("FullBecause", ContainSubstring("does not have the checkpoint of-c"))))
		Expect(g.launcher.LastBackup().Since).To(BeEmpty())

		By("with a checkpoint whose bitmap is broken")
		g.launcher.BreakBitmap("of-d")
		Expect(backUp("broken", "of-d", "data")).To(And(HaveField("Checkpoint", "of-broken"), HaveField("Since", ""),
			HaveField("FullBecause", ContainSubstring("refused an incremental one"))))
		Expect(g.launcher.LastBackup()).To(And(HaveField("Checkpoint", "of-broken"), HaveField("Since", "")))

		By("with a disk that is not tracked")
		Expect(backUp("e", "of-d", "data", "root")).To(And(HaveField("Checkpoint", ""), HaveField("Since", ""),
			HaveField("FullBecause", ContainSubstring("not tracked of the volume root"))))
		Expect(g.launcher.LastBackup()).To(And(HaveField("Checkpoint", ""), HaveField("Since", "")))
	})
})
