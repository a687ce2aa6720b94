// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi_test

import (
	"errors"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/vmistatus"
	"github.com/vireo-project/vireo/test/fakes/libvirt"
)

// phases counts the hotplugged volumes in each phase.
func (g *guest) phases() map[v1.VolumePhase]int {
	counts := map[v1.VolumePhase]int{}
	status := g.read().Status
	for i := range status.VolumeStatus {
		if v := &status.VolumeStatus[i]; vmistatus.IsHotplugged(v) {
			counts[v.Phase]++
		}
	}
	return counts
}

var _ = Describe("The agent and very many hotplugged volumes", func() {
	It("plugs and unplugs 75 with few writes, and none that fails delays another", func() {
		const many = 75
		launchers := libvirt.NewNode()
		a := startAgent(launchers)
		g := makeGuest().schedule(launchers).assign()
		g.expectPhase(v1.Running)
		a.mounts.refuse("data-03", errors.New("disk.img is no regular file"))
		g.launcher.Fail("attach data-07", errors.New("internal error: refused"))
		g.change(func(vmi *v1.VirtualMachineInstance) {
			for i := range many {
				hotplug(fmt.Sprintf("data-%02d", i), onSCSI)(vmi)
			}
		})
		g.settle()
		before := a.writes.Load()
		g.controller(func(s *v1.VirtualMachineInstanceStatus) {
			for i := range many {
				setAttached(s, fmt.Sprintf("data-%02d", i), types.UID(fmt.Sprintf("uid-%d", i)), asFile)
			}
		})
		Eventually(g.phases).WithTimeout(20 * time.Second).Should(Equal(map[v1.VolumePhase]int{
			v1.VolumeReady: many - 2, v1.HotplugVolumeMounted: 1, v1.HotplugVolumeAttachedToNode: 1,
		}))
		g.settle()
		Expect(strings.Fields(a.mounts.list())).To(HaveLen(many - 1))
		// Of the test's own write of all volumes, the agent's of all that it has plugged, and one of the disks' sizes.
		Expect(a.writes.Load()-before).To(BeNumerically("<=", 3), "writes for %d volumes", many)

		By("unplugging them")
		a.mounts.refuse("data-03", nil)
		before = a.writes.Load()
		g.change(func(vmi *v1.VirtualMachineInstance) {
			for i := range many {
				unplug(fmt.Sprintf("data-%02d", i))(vmi)
			}
		})
		Eventually(g.phases).WithTimeout(20 * time.Second).
			Should(Equal(map[v1.VolumePhase]int{v1.HotplugVolumeUnMounted: many}))
		g.settle()
		Expect(a.mounts.list()).To(BeEmpty())
		Expect(a.writes.Load()-before).To(BeNumerically("<=", 3), "writes for %d volumes", many)
	})
})
