// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi_test

import (
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/decide/snapshot/freeze"
	"github.com/vireo-project/vireo/internal/vmistatus"
	"github.com/vireo-project/vireo/test/fakes/libvirt"
)

var _ = Describe("The freeze of a snapshot", func() {
	var (
		launchers *libvirt.Node
		first     *agent
		g         *guest
	)

	// want does what virt-controller does: it writes an intent.
	want := func(id string, limit time.Duration, end freeze.End) {
		GinkgoHelper()
		Eventually(func() error {
			before := g.read()
			after := before.DeepCopy()
			deadline := time.Now().Add(limit)
			if had := freeze.IntentOf(&before.Status); had != nil && had.ID == id {
				deadline = had.Deadline
			}
			after.Status.SnapshotFreeze = (&freeze.Intent{ID: id, Deadline: deadline, End: end}).Status()
			_, err := vmistatus.Patch(ctx, api, vmistatus.Controller, before, after)
			return err
		}).Should(Succeed())
	}
	// expectStage waits for a stage in the status.
	expectStage := func(id string, stage v1.SnapshotFreezeStage) *v1.SnapshotFreezeRecord {
		GinkgoHelper()
		var record *v1.SnapshotFreezeRecord
		Eventually(func(e Gomega) {
			record = g.read().Status.SnapshotFreezeRecord
			e.Expect(record).NotTo(BeNil())
			e.Expect(record.ID).To(Equal(id))
			e.Expect(record.Stage).To(Equal(stage))
		}).Should(Succeed())
		return record
	}
	fsFreezeStatus := func() string { return g.read().Status.FSFreezeStatus }

	BeforeEach(func() {
		launchers = libvirt.NewNode()
		first = startAgent(launchers)
		g = makeGuest(finalized).schedule(launchers).assign()
		g.expectPhase(v1.Running)
		g.launcher.SetAgent(&hypervisor.GuestAgent{})
	})

	It("lasts until the release", func() {
		want("a", time.Hour, freeze.Open)
		expectStage("a", v1.SnapshotFreezeFrozen)
		Expect(g.launcher.IsFrozen()).To(BeTrue())
		Eventually(fsFreezeStatus).Should(Equal("frozen"))
		Eventually(first.guests.Waiting).Should(
			ConsistOf(HaveField("Thaw", BeTemporally("~", time.Now().Add(time.Hour), time.Minute))))
		want("a", time.Hour, freeze.Release)
		Expect(expectStage("a", v1.SnapshotFreezeThawed).Kept).To(BeTrue())
		Expect(g.launcher.IsFrozen()).To(BeFalse())
		Eventually(fsFreezeStatus).Should(BeEmpty())
		By("writing nothing more")
		g.settle()
		writes := first.writes.Load()
		g.settle()
		Expect(first.writes.Load()).To(Equal(writes))
	})

	It("is reported at once by a launcher whose other changes are delayed", func() {
		resume := first.stopClock()
		for range 30 {
			g.launcher.SetState(hypervisor.StatePaused, hypervisor.PausedByUser)
			g.settle()
			g.launcher.SetState(hypervisor.StateRunning, "")
			g.settle()
		}
		want("a", time.Hour, freeze.Open)
		expectStage("a", v1.SnapshotFreezeFrozen)
		want("a", time.Hour, freeze.Release)
		Expect(expectStage("a", v1.SnapshotFreezeThawed).Kept).To(BeTrue())
		resume()
	})

	It("ends at its deadline, without an event", func() {
		want("a", 2*time.Second, freeze.Open)
		Expect(expectStage("a", v1.SnapshotFreezeThawed).Kept).To(BeFalse())
		Expect(g.launcher.IsFrozen()).To(BeFalse())
	})

	It("continues after the agent was restarted", func() {
		want("a", time.Hour, freeze.Open)
		expectStage("a", v1.SnapshotFreezeFrozen)
		first.stop()
		want("a", time.Hour, freeze.Release)
		startAgent(launchers)
		Expect(expectStage("a", v1.SnapshotFreezeThawed).Kept).To(BeTrue())
	})

	It("ends with the thaw of a guest that is reset", func() {
		want("a", time.Hour, freeze.Open)
		expectStage("a", v1.SnapshotFreezeFrozen)
		g.launcher.SetFrozen(false)
		g.launcher.Notify()
		record := expectStage("a", v1.SnapshotFreezeThawed)
		Expect(record.Kept).To(BeFalse())
		Expect(record.Problem).NotTo(BeEmpty())
	})

	It("fails if the guest refuses it", func() {
		g.launcher.Fail("freeze", fmt.Errorf("freeze: %w: no", hypervisor.ErrGuestRefused))
		want("a", time.Hour, freeze.Open)
		Expect(expectStage("a", v1.SnapshotFreezeFailed).Problem).To(ContainSubstring("no"))
		Expect(g.launcher.IsFrozen()).To(BeFalse())
	})

	It("does not block the VMI while the guest freezes", func() {
		reached, release := g.launcher.Slow("freeze")
		DeferCleanup(release)
		want("a", time.Hour, freeze.Open)
		Eventually(reached).Should(BeClosed())
		expectStage("a", v1.SnapshotFreezeRequested)
		want("a", time.Hour, freeze.Cancel)
		g.settle()
		release()
		expectStage("a", v1.SnapshotFreezeThawed)
		Expect(g.launcher.IsFrozen()).To(BeFalse())
	})

	It("leaves a guest frozen that a user has frozen", func() {
		name := g.launcher.Snapshot().XML.Name
		Expect(g.launcher.Freeze(ctx, name, time.Hour)).To(Succeed())
		want("a", time.Hour, freeze.Open)
		expectStage("a", v1.SnapshotFreezeFrozen)
		want("a", time.Hour, freeze.Release)
		Expect(expectStage("a", v1.SnapshotFreezeThawed).Kept).To(BeTrue())
		Expect(g.launcher.IsFrozen()).To(BeTrue())
		Expect(fsFreezeStatus()).To(Equal("frozen"))
		Expect(g.launcher.Thaw(ctx, name)).To(Succeed())
		Expect(g.launcher.IsFrozen()).To(BeFalse())
		Eventually(fsFreezeStatus).Should(BeEmpty())
	})

	It("ends before the guest is shut down", func() {
		want("a", time.Hour, freeze.Open)
		expectStage("a", v1.SnapshotFreezeFrozen)
		g.launcher.IgnoreShutdown()
		g.deletePod()
		Eventually(g.launcher.IsFrozen).Should(BeFalse())
		Expect(expectStage("a", v1.SnapshotFreezeThawed).Kept).To(BeFalse())
	})

	It("stays in the status of a guest that ends meanwhile", func() {
		want("a", time.Hour, freeze.Open)
		expectStage("a", v1.SnapshotFreezeFrozen)
		g.launcher.Crash()
		Eventually(fsFreezeStatus).Should(BeEmpty())
		Expect(expectStage("a", v1.SnapshotFreezeFrozen).Kept).To(BeFalse())
	})

	It("is not repeated if the launcher removes the record", func() {
		want("a", time.Hour, freeze.Open)
		expectStage("a", v1.SnapshotFreezeFrozen)
		g.launcher.Alter(func(d *libvirtxml.Domain) { d.Metadata = nil })
		expectStage("a", v1.SnapshotFreezeFailed)
		Expect(g.launcher.IsFrozen()).To(BeFalse())
		g.settle()
		expectStage("a", v1.SnapshotFreezeFailed)
	})

	It("does not start during a migration", func() {
		before := g.read()
		after := before.DeepCopy()
		after.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{
			MigrationUID: "m", SourceNode: thisNode, SourcePod: g.pod.Name, TargetNode: "node-2", TargetPod: "p",
		}
		_, err := vmistatus.Patch(ctx, api, vmistatus.Controller, before, after)
		Expect(err).NotTo(HaveOccurred())
		want("a", time.Hour, freeze.Open)
		g.settle()
		g.settle()
		Expect(g.launcher.IsFrozen()).To(BeFalse())
		Expect(g.read().Status.SnapshotFreezeRecord).To(BeNil())
	})
})
