// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// pluggedNICUserData counts on the console, gives each interface but the first one the guest's address on the second
// network, prints which one it has and whether that has a link, and runs an echo server.
const pluggedNICUserData = "#!/bin/sh\n. /etc/init.d/lib\n" +
	`(n=0; while true; do n=$((n+1)); echo "WORK $n." >/dev/console; sleep 1; done) &
nc -ll -p 7 -e cat &
was=nothing
(while sleep 1; do
	now=none
	for i in /sys/class/net/eth*; do
		[ -e $i ] && [ ${i##*/} != eth0 ] || continue
		ip addr add ` + guestAddress + `/24 dev ${i##*/} 2>/dev/null
		ip link set ${i##*/} up
		now="${i##*/} $(cat $i/address) link $(cat $i/carrier 2>/dev/null)"
	done
	[ "$now" = "$was" ] || { was=$now; say "VIREO-NIC $now"; }
done) &
`

// Multus is enabled for all nodes, and automatic migrations for all guests, so that this spec runs alone.
var _ = Describe("An interface of a running VM", kvmLinuxLong(), Serial, extended(1), func() {
	n := &nicGuest{migratingGuest: countingGuest("nics")}

	It("is plugged by a migration, loses and regains its link in place, gets another network, and is unplugged",
		func(ctx context.Context) {
			needLocalNodes()
			if len(nodes(ctx)) < 2 {
				Skip("migrations need two nodes")
			}
			n.namespace = newNamespace(ctx)
			installSecondNetwork(ctx, n.namespace)
			create(ctx, makeVM(n.namespace, n.name, withUserData(pluggedNICUserData)))
			n.instance = expectReady(ctx, n.namespace, n.name)
			n.followCounts(ctx)
			n.expectPrinted(ctx, Equal("none"))
			enableLiveMigrate(ctx)

			By("plugging it")
			n.expectMigration(ctx,
				func(ctx context.Context) { n.edit(ctx, func(s *v1.VirtualMachineInstanceSpec) { addSecondNIC(s) }) })
			n.expectNIC(ctx, And(HaveField("InfoSource", And(ContainSubstring("domain"), ContainSubstring("multus-status"))),
				HaveField("LinkState", "up")))
			n.expectPrinted(ctx, MatchRegexp(`^eth\d+ \S+ link 1$`))
			n.expectEcho(ctx)
			n.expectFollowed(ctx)

			By("disconnecting and connecting it")
			pod := launcherPod(ctx, vmi(ctx, n.namespace, n.name))
			n.setState(ctx, v1.InterfaceStateLinkDown)
			n.expectPrinted(ctx, HaveSuffix(" link 0"))
			n.expectNIC(ctx, HaveField("LinkState", "down"))
			n.setState(ctx, v1.InterfaceStateLinkUp)
			n.expectPrinted(ctx, HaveSuffix(" link 1"))
			n.expectEcho(ctx)
			Expect(launcherPod(ctx, vmi(ctx, n.namespace, n.name)).UID).To(Equal(pod.UID))

			By("giving it another network, which is another definition of the same one")
			const other = "other"
			defineNetwork(ctx, n.namespace, other)
			mac := n.address(ctx)
			n.expectMigration(ctx, func(ctx context.Context) {
				n.edit(ctx, func(s *v1.VirtualMachineInstanceSpec) { s.Networks[len(s.Networks)-1].Multus.NetworkName = other })
			})
			Expect(launcherPod(ctx, vmi(ctx, n.namespace, n.name)).Annotations).
				To(HaveKeyWithValue("k8s.v1.cni.cncf.io/networks",
					ContainSubstring(fmt.Sprintf(`"name":%q`, other))))
			n.expectNIC(ctx, HaveField("MAC", mac))
			n.expectEcho(ctx)
			n.expectFollowed(ctx)

			By("unplugging it")
			n.expectMigration(ctx, func(ctx context.Context) {
				n.setState(ctx, v1.InterfaceStateAbsent)
				n.expectPrinted(ctx, Equal("none"))
				n.expectNoNIC(ctx)
			})
			n.expectNoNIC(ctx)
			Expect(launcherPod(ctx, vmi(ctx, n.namespace, n.name)).Annotations).NotTo(HaveKey("k8s.v1.cni.cncf.io/networks"))
			n.expectFollowed(ctx)

			By("removing it from the template")
			n.edit(ctx, func(s *v1.VirtualMachineInstanceSpec) {
				s.Networks, s.Domain.Devices.Interfaces = s.Networks[:1], s.Domain.Devices.Interfaces[:1]
			})
			Eventually(func() []v1.Interface {
				return vmi(ctx, n.namespace,
					n.name).Spec.Domain.Devices.Interfaces
			}).WithContext(
				ctx).
				WithTimeout(shortTimeout).WithPolling(pollInterval).Should(HaveLen(1))
			n.expectFollowed(ctx)
			n.expectCounts(ctx)
			AddReportEntry("numbers without a gap", fmt.Sprint(n.expectAllCounted()))
		}, specTimeout(15*time.Minute))
	AfterEach(func(ctx context.Context) { dumpFailed(ctx, n.namespace) }, nodeTimeout(time.Minute))
})

// nicGuest is a guest whose second interface is plugged and unplugged.
type nicGuest struct{ migratingGuest }

// addSecondNIC connects a VM to the second network.
func addSecondNIC(s *v1.VirtualMachineInstanceSpec) {
	vm := &v1.VirtualMachine{Spec: v1.VirtualMachineSpec{Template: &v1.VirtualMachineInstanceTemplateSpec{Spec: *s}}}
	withSecondNIC(vm)
	*s = *spec(vm)
}

// edit changes the VM's template, as a user does.
func (n *nicGuest) edit(ctx context.Context, change func(*v1.VirtualMachineInstanceSpec)) {
	GinkgoHelper()
	Eventually(func() error {
		vm := n.vm(ctx)
		change(spec(vm))
		return k8s.Update(ctx, vm)
	}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).Should(Succeed())
}

// setState changes the state of the second interface.
func (n *nicGuest) setState(ctx context.Context, state v1.InterfaceState) {
	GinkgoHelper()
	n.edit(ctx, func(s *v1.VirtualMachineInstanceSpec) {
		nics := s.Domain.Devices.Interfaces
		nics[slices.IndexFunc(nics, func(i v1.Interface) bool { return i.Name == secondNetwork })].State = state
	})
}

// nic returns the second interface in the VMI's status.
func (n *nicGuest) nic(ctx context.Context) []v1.VirtualMachineInstanceNetworkInterface {
	return slices.DeleteFunc(vmi(ctx, n.namespace, n.name).Status.Interfaces,
		func(i v1.VirtualMachineInstanceNetworkInterface) bool {
			return i.Name != secondNetwork
		})
}

// expectNIC waits until the second interface in the VMI's status matches.
func (n *nicGuest) expectNIC(ctx context.Context, matcher gomegatypes.GomegaMatcher) {
	GinkgoHelper()
	Eventually(n.nic).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).Should(ConsistOf(matcher))
}

// expectNoNIC waits until the VMI's status does not contain the second interface.
func (n *nicGuest) expectNoNIC(ctx context.Context) {
	GinkgoHelper()
	Eventually(n.nic).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).Should(BeEmpty())
}

// expectPrinted waits until what the guest has printed last about its interface matches.
func (n *nicGuest) expectPrinted(ctx context.Context, matcher gomegatypes.GomegaMatcher) {
	GinkgoHelper()
	last := func() string {
		_, line, _ := cutLast(n.consoles.text(), "VIREO-NIC ")
		line, _, _ = strings.Cut(line, "\n")
		return strings.TrimSpace(line)
	}
	Eventually(last).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(pollInterval).Should(matcher, func() string {
		return "what the guest printed last:\n" + tail(console(ctx, n.namespace, n.name), 2000)
	})
}

// cutLast cuts a text around the last occurrence of a separator.
func cutLast(text, separator string) (before, after string, found bool) {
	at := strings.LastIndex(text, separator)
	if at < 0 {
		return text, "", false
	}
	return text[:at], text[at+len(separator):], true
}

// expectEcho waits until the guest responds on the second network.
func (n *nicGuest) expectEcho(ctx context.Context) {
	GinkgoHelper()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	connection := startEcho(ctx, fmt.Sprintf("%s:%d", guestAddress, echoPort))
	Eventually(connection.count).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).
		Should(BeNumerically(">", 10))
	Expect(connection.broken()).NotTo(HaveOccurred())
}

// expectFollowed waits until the guest is as its template, and nothing needs a restart or another migration.
func (n *nicGuest) expectFollowed(ctx context.Context) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		vm := n.vm(ctx)
		g.Expect(vm.Status.ObservedGeneration).To(Equal(vm.Generation))
		g.Expect(vm.Status.Conditions).NotTo(ContainElement(HaveField("Type", v1.VirtualMachineRestartRequired)))
		g.Expect(condition(vmi(ctx, n.namespace, n.name), v1.VirtualMachineInstanceMigrationRequired)).To(BeNil())
	}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).Should(Succeed())
}
