// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/vmistatus"
	"github.com/vireo-project/vireo/test/fakes/libvirt"
)

var _ = Describe("The agent and a guest that is paused although nobody requested it", func() {
	var launchers *libvirt.Node
	var a *agent
	var g *guest
	BeforeEach(func() {
		launchers = libvirt.NewNode()
		a = startAgent(launchers)
		g = makeGuest().schedule(launchers).assign()
		g.expectPhase(v1.Running)
		a.expectEvent("Started")
	})
	expectPaused := func(reason string) {
		GinkgoHelper()
		g.expectCondition(v1.VirtualMachineInstancePaused, corev1.ConditionTrue, reason)
		g.expectCondition(v1.VirtualMachineInstanceReady, corev1.ConditionFalse, v1.GuestNotRunningReason)
	}
	after := func(d time.Duration) {
		GinkgoHelper()
		a.ahead.Add(int64(d))
		g.settle()
	}

	DescribeTable("reports a guest that has stopped, with one event, and does not resume it", func(paused, reason string) {
		g.launcher.SetState(hypervisor.StatePaused, paused)
		expectPaused(reason)
		a.expectEvent("Warning " + reason + " VMI was paused")
		after(time.Minute)
		Expect(g.launcher.Resumes()).To(BeZero())
		Expect(a.recorder.Events).To(BeEmpty())

		By("reporting that it runs again")
		g.launcher.SetState(hypervisor.StateRunning, "")
		g.expectCondition(v1.VirtualMachineInstanceReady, corev1.ConditionTrue, "")
	},
		Entry("after an internal error", hypervisor.PausedUnknown, v1.PausedUnknownReason),
		Entry("by its watchdog", hypervisor.PausedWatchdog, v1.PausedWatchdogReason),
		Entry("after a crash", hypervisor.PausedCrashed, v1.PausedCrashedReason),
		Entry("without a part of its memory", hypervisor.PausedPostcopyFailed, v1.PausedPostcopyFailedReason),
	)

	It("resumes a guest that libvirt could not resume", func() {
		g.launcher.SetState(hypervisor.StatePaused, hypervisor.PausedAPIError)
		Eventually(g.launcher.Snapshot).Should(HaveField("State", hypervisor.StateRunning))
		a.expectEvent("Normal Resumed The guest was resumed")
		g.expectCondition(v1.VirtualMachineInstanceReady, corev1.ConditionTrue, "")
		Expect(g.launcher.Resumes()).To(Equal(1))
	})

	It("resumes it for a minute, also if a migration has paused it for longer before", func() {
		g.launcher.SetState(hypervisor.StatePaused, hypervisor.PausedByLibvirt)
		g.settle()
		vmi := g.read()
		vmistatus.SetCondition(&vmi.Status, v1.VirtualMachineInstanceCondition{
			Type: v1.VirtualMachineInstancePaused, Status: corev1.ConditionTrue, Reason: v1.PausedByMigrationMonitorReason,
		}, metav1.NewTime(time.Now().Add(-10*time.Minute)))
		Expect(api.Status().Update(ctx, vmi)).To(Succeed())
		g.launcher.Fail("resumeAfter", errLost)
		g.launcher.SetState(hypervisor.StatePaused, hypervisor.PausedAPIError)
		expectPaused(v1.PausedAPIErrorReason)
		Expect(g.launcher.Resumes()).To(Equal(1))
		g.launcher.Fail("resumeAfter", nil)
		after(11 * time.Second)
		Eventually(g.launcher.Snapshot).Should(HaveField("State", hypervisor.StateRunning))
	})

	It("gives up on such a guest after a minute, and does not begin again after its restart", func() {
		g.launcher.Fail("resumeAfter", errLost)
		g.launcher.SetState(hypervisor.StatePaused, hypervisor.PausedAPIError)
		expectPaused(v1.PausedAPIErrorReason)
		a.expectEvent("Warning PausedAPIError VMI was paused")
		Expect(g.launcher.Resumes()).To(Equal(1))
		after(11 * time.Second)
		Eventually(g.launcher.Resumes).Should(Equal(2))
		after(time.Minute)
		after(time.Minute)
		Expect(g.launcher.Resumes()).To(Equal(2))
		a.stop()
		ahead := a.ahead.Load()
		a = startAgent(launchers)
		a.ahead.Add(ahead)
		g.launcher.Fail("resumeAfter", nil)
		g.settle()
		expectPaused(v1.PausedAPIErrorReason)
		Expect(a.recorder.Events).To(BeEmpty())
	})
})

var _ = Describe("The agents and a guest that is paused although nobody requested it", func() {
	It("resume it on the source after libvirt could not, once its migration has failed", func() {
		c := newMigratingGuest().prepare()
		reached, release := c.launcher.Slow("perform")
		c.launcher.Fail("perform", errLost)
		c.assignMigration()
		Eventually(reached).Should(BeClosed())
		c.launcher.SetState(hypervisor.StatePaused, hypervisor.PausedAPIError)
		Consistently(c.launcher.Resumes, "500ms").Should(BeZero(), "libvirt still has the job")
		release()
		c.expectNotMigrated()
		Expect(c.launcher.Resumes()).To(Equal(1))
	})

	It("leave it paused on the target, with its reason, if it has stopped by itself", func() {
		c := newMigratingGuest()
		c.launcher.SetState(hypervisor.StatePaused, hypervisor.PausedUnknown)
		c.expectCondition(v1.VirtualMachineInstancePaused, corev1.ConditionTrue, v1.PausedUnknownReason)
		c.migrate()
		Eventually(func(g Gomega) {
			vmi := c.read()
			g.Expect(vmi.Status.NodeName).To(Equal(c.target.node))
			g.Expect(vmi.Status.MigrationState.TargetNodeDomainReadyTimestamp).NotTo(BeNil())
		}).Should(Succeed())
		Consistently(func() bool { return runs(c.targetLauncher) }, "500ms").Should(BeFalse())
		c.expectCondition(v1.VirtualMachineInstancePaused, corev1.ConditionTrue, v1.PausedUnknownReason)
	})
})
