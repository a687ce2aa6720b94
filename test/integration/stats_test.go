// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package integration_test

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/vireo-project/vireo/internal/agent/guestmetrics"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
)

// hasStatistics is the spec of the statistics of a guest with an agent.
func hasStatistics(g *linux) {
	It("has the statistics of libvirt and of the agent", func(ctx context.Context) {
		stats, err := g.conn.Stats(ctx, g.domain, true)
		Expect(err).NotTo(HaveOccurred())
		positive := func(values *hypervisor.Values, of ...hypervisor.Stat) {
			GinkgoHelper()
			for _, stat := range of {
				value, ok := values.Get(stat)
				Expect(ok).To(BeTrue(), "statistic %d", stat)
				Expect(value).To(BeNumerically(">", 0), "statistic %d", stat)
			}
		}
		positive(&stats.Domain, hypervisor.CPUTime, hypervisor.CPUUser, hypervisor.BalloonCurrent, hypervisor.BalloonRSS)
		Expect(stats.VCPUs).NotTo(BeEmpty())
		positive(&stats.VCPUs[0], hypervisor.VCPUState, hypervisor.VCPUTime)

		By("naming the devices as the VMI does")
		d, err := g.conn.Domain(ctx, g.domain)
		Expect(err).NotTo(HaveOccurred())
		Expect(stats.Disks).To(HaveLen(len(d.XML.Devices.Disks)))
		for i := range stats.Disks {
			Expect(stats.Disks[i].Name).To(Equal(d.XML.Devices.Disks[i].Target.Dev))
		}
		guest := &guestmetrics.Guest{}
		guest.Describe(d.XML, nil, nil, 2)
		Expect(guest.Affinity).To(Equal(2 * len(stats.VCPUs)))

		By("measuring the dirty rate between two requests")
		Eventually(func(gomega Gomega) {
			later, err := g.conn.Stats(ctx, g.domain, false)
			gomega.Expect(err).NotTo(HaveOccurred())
			_, measured := later.Domain.Get(hypervisor.DirtyRate)
			gomega.Expect(measured).To(BeTrue())
		}).WithTimeout(30 * time.Second).WithPolling(time.Second).Should(Succeed())

		By("polling the guest agent")
		Eventually(func(gomega Gomega) {
			_, usage, err := g.conn.GuestInfo(ctx, g.domain)
			gomega.Expect(err).NotTo(HaveOccurred())
			gomega.Expect(usage.Filesystems).NotTo(BeEmpty())
			gomega.Expect(usage.Filesystems[0].TotalBytes).To(BeNumerically(">", 0))
		}).WithTimeout(3 * time.Minute).WithPolling(time.Second).Should(Succeed())
	})
}
