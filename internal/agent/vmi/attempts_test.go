// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi_test

import (
	"errors"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/fakes/libvirt"
)

var _ = Describe("Acts that fail", func() {
	var (
		a         *agent
		launchers *libvirt.Node
	)

	BeforeEach(func() {
		launchers = libvirt.NewNode()
		a = startAgent(launchers)
	})

	started := func(changes ...func(*v1.VirtualMachineInstance)) *guest {
		GinkgoHelper()
		g := makeGuest(changes...).schedule(launchers)
		g.resizePod(1, 1<<30)
		g.kubelet()
		g.assign().expectPhase(v1.Running)
		return g
	}

	// expectCalls expects a number of calls although events follow each other.
	expectCalls := func(g *guest, call string, want int) {
		GinkgoHelper()
		Eventually(func() int { return g.launcher.Calls(call) }).Should(Equal(want))
		for range 5 {
			g.settle()
		}
		Expect(g.launcher.Calls(call)).To(Equal(want))
	}

	It("repeats a start after delays that double, whatever events arrive", func() {
		resume := a.stopClock()
		defer resume()
		g := makeGuest().schedule(launchers)
		g.launcher.Fail("start", errors.New("QEMU has failed"))
		g.assign()
		g.expectCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse,
			"Synchronizing with the Domain failed.")
		calls := 1
		expectCalls(g, "start", calls)
		for _, delay := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
			a.advance(delay - time.Millisecond)
			expectCalls(g, "start", calls)
			a.advance(time.Millisecond)
			g.launcher.Notify()
			calls++
			expectCalls(g, "start", calls)
		}
		Expect(a.recorder.Events).To(Receive(ContainSubstring("SyncFailed")))
		Expect(a.recorder.Events).NotTo(Receive(ContainSubstring("SyncFailed")))

		By("changing the Pod")
		pod := g.pod.DeepCopy()
		before := pod.DeepCopy()
		pod.Annotations = map[string]string{"changed": "yes"}
		Expect(api.Patch(ctx, pod, client.MergeFrom(before))).To(Succeed())
		calls++
		expectCalls(g, "start", calls)

		By("changing the spec")
		g.launcher.Fail("start", nil)
		g.settle()
		Expect(g.read().Status.Phase).To(Equal(v1.Scheduled))
		g.change(func(vmi *v1.VirtualMachineInstance) { vmi.Spec.TerminationGracePeriodSeconds = new(int64) })
		g.expectPhase(v1.Running)
	})

	It("repeats the change of a link in the same way, and changes another one meanwhile", func() {
		g := makeGuest().schedule(launchers).assign()
		g.expectPhase(v1.Running)
		resume := a.stopClock()
		defer resume()
		g.launcher.Fail("interface", errors.New("the device is busy"))
		calls := g.launcher.Calls("interface")
		g.setLink(v1.InterfaceStateLinkDown)
		expectCalls(g, "interface", calls+1)
		a.advance(time.Second)
		g.launcher.Notify()
		expectCalls(g, "interface", calls+2)
		g.launcher.Fail("interface", nil)
		a.advance(2 * time.Second)
		g.launcher.Notify()
		g.expectNoCondition(v1.VirtualMachineInstanceSynchronized)
	})

	DescribeTable("repeats what fails in a guest that runs after delays that double",
		func(call string, change func(*guest)) {
			g := started(growable)
			resume := a.stopClock()
			defer resume()
			g.launcher.Fail(call, errors.New("no"))
			before := g.launcher.Calls(call)
			change(g)
			expectCalls(g, call, before+1)
			for i, delay := range []time.Duration{time.Second, 2 * time.Second} {
				a.advance(delay - time.Millisecond)
				expectCalls(g, call, before+1+i)
				a.advance(time.Millisecond)
				g.launcher.Notify()
				expectCalls(g, call, before+2+i)
			}
		},
		Entry("a disk to plug", "attach data", func(g *guest) {
			g.change(hotplug("data", onSCSI))
			g.attached("data", "uid-1", asFile)
		}),
		Entry("an interface to plug", "attach interface", func(g *guest) {
			g.change(withBlue)
			attachBlue(g.pod)
		}),
		Entry("CPUs to plug", "vcpus", func(g *guest) {
			g.resizePod(2, 1<<30)
			g.want(2, "1Gi")
		}),
		Entry("memory to plug", "memory", func(g *guest) {
			g.resizePod(1, 2<<30)
			g.want(1, "2Gi")
		}),
		Entry("probes to pause", "probes", func(g *guest) {
			g.change(func(vmi *v1.VirtualMachineInstance) {
				vmi.Annotations = map[string]string{v1.PauseGuestAgentProbesAnnotation: "true"}
			})
		}),
	)

	It("repeats the preparation of a migration's target in the same way", func() {
		c := newMigratingGuest()
		resume := c.targetA.stopClock()
		defer resume()
		c.prepare(func(l *libvirt.Launcher) { l.Fail("pool", errors.New("no")) })
		c.assignMigration()
		calls := func() int {
			opened := c.targetLauncher.Opens()
			Eventually(func() int {
				c.targetLauncher.Notify()
				return c.targetLauncher.Opens()
			}).Should(BeNumerically(">", opened+5))
			return c.targetLauncher.Calls("pool")
		}
		Eventually(calls).Should(Equal(1))
		Expect(calls()).To(Equal(1))
		c.targetA.advance(time.Second)
		Eventually(calls).Should(Equal(2))
		c.targetA.advance(time.Second)
		Expect(calls()).To(Equal(2))
		c.targetA.advance(time.Second)
		Eventually(calls).Should(Equal(3))
	})
})
