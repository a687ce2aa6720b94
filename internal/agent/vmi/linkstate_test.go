// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi_test

import (
	"errors"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/fakes/libvirt"
)

// setLink changes the state of the guest's interface in the spec, as virt-controller does.
func (g *guest) setLink(state v1.InterfaceState) {
	GinkgoHelper()
	Eventually(func() error {
		vmi := g.read()
		vmi.Spec.Domain.Devices.Interfaces[0].State = state
		return api.Update(ctx, vmi)
	}).Should(Succeed())
}

// link returns the reported state of the guest's interface.
func (g *guest) link() string {
	GinkgoHelper()
	if list := g.read().Status.Interfaces; len(list) > 0 {
		return list[0].LinkState
	}
	return ""
}

// linkIn returns the state of the interface of a launcher's domain.
func linkIn(l *libvirt.Launcher) string {
	GinkgoHelper()
	nic := l.Snapshot().XML.Devices.Interfaces[0]
	if nic.Link == nil {
		return ""
	}
	return nic.Link.State
}

var _ = Describe("The agent and the link of an interface", func() {
	var launchers *libvirt.Node
	var a *agent
	BeforeEach(func() {
		launchers = libvirt.NewNode()
		a = startAgent(launchers)
	})
	started := func() *guest {
		GinkgoHelper()
		g := makeGuest().schedule(launchers).assign()
		g.expectPhase(v1.Running)
		Eventually(g.link).Should(Equal("up"))
		return g
	}

	It("disconnects and connects it while the guest runs, and changes nothing else", func() {
		g := started()
		before := g.launcher.Snapshot().XML
		g.setLink(v1.InterfaceStateLinkDown)
		Eventually(g.link).Should(Equal("down"))
		Expect(linkIn(g.launcher)).To(Equal("down"))
		g.setLink("")
		Eventually(g.link).Should(Equal("up"))
		Expect(linkIn(g.launcher)).To(Equal("up"))

		after := g.launcher.Snapshot().XML
		after.Devices.Interfaces[0].Link = before.Devices.Interfaces[0].Link
		Expect(after).To(Equal(before))
		Expect(g.launcher.Starts()).To(Equal(1))
	})

	It("calls libvirt only if the link differs, and writes nothing else", func() {
		g := started()
		g.setLink(v1.InterfaceStateLinkDown)
		Eventually(g.link).Should(Equal("down"))
		g.settle()
		writes := a.writes.Load()
		g.launcher.Fail("interface", errors.New("called again"))
		g.settle()
		Expect(a.writes.Load()).To(Equal(writes))
	})

	It("reports a refusal of libvirt, tries again, and lets the guest run", func() {
		g := started()
		g.launcher.Fail("interface", errors.New("the device is busy"))
		g.setLink(v1.InterfaceStateLinkDown)
		c := g.expectCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse,
			"Synchronizing with the Domain failed.")
		Expect(c.Message).To(Equal(`set the link of interface "default" down: the device is busy`))
		Expect(g.read().Status.Phase).To(Equal(v1.Running))
		Expect(g.link()).To(Equal("up"))
		g.launcher.Fail("interface", nil)
		Eventually(g.link).Should(Equal("down"))
		g.expectNoCondition(v1.VirtualMachineInstanceSynchronized)
	})

	It("changes a link that was changed while no agent ran", func() {
		g := started()
		a.stop()
		g.setLink(v1.InterfaceStateLinkDown)
		a = startAgent(launchers)
		Eventually(g.link).Should(Equal("down"))
	})

	It("starts a guest with the link that the spec requests", func() {
		g := makeGuest(func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.Devices.Interfaces[0].State = v1.InterfaceStateLinkDown
		}).schedule(launchers).assign()
		g.expectPhase(v1.Running)
		Eventually(g.link).Should(Equal("down"))
		g.setLink(v1.InterfaceStateLinkUp)
		Eventually(g.link).Should(Equal("up"))
	})

	It("leaves the link during a migration, and changes it on the target", func() {
		c := newMigratingGuest()
		Eventually(c.link).Should(Equal("up"))
		reached, transfer := c.launcher.Slow("perform")
		c.migrate()
		Eventually(reached).Should(BeClosed())
		c.setLink(v1.InterfaceStateLinkDown)
		c.settle()
		Expect(linkIn(c.launcher)).To(BeEmpty())
		transfer()
		c.expectMigrated()
		Eventually(func() string { return linkIn(c.targetLauncher) }).Should(Equal("down"))
		Eventually(c.link).Should(Equal("down"))
	})
})
