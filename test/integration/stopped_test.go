// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package integration_test

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"libvirt.org/go/libvirt"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/decide/migration/protocol"
)

var _ = Describe("A guest that QEMU has stopped", Label("libvirt"), func() {
	It("is paused for an unknown reason, and runs again when it is reset or unpaused", func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		DeferCleanup(cancel)
		p := newPod()
		defined := p.start("minimal")
		domain, err := defined.GetName()
		Expect(err).NotTo(HaveOccurred())
		conn := p.dial()
		state := func() *hypervisor.Domain {
			d, err := conn.Domain(ctx, domain)
			Expect(err).NotTo(HaveOccurred())
			return d
		}
		// libvirt gets the same event from QEMU as after an internal error.
		stop := func() {
			GinkgoHelper()
			_, err := defined.QemuMonitorCommand(`{"execute":"stop"}`, libvirt.DOMAIN_QEMU_MONITOR_COMMAND_DEFAULT)
			Expect(err).NotTo(HaveOccurred())
			Eventually(state).Should(
				And(HaveField("State", hypervisor.StatePaused), HaveField("Reason", hypervisor.PausedUnknown)))
		}

		stop()
		Expect(conn.SourceState(ctx, domain)).To(Equal(hypervisor.SourceState{Domain: protocol.SourceRunning}))
		Expect(conn.ResumeAfter(ctx, domain, hypervisor.PausedAPIError)).To(Succeed())
		Expect(state().Reason).To(Equal(hypervisor.PausedUnknown), "it is paused for another reason")
		Expect(conn.Reset(ctx, domain)).To(Succeed())
		Expect(state().State).To(Equal(hypervisor.StateRunning))

		stop()
		Expect(conn.Unpause(ctx, domain)).To(Succeed())
		Expect(state().State).To(Equal(hypervisor.StateRunning))

		By("leaving a guest paused that a user has paused")
		Expect(conn.Pause(ctx, domain)).To(Succeed())
		Expect(conn.Reset(ctx, domain)).To(Succeed())
		Expect(state().Reason).To(Equal(hypervisor.PausedByUser))
	})
})
