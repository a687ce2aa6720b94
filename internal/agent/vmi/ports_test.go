// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	v1 "github.com/vireo-project/vireo/api/v1"
)

var _ = Describe("The ports of migrations", func() {
	awaited := func(a *agent, vmi *v1.VirtualMachineInstance) func() []bool {
		return func() []bool {
			awaited, found := a.networks.awaits(vmi)
			return []bool{awaited, found}
		}
	}
	waiting, forwarded := []bool{true, true}, []bool{false, true}

	It("are forwarded to a guest that was started here, and to a migrated guest after the migration", func() {
		c := newMigratingGuest()
		Expect(awaited(c.sourceA, c.vmi)()).To(Equal(forwarded))
		c.prepare()
		Eventually(awaited(c.targetA, c.vmi)).Should(Equal(waiting), "prepared before the VMI's status names the target")
		reached, release := c.launcher.Slow("perform")
		c.assignMigration()
		Eventually(reached).Should(BeClosed())
		Expect(awaited(c.targetA, c.vmi)()).To(Equal(waiting))
		release()
		c.expectMigrated()
		Eventually(awaited(c.targetA, c.vmi)).Should(Equal(forwarded))
	})
})
