// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/vireo-project/vireo/internal/launcherpod"
)

var _ = Describe("A guest with a containerDisk", func() {
	It("does not migrate to a Pod with another image of the same name, and migrates to one with the same image", func() {
		const disk = "/disk/disk.img"
		c := newMigratingGuest().prepare()
		c.launcher.SetSum(launcherpod.ContainerDiskDir("root")+disk, 1)
		c.targetLauncher.SetSum(launcherpod.ContainerDiskDir("root")+disk, 2)
		c.assignMigration()
		state := c.expectNotMigrated()
		Expect(state.FailureReason).To(
			And(ContainSubstring("containerdisks/kernelboot do not match"), ContainSubstring("volume root")))
		Expect(c.launcher.Transfers()).To(BeZero())
		Eventually(c.sourceA.recorder.Events).Should(Receive(ContainSubstring("ContainerDiskFailedChecksum")))

		c.prepare()
		c.targetLauncher.SetSum(launcherpod.ContainerDiskDir("root")+disk, 1)
		c.assignMigration()
		c.expectMigrated()
	})
})
