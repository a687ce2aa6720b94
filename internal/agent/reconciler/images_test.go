// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reconciler_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/vireo-project/vireo/internal/launcherpod"
)

var _ = Describe("A guest that runs from an image", func() {
	It("stays if the target's Pod has another image of that name, and migrates if it has the same", func() {
		const disk = "/disk/disk.img"
		c := newMigratingGuest().prepare()
		c.launcher.SetSum(launcherpod.ContainerDiskDir("root")+disk, 1)
		c.arriving.SetSum(launcherpod.ContainerDiskDir("root")+disk, 2)
		c.moveOn()
		state := c.expectStayed()
		Expect(state.FailureReason).To(And(ContainSubstring("containerdisks/kernelboot do not match"), ContainSubstring("volume root")))
		Expect(c.launcher.Transfers()).To(BeZero())
		Eventually(c.sourceA.recorder.Events).Should(Receive(ContainSubstring("ContainerDiskFailedChecksum")))

		c.prepare()
		c.arriving.SetSum(launcherpod.ContainerDiskDir("root")+disk, 1)
		c.moveOn()
		c.expectMoved()
	})
})
