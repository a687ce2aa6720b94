// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package integration_test

import (
	"context"
	"errors"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"libvirt.org/go/libvirt"

	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/wire/libvirtwire"
)

// codeAgentUnresponsive is VIR_ERR_AGENT_UNRESPONSIVE (virErrorNumber in libvirt).
const codeAgentUnresponsive = 86

var _ = Describe("A probe by guestAgentPing", Label("libvirt"), func() {
	var (
		ctx     context.Context
		p       *pod
		defined *libvirt.Domain
		client  *libvirtwire.Client
		domain  libvirtwire.Domain
	)

	BeforeEach(func() {
		p = newPod()
		defined = p.start("minimal")
		name, err := defined.GetName()
		Expect(err).NotTo(HaveOccurred())
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.Background(), time.Minute)
		DeferCleanup(cancel)
		client, err = libvirtwire.Dial(ctx, p.daemon.Socket())
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(client.Close)
		domain, err = client.Lookup(ctx, name)
		Expect(err).NotTo(HaveOccurred())
	})

	It("gets libvirtd's error code for a guest agent that does not respond", func() {
		_, err := client.AgentCommand(ctx, domain, `{"execute":"guest-ping"}`, time.Second)
		var refused *libvirtwire.Error
		Expect(errors.As(err, &refused)).To(BeTrue(), "%v", err)
		Expect(refused.Code).To(BeEquivalentTo(codeAgentUnresponsive), refused.Message)
	})

	It("reads from libvirtd that the guest is paused, and that there is no job", func() {
		state, _, err := client.State(ctx, domain)
		Expect(err).NotTo(HaveOccurred())
		Expect(state).To(Equal(libvirtwire.StateRunning))
		active, err := client.JobActive(ctx, domain)
		Expect(err).NotTo(HaveOccurred())
		Expect(active).To(BeFalse())

		Expect(defined.Suspend()).To(Succeed())
		state, reason, err := client.State(ctx, domain)
		Expect(err).NotTo(HaveOccurred())
		Expect(state).To(Equal(libvirtwire.StatePaused))
		Expect(libvirtwire.PausedReason(reason)).To(Equal(libvirtwire.PausedUser))
	})

	It("reads from libvirtd that probes are paused, with and without other metadata", func() {
		noNote := func() {
			GinkgoHelper()
			_, err := client.Metadata(ctx, domain, launcherpod.ProbesURI)
			var none *libvirtwire.Error
			Expect(errors.As(err, &none)).To(BeTrue(), "%v", err)
			Expect(none.Code).To(BeEquivalentTo(libvirtwire.CodeNoDomainMetadata), none.Message)
		}
		noNote()
		freeze := launcherpod.FreezeNote(time.Now().Add(time.Hour))
		Expect(client.SetMetadata(ctx, domain, freeze, launcherpod.FreezePrefix, launcherpod.FreezeURI)).To(Succeed())
		conn := p.dial()
		Expect(conn.PauseProbes(ctx, domain.Name, true)).To(Succeed())
		Expect(client.Metadata(ctx, domain, launcherpod.ProbesURI)).To(ContainSubstring(launcherpod.ProbesTag))
		seen, err := conn.Domain(ctx, domain.Name)
		Expect(err).NotTo(HaveOccurred())
		Expect(seen.ProbesPaused()).To(BeTrue())
		Expect(seen.Freeze()).NotTo(BeNil())

		for range 2 {
			Expect(conn.PauseProbes(ctx, domain.Name, false)).To(Succeed())
		}
		noNote()
		seen, err = conn.Domain(ctx, domain.Name)
		Expect(err).NotTo(HaveOccurred())
		Expect(seen.ProbesPaused()).To(BeFalse())
		Expect(seen.Freeze()).NotTo(BeNil())
	})
})
