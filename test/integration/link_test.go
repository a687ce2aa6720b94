// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package integration_test

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/cmd/virt-handler/agent"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// setLink changes the state of the interface in the VMI's spec, as virt-controller does.
func (n *node) setLink(state v1.InterfaceState) {
	GinkgoHelper()
	vmi := n.vmi()
	vmi.Spec.Domain.Devices.Interfaces[0].State = state
	Expect(n.client.Update(context.Background(), vmi)).To(Succeed())
}

// nic returns the interface of the running domain.
func (n *node) nic() *libvirtxml.DomainInterface {
	GinkgoHelper()
	conn, err := agent.Connections{Manager: n.manager}.Open(hypervisor.PodRef{UID: agentPodUID, VMI: vmiKey})
	Expect(err).NotTo(HaveOccurred())
	domain, err := conn.Domain(context.Background(), launcherpod.DomainName(vmiKey.Namespace, vmiKey.Name))
	Expect(err).NotTo(HaveOccurred())
	Expect(domain.State).To(Equal(hypervisor.StateRunning))
	Expect(domain.XML.Devices.Interfaces).To(HaveLen(1))
	return &domain.XML.Devices.Interfaces[0]
}

var _ = Describe("The link of a running guest's interface", Label("libvirt"), func() {
	It("follows the VMI's spec, and nothing else of the interface changes", func() {
		n := newNode(launcherPod(), assignedVMI())
		n.addPrimaryInterface()
		n.writeImage()
		n.linkSocket()
		linkIs := func(state string) func(*v1.VirtualMachineInstance) bool {
			return func(vmi *v1.VirtualMachineInstance) bool {
				return isRunning(vmi) && len(vmi.Status.Interfaces) == 1 && vmi.Status.Interfaces[0].LinkState == state
			}
		}
		n.settle(linkIs("up"))
		started := n.nic()
		Expect(started.Link).To(BeNil())

		By("disconnecting it")
		n.setLink(v1.InterfaceStateLinkDown)
		n.settle(linkIs("down"))
		changed := n.nic()
		Expect(changed.Link).To(Equal(&libvirtxml.DomainInterfaceLink{State: "down"}))
		changed.Link = nil
		Expect(changed).To(Equal(started))

		By("writing nothing without a change")
		before := n.vmi().ResourceVersion
		_, err := n.reconcile()
		Expect(err).NotTo(HaveOccurred())
		Expect(n.vmi().ResourceVersion).To(Equal(before))

		By("connecting it with a restarted agent")
		n.stopAgent()
		n.setLink("")
		n.startAgent()
		n.settle(linkIs("up"))
		changed = n.nic()
		changed.Link = nil
		Expect(changed).To(Equal(started))
	})
})
