// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi_test

import (
	"errors"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/test/fakes/libvirt"
)

// withBlue adds an interface on a second network.
func withBlue(vmi *v1.VirtualMachineInstance) {
	devices := &vmi.Spec.Domain.Devices
	devices.Interfaces = append(devices.Interfaces, v1.Interface{
		Name: "blue", MacAddress: "02:00:00:00:00:02",
		InterfaceBindingMethod: v1.InterfaceBindingMethod{Bridge: &v1.InterfaceBridge{}},
	})
	vmi.Spec.Networks = append(vmi.Spec.Networks, v1.Network{
		Name: "blue", NetworkSource: v1.NetworkSource{Multus: &v1.MultusNetwork{NetworkName: "blue"}},
	})
}

// withoutBlue makes the second interface absent.
func withoutBlue(vmi *v1.VirtualMachineInstance) {
	vmi.Spec.Domain.Devices.Interfaces[1].State = v1.InterfaceStateAbsent
}

// attachBlue writes the annotation by which Multus reports the second network of a Pod.
func attachBlue(pod *corev1.Pod) {
	GinkgoHelper()
	Eventually(func() error {
		if err := api.Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
			return err
		}
		if pod.Annotations == nil {
			pod.Annotations = map[string]string{}
		}
		pod.Annotations["k8s.v1.cni.cncf.io/network-status"] = `[{"interface":"` + launcherpod.SecondaryInterface("blue") + `","ips":["10.9.0.2"]}]`
		return api.Update(ctx, pod)
	}).Should(Succeed())
}

// aliases returns the aliases of the interfaces of a launcher's domain.
func aliases(l *libvirt.Launcher) []string {
	var all []string
	for i := range l.Snapshot().XML.Devices.Interfaces {
		all = append(all, l.Snapshot().XML.Devices.Interfaces[i].Alias.Name)
	}
	return all
}

// nics returns the names of the interfaces in the status.
func (g *guest) nics() []string {
	var all []string
	for _, entry := range g.read().Status.Interfaces {
		all = append(all, entry.Name+": "+entry.InfoSource)
	}
	return all
}

var _ = Describe("The agent and an interface of a running guest", func() {
	var launchers *libvirt.Node
	BeforeEach(func() {
		launchers = libvirt.NewNode()
		startAgent(launchers)
	})
	started := func() *guest {
		GinkgoHelper()
		g := makeGuest().schedule(launchers).assign()
		g.expectPhase(v1.Running)
		return g
	}

	It("plugs it once the Pod has the network, and unplugs it when it is absent", func() {
		g := started()
		g.change(withBlue)
		g.settle()
		Expect(aliases(g.launcher)).To(Equal([]string{"ua-nic-default"}))

		attachBlue(g.pod)
		Eventually(g.nics).Should(Equal([]string{"default: domain", "blue: domain, multus-status"}))
		Expect(aliases(g.launcher)).To(Equal([]string{"ua-nic-default", "ua-nic-blue"}))

		g.change(withoutBlue)
		Eventually(g.nics).Should(Equal([]string{"default: domain"}))
		Expect(aliases(g.launcher)).To(Equal([]string{"ua-nic-default"}))
		Expect(g.launcher.Starts()).To(Equal(1))
	})

	It("reports a refusal of libvirt, and lets the guest run", func() {
		g := started()
		g.launcher.Fail("attach interface", errors.New("no free PCI slot"))
		g.change(withBlue)
		attachBlue(g.pod)
		c := g.expectCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse, "HotPlugNetworkInterfaceError")
		Expect(c.Message).To(Equal(`plug interface "blue" into the guest: no free PCI slot`))
		Expect(g.read().Status.Phase).To(Equal(v1.Running))
	})

	It("keeps one that the guest does not release in the status", func() {
		g := started()
		g.change(withBlue)
		attachBlue(g.pod)
		Eventually(g.nics).Should(HaveLen(2))
		g.launcher.KeepInterfaces(true)
		g.change(withoutBlue)
		g.settle()
		Expect(g.nics()).To(HaveLen(2))
		g.expectNoCondition(v1.VirtualMachineInstanceSynchronized)
	})

	It("plugs it into the guest after a migration to a Pod that has the network", func() {
		c := newMigratingGuest()
		c.change(withBlue)
		c.settle()
		Expect(aliases(c.launcher)).To(Equal([]string{"ua-nic-default"}))
		c.prepare()
		pod := &corev1.Pod{}
		Expect(api.Get(ctx, client.ObjectKeyFromObject(c.targetPod.Load()), pod)).To(Succeed())
		attachBlue(pod)
		c.assignMigration()
		c.expectMigrated()
		Eventually(func() []string { return aliases(c.targetLauncher) }).
			Should(Equal([]string{"ua-nic-default", "ua-nic-blue"}))
	})
})
