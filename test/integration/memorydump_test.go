// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package integration_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// attachForDump attaches a claim for a memory dump, as virt-controller and the kubelet do, and returns its mount.
func (n *node) attachForDump(name string, uid types.UID) string {
	GinkgoHelper()
	claim := n.attachToNode(name, uid)
	Expect(os.Remove(filepath.Join(claim, launcherpod.DiskImage))).To(Succeed())
	// As with the Pod's fsGroup.
	Expect(os.Chown(claim, 0, launcherpod.QEMUUser)).To(Succeed())
	Expect(os.Chmod(claim, 0o2775)).To(Succeed())
	n.change(func(s *v1.VirtualMachineInstanceSpec) {
		u := v1.UtilityVolume{Name: name, Type: ptr.To(v1.MemoryDump)}
		u.ClaimName = name
		s.UtilityVolumes = append(s.UtilityVolumes, u)
	}, func(s *v1.VirtualMachineInstanceStatus) {
		s.VolumeStatus = append(s.VolumeStatus, v1.VolumeStatus{
			Name: name, Phase: v1.HotplugVolumeAttachedToNode, HotplugVolume: &v1.HotplugVolumeStatus{AttachPodUID: uid},
			PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{
				ClaimName: name, Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			},
		})
	})
	return claim
}

// detachDump removes the volume, and its status once it is not mounted any more.
func (n *node) detachDump(name string) {
	GinkgoHelper()
	n.change(func(s *v1.VirtualMachineInstanceSpec) { s.UtilityVolumes = nil }, func(*v1.VirtualMachineInstanceStatus) {})
	n.settle(volumeIs(name, v1.HotplugVolumeUnMounted))
	n.change(func(*v1.VirtualMachineInstanceSpec) {}, func(s *v1.VirtualMachineInstanceStatus) {
		s.VolumeStatus = slices.DeleteFunc(s.VolumeStatus, func(v v1.VolumeStatus) bool { return v.Name == name })
	})
}

var _ = Describe("A dump of a running guest's memory", Label("libvirt"), func() {
	It("is a file of the claim, replaces an earlier one, or says why there is none", func() {
		n := newNode(launcherPod(), assignedVMI())
		n.addPrimaryInterface()
		n.writeImage()
		n.linkSocket()
		n.hotplugDir()
		n.settle(isRunning)

		claim := n.attachForDump("dump", "attachment-dump")
		Expect(os.WriteFile(filepath.Join(claim, "old.memory.dump"), nil, 0o666)).To(Succeed())
		Expect(os.WriteFile(filepath.Join(claim, "kept"), nil, 0o666)).To(Succeed())
		n.settle(volumeIs("dump", v1.MemoryDumpVolumeCompleted))
		info := vmistatus.FindVolume(&n.vmi().Status, "dump").MemoryDumpVolume
		Expect(info.EndTimestamp).NotTo(BeNil())
		dumped, err := os.ReadFile(filepath.Join(claim, info.TargetFileName))
		Expect(err).NotTo(HaveOccurred())
		Expect(bytes.HasPrefix(dumped, []byte("\x7fELF"))).To(BeTrue())
		Expect(len(dumped)).To(BeNumerically(">", 1<<20))
		Expect(filepath.Join(claim, "old.memory.dump")).NotTo(BeAnExistingFile())
		Expect(filepath.Join(claim, "kept")).To(BeAnExistingFile())
		Expect(n.guestRuns()).To(BeTrue())
		Expect(n.mountsIn()).To(Equal(1))
		n.detachDump("dump")
		Expect(n.mountsIn()).To(BeZero())
		Expect(unix.Unmount(claim, 0)).To(Succeed(), "the kubelet can unmount it")

		By("failing if the claim cannot be written")
		full := n.attachForDump("full", "attachment-full")
		Expect(os.Chmod(full, 0o755)).To(Succeed())
		n.settle(volumeIs("full", v1.MemoryDumpVolumeFailed))
		Expect(vmistatus.FindVolume(&n.vmi().Status, "full").Message).To(ContainSubstring("ermission denied"))
		n.detachDump("full")

		By("failing if the claim is too small")
		small := n.attachForDump("small", "attachment-small")
		Expect(unix.Mount("none", small, "", unix.MS_REMOUNT, "size=1m")).To(Succeed())
		n.settle(volumeIs("small", v1.MemoryDumpVolumeFailed))
		Expect(os.ReadDir(small)).To(BeEmpty())
		Expect(n.guestRuns()).To(BeTrue())
		n.detachDump("small")
	})
})
