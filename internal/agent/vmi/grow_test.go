// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi_test

import (
	"errors"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/vmistatus"
	"github.com/vireo-project/vireo/test/fakes/libvirt"
)

// onClaim adds a third disk to the guest, on a claim of 1000 MiB.
func onClaim(mode corev1.PersistentVolumeMode) func(*v1.VirtualMachineInstance) {
	overhead := map[corev1.PersistentVolumeMode]v1.Percent{corev1.PersistentVolumeFilesystem: "0.055",
		corev1.PersistentVolumeBlock: "0"}[mode]
	return func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Domain.Devices.Disks = append(vmi.Spec.Domain.Devices.Disks,
			v1.Disk{Name: "data", DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}}})
		vmi.Spec.Volumes = append(vmi.Spec.Volumes, v1.Volume{Name: "data", VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{
				PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"}}}})
		vmi.Status.VolumeStatus = []v1.VolumeStatus{{Name: "data", PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{
			ClaimName: "claim", VolumeMode: &mode, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Capacity:           corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1000Mi")},
			FilesystemOverhead: ptr.To(overhead),
		}}}
	}
}

// expand does what virt-controller does when the claim has grown.
func (g *guest) expand(capacity string) {
	GinkgoHelper()
	Eventually(func() error {
		before := g.read()
		after := before.DeepCopy()
		for i := range after.Status.VolumeStatus {
			if info := after.Status.VolumeStatus[i].PersistentVolumeClaimInfo; info != nil {
				info.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(capacity)}
			}
		}
		_, err := vmistatus.Patch(ctx, api, vmistatus.Controller, before, after)
		return err
	}).Should(Succeed())
}

// size returns the reported size of the guest's disk on the claim.
func (g *guest) size() int64 {
	for _, volume := range g.read().Status.VolumeStatus {
		if volume.Name == "data" {
			return volume.Size
		}
	}
	return 0
}

var _ = Describe("The agent and a claim that grows", func() {
	var launchers *libvirt.Node
	var a *agent
	BeforeEach(func() {
		launchers = libvirt.NewNode()
		a = startAgent(launchers)
	})
	const mib = 1 << 20
	started := func(mode corev1.PersistentVolumeMode) *guest {
		GinkgoHelper()
		g := makeGuest(onClaim(mode)).schedule(launchers)
		g.launcher.AddFile(launcherpod.DiskDir("data"),
			hypervisor.Volume{Name: "disk.img", Format: hypervisor.FormatRaw, Capacity: 945 * mib})
		g.launcher.SetDiskSizes(map[string]uint64{"vda": mib, "vdb": mib, "vdc": 945 * mib})
		if mode == corev1.PersistentVolumeBlock {
			g.launcher.SetDiskSizes(map[string]uint64{"vda": mib, "vdb": mib, "vdc": 1000 * mib})
		}
		g.assign().expectPhase(v1.Running)
		return g
	}

	It("grows the guest's disk in a file to the size of the claim without the file system's overhead, once", func() {
		g := started(corev1.PersistentVolumeFilesystem)
		Eventually(g.size).Should(BeEquivalentTo(945 * mib))
		g.expand("2000Mi")
		Eventually(g.size).Should(BeEquivalentTo(1890 * mib))
		// A write is counted when it returns, which is after the API server has stored it.
		g.settle()
		writes := a.writes.Load()
		g.settle()
		Expect(a.writes.Load()).To(Equal(writes))
	})

	It("grows a disk no further than the file system has room for it", func() {
		g := started(corev1.PersistentVolumeFilesystem)
		g.expand("20Gi")
		Eventually(g.size).Should(BeEquivalentTo(9676 * mib)) // 94.5 % of 10 GiB
		g.settle()
		writes := a.writes.Load()
		a.ahead.Store(int64(10 * time.Minute))
		g.settle()
		Expect(a.writes.Load()).To(Equal(writes))
	})

	It("grows a disk whose file system gets room later than its claim, and does not look for room for ever", func() {
		g := started(corev1.PersistentVolumeFilesystem)
		g.launcher.SetFreeSpace(1500 * mib)
		g.expand("2000Mi")
		Eventually(g.size).Should(BeEquivalentTo(1417 * mib)) // 94.5 % of 1500 MiB
		g.launcher.SetFreeSpace(2000 * mib)
		g.settle()
		Expect(g.size()).To(BeEquivalentTo(1417*mib), "it was tried a moment ago")
		a.ahead.Add(int64(6 * time.Minute))
		g.settle()
		Eventually(g.size).Should(BeEquivalentTo(1890 * mib))

		g.launcher.SetFreeSpace(2500 * mib)
		g.expand("3000Mi")
		Eventually(g.size).Should(BeEquivalentTo(2362 * mib))
		for range 4 {
			a.ahead.Add(int64(6 * time.Minute))
			g.settle()
		}
		pools := g.launcher.Calls("pool")
		a.ahead.Add(int64(6 * time.Minute))
		g.settle()
		Expect(g.launcher.Calls("pool")).To(Equal(pools))
	})

	It("grows a disk to the size of its device, and does not retry if that is less than its claim", func() {
		g := started(corev1.PersistentVolumeBlock)
		g.launcher.SetDeviceSize("vdc", 1984*mib)
		g.expand("2000Mi")
		Eventually(g.size).Should(BeEquivalentTo(1984 * mib))
		g.launcher.SetDeviceSize("vdc", 1999*mib)
		g.settle()
		Expect(g.size()).To(BeEquivalentTo(1984 * mib))

		By("until the claim grows again")
		g.expand("3000Mi")
		Eventually(g.size).Should(BeEquivalentTo(1999 * mib))
	})

	It("retries with a delay if libvirt refuses, and blocks nothing else", func() {
		g := started(corev1.PersistentVolumeFilesystem)
		g.launcher.Fail("grow", errors.New("the disk is busy"))
		tried, release := g.launcher.Slow("grow")
		g.expand("2000Mi")
		Eventually(tried).Should(BeClosed())
		release()
		g.settle()
		Expect(vmistatus.FindCondition(&g.read().Status, v1.VirtualMachineInstanceSynchronized)).To(BeNil())
		Expect(g.size()).To(BeEquivalentTo(945 * mib))
		g.launcher.Fail("grow", nil)
		g.settle()
		Expect(g.size()).To(BeEquivalentTo(945*mib), "it was tried a moment ago")
		a.ahead.Store(int64(10 * time.Minute))
		g.settle()
		Eventually(g.size).Should(BeEquivalentTo(1890 * mib))
	})

	It("grows a disk whose claim grew while no agent ran", func() {
		g := started(corev1.PersistentVolumeFilesystem)
		a.stop()
		g.expand("2000Mi")
		a = startAgent(launchers)
		Eventually(g.size).Should(BeEquivalentTo(1890 * mib))
	})

	It("does not grow a disk while its guest is migrated", func() {
		g := started(corev1.PersistentVolumeFilesystem)
		Eventually(func() error {
			before := g.read()
			after := before.DeepCopy()
			after.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "m", SourceNode: "elsewhere"}
			return client.IgnoreNotFound(api.Status().Patch(ctx, after, client.MergeFrom(before)))
		}).Should(Succeed())
		g.expand("2000Mi")
		g.settle()
		Expect(g.size()).To(BeEquivalentTo(945 * mib))
	})
})
