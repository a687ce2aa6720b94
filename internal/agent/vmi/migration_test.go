// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi_test

import (
	"strconv"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/migrate/qemutls"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/vmistatus"
	"github.com/vireo-project/vireo/test/fakes/libvirt"
)

func itoa(n int) string { return strconv.Itoa(n) }

var _ = Describe("A guest that is migrated to another node", func() {
	It("runs on the target only, and is owned by the target's agent", func() {
		c := newMigratingGuest().migrate()
		vmi := c.expectMigrated()
		Expect(vmi.Status.MigrationState.StartTimestamp).NotTo(BeNil())
		Expect(vmi.Status.MigrationState.Mode).To(Equal(v1.MigrationPreCopy))
		Expect(vmi.Status.MigrationState.TargetNodeAddress).To(Equal(c.target.ip))
		c.sourceA.expectEvent("is migrating")
		c.sourceA.expectEvent("migrated to node " + c.target.node)
		c.targetA.expectEvent("Normal PreparingTarget Migration Target is listening at " + c.target.ip +
			", on ports: 49152,49153")
		c.targetA.expectEvent("Target Prepared")
		By("updating what differs on the target")
		c.targetLauncher.SetState(hypervisor.StatePaused, hypervisor.PausedIOError)
		c.expectCondition(v1.VirtualMachineInstancePaused, corev1.ConditionTrue, v1.PausedIOErrorReason)
		c.targetLauncher.SetState(hypervisor.StateRunning, "")
		c.expectCondition(v1.VirtualMachineInstanceReady, corev1.ConditionTrue, "")
		Expect(c.read().Status.Interfaces).To(ContainElement(HaveField("IP", "10.244.1.5")))
		By("reporting the memory overhead of its new Pod")
		Eventually(func() *v1.MemoryStatus { return c.read().Status.Memory }).
			Should(HaveField("MemoryOverhead.String()", "200Mi"))
		By("removing the certificates")
		Eventually(c.targetLauncher.MigrationTLS).Should(BeNil())
		Eventually(c.launcher.MigrationTLS).Should(BeNil())
		Expect(c.targetLauncher.Starts()).To(BeZero())
		Expect(c.launcher.Starts()).To(Equal(1))
		By("keeping the record of the transfer until the source's Pod is removed")
		Expect(c.sourceA.guests.Remembers(c.uid)).To(BeTrue())
		c.removePod()
		Eventually(c.sourceA.guests.Remembers).WithArguments(c.uid).Should(BeFalse())
	})

	It("has its certificates removed by a restarted agent", func() {
		c := newMigratingGuest().migrate()
		c.expectMigrated()
		Eventually(c.targetLauncher.MigrationTLS).Should(BeNil())
		Expect(c.targetLauncher.PutMigrationTLS(ctx, qemutls.Files{CA: []byte("left")})).To(Succeed())
		c.restartTarget()
		Eventually(c.targetLauncher.MigrationTLS).Should(BeNil())
	})

	It("is prepared and not started before the migration is assigned to the agents", func() {
		c := newMigratingGuest().prepare()
		Eventually(func() []byte { return c.targetLauncher.Content("seed.iso") }).ShouldNot(BeEmpty())
		Expect(c.targetLauncher.Starts()).To(BeZero())
		Expect(c.target.executed()).To(BeEmpty())
	})

	It("causes few writes", func() {
		c := newMigratingGuest()
		before := c.sourceA.writes.Load()
		c.migrate().expectMigrated()
		// Source: the start, and the owner unless the target was faster. Target: ready to receive, domain found, running, the
		// owner, and what differs there.
		Expect(c.sourceA.writes.Load() - before).To(BeNumerically("<=", 3))
		Expect(c.targetA.writes.Load()).To(BeNumerically("<=", 7))
	})

	It("stays on the source if the target's preparation fails", func() {
		c := newMigratingGuest().prepare()
		c.targetLauncher.Fail("prepare", errLost)
		c.assignMigration()
		Expect(c.expectNotMigrated().FailureReason).To(ContainSubstring("lost"))
		c.sourceA.expectEvent("Warning Migrated VirtualMachineInstance migration uid " + string(c.uid) +
			" failed. reason:Live migration failed: ")
		By("migrating with the second migration")
		c.targetLauncher.Fail("prepare", nil)
		Expect(api.Delete(ctx, c.targetPod.Load(), client.GracePeriodSeconds(0))).To(Succeed())
		c.prepare().assignMigration()
		Eventually(func(g Gomega) {
			g.Expect(c.read().Status.NodeName).To(Equal(c.target.node))
			g.Expect(runs(c.targetLauncher)).To(BeTrue())
		}).Should(Succeed())
	})

	DescribeTable("stays on the source if libvirt fails", func(where, call string) {
		c := newMigratingGuest().prepare()
		if where == "source" {
			c.launcher.Fail(call, errLost)
		} else {
			c.targetLauncher.Fail(call, errLost)
		}
		c.assignMigration()
		c.expectNotMigrated()
	},
		Entry("at the start", "source", "begin"),
		Entry("during the transfer", "source", "perform"),
		Entry("at the completion on the target", "target", "finish"),
	)

	// persistentEFI gives the guest persistent EFI variables, in a claim of each node.
	persistentEFI := func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Domain.Firmware = &v1.Firmware{Bootloader: &v1.Bootloader{EFI: &v1.EFI{SecureBoot: new(false),
			Persistent: new(true)}}}
		vmi.Status.VolumeStatus = []v1.VolumeStatus{{Name: "old",
			PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{ClaimName: "old"}}}
	}
	moveState := func(m *v1.VirtualMachineInstanceMigrationState) {
		m.SourcePersistentStatePVCName, m.TargetPersistentStatePVCName = "old", "new"
	}

	It("has its persistent state on the target before ownership is transferred", func() {
		c := newMigratingGuest(persistentEFI).prepare()
		c.launcher.SetNVRAM([]byte("boot from the disk"))
		c.assignMigration(moveState)
		vmi := c.expectMigrated()
		Expect(string(c.targetLauncher.NVRAM())).To(Equal("boot from the disk"))
		Expect(vmi.Status.VolumeStatus).To(ContainElement(HaveField("Name", "new")))
		Expect(vmi.Status.VolumeStatus).NotTo(ContainElement(HaveField("Name", "old")))
	})

	DescribeTable("stays on the source if its persistent state cannot be transferred", func(where, call string) {
		c := newMigratingGuest(persistentEFI).prepare()
		c.launcher.SetNVRAM([]byte("boot from the disk"))
		if where == "source" {
			c.launcher.Fail(call, errLost)
		} else {
			c.targetLauncher.Fail(call, errLost)
		}
		c.assignMigration(moveState)
		Expect(c.expectNotMigrated().FailureReason).To(ContainSubstring("lost"))
		Expect(c.read().Status.VolumeStatus).To(ContainElement(HaveField("Name", "old")))
	},
		Entry("because it cannot be read", "source", "nvram"),
		Entry("because it cannot be written", "target", "state"),
	)

	// onClaim puts the guest's data on a claim that is migrated to another claim.
	onClaim := func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Volumes = append(vmi.Spec.Volumes, v1.Volume{Name: "data", VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{
				PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "new"},
			},
		}})
		vmi.Spec.Domain.Devices.Disks = append(vmi.Spec.Domain.Devices.Disks, v1.Disk{
			Name: "data", DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}},
		})
		vmi.Status.VolumeStatus = []v1.VolumeStatus{{Name: "data", PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{
			ClaimName: "old", Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
		}}}
	}
	moveData := func(s *v1.VirtualMachineInstanceStatus) {
		s.MigratedVolumes = []v1.StorageMigratedVolumeInfo{{VolumeName: "data",
			SourcePVCInfo:      &v1.PersistentVolumeClaimInfo{ClaimName: "old"},
			DestinationPVCInfo: &v1.PersistentVolumeClaimInfo{ClaimName: "new"}}}
	}

	It("is migrated to another claim, and reports the size of its disk before and after", func() {
		c := newMigratingGuest(onClaim)
		size := func() int64 {
			for _, v := range c.read().Status.VolumeStatus {
				if v.Name == "data" {
					return v.Size
				}
			}
			return 0
		}
		Eventually(size).Should(BeEquivalentTo(1 << 30))
		c.control(moveData)
		c.prepare()
		dir := launcherpod.DiskDir("data")
		c.targetLauncher.AddFile(dir,
			hypervisor.Volume{Name: launcherpod.DiskImage, Format: hypervisor.FormatRaw, Capacity: 2 << 30})
		c.assignMigration()
		vmi := c.expectMigrated()
		Expect(vmi.Status.MigratedVolumes).To(BeEmpty())
		for _, v := range vmi.Status.VolumeStatus {
			if v.Name == "data" {
				Expect(v.PersistentVolumeClaimInfo.ClaimName).To(Equal("new"))
			}
		}
		Expect(size()).To(BeEquivalentTo(1 << 30))
	})

	It("stays on the source, with a reason, if the other claim is too small", func() {
		c := newMigratingGuest(onClaim)
		c.control(moveData)
		c.prepare(func(target *libvirt.Launcher) {
			target.SetFreeSpace(1 << 20)
			target.AddFile(launcherpod.DiskDir("data"),
				hypervisor.Volume{Name: launcherpod.DiskImage, Format: hypervisor.FormatRaw, Capacity: 1 << 20})
		})
		c.assignMigration()
		Expect(c.expectNotMigrated().FailureReason).To(ContainSubstring(`the guest's disk has 1073741824 bytes, and claim "new" has room for 1048576`))
		Expect(c.read().Status.MigratedVolumes).To(HaveLen(1))
	})

	It("continues on the source, and never on the target, if it is not known whether the transfer is complete", func() {
		c := newMigratingGuest().prepare()
		c.targetLauncher.LoseResponse("finish")
		c.assignMigration()
		c.expectNotMigrated()
	})

	It("is reported as undecided by both agents while the source cannot record that it stays", func() {
		c := newMigratingGuest().prepare()
		reached, release := c.targetLauncher.Slow("finish")
		c.targetLauncher.LoseResponse("finish")
		c.assignMigration()
		Eventually(reached).Should(BeClosed())
		c.source.noAPI.Store(true)
		release()
		Eventually(c.sourceA.guests.Waiting).Should(ConsistOf(HaveField("Owner", true)))
		Eventually(c.targetA.guests.Waiting).Should(ConsistOf(HaveField("Owner", true)))
		c.source.noAPI.Store(false)
		c.expectNotMigrated()
		Eventually(c.sourceA.guests.Waiting).Should(BeEmpty())
		Eventually(c.targetA.guests.Waiting).Should(BeEmpty())
	})

	It("is migrated if only libvirt's last response is lost", func() {
		c := newMigratingGuest().prepare()
		c.launcher.LoseResponse("confirm")
		c.assignMigration()
		c.expectMigrated()
	})

	It("runs on the target as soon as the source's QEMU has ended, before libvirt reports that", func() {
		c := newMigratingGuest().prepare()
		reached, release := c.launcher.Slow("notice")
		defer release()
		c.assignMigration()
		Eventually(reached).Should(BeClosed())
		Eventually(func() bool { return runs(c.targetLauncher) }).Should(BeTrue())
		Eventually(func() string { return c.read().Status.NodeName }).Should(Equal(c.target.node))
		By("not destroying the source's domain, which libvirt ends")
		Consistently(func() hypervisor.State { return c.launcher.Snapshot().State }).WithTimeout(time.Second).
			Should(Equal(hypervisor.StatePaused))
		release()
		c.expectMigrated()
		Expect(c.launcher.Snapshot().Reason).To(Equal("Migrated"))
	})

	It("does not have the source's domain destroyed if its agent restarts before libvirt reports the end of QEMU", func() {
		c := newMigratingGuest().prepare()
		reached, release := c.launcher.Slow("notice")
		defer release()
		c.assignMigration()
		Eventually(reached).Should(BeClosed())
		Eventually(func() string { return c.read().Status.NodeName }).Should(Equal(c.target.node))
		c.restartSource()
		c.expectMigrated()
		Expect(c.launcher.Snapshot().Reason).To(Equal("Migrated"))
	})

	It("stays on the source if the migration is canceled", func() {
		c := newMigratingGuest().prepare()
		reached, release := c.launcher.Slow("perform")
		defer release()
		c.assignMigration()
		Eventually(reached).Should(BeClosed())
		c.control(func(s *v1.VirtualMachineInstanceStatus) { s.MigrationState.AbortRequested = true })
		m := c.expectNotMigrated()
		Expect(m.AbortStatus).To(Equal(v1.MigrationAbortSucceeded))
		Expect(m.FailureReason).To(Equal("Live migration aborted"))
		c.sourceA.expectEvent("Normal Migrating VirtualMachineInstance is aborting migration.")
		c.sourceA.expectEvent("failed. reason:Live migration aborted")
	})

	It("stays on the source if the migration is canceled before its start", func() {
		c := newMigratingGuest().migrate(func(m *v1.VirtualMachineInstanceMigrationState) { m.AbortRequested = true })
		Expect(c.expectNotMigrated().AbortStatus).To(Equal(v1.MigrationAbortSucceeded))
		Expect(c.launcher.Transfers()).To(BeZero())
	})

	It("runs on the target according to the status if the release is lost", func() {
		c := newMigratingGuest()
		c.source.loseReleases.Store(true)
		c.migrate().expectMigrated()
	})

	It("runs on the target while the API server does not respond, and is owned by the target later", func() {
		c := newMigratingGuest().prepare()
		reached, release := c.launcher.Slow("confirm")
		c.assignMigration()
		Eventually(reached).Should(BeClosed())
		c.source.noAPI.Store(true)
		c.target.noAPI.Store(true)
		release()
		Eventually(func() bool { return runs(c.targetLauncher) }).Should(BeTrue())
		Expect(c.read().Status.NodeName).To(Equal(c.source.node))
		c.source.noAPI.Store(false)
		c.target.noAPI.Store(false)
		c.expectMigrated()
	})

	It("stays suspended while libvirt has the job of an agent that has ended, and is resumed on the source after that",
		func() {
			c := newMigratingGuest().prepare()
			reached, release := c.targetLauncher.Slow("finish")
			defer release()
			c.launcher.KeepJob()
			c.assignMigration()
			Eventually(reached).Should(BeClosed())
			c.restartSource()
			Consistently(func() bool { return runs(c.launcher) || runs(c.targetLauncher) }, "2s").Should(BeFalse())
			Expect(c.sourceA.guests.Waiting()).To(ConsistOf(HaveField("Owner", true)))
			c.launcher.EndJob()
			c.expectNotMigrated()
			Eventually(c.sourceA.guests.Waiting).Should(BeEmpty())
		})

	It("stays paused on the target if a user paused it on the source", func() {
		c := newMigratingGuest()
		c.launcher.SetState(hypervisor.StatePaused, hypervisor.PausedByUser)
		c.expectCondition(v1.VirtualMachineInstancePaused, corev1.ConditionTrue, v1.PausedByUserReason)
		c.migrate()
		Eventually(func(g Gomega) {
			vmi := c.read()
			g.Expect(vmi.Status.NodeName).To(Equal(c.target.node))
			g.Expect(vmi.Status.MigrationState.TargetNodeDomainReadyTimestamp).NotTo(BeNil())
		}).Should(Succeed())
		Consistently(func() bool { return runs(c.targetLauncher) }, "500ms").Should(BeFalse())
		Expect(vmistatus.IsConditionTrue(&c.read().Status, v1.VirtualMachineInstancePaused)).To(BeTrue())
	})

	It("stays on the source if the transfer makes no progress", func() {
		c := newMigratingGuest().prepare()
		_, release := c.launcher.Slow("perform")
		defer release()
		c.launcher.SetProgress(
			hypervisor.TransferProgress{Memory: hypervisor.TransferAmount{Total: 1 << 30, Processed: 1, Remaining: 1 << 30}})
		c.assignMigration(func(m *v1.VirtualMachineInstanceMigrationState) {
			second := int64(1)
			m.VMIMConfigurationOptions.CompletionTimeoutPerGiB = &second
		})
		Expect(c.expectNotMigrated().FailureReason).To(ContainSubstring("not completed after 1 seconds"))
	})

	It("stays on the source if the transfer stalls and the feature gate is enabled", func() {
		c := newMigratingGuest().prepare()
		c.sourceA.detectsStalls.Store(true)
		_, release := c.launcher.Slow("perform")
		defer release()
		progress := hypervisor.TransferProgress{Iteration: 1, Memory: hypervisor.TransferAmount{
			Total: 1 << 30, Processed: 1, Remaining: 100 << 20, BytesPerSecond: 10 << 20,
		}}
		c.launcher.SetProgress(progress)
		c.assignMigration(func(m *v1.VirtualMachineInstanceMigrationState) {
			downtime, window := uint64(900), uint64(0)
			m.VMIMConfigurationOptions.MaxDowntimeMs = &downtime
			m.VMIMConfigurationOptions.ExperimentalMigrationOptions = &v1.ExperimentalMigrationOptions{
				StallDetector: &v1.StallDetectorOptions{StallProgressTimeout: &window},
			}
		})
		Eventually(func() bool {
			progress.Iteration++
			c.launcher.SetProgress(progress)
			return c.state().Failed
		}).Should(BeTrue())
		Expect(c.expectNotMigrated().FailureReason).To(HavePrefix("Migration aborted: estimated downtime"))
	})

	It("is paused during the transfer if workload disruption is allowed", func() {
		c := newMigratingGuest().prepare()
		_, release := c.launcher.Slow("perform")
		c.launcher.SetProgress(
			hypervisor.TransferProgress{Memory: hypervisor.TransferAmount{Total: 1 << 30, Processed: 1, Remaining: 1 << 30}})
		c.assignMigration(func(m *v1.VirtualMachineInstanceMigrationState) {
			allowed, second := true, int64(3)
			m.VMIMConfigurationOptions.AllowWorkloadDisruption, m.VMIMConfigurationOptions.CompletionTimeoutPerGiB = &allowed,
				&second
		})
		Eventually(func() v1.MigrationMode { return c.state().Mode }).Should(Equal(v1.MigrationPaused))
		Eventually(c.launcher.MaxDowntime).Should(Equal(2000 * time.Second))
		release()
		c.expectMigrated()
	})
})
