// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi_test

import (
	"context"
	"errors"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/test/fakes/libvirt"
)

var _ = Describe("Shutting a guest down", func() {
	var launchers *libvirt.Node
	var a *agent
	BeforeEach(func() {
		launchers = libvirt.NewNode()
		a = startAgent(launchers)
	})

	It("presses the power button when the Pod is deleted", func() {
		g := makeGuest().schedule(launchers).assign()
		g.expectPhase(v1.Running)
		g.deletePod()
		Eventually(func() hypervisor.State { return g.launcher.Snapshot().State }).Should(Equal(hypervisor.StateEnded))
		Expect(g.launcher.Snapshot().Reason).To(Equal("Shutdown"))
		g.expectCondition(v1.VirtualMachineInstanceReady, corev1.ConditionFalse, v1.PodTerminatingReason)
		a.expectEvent("ShuttingDown")
	})

	It("records each event once and in order also if writes of the status are rejected", func() {
		refuse := func(context.Context) error {
			return apierrors.NewConflict(v1.GroupVersion.WithResource("virtualmachineinstances").GroupResource(), "vm",
				errors.New("changed"))
		}
		a.beforeWrite.Store(&refuse)
		g := makeGuest().schedule(launchers).assign()
		g.expectPhase(v1.Running)
		g.launcher.IgnoreShutdown()
		a.beforeWrite.Store(&refuse)
		g.deletePod()
		g.expectCondition(v1.VirtualMachineInstanceReady, corev1.ConditionFalse, v1.PodTerminatingReason)
		Eventually(a.recorder.Events).Should(HaveLen(3))
		Expect(a.recorder.Events).To(Receive(HavePrefix("Normal Created")))
		Expect(a.recorder.Events).To(Receive(HavePrefix("Normal Started")))
		Expect(a.recorder.Events).To(Receive(HavePrefix("Normal ShuttingDown")))

		By("pressing the power button again")
		a.ahead.Store(int64(10 * time.Second))
		g.launcher.Notify()
		Eventually(g.launcher.Shutdowns).Should(Equal(2))
		g.settle()
		Expect(a.recorder.Events).To(BeEmpty())

		By("restarting the agent")
		a.stop()
		second := startAgent(launchers)
		Eventually(g.launcher.Shutdowns).Should(Equal(3))
		g.settle()
		Expect(second.recorder.Events).To(BeEmpty())
	})

	It("thaws a frozen guest, which cannot shut down", func() {
		g := makeGuest().schedule(launchers).assign()
		g.expectPhase(v1.Running)
		g.launcher.IgnoreShutdown()
		g.launcher.SetAgent(&hypervisor.GuestAgent{})
		Expect(g.launcher.Freeze(context.Background(), g.launcher.Snapshot().XML.Name, time.Hour)).To(Succeed())
		g.deletePod()
		Eventually(g.launcher.Shutdowns).Should(Equal(1))
		Expect(g.launcher.ThawAt()).NotTo(BeTemporally(">", time.Now()))
		Expect(g.launcher.ThawAt()).NotTo(BeZero())
	})

	It("presses the power button when the VMI is deleted", func() {
		g := makeGuest(finalized).schedule(launchers).assign()
		g.expectPhase(v1.Running)
		Expect(api.Delete(ctx, g.vmi)).To(Succeed())
		Eventually(g.launcher.Shutdowns).Should(BeNumerically(">=", 1))
	})

	It("presses the power button of a guest whose VMI does not exist any more", func() {
		g := makeGuest().schedule(launchers).assign()
		g.expectPhase(v1.Running)
		Expect(api.Delete(ctx, g.vmi)).To(Succeed())
		g.deletePod()
		Eventually(g.launcher.Shutdowns).Should(BeNumerically(">=", 1))
	})

	It("destroys the guest after the grace period", func() {
		g := makeGuest().schedule(launchers).assign()
		g.expectPhase(v1.Running)
		g.launcher.IgnoreShutdown()
		g.deletePod()
		Eventually(g.launcher.Shutdowns).Should(Equal(1))
		Expect(g.launcher.Snapshot().State).To(Equal(hypervisor.StateRunning))
		a.ahead.Store(int64(10 * time.Second))
		g.launcher.Notify()
		Eventually(g.launcher.Shutdowns).Should(Equal(2))
		Expect(g.launcher.Snapshot().State).To(Equal(hypervisor.StateRunning))
		a.ahead.Store(int64(time.Minute))
		g.launcher.Notify()
		Eventually(func() string { return g.launcher.Snapshot().Reason }).Should(Equal("Destroyed"))
	})

	It("does not start a guest whose Pod is being deleted", func() {
		g := makeGuest().schedule(launchers)
		g.deletePod()
		g.assign()
		g.expectCondition(v1.VirtualMachineInstanceReady, corev1.ConditionFalse, v1.PodTerminatingReason)
		Expect(g.launcher.Starts()).To(BeZero())
	})

	DescribeTable("does not start a guest that is deleted while it is prepared", func(assigned bool, remove func(*guest)) {
		g := makeGuest(finalized).schedule(launchers)
		reached, release := g.launcher.Slow("upload")
		if assigned {
			g.assign()
		}
		Eventually(reached).Should(BeClosed())
		remove(g)
		// When the deletion of a later guest is handled, that of this one has been received too.
		witness := makeGuest(finalized).schedule(launchers).assign()
		witness.expectPhase(v1.Running)
		remove(witness)
		Eventually(witness.launcher.Shutdowns).Should(BeNumerically(">=", 1))
		release()
		g.settle()
		Expect(g.launcher.Starts()).To(BeZero())
		Expect(g.read().Status.Phase).NotTo(Equal(v1.Running))
	},
		Entry("assigned to the agent, by its VMI", true, func(g *guest) { Expect(api.Delete(ctx, g.vmi)).To(Succeed()) }),
		Entry("assigned to the agent, by its Pod", true, func(g *guest) { g.deletePod() }),
		Entry("not assigned yet, by its Pod", false, func(g *guest) { g.deletePod() }),
	)
})
