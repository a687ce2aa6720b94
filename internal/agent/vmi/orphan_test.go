// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/vmistatus"
	"github.com/vireo-project/vireo/test/fakes/libvirt"
)

var _ = Describe("A guest whose Pod was removed while its node was disconnected", func() {
	var launchers *libvirt.Node
	BeforeEach(func() { launchers = libvirt.NewNode() })

	ended := func(g *guest) func() string { return func() string { return g.launcher.Snapshot().Reason } }
	// replace creates another VMI of the name, which runs on another node.
	replace := func(g *guest) *v1.VirtualMachineInstance {
		GinkgoHelper()
		vmi := &v1.VirtualMachineInstance{}
		vmi.Namespace, vmi.Name, vmi.Spec = g.vmi.Namespace, g.vmi.Name, *g.vmi.Spec.DeepCopy()
		Eventually(func() error { return api.Create(ctx, vmi.DeepCopy()) }).Should(Succeed())
		before := g.read()
		Expect(before.UID).NotTo(Equal(g.vmi.UID))
		after := before.DeepCopy()
		after.Status.Phase, after.Status.NodeName = v1.Running, "another-node"
		_, err := vmistatus.Patch(ctx, api, vmistatus.Controller, before, after)
		Expect(err).NotTo(HaveOccurred())
		return after
	}

	It("is destroyed at once if its Pod does not exist and its VMI runs elsewhere", func() {
		startAgent(launchers)
		g := makeGuest().schedule(launchers).assign()
		g.expectPhase(v1.Running)
		g.launcher.IgnoreShutdown()
		// The guest still runs: only the agent can stop it.
		Expect(api.Delete(ctx, g.vmi)).To(Succeed())
		successor := replace(g)
		g.removePod()
		Eventually(ended(g)).Should(Equal("Destroyed"))
		Expect(g.launcher.Starts()).To(Equal(1))
		Expect(g.read().ResourceVersion).To(Equal(successor.ResourceVersion), "the agent of another node owns the successor")
	})

	It("is destroyed if its Pod does not exist and no other VMI has its name", func() {
		startAgent(launchers)
		g := makeGuest(finalized).schedule(launchers).assign()
		g.expectPhase(v1.Running)
		g.launcher.IgnoreShutdown()
		g.removePod()
		Eventually(ended(g)).Should(Equal("Destroyed"))
	})

	It("is destroyed by a restarted agent if there is another VMI of the name", func() {
		first := startAgent(launchers)
		g := makeGuest().schedule(launchers).assign()
		g.expectPhase(v1.Running)
		g.launcher.IgnoreShutdown()
		first.stop()
		Expect(api.Delete(ctx, g.vmi)).To(Succeed())
		successor := replace(g)
		second := startAgent(launchers)
		Eventually(ended(g)).Should(Equal("Destroyed"))
		Expect(g.launcher.Shutdowns()).To(BeZero(), "there is no grace period")
		Expect(second.writes.Load()).To(BeZero())
		Expect(g.read().ResourceVersion).To(Equal(successor.ResourceVersion))
	})

	It("is not destroyed if only the label by which the agent finds its Pod was removed", func() {
		startAgent(launchers)
		g := makeGuest().schedule(launchers).assign()
		g.expectPhase(v1.Running)
		Expect(api.Patch(ctx, &corev1.Pod{ObjectMeta: g.pod.ObjectMeta},
			client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"kubevirt.io":null}}}`)))).To(Succeed())
		witness := makeGuest().schedule(launchers).assign()
		witness.expectPhase(v1.Running)
		witness.launcher.IgnoreShutdown()
		witness.removePod()
		Eventually(ended(witness)).Should(Equal("Destroyed"))
		Consistently(func() hypervisor.State { return g.launcher.Snapshot().State }, "300ms").
			Should(Equal(hypervisor.StateRunning))
	})

	It("is destroyed if its Pod has failed", func() {
		startAgent(launchers)
		g := makeGuest().schedule(launchers).assign()
		g.expectPhase(v1.Running)
		g.launcher.IgnoreShutdown()
		g.pod.Status.Phase = corev1.PodFailed
		Expect(api.Status().Update(ctx, g.pod)).To(Succeed())
		Eventually(ended(g)).Should(Equal("Destroyed"))
	})

	It("is destroyed before a watch reports that its Pod was removed", func() {
		a := startAgent(launchers)
		g, witness := makeGuest().schedule(launchers).assign(), makeGuest().schedule(launchers).assign()
		g.expectPhase(v1.Running)
		witness.expectPhase(v1.Running)
		a.stop() // The watches end.
		g.removePod()
		a.noReads.Store(true)
		Expect(a.guests.Recheck(ctx)).To(MatchError(errDisconnected))
		Expect(g.launcher.Snapshot().State).To(Equal(hypervisor.StateRunning), "as long as the API server does not respond")
		a.noReads.Store(false)
		Expect(a.guests.Recheck(ctx)).To(Succeed())
		Expect(ended(g)()).To(Equal("Destroyed"))
		Expect(witness.launcher.Snapshot().State).To(Equal(hypervisor.StateRunning))
	})

	It("is not destroyed as long as the API server does not respond", func() {
		a := startAgent(launchers)
		g := makeGuest().schedule(launchers).assign()
		g.expectPhase(v1.Running)
		g.launcher.IgnoreShutdown()
		a.noReads.Store(true)
		g.removePod()
		Consistently(func() hypervisor.State { return g.launcher.Snapshot().State }, "500ms").
			Should(Equal(hypervisor.StateRunning))
		a.noReads.Store(false)
		Eventually(ended(g)).Should(Equal("Destroyed"))
	})
})
