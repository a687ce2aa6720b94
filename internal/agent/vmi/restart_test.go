// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi_test

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/media"
	"github.com/vireo-project/vireo/test/fakes/libvirt"
)

var _ = Describe("An agent that is restarted", func() {
	var launchers *libvirt.Node
	var first *agent
	BeforeEach(func() {
		launchers = libvirt.NewNode()
		first = startAgent(launchers)
	})

	expectRunsOnce := func(g *guest) {
		GinkgoHelper()
		g.expectPhase(v1.Running)
		g.expectCondition(v1.VirtualMachineInstanceReady, corev1.ConditionTrue, "")
		g.expectNoCondition(v1.VirtualMachineInstanceSynchronized)
		Expect(g.launcher.Starts()).To(Equal(1))
		Expect(g.launcher.Snapshot().State).To(Equal(hypervisor.StateRunning))
		Expect(g.launcher.Shutdowns()).To(BeZero())
	}

	DescribeTable("starts the guest once, at whichever call the first agent was stopped", func(call string) {
		g := makeGuest().schedule(launchers)
		reached, release := g.launcher.Slow(call)
		g.assign()
		Eventually(reached).Should(BeClosed())
		first.stop()
		release()
		second := startAgent(launchers)
		expectRunsOnce(g)
		Expect(first.writes.Load()).To(BeZero())
		Expect(second.writes.Load()).To(BeEquivalentTo(1))
		Expect(g.launcher.Content("seed.iso")).NotTo(BeEmpty())
	},
		Entry("reading the domain", "domain"),
		Entry("creating the storage pool", "pool"),
		Entry("creating a disk", "create"),
		Entry("writing cloud-init's disk", "upload"),
		Entry("starting the domain", "start"),
	)

	It("does not start a guest again whose start got no response", func() {
		g := makeGuest().schedule(launchers)
		g.launcher.LoseResponse("start")
		g.assign()
		Eventually(g.launcher.Starts).Should(Equal(1))
		first.stop()
		startAgent(launchers)
		expectRunsOnce(g)
	})

	It("reports a guest that was started and not reported", func() {
		g := makeGuest().schedule(launchers)
		reached := make(chan struct{})
		block := func(ctx context.Context) error {
			close(reached)
			<-ctx.Done()
			return ctx.Err()
		}
		first.beforeWrite.Store(&block)
		g.assign()
		Eventually(reached).Should(BeClosed())
		first.stop()
		Expect(g.read().Status.Phase).To(Equal(v1.Scheduled))
		second := startAgent(launchers)
		expectRunsOnce(g)
		second.expectEvent("Started")
	})

	It("writes nothing for a running guest", func() {
		g := makeGuest().schedule(launchers).assign()
		version := g.expectPhase(v1.Running).ResourceVersion
		first.stop()
		second := startAgent(launchers)
		g.settle()
		Expect(second.writes.Load()).To(BeZero())
		Expect(g.read().ResourceVersion).To(Equal(version))
		expectRunsOnce(g)
	})

	It("reports a state that changed in the meantime", func() {
		g := makeGuest().schedule(launchers).assign()
		g.expectPhase(v1.Running)
		first.stop()
		g.launcher.SetState(hypervisor.StatePaused, hypervisor.PausedIOError)
		startAgent(launchers)
		g.expectCondition(v1.VirtualMachineInstancePaused, corev1.ConditionTrue, v1.PausedIOErrorReason)
		Expect(g.read().Status.Phase).To(Equal(v1.Running))
	})

	It("does not repeat a warning that is in the status", func() {
		g := makeGuest(userDataFrom("login")).schedule(launchers).
			writeVolume(media.SecretVolume, "seed-udata", nil).assign()
		g.expectCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse, "InvalidCloudInit")
		first.expectEvent("SyncFailed")
		first.stop()
		second := startAgent(launchers)
		g.settle()
		Expect(second.recorder.Events).To(BeEmpty())
		Expect(second.writes.Load()).To(BeZero())
	})

	It("does not start a guest that has ended, which virt-controller reports", func() {
		g := makeGuest().schedule(launchers).assign()
		g.expectPhase(v1.Running)
		g.launcher.Crash()
		g.expectCondition(v1.VirtualMachineInstanceReady, corev1.ConditionFalse, v1.GuestNotRunningReason)
		first.expectEvent("Started")
		Expect(first.recorder.Events).To(BeEmpty())
		first.stop()
		startAgent(launchers)
		g.settle()
		Expect(g.launcher.Starts()).To(Equal(1))
		Expect(g.read().Status.Phase).To(Equal(v1.Running))
	})

	It("reports a freeze and keeps its timeout", func() {
		g := makeGuest().schedule(launchers).assign()
		g.expectPhase(v1.Running)
		g.launcher.SetAgent(&hypervisor.GuestAgent{})
		name := g.launcher.Snapshot().XML.Name
		Expect(g.launcher.Freeze(context.Background(), name, time.Hour)).To(Succeed())
		frozen := func() string { return g.read().Status.FSFreezeStatus }
		Eventually(frozen).Should(Equal("frozen"))
		until := g.launcher.ThawAt()
		Expect(until).To(BeTemporally(">", time.Now()))
		first.stop()
		g.launcher.KeepThaw(name, nil)
		second := startAgent(launchers)
		Eventually(g.launcher.ThawAt).Should(Equal(until))
		Eventually(second.guests.Waiting).Should(ConsistOf(HaveField("Thaw", BeTemporally("==", until))))
		Expect(g.launcher.Thaw(context.Background(), name)).To(Succeed())
		Eventually(frozen).Should(BeEmpty())
		Expect(g.launcher.ThawAt()).To(BeZero())
		Eventually(second.guests.Waiting).Should(BeEmpty())
	})

	It("continues a shutdown", func() {
		g := makeGuest(finalized).schedule(launchers).assign()
		g.expectPhase(v1.Running)
		g.launcher.IgnoreShutdown()
		g.deletePod()
		Eventually(g.launcher.Shutdowns).Should(Equal(1))
		first.stop()
		startAgent(launchers)
		Eventually(g.launcher.Shutdowns).Should(Equal(2))
		Expect(g.launcher.Snapshot().State).To(Equal(hypervisor.StateRunning))
	})
})
