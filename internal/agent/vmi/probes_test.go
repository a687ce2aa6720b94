// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/fakes/libvirt"
)

var _ = Describe("Probes by guestAgentPing", func() {
	annotate := func(g *guest, value string) {
		GinkgoHelper()
		before := g.read()
		after := before.DeepCopy()
		if after.Annotations == nil {
			after.Annotations = map[string]string{}
		}
		after.Annotations[v1.PauseGuestAgentProbesAnnotation] = value
		Expect(api.Patch(ctx, after, client.MergeFrom(before))).To(Succeed())
	}

	It("are paused while the annotation is true", func() {
		launchers := libvirt.NewNode()
		startAgent(launchers)
		g := makeGuest().schedule(launchers).assign()
		g.expectPhase(v1.Running)
		paused := func() bool { return g.launcher.Snapshot().ProbesPaused() }
		Expect(paused()).To(BeFalse())
		annotate(g, "T")
		Eventually(paused).Should(BeTrue())
		g.settle()
		Expect(g.read().Status.FSFreezeStatus).To(BeEmpty())
		By("ignoring an invalid value")
		annotate(g, "invalid")
		Eventually(paused).Should(BeFalse())
	})

	It("stay paused when the guest is migrated", func() {
		c := newMigratingGuest(func(vmi *v1.VirtualMachineInstance) {
			vmi.Annotations = map[string]string{v1.PauseGuestAgentProbesAnnotation: "true"}
		})
		Eventually(func() bool { return c.launcher.Snapshot().ProbesPaused() }).Should(BeTrue())
		c.migrate().expectMigrated()
		Eventually(func() bool { return c.targetLauncher.Snapshot().ProbesPaused() }).Should(BeTrue())
	})
})
