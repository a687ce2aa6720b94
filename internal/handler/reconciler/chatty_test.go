// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reconciler_test

import (
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/handler/hypervisor/fake"
)

var _ = Describe("A guest that reports something else without end", func() {
	It("causes few writes, delays nothing else, and is told of in the end", func() {
		launchers := fake.NewNode()
		a := startAgent(launchers)
		g := makeGuest().schedule(launchers).handOver()
		g.expectPhase(v1.Running)
		before := a.writes.Load()
		report := func(version string) {
			g.launcher.SetGuest(&hypervisor.GuestInfo{OS: hypervisor.GuestOS{Version: version}})
		}
		for n := range 50 {
			report(fmt.Sprint(n))
			g.settle()
		}
		// Five at once, and one or two more if the machine was slow.
		Expect(a.writes.Load() - before).To(BeNumerically("<=", 7))

		g.launcher.SetState(hypervisor.StatePaused, hypervisor.PausedByUser)
		g.expectCondition(v1.VirtualMachineInstancePaused, corev1.ConditionTrue, v1.PausedByUserReason)

		report("last")
		a.ahead.Store(int64(time.Hour))
		g.launcher.Nudge()
		Eventually(func() string { return g.read().Status.GuestOSInfo.Version }).Should(Equal("last"))
	})
})
