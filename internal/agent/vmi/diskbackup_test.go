// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi_test

import (
	"errors"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/utils/ptr"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/backup"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/vmistatus"
	"github.com/vireo-project/vireo/test/fakes/libvirt"
)

var _ = Describe("The backup of a guest's disks", func() {
	const image = "vm/b-1/b-root.qcow2"
	var (
		launchers *libvirt.Node
		first     *agent
		g         *guest
	)

	// change does what virt-controller does: it writes the status.
	change := func(do func(*v1.VirtualMachineInstanceStatus)) {
		GinkgoHelper()
		Eventually(func() error {
			before := g.read()
			after := before.DeepCopy()
			do(&after.Status)
			_, err := vmistatus.Patch(ctx, api, vmistatus.Controller, before, after)
			return err
		}).Should(Succeed())
	}
	want := func(id string, do ...func(*backup.Intent)) {
		GinkgoHelper()
		intent := &backup.Intent{ID: id, UtilityVolume: "target", Directory: "vm/b-1", FilePrefix: "b-",
			Volumes: []string{"root"}}
		for _, f := range do {
			f(intent)
		}
		change(func(status *v1.VirtualMachineInstanceStatus) { status.DiskBackup = intent.Status() })
	}
	cancel := func(i *backup.Intent) { i.Canceled = true }
	expectStage := func(id string, stage v1.DiskBackupStage) *v1.DiskBackupRecord {
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

	BeforeEach(func() {
		launchers = libvirt.NewNode()
		first = startAgent(launchers)
		g = makeGuest(finalized).schedule(launchers).assign()
		g.expectPhase(v1.Running)
		By("attaching the claim to the running guest's Pod")
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
	})

	It("succeeds when QEMU has copied everything", func() {
		want("a")
		record := expectStage("a", v1.DiskBackupRunning)
		Expect(record.StartedAt).NotTo(BeNil())
		Expect(g.launcher.Images()).To(ConsistOf(launcherpod.UtilityVolumeDir("target") + "/" + image))
		g.launcher.EndBackup("")
		Expect(expectStage("a", v1.DiskBackupSucceeded).EndedAt).NotTo(BeNil())
		By("writing nothing more")
		g.settle()
		writes := first.writes.Load()
		g.settle()
		Expect(first.writes.Load()).To(Equal(writes))
		Expect(g.launcher.BackupsBegun()).To(Equal(1))
	})

	It("fails with libvirt's reason", func() {
		want("a")
		expectStage("a", v1.DiskBackupRunning)
		g.launcher.EndBackup("no space left")
		Expect(expectStage("a", v1.DiskBackupFailed).Problem).To(Equal("no space left"))
	})

	It("fails if libvirt refuses it", func() {
		g.launcher.Fail("backup", errors.New("no such disk"))
		want("a")
		Expect(expectStage("a", v1.DiskBackupFailed).Problem).To(ContainSubstring("no such disk"))
	})

	It("fails if the guest has no such disk", func() {
		want("a", func(i *backup.Intent) { i.Volumes = append(i.Volumes, "data") })
		Expect(expectStage("a", v1.DiskBackupFailed).Problem).To(ContainSubstring("volume data"))
		Expect(g.launcher.BackupsBegun()).To(BeZero())
	})

	It("is aborted when it is canceled", func() {
		want("a")
		expectStage("a", v1.DiskBackupRunning)
		want("a", cancel)
		Expect(expectStage("a", v1.DiskBackupFailed).Problem).To(ContainSubstring("aborted"))
		Expect(g.launcher.Images()).To(BeEmpty())
	})

	It("is never begun if it was canceled before", func() {
		want("a", cancel)
		expectStage("a", v1.DiskBackupFailed)
		Expect(g.launcher.BackupsBegun()).To(BeZero())
	})

	It("continues after the agent was restarted", func() {
		want("a")
		expectStage("a", v1.DiskBackupRunning)
		first.stop()
		g.launcher.EndBackup("")
		startAgent(launchers)
		expectStage("a", v1.DiskBackupSucceeded)
		Expect(g.launcher.BackupsBegun()).To(Equal(1))
	})

	It("succeeds though the response of its begin was lost", func() {
		g.launcher.LoseResponse("backup")
		want("a")
		expectStage("a", v1.DiskBackupRunning)
		g.launcher.EndBackup("")
		expectStage("a", v1.DiskBackupSucceeded)
		Expect(g.launcher.BackupsBegun()).To(Equal(1))
	})

	It("fails if nobody knows how it ended", func() {
		want("a")
		expectStage("a", v1.DiskBackupRunning)
		g.launcher.ForgetBackup()
		Expect(expectStage("a", v1.DiskBackupFailed).Problem).To(ContainSubstring("does not report how"))
	})

	It("is not repeated if the launcher removes the record", func() {
		want("a")
		expectStage("a", v1.DiskBackupRunning)
		first.stop()
		g.launcher.EndBackup("no")
		g.launcher.Alter(func(d *libvirtxml.Domain) { d.Metadata = nil })
		startAgent(launchers)
		expectStage("a", v1.DiskBackupFailed)
		g.settle()
		Expect(g.launcher.BackupsBegun()).To(Equal(1))
	})

	Context("that is pulled", func() {
		pulled := func(do ...func(*backup.Intent)) func(*backup.Intent) {
			return func(i *backup.Intent) {
				i.Pull, i.Checkpoint = true, "of-a"
				for _, f := range do {
					f(i)
				}
			}
		}
		BeforeEach(func() {
			g.launcher.SetDiskSizes(map[string]uint64{"vda": 1 << 30})
		})

		It("is served until it is canceled", func() {
			want("a", pulled())
			record := expectStage("a", v1.DiskBackupRunning)
			Expect(record.Pull).To(BeTrue())
			Expect(g.launcher.LastBackup().Socket).To(Equal(launcherpod.SocketsDir + "/backup-a"))
			Expect(g.launcher.LastBackup().Images).To(
				ConsistOf(And(HaveField("Export", "root"), HaveField("File", "b-root.scratch.qcow2"))))
			By("writing nothing more")
			g.settle()
			writes := first.writes.Load()
			g.settle()
			Expect(first.writes.Load()).To(Equal(writes))
			want("a", pulled(cancel))
			Expect(expectStage("a", v1.DiskBackupSucceeded)).To(And(HaveField("Canceled", true), HaveField("Problem", "")))
			Expect(g.launcher.Images()).To(BeEmpty())
		})

		It("succeeds if the agent is restarted while it ends the job", func() {
			want("a", pulled())
			expectStage("a", v1.DiskBackupRunning)
			want("a", pulled(cancel))
			first.stop()
			startAgent(launchers)
			Expect(expectStage("a", v1.DiskBackupSucceeded)).To(HaveField("Canceled", true))
		})

		It("fails if somebody else ends the job", func() {
			want("a", pulled())
			expectStage("a", v1.DiskBackupRunning)
			g.launcher.EndBackup("")
			Expect(expectStage("a", v1.DiskBackupFailed).Problem).To(ContainSubstring("although the backup was not canceled"))
		})

		It("does not begin on a claim without enough room", func() {
			g.launcher.SetFreeSpace(1 << 30)
			want("a", pulled())
			Expect(expectStage("a", v1.DiskBackupFailed).Problem).
				To(And(ContainSubstring("the claim backups"), ContainSubstring("too little room")))
			Expect(g.launcher.BackupsBegun()).To(BeZero())
		})

		It("ends when the claim has less room than the guest may need", func() {
			want("a", pulled())
			expectStage("a", v1.DiskBackupRunning)
			g.launcher.SetFreeSpace(1 << 30)
			Expect(expectStage("a", v1.DiskBackupFailed).Problem).To(ContainSubstring("something else has filled the claim"))
			Expect(g.launcher.Images()).To(BeEmpty())
		})

		It("ends though another phase fails", func() {
			want("a", pulled())
			expectStage("a", v1.DiskBackupRunning)
			By("replacing the agent by one that cannot forward ports")
			first.stop()
			second := startAgent(launchers)
			second.networks.forwardFailure.Store(ptr.To(errors.New("no such chain")))
			g.launcher.SetFreeSpace(1 << 30)
			Expect(expectStage("a", v1.DiskBackupFailed).Problem).To(ContainSubstring("something else has filled the claim"))
			Expect(second.networks.forwards.Load()).NotTo(BeZero())
		})

		It("fails if the size of a disk is not known", func() {
			g.launcher.SetDiskSizes(map[string]uint64{})
			want("a", pulled())
			Expect(expectStage("a", v1.DiskBackupFailed).Problem).To(ContainSubstring("does not report the size"))
		})
	})

	It("does not start during a migration", func() {
		change(func(status *v1.VirtualMachineInstanceStatus) {
			status.MigrationState = &v1.VirtualMachineInstanceMigrationState{
				MigrationUID: "m", SourceNode: thisNode, SourcePod: g.pod.Name, TargetNode: "node-2", TargetPod: "p",
			}
		})
		want("a")
		g.settle()
		g.settle()
		Expect(g.launcher.BackupsBegun()).To(BeZero())
		Expect(g.read().Status.DiskBackupRecord).To(BeNil())
	})

	It("waits for the volume to which it writes", func() {
		want("a", func(i *backup.Intent) { i.UtilityVolume = "other" })
		g.settle()
		g.settle()
		Expect(g.launcher.BackupsBegun()).To(BeZero())
		Expect(g.read().Status.DiskBackupRecord).To(BeNil())
	})
})
