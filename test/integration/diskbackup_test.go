// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package integration_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/backup"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/test/libvirtd"
)

// backUp writes the intent of a backup of the volume data, as virt-controller does, and reconciles until the backup has
// ended.
func (n *node) backUp(intent *backup.Intent) *v1.DiskBackupRecord {
	GinkgoHelper()
	vmi := n.vmi()
	vmi.Status.DiskBackup = intent.Status()
	Expect(n.client.Status().Update(context.Background(), vmi)).To(Succeed())
	var record backup.Record
	Eventually(func(g Gomega) {
		_, err := n.reconcile()
		g.Expect(err).NotTo(HaveOccurred())
		record = backup.RecordOf(&n.vmi().Status)
		g.Expect(record.ID).To(Equal(intent.ID))
		g.Expect(record.Ended()).To(BeTrue())
	}).WithTimeout(time.Minute).Should(Succeed())
	return record.Status()
}

// addUtilityVolume adds a utility volume to the VMI, and reports it as mounted.
func (n *node) addUtilityVolume(name string) {
	GinkgoHelper()
	vmi := n.vmi()
	vmi.Spec.UtilityVolumes = []v1.UtilityVolume{{Name: name, Type: ptr.To(v1.Backup)}}
	Expect(n.client.Update(context.Background(), vmi)).To(Succeed())
	vmi.Status.VolumeStatus = append(vmi.Status.VolumeStatus, v1.VolumeStatus{
		Name: name, Phase: v1.HotplugVolumeMounted, HotplugVolume: &v1.HotplugVolumeStatus{},
	})
	Expect(n.client.Status().Update(context.Background(), vmi)).To(Succeed())
}

// qemuImg returns a command that runs the launcher image's qemu-img on the files of the test.
func qemuImg(arguments ...string) *exec.Cmd {
	usr := filepath.Join(os.Getenv(libvirtd.RootfsEnv), "usr")
	return exec.Command(filepath.Join(usr, "lib64/ld-linux-x86-64.so.2"),
		append([]string{"--library-path", filepath.Join(usr, "lib/x86_64-linux-gnu"), filepath.Join(usr, "bin/qemu-img")},
			arguments...)...)
}

var _ = Describe("A backup of a running guest's disks", Label("libvirt"), func() {
	It("has what was in the disk of a claim, or fails and leaves no image", func() {
		vmi := assignedVMI()
		claim := claimStatus("data", corev1.PersistentVolumeFilesystem)
		claim.PersistentVolumeClaimInfo.FilesystemOverhead = ptr.To[v1.Percent]("0")
		source := &v1.PersistentVolumeClaimVolumeSource{}
		source.ClaimName = "data"
		addDisk(vmi, v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}}, "data",
			v1.VolumeSource{PersistentVolumeClaim: source})
		vmi.Status.VolumeStatus = append(vmi.Status.VolumeStatus, claim)
		n := newNode(launcherPod(), vmi)
		n.addPrimaryInterface()
		n.writeImage()
		content := bytes.Repeat([]byte("chained and checksummed, "), 2*diskBytes/25+1)[:2*diskBytes]
		image := n.writeInPod(launcherpod.DiskDir("data")+"/disk.img", content)
		target := n.daemon.Host(launcherpod.UtilityVolumeDir("target"))
		Expect(os.MkdirAll(target, 0o755)).To(Succeed())
		for _, path := range []string{image, target} {
			Expect(os.Chown(path, launcherpod.QEMUUser, launcherpod.QEMUUser)).To(Succeed())
		}
		Expect(os.Chmod(image, 0o600)).To(Succeed())
		n.linkSocket()
		n.settle(isRunning)
		n.addUtilityVolume("target")

		By("copying one of several disks")
		intent := &backup.Intent{ID: "a", UtilityVolume: "target", Directory: "vm/b-1", FilePrefix: "b-",
			Volumes: []string{"data"}}
		Expect(n.backUp(intent)).To(And(HaveField("Stage", v1.DiskBackupSucceeded), HaveField("Problem", "")))
		copied := filepath.Join(target, intent.File("data"))
		entries, err := os.ReadDir(filepath.Dir(copied))
		Expect(err).NotTo(HaveOccurred())
		Expect(entries).To(HaveLen(1))
		raw := filepath.Join(GinkgoT().TempDir(), "raw")
		out, err := qemuImg("convert", "-f", "qcow2", "-O", "raw", copied, raw).CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), string(out))
		restored, err := os.ReadFile(raw)
		Expect(err).NotTo(HaveOccurred())
		Expect(bytes.Equal(restored, content)).To(BeTrue(), "the image has something else than the disk")

		By("not repeating it with a restarted agent")
		n.stopAgent()
		n.startAgent()
		Expect(os.Remove(copied)).To(Succeed())
		n.settle(isRunning)
		Expect(copied).NotTo(BeAnExistingFile())

		By("failing if an image exists")
		Expect(os.WriteFile(filepath.Join(target, "vm/b-1/b-data.qcow2"), nil, 0o600)).To(Succeed())
		intent.ID = "b"
		Expect(n.backUp(intent)).To(
			And(HaveField("Stage", v1.DiskBackupFailed), HaveField("Problem", ContainSubstring("exists"))))

		By("failing if the target cannot be written")
		intent.ID, intent.Directory = "c", "vm/b-3"
		Expect(os.Chown(filepath.Join(target, "vm"), 0, 0)).To(Succeed())
		Expect(n.backUp(intent)).To(
			And(HaveField("Stage", v1.DiskBackupFailed), HaveField("Problem", ContainSubstring("ermission denied"))))
	})
})
