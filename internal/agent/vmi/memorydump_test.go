// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi_test

import (
	"errors"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/backup"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/vmistatus"
	"github.com/vireo-project/vireo/test/fakes/libvirt"
)

var _ = Describe("The dump of a guest's memory", func() {
	var (
		launchers *libvirt.Node
		a         *agent
		g         *guest
	)
	volumes := func(names ...string) func(*v1.VirtualMachineInstance) {
		return func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.UtilityVolumes = nil
			for _, name := range names {
				u := v1.UtilityVolume{Name: name, Type: ptr.To(v1.MemoryDump)}
				u.ClaimName = "claim-" + name
				vmi.Spec.UtilityVolumes = append(vmi.Spec.UtilityVolumes, u)
			}
		}
	}
	info := func() *v1.DomainMemoryDumpInfo {
		GinkgoHelper()
		return vmistatus.FindVolume(&g.read().Status, "dump").MemoryDumpVolume
	}

	BeforeEach(func() {
		launchers = libvirt.NewNode()
		a = startAgent(launchers)
		g = makeGuest(finalized).schedule(launchers).assign()
		g.expectPhase(v1.Running)
		g.change(volumes("dump"))
	})

	It("is begun once, and its volume is detached afterwards", func() {
		recorded := a.recorded()
		g.attached("dump", "uid-1", asFile)
		Eventually(g.launcher.DumpsBegun).Should(Equal(1))
		Expect(g.volume("dump")()).To(
			Equal("MemoryDumpInProgress MemoryDumpInProgress : Memory dump Volume dump is attached, getting memory dump"))
		Expect(info()).To(And(HaveField("ClaimName", "claim-dump"), HaveField("StartTimestamp", Not(BeNil())),
			HaveField("EndTimestamp", BeNil()),
			HaveField("TargetFileName", MatchRegexp(`^`+g.read().Name+`-claim-dump-\d{8}-\d{6}\.memory\.dump$`))))

		By("keeping the volume as long as it is written to, also with a new agent")
		g.change(volumes())
		a.stop()
		a = startAgent(launchers)
		g.settle()
		Expect(g.volume("dump")()).To(HavePrefix("MemoryDumpInProgress"))

		g.launcher.EndDump(true)
		Eventually(g.volume("dump")).Should(HavePrefix("UnMountedFromPod"))
		Expect(info().EndTimestamp).NotTo(BeNil())
		Expect(g.launcher.Dumps()).To(ConsistOf(launcherpod.UtilityVolumeDir("dump") + "/" + info().TargetFileName))
		Expect(g.launcher.DumpsBegun()).To(Equal(1))
		Expect(recorded()).To(ContainSubstring("Normal MemoryDumpInProgress"))
		g.removed("dump")
	})

	It("fails with libvirt's reason, and without one if libvirt reports none", func() {
		g.launcher.Fail("dump", errors.New("no such directory"))
		g.attached("dump", "uid-1", asFile)
		Eventually(g.volume("dump")).Should(
			And(HavePrefix("MemoryDumpFailed MemoryDumpFailed"), ContainSubstring("no such directory")))
		g.change(volumes())
		Eventually(g.volume("dump")).Should(HavePrefix("UnMountedFromPod"))
		g.removed("dump")

		g.launcher.Fail("dump", nil)
		g.change(volumes("dump"))
		g.attached("dump", "uid-2", asFile)
		Eventually(g.launcher.DumpsBegun).Should(Equal(1))
		g.launcher.EndDump(false)
		Eventually(g.volume("dump")).Should(
			And(HavePrefix("MemoryDumpFailed MemoryDumpFailed"), ContainSubstring("claim is full")))
	})

	It("continues though the response of its begin was lost", func() {
		g.launcher.LoseResponse("dump")
		g.attached("dump", "uid-1", asFile)
		Eventually(g.launcher.DumpsBegun).Should(Equal(1))
		g.settle()
		Expect(g.volume("dump")()).To(HavePrefix("MemoryDumpInProgress"))
		g.launcher.EndDump(true)
		Eventually(g.volume("dump")).Should(HavePrefix("MemoryDumpCompleted"))
		Expect(g.launcher.DumpsBegun()).To(Equal(1))
	})

	It("waits for a backup", func() {
		intent := backup.Intent{ID: "a", UtilityVolume: "other", Directory: "vm/b-1", FilePrefix: "b-",
			Volumes: []string{"root"}}
		g.controller(func(s *v1.VirtualMachineInstanceStatus) { s.DiskBackup = intent.Status() })
		g.attached("dump", "uid-1", asFile)
		Eventually(g.volume("dump")).Should(And(HavePrefix("MountedToPod"), ContainSubstring("waiting for the backup")))
		g.settle()
		Expect(g.launcher.DumpsBegun()).To(BeZero())
		g.controller(func(s *v1.VirtualMachineInstanceStatus) { s.DiskBackup = nil })
		Eventually(g.launcher.DumpsBegun).Should(Equal(1))
	})
})
