// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reconciler_test

import (
	"errors"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/handler/hypervisor/fake"
	"github.com/vireo-project/vireo/internal/handler/reconciler"
)

var _ = Describe("Launchers that hold up their own VMI", func() {
	const many = 20

	DescribeTable("hold up no other one while they do not answer", func(call string) {
		launchers := fake.NewNode()
		a := startAgent(launchers)
		// None gets beyond its network before all are as they are to be.
		notYet := error(&reconciler.Retry{Reason: "NotYet", After: time.Hour, Err: errors.New("not yet")})
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
			g.handOver()
			g.launcher.Nudge()
		}
		for _, reached := range stuck {
			Eventually(reached).Should(BeClosed())
		}
		makeGuest().schedule(launchers).handOver().expectPhase(v1.Running)
	},
		Entry("about their domain", "domain"),
		Entry("about a directory on storage that is dead", "pool"),
		Entry("to a start", "start"),
	)

	It("keep their phase and their status while nobody knows", func() {
		launchers := fake.NewNode()
		a := startAgent(launchers)
		g := makeGuest().schedule(launchers).handOver()
		g.expectPhase(v1.Running)
		reached, release := g.launcher.Slow("domain")
		DeferCleanup(release)
		version := g.read().ResourceVersion
		g.launcher.Nudge()
		Eventually(reached).Should(BeClosed())
		makeGuest().schedule(launchers).handOver().expectPhase(v1.Running)
		Expect(g.read().ResourceVersion).To(Equal(version))
		a.stop()
	})

	It("do not use up the retries of others by failing", func() {
		launchers := fake.NewNode()
		startAgent(launchers)
		// Enough for a limit of ten retries in a second, in all, to be a minute behind.
		var failing []*guest
		for range many {
			g := makeGuest().schedule(launchers)
			g.launcher.Fail("domain", errors.New("refused"))
			// It may have been prepared, and wait for its hand-over.
			g.launcher.Nudge()
			failing = append(failing, g)
		}
		for _, g := range failing {
			Eventually(g.launcher.Opens).Should(BeNumerically(">", 10))
		}
		g := makeGuest().schedule(launchers)
		g.launcher.Fail("start", errors.New("not now"))
		g.handOver()
		Eventually(g.launcher.Opens).Should(BeNumerically(">", 10))
		g.launcher.Fail("start", nil)
		g.expectPhase(v1.Running)
	})
})
