// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi_test

import (
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/test/fakes/libvirt"
)

var _ = Describe("A guest agent with frequent reports", func() {
	It("causes few writes and delays no other change, and its last report is written", func() {
		launchers := libvirt.NewNode()
		a := startAgent(launchers)
		resume := a.stopClock()
		g := makeGuest().schedule(launchers).assign()
		g.expectPhase(v1.Running)
		// A write is counted when it returns, which is after the API server has stored it.
		g.settle()
		before := a.writes.Load()
		report := func(version string) {
			g.launcher.SetGuest(&hypervisor.GuestInfo{OS: hypervisor.GuestOS{Version: version}})
		}
		for n := range 50 {
			report(fmt.Sprint(n))
			g.settle()
		}
		Expect(a.writes.Load() - before).To(BeEquivalentTo(5))

		g.launcher.SetState(hypervisor.StatePaused, hypervisor.PausedByUser)
		g.expectCondition(v1.VirtualMachineInstancePaused, corev1.ConditionTrue, v1.PausedByUserReason)

		report("last")
		resume()
		a.ahead.Store(int64(time.Hour))
		g.launcher.Notify()
		Eventually(func() string { return g.read().Status.GuestOSInfo.Version }).Should(Equal("last"))
	})
})

var _ = Describe("A launcher with frequent state changes", func() {
	It("causes few writes, and its last state is written", func() {
		launchers := libvirt.NewNode()
		a := startAgent(launchers)
		resume := a.stopClock()
		g := makeGuest().schedule(launchers).assign()
		g.expectPhase(v1.Running)
		for range 50 {
			g.launcher.SetState(hypervisor.StatePaused, hypervisor.PausedByUser)
			g.settle()
			g.launcher.SetState(hypervisor.StateRunning, "")
			g.settle()
		}
		Expect(a.writes.Load()).To(BeEquivalentTo(20))
		g.expectCondition(v1.VirtualMachineInstancePaused, corev1.ConditionTrue, v1.PausedByUserReason)
		// The last state is written without another event.
		resume()
		g.expectNoCondition(v1.VirtualMachineInstancePaused)
	})
})
