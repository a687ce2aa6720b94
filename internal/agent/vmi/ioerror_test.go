// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/vmistatus"
	"github.com/vireo-project/vireo/test/fakes/libvirt"
)

var _ = Describe("The agent and a guest that an I/O error pauses", func() {
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
	fail := func(kind hypervisor.DiskError) {
		GinkgoHelper()
		g.launcher.SetDiskErrors(map[string]hypervisor.DiskError{"vda": kind})
		g.launcher.SetState(hypervisor.StatePaused, hypervisor.PausedIOError)
		g.expectCondition(v1.VirtualMachineInstancePaused, corev1.ConditionTrue, v1.PausedIOErrorReason)
	}
	// after advances the agent's clock and reconciles.
	after := func(d time.Duration) {
		GinkgoHelper()
		a.ahead.Add(int64(d))
		g.settle()
	}
	paused := func() *v1.VirtualMachineInstanceCondition {
		GinkgoHelper()
		return vmistatus.FindCondition(&g.read().Status, v1.VirtualMachineInstancePaused)
	}

	It("records one event with the disk that failed", func() {
		fail(hypervisor.DiskErrorNoSpace)
		a.expectEvent("Warning IOerror VM Paused due to not enough space on volume: root")
		g.settle()
		Expect(a.recorder.Events).To(BeEmpty())
	})

	It("resumes the guest when its storage works again, and writes nothing before that", func() {
		fail(hypervisor.DiskErrorOther)
		a.expectEvent("Warning IOerror VM Paused due to IO error at the volume: root")
		g.settle()
		Expect(g.launcher.Resumes()).To(BeZero(), "the first attempt is delayed")
		writes := a.writes.Load()
		after(11 * time.Second)
		Expect(g.launcher.Resumes()).To(Equal(1))
		after(15 * time.Second)
		Expect(g.launcher.Resumes()).To(Equal(1), "the delay grows")
		after(6 * time.Second)
		Expect(g.launcher.Resumes()).To(Equal(2))
		Expect(a.writes.Load()).To(Equal(writes))
		Expect(a.recorder.Events).To(BeEmpty())

		g.launcher.SetDiskErrors(nil)
		after(time.Minute)
		Expect(g.launcher.Resumes()).To(Equal(3))
		Expect(g.launcher.Snapshot().State).To(Equal(hypervisor.StateRunning))
		after(time.Second)
		Expect(paused()).NotTo(BeNil(), "it may be paused again in a moment")
		after(10 * time.Second)
		Eventually(paused).Should(BeNil())
		g.expectCondition(v1.VirtualMachineInstanceReady, corev1.ConditionTrue, "")
	})

	It("is resumed by a restarted agent", func() {
		fail(hypervisor.DiskErrorOther)
		a.stop()
		g.launcher.SetDiskErrors(nil)
		a = startAgent(launchers)
		g.settle()
		after(11 * time.Second)
		after(10 * time.Second)
		Eventually(paused).Should(BeNil())
	})

	It("does not resume a guest that a user paused", func() {
		g.launcher.SetState(hypervisor.StatePaused, hypervisor.PausedByUser)
		g.expectCondition(v1.VirtualMachineInstancePaused, corev1.ConditionTrue, v1.PausedByUserReason)
		after(time.Minute)
		after(time.Minute)
		Expect(g.launcher.Resumes()).To(BeZero())
		Expect(paused()).NotTo(BeNil())
	})
})
