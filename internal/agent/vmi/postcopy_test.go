// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi_test

import (
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

var _ = Describe("A guest in a post-copy", func() {
	slow := func(m *v1.VirtualMachineInstanceMigrationState) {
		allowed, second := true, int64(2)
		m.VMIMConfigurationOptions.AllowPostCopy, m.VMIMConfigurationOptions.CompletionTimeoutPerGiB = &allowed, &second
	}

	It("is reported as in post-copy before the switch", func() {
		c := newMigratingGuest().prepare()
		_, release := c.launcher.Slow("perform")
		c.launcher.SetProgress(
			hypervisor.TransferProgress{Memory: hypervisor.TransferAmount{Total: 1 << 30, Processed: 1, Remaining: 1 << 30}})
		c.launcher.Fail("postcopy", errLost)
		c.assignMigration(slow)
		Eventually(func() v1.MigrationMode { return c.state().Mode }).Should(Equal(v1.MigrationPostCopy))
		Expect(c.launcher.PostCopyStarted()).To(BeFalse())
		c.launcher.Fail("postcopy", nil)
		Eventually(c.launcher.PostCopyStarted).Should(BeTrue())
		release()
		c.expectMigrated()
	})

	It("is not switched to post-copy if the target's node does not allow it, which is recorded as an event", func() {
		c := newMigratingGuest().prepare()
		c.target.noPostCopy = true
		_, release := c.launcher.Slow("perform")
		defer release()
		c.launcher.SetProgress(
			hypervisor.TransferProgress{Memory: hypervisor.TransferAmount{Total: 1 << 30, Processed: 1, Remaining: 1 << 30}})
		c.assignMigration(slow)
		Expect(c.expectNotMigrated().FailureReason).To(ContainSubstring("not completed after 2 seconds"))
		Expect(c.launcher.PostCopyStarted()).To(BeFalse())
		c.sourceA.expectEvent("continues without post-copy")
	})

	It("keeps its source, which still serves memory", func() {
		c := newMigratingGuest().prepare()
		_, copied := c.launcher.Slow("perform")
		reached, release := c.targetLauncher.Slow("finish")
		c.launcher.SetProgress(
			hypervisor.TransferProgress{Memory: hypervisor.TransferAmount{Total: 1 << 30, Processed: 1, Remaining: 1 << 30}})
		c.assignMigration(slow)
		Eventually(c.launcher.PostCopyStarted).Should(BeTrue())
		copied()
		Eventually(reached).Should(BeClosed())
		By("reporting that the target runs the guest")
		Eventually(func() error { return vmistatus.TransferOwnership(ctx, api, c.read()) }).Should(Succeed())
		Consistently(func() hypervisor.State {
			c.launcher.Notify()
			return c.launcher.Snapshot().State
		}, "1s").Should(Equal(hypervisor.StatePaused))
		release()
		c.expectMigrated()
	})
})

var _ = Describe("An agent that ends between any two actions of a migration", func() {
	// expectConsistent checks that the guest runs on one node, according to the status.
	expectConsistent := func(c *migratingGuest) {
		GinkgoHelper()
		Eventually(func(g Gomega) {
			vmi := c.read()
			m := vmi.Status.MigrationState
			g.Expect(m.Completed).To(BeTrue(), "source %v, target %v, %+v", c.source.executed(), c.target.executed(), m)
			g.Expect(m.Failed).To(Equal(vmi.Status.NodeName == c.source.node))
			g.Expect(runs(c.launcher)).To(Equal(m.Failed))
			g.Expect(runs(c.targetLauncher)).To(Equal(!m.Failed))
			owner := c.targetLauncher
			if m.Failed {
				owner = c.launcher
			}
			g.Expect(owner.MigrationTLS()).To(BeNil(), "certificates in the guest's Pod; source %v, target %v",
				c.source.executed(), c.target.executed())
		}).Should(Succeed())
		Expect(c.launcher.Transfers()).To(BeNumerically("<=", 1))
	}

	// endAfterEach ends an agent after one more effect in each round, until the migration is completed before that.
	endAfterEach := func(side string) {
		migrated, notMigrated := 0, 0
		for n := int32(1); ; n++ {
			Expect(n).To(BeNumerically("<", 20))
			c := newMigratingGuest()
			faulty := c.source
			if side == "target" {
				faulty = c.target
			}
			faulty.left.Store(n)
			c.migrate()
			ended := false
			Eventually(func() bool {
				select {
				case <-faulty.ended:
					ended = true
				default:
				}
				return ended || (c.state().Completed && (c.state().Failed || c.state().TargetNodeDomainReadyTimestamp != nil))
			}).Should(BeTrue())
			if !ended {
				Expect(migrated).To(BeNumerically(">", 0))
				AddReportEntry(fmt.Sprintf("%s: %d ends, %d migrated and %d not migrated", side, n-1, migrated, notMigrated))
				return
			}
			if side == "target" {
				c.restartTarget()
			} else {
				c.restartSource()
			}
			expectConsistent(c)
			if c.state().Failed {
				notMigrated++
			} else {
				migrated++
			}
			c.sourceA.stop()
			c.targetA.stop()
		}
	}

	It("at the source", func() { endAfterEach("source") })
	It("at the target", func() { endAfterEach("target") })
})
