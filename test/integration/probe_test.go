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

	"github.com/vireo-project/vireo/internal/libvirtrpc"
)

// codeAgentUnresponsive is VIR_ERR_AGENT_UNRESPONSIVE (virErrorNumber in libvirt).
const codeAgentUnresponsive = 86

var _ = Describe("A probe of a guest", Label("libvirt"), func() {
	var (
		ctx     context.Context
		defined *libvirt.Domain
		client  *libvirtrpc.Client
		domain  libvirtrpc.Domain
	)

	BeforeEach(func() {
		p := newPod()
		defined = p.start("minimal")
		name, err := defined.GetName()
		Expect(err).NotTo(HaveOccurred())
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.Background(), time.Minute)
		DeferCleanup(cancel)
		client, err = libvirtrpc.Dial(ctx, p.daemon.Socket())
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(client.Close)
		domain, err = client.Lookup(ctx, name)
		Expect(err).NotTo(HaveOccurred())
	})

	It("is told by libvirtd that no agent answers", func() {
		_, err := client.AgentCommand(ctx, domain, `{"execute":"guest-ping"}`, time.Second)
		var refused *libvirtrpc.Error
		Expect(errors.As(err, &refused)).To(BeTrue(), "%v", err)
		Expect(refused.Code).To(BeEquivalentTo(codeAgentUnresponsive), refused.Message)
	})

	It("learns from libvirtd that the guest is paused, and that no job goes on", func() {
		state, _, err := client.State(ctx, domain)
		Expect(err).NotTo(HaveOccurred())
		Expect(state).To(Equal(libvirtrpc.StateRunning))
		active, err := client.JobActive(ctx, domain)
		Expect(err).NotTo(HaveOccurred())
		Expect(active).To(BeFalse())

		Expect(defined.Suspend()).To(Succeed())
		state, reason, err := client.State(ctx, domain)
		Expect(err).NotTo(HaveOccurred())
		Expect(state).To(Equal(libvirtrpc.StatePaused))
		Expect(libvirtrpc.PausedReason(reason)).To(Equal(libvirtrpc.PausedUser))
	})
})
