// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package integration_test

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/vireo-project/vireo/internal/decide/snapshot/freeze"
)

// isFrozenForSnapshots is the spec of the freezes of a guest with an agent.
func isFrozenForSnapshots(g *linux) {
	It("has a record of a snapshot's freeze beside that of a user, and is thawed when neither needs it",
		func(ctx context.Context) {
			at := time.Now().Truncate(time.Second).UTC()
			record := freeze.Record{ID: "a", Deadline: at.Add(time.Hour), Stage: freeze.Frozen, FrozenAt: at}
			thawed := record
			thawed.Stage, thawed.Kept = freeze.Thawed, true
			expectFrozen := func(want bool) {
				GinkgoHelper()
				Expect(g.conn.Frozen(ctx, g.domain)).To(Equal(want))
			}

			Expect(g.conn.SnapshotFreeze(ctx, g.domain)).To(BeNil())
			Expect(g.conn.RecordSnapshotFreeze(ctx, g.domain, record)).To(Succeed())
			Expect(g.conn.SnapshotFreeze(ctx, g.domain)).To(Equal(&record))
			Expect(g.conn.FreezeForSnapshot(ctx, g.domain)).To(Succeed())
			expectFrozen(true)

			By("staying frozen for the snapshot when the user thaws it")
			Expect(g.conn.Freeze(ctx, g.domain, time.Hour)).To(Succeed())
			Expect(g.conn.Thaw(ctx, g.domain)).To(Succeed())
			expectFrozen(true)
			ended, err := g.conn.ThawAfterSnapshot(ctx, g.domain, thawed)
			Expect(err).NotTo(HaveOccurred())
			Expect(ended).To(BeTrue())
			expectFrozen(false)
			Expect(g.conn.SnapshotFreeze(ctx, g.domain)).To(And(HaveField("Stage", freeze.Thawed), HaveField("Kept", true)))

			By("reporting a thaw without a freeze")
			ended, err = g.conn.ThawAfterSnapshot(ctx, g.domain, thawed)
			Expect(err).NotTo(HaveOccurred())
			Expect(ended).To(BeFalse())
		})
}
