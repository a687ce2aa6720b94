// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi_test

import (
	"errors"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/outcome"
	"github.com/vireo-project/vireo/test/fakes/libvirt"
)

var _ = Describe("Launchers that block the reconcile of their VMI", func() {
	const many = 20

	DescribeTable("delay no other VMI while they do not respond", func(call string) {
		launchers := libvirt.NewNode()
		a := startAgent(launchers)
		// No reconcile passes the network before all launchers are set up.
		notYet := error(&outcome.Retry{Reason: "NotYet", After: time.Hour, Err: errors.New("not yet")})
		a.networks.failure.Store(&notYet)
		var stuck []<-chan struct{}
		var guests []*guest
		for range many {
			g := makeGuest().schedule(launchers)
			reached, release := g.launcher.Slow(call)
			DeferCleanup(release)
			stuck, guests = append(stuck, reached), append(guests, g)
		}
		a.networks.failure.Store(nil)
		for _, g := range guests {
			g.assign()
			g.launcher.Notify()
		}
		for _, reached := range stuck {
			Eventually(reached).Should(BeClosed())
		}
		makeGuest().schedule(launchers).assign().expectPhase(v1.Running)
	},
		Entry("to a read of their domain", "domain"),
		Entry("to a read of a directory on failed storage", "pool"),
		Entry("to a start", "start"),
	)

	It("keep their phase and their status while the state is unknown", func() {
		launchers := libvirt.NewNode()
		a := startAgent(launchers)
		g := makeGuest().schedule(launchers).assign()
		g.expectPhase(v1.Running)
		reached, release := g.launcher.Slow("domain")
		DeferCleanup(release)
		version := g.read().ResourceVersion
		g.launcher.Notify()
		Eventually(reached).Should(BeClosed())
		makeGuest().schedule(launchers).assign().expectPhase(v1.Running)
		Expect(g.read().ResourceVersion).To(Equal(version))
		a.stop()
	})

	It("do not use up the retries of others", func() {
		launchers := libvirt.NewNode()
		startAgent(launchers)
		// With a shared limit of ten retries per second these would take a minute.
		var failing []*guest
		for range many {
			g := makeGuest().schedule(launchers)
			g.launcher.Fail("domain", errors.New("refused"))
			// It may be prepared already and wait until the VMI is assigned.
			g.launcher.Notify()
			failing = append(failing, g)
		}
		for _, g := range failing {
			Eventually(g.launcher.Opens).Should(BeNumerically(">", 10))
		}
		g := makeGuest().schedule(launchers)
		g.launcher.Fail("domain", errors.New("not now"))
		g.assign()
		Eventually(g.launcher.Opens).Should(BeNumerically(">", 10))
		g.launcher.Fail("domain", nil)
		g.expectPhase(v1.Running)
	})
})
