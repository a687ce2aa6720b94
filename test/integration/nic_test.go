// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package integration_test

import (
	"fmt"
	"net"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	"libvirt.org/go/libvirtxml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/cmd/virt-handler/agent"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/decide/migration/protocol"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

const (
	// pluggedMAC is the hardware address of the interface that is plugged, by which the guest finds it.
	pluggedMAC = "02:00:00:00:00:42"
	// nearAddress is that of the Pod's end of the tap, and farAddress the guest's.
	nearAddress, farAddress = "198.51.100.1", "198.51.100.2"
)

// withBlue returns a spec with an interface on a network of Multus.
func withBlue(spec *v1.VirtualMachineInstanceSpec) {
	spec.Domain.Devices.Interfaces = append(spec.Domain.Devices.Interfaces, v1.Interface{
		Name: "blue", MacAddress: pluggedMAC,
		InterfaceBindingMethod: v1.InterfaceBindingMethod{Bridge: &v1.InterfaceBridge{}},
	})
	spec.Networks = append(spec.Networks, v1.Network{
		Name: "blue", NetworkSource: v1.NetworkSource{Multus: &v1.MultusNetwork{NetworkName: "blue"}},
	})
}

// pluggedNIC is an interface of a Linux guest that is plugged and unplugged.
type pluggedNIC struct {
	guest *linux
	vmi   *v1.VirtualMachineInstance
}

func (n *pluggedNIC) facts() domain.Facts {
	return domain.Facts{Interfaces: map[string]domain.InterfaceFact{"blue": {Tap: launcherpod.Tap(
		launcherpod.SecondaryInterface("blue"))}}}
}

// device returns the interface that is to be plugged.
func (n *pluggedNIC) device() *libvirtxml.DomainInterface {
	GinkgoHelper()
	nic, err := domain.Interface(n.vmi, n.facts(), "blue")
	Expect(err).NotTo(HaveOccurred())
	return nic
}

// nearMAC is that of the neighbor in both Pods. With another one after a migration, the guest would use the old one for
// most of a minute.
var nearMAC = net.HardwareAddr{0x02, 0, 0, 0, 0, 0xfe}

// prepareTap makes the tap in a Pod. Its address is that of a neighbor of the guest.
func (n *pluggedNIC) prepareTap(p *pod) {
	GinkgoHelper()
	nic := n.device()
	p.prepareTap(nic)
	Expect(inNamespace(p.daemon.NetNS(), func() error {
		tap, err := netlink.LinkByName(nic.Target.Dev)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetHardwareAddr(tap, nearMAC); err != nil {
			return err
		}
		address, err := netlink.ParseAddr(nearAddress + "/24")
		if err != nil {
			return err
		}
		return netlink.AddrAdd(tap, address)
	})).To(Succeed())
}

func (n *pluggedNIC) live() *libvirtxml.Domain {
	GinkgoHelper()
	live, err := n.guest.conn.Domain(GinkgoT().Context(), n.guest.domain)
	Expect(err).NotTo(HaveOccurred())
	return live.XML
}

// follow carries out what differs between the spec and the guest, and returns it.
func (n *pluggedNIC) follow() domain.NICChanges {
	GinkgoHelper()
	ctx := GinkgoT().Context()
	changes := domain.DiffInterfaces(&n.vmi.Spec, n.live(), func(*v1.Network) bool { return true })
	for range changes.Attach {
		Expect(n.guest.conn.AttachInterface(ctx, n.guest.domain, n.device())).To(Succeed())
	}
	for i := range changes.Detach {
		Expect(n.guest.conn.DetachInterface(ctx, n.guest.domain, changes.Detach[i].Alias.Name)).To(Succeed())
	}
	return changes
}

// name returns the guest's name of the interface, or an empty one if it has none.
func (n *pluggedNIC) name() string {
	GinkgoHelper()
	return strings.TrimSpace(
		n.guest.run("for i in /sys/class/net/*; do grep -qi " + pluggedMAC + " $i/address && echo ${i##*/}; done"))
}

// configure waits until the guest has the interface, and gives it an address.
func (n *pluggedNIC) configure() {
	GinkgoHelper()
	// The guest has loaded the drivers of those devices that it had at its start.
	n.guest.run("modprobe virtio_net")
	Eventually(n.name).WithTimeout(time.Minute).WithPolling(time.Second).ShouldNot(BeEmpty())
	name := n.name()
	n.guest.run(fmt.Sprintf("ip addr add %s/24 dev %s; ip link set %s up", farAddress, name, name))
}

// expectTraffic waits until the guest's neighbor responds, or does not.
func (n *pluggedNIC) expectTraffic(passes bool) {
	GinkgoHelper()
	want := map[bool]string{true: "PASSES", false: "BLOCKED"}[passes]
	Eventually(func() string {
		return n.guest.run(fmt.Sprintf("ping -c 1 -w 2 %s >/dev/null 2>&1 && printf PASSES || printf BLOCKED", nearAddress))
	}).WithTimeout(time.Minute).WithPolling(time.Second).Should(ContainSubstring(want))
}

// setLink changes the state of the link.
func (n *pluggedNIC) setLink(state string) {
	GinkgoHelper()
	nics := n.live().Devices.Interfaces
	nic := nics[len(nics)-1]
	nic.Link = &libvirtxml.DomainInterfaceLink{State: state}
	Expect(n.guest.conn.UpdateInterface(GinkgoT().Context(), n.guest.domain, &nic)).To(Succeed())
	carrier := map[string]string{"up": "1", "down": "0"}[state]
	Eventually(func() string { return strings.TrimSpace(n.guest.run("cat /sys/class/net/" + n.name() + "/carrier")) }).
		WithTimeout(time.Minute).WithPolling(time.Second).Should(Equal(carrier))
}

// unplug makes the interface absent, and waits until the guest has released it.
func (n *pluggedNIC) unplug() {
	GinkgoHelper()
	n.vmi.Spec.Domain.Devices.Interfaces[0].State = v1.InterfaceStateAbsent
	Expect(n.follow().Detach).To(HaveLen(1))
	Eventually(func() []libvirtxml.DomainInterface {
		return domain.DiffInterfaces(&n.vmi.Spec, n.live(), func(*v1.Network) bool { return true }).Detach
	}).WithTimeout(time.Minute).WithPolling(time.Second).Should(BeEmpty())
	Eventually(n.name).WithTimeout(time.Minute).WithPolling(time.Second).Should(BeEmpty())
}

var _ = Describe("A running Linux guest and a hotplugged interface", Label("libvirt"), func() {
	It("uses it, loses and regains its link, and releases it", func() {
		n := &pluggedNIC{guest: startLinux(), vmi: &v1.VirtualMachineInstance{}}
		withBlue(&n.vmi.Spec)
		n.prepareTap(n.guest.pod)
		Expect(n.follow().Attach).To(HaveLen(1))
		Expect(n.follow()).To(Equal(domain.NICChanges{}), "a second comparison finds nothing")
		n.configure()
		n.expectTraffic(true)

		By("disconnecting and connecting it")
		n.setLink("down")
		n.expectTraffic(false)
		n.setLink("up")
		n.expectTraffic(true)

		By("unplugging it, and plugging it again")
		n.unplug()
		n.vmi.Spec.Domain.Devices.Interfaces[0].State = ""
		Expect(n.follow().Attach).To(HaveLen(1))
		n.configure()
		n.expectTraffic(true)
	})

	It("keeps it in a migration, and releases it on the target", extended(2), func() {
		m := newPodPair()
		n := &pluggedNIC{guest: m.guest, vmi: &v1.VirtualMachineInstance{}}
		withBlue(&n.vmi.Spec)
		n.prepareTap(m.sourcePod)
		n.prepareTap(m.targetPod)
		Expect(n.follow().Attach).To(HaveLen(1))
		n.configure()
		n.expectTraffic(true)
		before := n.live().Devices.Interfaces

		By("migrating it while it is absent in the spec: the guest has not released it yet")
		ctx := GinkgoT().Context()
		live, err := m.sourceConn.LiveXML(ctx, m.guest.domain)
		Expect(err).NotTo(HaveOccurred())
		built := sharedDomain()
		_, err = domain.ForTarget(live, built)
		Expect(err).To(MatchError(domain.ErrNotPrepared), "the target's Pod needs all interfaces of the guest")
		built.Devices.Interfaces = append(built.Devices.Interfaces, *n.device())
		xml, err := domain.ForTarget(live, built)
		Expect(err).NotTo(HaveOccurred())
		Expect(m.sourceConn.Transfer(ctx, hypervisor.TransferRequest{
			Domain: m.guest.domain, XML: xml, Address: m.address, DialTarget: m.dial,
		})).To(Succeed())
		Expect(m.targetState()).To(Equal(protocol.TargetComplete))
		n.guest = m.resumeOnTarget()
		Expect(n.live().Devices.Interfaces).To(Equal(before))
		n.expectTraffic(true)

		By("unplugging it on the target")
		n.unplug()
	})
})

// addSecondInterface creates the Pod's interface on a network of Multus and reports it, as Multus does.
func (n *node) addSecondInterface() {
	GinkgoHelper()
	name := launcherpod.SecondaryInterface("blue")
	Expect(inNamespace(n.daemon.NetNS(), func() error {
		link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, MTU: 1400}, PeerName: "node-blue"}
		if err := netlink.LinkAdd(link); err != nil {
			return err
		}
		return netlink.LinkSetUp(link)
	})).To(Succeed())
	pod := &corev1.Pod{}
	Expect(n.client.Get(GinkgoT().Context(), client.ObjectKeyFromObject(launcherPod()), pod)).To(Succeed())
	pod.Annotations = map[string]string{"k8s.v1.cni.cncf.io/network-status": fmt.Sprintf(`[{"name":"blue","interface":%q}]`, name)}
	Expect(n.client.Update(GinkgoT().Context(), pod)).To(Succeed())
}

// nics returns the aliases of the interfaces of the running domain.
func (n *node) nics() []string {
	GinkgoHelper()
	conn, err := agent.Connections{Manager: n.manager}.Open(hypervisor.PodRef{UID: agentPodUID, VMI: vmiKey})
	Expect(err).NotTo(HaveOccurred())
	live, err := conn.Domain(GinkgoT().Context(), launcherpod.DomainName(vmiKey.Namespace, vmiKey.Name))
	Expect(err).NotTo(HaveOccurred())
	var aliases []string
	for i := range live.XML.Devices.Interfaces {
		aliases = append(aliases, live.XML.Devices.Interfaces[i].Alias.Name)
	}
	return aliases
}

var _ = Describe("The agent and a new interface of a running guest", Label("libvirt"), func() {
	It("plugs it once the Pod has the network, and requests of the guest to release it", func() {
		n := newNode(launcherPod(), assignedVMI())
		n.addPrimaryInterface()
		n.writeImage()
		n.linkSocket()
		n.settle(isRunning)
		n.change(withBlue, func(*v1.VirtualMachineInstanceStatus) {})
		n.settle(isRunning)
		Expect(n.nics()).To(Equal([]string{"ua-nic-default"}), "the Pod does not have the network")

		has := func(state string) func(*v1.VirtualMachineInstance) bool {
			return func(vmi *v1.VirtualMachineInstance) bool {
				nics := vmi.Status.Interfaces
				return isRunning(vmi) && len(nics) == 2 && nics[1].Name == "blue" && nics[1].MAC == pluggedMAC &&
					nics[1].InfoSource == "domain, multus-status" && nics[1].LinkState == state
			}
		}
		n.addSecondInterface()
		n.settle(has("up"))
		Expect(n.nics()).To(Equal([]string{"ua-nic-default", "ua-nic-blue"}))

		By("replacing the agent")
		n.stopAgent()
		n.startAgent()
		n.settle(func(vmi *v1.VirtualMachineInstance) bool {
			_, err := n.manager.Connect(hypervisor.PodRef{UID: agentPodUID, VMI: vmiKey})
			return err == nil && has("up")(vmi)
		})

		By("disconnecting it")
		n.change(func(s *v1.VirtualMachineInstanceSpec) {
			s.Domain.Devices.Interfaces[1].State = v1.InterfaceStateLinkDown
		}, func(*v1.VirtualMachineInstanceStatus) {})
		n.settle(has("down"))

		By("unplugging it from a guest that does not respond")
		n.change(func(s *v1.VirtualMachineInstanceSpec) {
			s.Domain.Devices.Interfaces[1].State = v1.InterfaceStateAbsent
		}, func(*v1.VirtualMachineInstanceStatus) {})
		for range 2 {
			result, err := n.reconcile()
			Expect(err).NotTo(HaveOccurred())
			Expect(result.RequeueAfter).To(BeNumerically("<=", 10*time.Second), "the guest is requested again")
			Expect(result.RequeueAfter).To(BeNumerically(">", 0))
		}
		Expect(n.nics()).To(HaveLen(2))
		Expect(describe(n.vmi())).NotTo(ContainSubstring("HotPlugNetworkInterfaceError"))
		Expect(n.guestRuns()).To(BeTrue())
	})
})
