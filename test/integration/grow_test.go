// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package integration_test

import (
	"context"
	"os"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// setCapacity writes the capacity of all claims to the status, as virt-controller does when they have grown.
func (n *node) setCapacity(capacity string) {
	GinkgoHelper()
	vmi := n.vmi()
	for i := range vmi.Status.VolumeStatus {
		if info := vmi.Status.VolumeStatus[i].PersistentVolumeClaimInfo; info != nil {
			info.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(capacity)}
		}
	}
	Expect(n.client.Status().Update(context.Background(), vmi)).To(Succeed())
}

var _ = Describe("Disks on claims that grow", Label("libvirt"), func() {
	It("get the size of their claims when the guest starts and while it runs", func() {
		vmi := assignedVMI()
		disk := v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}}
		for _, claim := range []v1.VolumeStatus{claimStatus("file", corev1.PersistentVolumeFilesystem),
			claimStatus("device", corev1.PersistentVolumeBlock)} {
			source := &v1.PersistentVolumeClaimVolumeSource{}
			source.ClaimName = claim.Name
			addDisk(vmi, disk, claim.Name, v1.VolumeSource{PersistentVolumeClaim: source})
			claim.PersistentVolumeClaimInfo.FilesystemOverhead = ptr.To[v1.Percent]("0")
			vmi.Status.VolumeStatus = append(vmi.Status.VolumeStatus, claim)
		}
		n := newNode(launcherPod(), vmi)
		n.addPrimaryInterface()
		n.writeImage()
		image := n.writeInPod(launcherpod.DiskDir("file")+"/disk.img", make([]byte, diskBytes))
		Expect(os.Chown(image, launcherpod.QEMUUser, launcherpod.QEMUUser)).To(Succeed())
		Expect(os.Chmod(image, 0o600)).To(Succeed())
		grow := (&pod{daemon: n.daemon}).prepareBlockDevice(launcherpod.BlockDevice("device"))
		n.linkSocket()
		sizes := func(file, device int64) func(*v1.VirtualMachineInstance) bool {
			return func(vmi *v1.VirtualMachineInstance) bool {
				got := map[string]int64{}
				for _, volume := range vmi.Status.VolumeStatus {
					got[volume.Name] = volume.Size
				}
				return got["file"] == file && got["device"] == device
			}
		}

		n.settle(sizes(2*diskBytes, diskBytes))
		info, err := os.Stat(image)
		Expect(err).NotTo(HaveOccurred())
		Expect(info.Size()).To(BeEquivalentTo(2 * diskBytes))

		By("growing both with a restarted agent")
		grow(4 * diskBytes)
		n.stopAgent()
		n.setCapacity("4Mi")
		n.startAgent()
		n.settle(sizes(4*diskBytes, 4*diskBytes))
		info, err = os.Stat(image)
		Expect(err).NotTo(HaveOccurred())
		Expect(info.Size()).To(BeEquivalentTo(4 * diskBytes))

		By("writing nothing without a change")
		before := n.vmi().ResourceVersion
		_, err = n.reconcile()
		Expect(err).NotTo(HaveOccurred())
		Expect(n.vmi().ResourceVersion).To(Equal(before))
	})
})
