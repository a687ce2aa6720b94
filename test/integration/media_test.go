// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package integration_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/media"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/test/kubelet"
)

// writeVolume writes a volume of the Pod, as the kubelet does.
func (n *node) writeVolume(kind media.VolumeKind, volume string, files map[string]string) {
	GinkgoHelper()
	Expect(kubelet.WriteVolume(n.pods, agentPodUID, string(kind), volume, files)).To(Succeed())
}

// addDisk adds a volume and its disk to a VMI.
func addDisk(vmi *v1.VirtualMachineInstance, device v1.DiskDevice, name string, source v1.VolumeSource) {
	vmi.Spec.Domain.Devices.Disks = append(vmi.Spec.Domain.Devices.Disks, v1.Disk{Name: name, DiskDevice: device})
	vmi.Spec.Volumes = append(vmi.Spec.Volumes, v1.Volume{Name: name, VolumeSource: source})
}

// claimStatus returns what virt-controller reports about a claim.
func claimStatus(volume string, mode corev1.PersistentVolumeMode) v1.VolumeStatus {
	return v1.VolumeStatus{Name: volume, PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{
		ClaimName: volume, VolumeMode: ptr.To(mode),
		Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Mi")},
	}}
}

// readMedium reads a file of a medium in the Pod with another program.
func (n *node) readMedium(volume, file string) string {
	GinkgoHelper()
	if _, err := exec.LookPath("isoinfo"); err != nil {
		Skip("needs isoinfo (Debian package genisoimage)")
	}
	image := n.daemon.Host(filepath.Join(launcherpod.EphemeralDisksDir, volume+".iso"))
	out, err := exec.Command("isoinfo", "-R", "-i", image, "-x", "/"+file).Output()
	Expect(err).NotTo(HaveOccurred())
	return string(out)
}

var _ = Describe("The agent", Label("libvirt"), func() {
	It("creates media from the Pod's volumes, and an overlay on an ephemeral volume's claim, which is not changed",
		func() {
			vmi := assignedVMI()
			cdrom := v1.DiskDevice{CDRom: &v1.CDRomTarget{Bus: v1.DiskBusSATA}}
			settings := &v1.ConfigMapVolumeSource{VolumeLabel: "settings"}
			settings.Name = "settings"
			addDisk(vmi, cdrom, "config", v1.VolumeSource{ConfigMap: settings})
			addDisk(vmi, cdrom, "token",
				v1.VolumeSource{ServiceAccount: &v1.ServiceAccountVolumeSource{ServiceAccountName: "guest"}})
			addDisk(vmi, cdrom, "tables", v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "tables"}})
			addDisk(vmi, v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}}, "golden", v1.VolumeSource{
				Ephemeral: &v1.EphemeralVolumeSource{
					PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "golden"}},
			})
			addDisk(vmi, v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}}, "device", v1.VolumeSource{
				Ephemeral: &v1.EphemeralVolumeSource{
					PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "device"}},
			})
			vmi.Spec.Domain.Firmware = &v1.Firmware{ACPI: &v1.ACPI{SlicNameRef: "tables"}}
			vmi.Status.VolumeStatus = []v1.VolumeStatus{
				claimStatus("golden", corev1.PersistentVolumeFilesystem), claimStatus("device", corev1.PersistentVolumeBlock),
			}
			n := newNode(launcherPod(), vmi)
			n.addPrimaryInterface()
			n.writeImage()
			n.writeVolume(media.ConfigMapVolume, "config-files", map[string]string{"app.conf": "a = 1", "empty": ""})
			n.writeVolume(media.ProjectedVolume, "token-files",
				map[string]string{"token": "ey", "ca.crt": "PEM", "namespace": "default"})
			n.writeVolume(media.SecretVolume, "tables-files", map[string]string{"slic.bin": string(acpiTable("slic"))})
			n.writeInPod(launcherpod.VolumeFilesDir("tables")+"/slic.bin", acpiTable("slic"))
			golden := n.writeInPod(launcherpod.DiskDir("golden")+"/disk.img", make([]byte, diskBytes))
			(&pod{daemon: n.daemon}).prepareBlockDevice(launcherpod.BlockDevice("device"))
			before, err := os.Stat(golden)
			Expect(err).NotTo(HaveOccurred())
			n.linkSocket()

			status := n.settle(isRunning).Status.VolumeStatus
			Expect(status).To(HaveLen(8))
			for _, name := range []string{"golden", "device"} {
				Expect(status).To(ContainElement(And(HaveField("Name", name), HaveField("Size", BeEquivalentTo(diskBytes)))))
			}
			Expect(n.readMedium("config", "app.conf")).To(Equal("a = 1"))
			Expect(n.readMedium("token", "token")).To(Equal("ey"))
			Expect(n.readMedium("tables", "slic.bin")).To(HavePrefix("SLIC"))
			after, err := os.Stat(golden)
			Expect(err).NotTo(HaveOccurred())
			Expect(after.ModTime()).To(Equal(before.ModTime()))

			conn, err := n.manager.Connect(hypervisor.PodRef{UID: agentPodUID, VMI: vmiKey})
			Expect(err).NotTo(HaveOccurred())
			pool, err := conn.Pool(context.Background(), "disk-golden", launcherpod.DiskDir("golden"))
			Expect(err).NotTo(HaveOccurred())
			Expect(pool.Find(launcherpod.DiskImage).Allocation).To(BeNumerically(">=", diskBytes), "a file without holes")
		})

	It("writes the addresses of tagged devices to the config drive, as libvirt has assigned them", func() {
		vmi := assignedVMI()
		vmi.Spec.Volumes[1].VolumeSource = v1.VolumeSource{
			CloudInitConfigDrive: &v1.CloudInitConfigDriveSource{UserData: "#cloud-config"}}
		vmi.Spec.Domain.Devices.Interfaces[0].Tag = "blue"
		vmi.Spec.Domain.Devices.Disks[2].Tag, vmi.Spec.Domain.Devices.Disks[2].Serial = "scratch", "s-1"
		n := newNode(launcherPod(), vmi)
		n.addPrimaryInterface()
		n.writeImage()
		n.linkSocket()
		n.settle(isRunning)

		conn, err := n.manager.Connect(hypervisor.PodRef{UID: agentPodUID, VMI: vmiKey})
		Expect(err).NotTo(HaveOccurred())
		running, err := conn.Domain(context.Background(), launcherpod.DomainName(vmiKey.Namespace, vmiKey.Name))
		Expect(err).NotTo(HaveOccurred())
		nic, disk := running.XML.Devices.Interfaces[0], running.XML.Devices.Disks[2]
		var metadata struct {
			Devices []struct {
				Type, Bus, Address, MAC, Serial string
				Tags                            []string
			}
		}
		Expect(json.Unmarshal([]byte(n.readMedium("seed", "openstack/latest/meta_data.json")), &metadata)).To(Succeed())
		Expect(metadata.Devices).To(HaveLen(2))
		Expect(metadata.Devices[0].Address).To(Equal(pciText(nic.Address)))
		Expect(metadata.Devices[0].MAC).To(Equal(nic.MAC.Address))
		Expect(metadata.Devices[0].Tags).To(ConsistOf("blue"))
		Expect(metadata.Devices[1].Address).To(Equal(pciText(disk.Address)))
		Expect(metadata.Devices[1].Serial).To(Equal("s-1"))
	})
})

func pciText(a *libvirtxml.DomainAddress) string {
	return fmt.Sprintf("%04x:%02x:%02x.%x", *a.PCI.Domain, *a.PCI.Bus, *a.PCI.Slot, *a.PCI.Function)
}

// writeInPod writes a file to the Pod, in place of a mount, and returns its path on the node.
func (n *node) writeInPod(path string, content []byte) string {
	GinkgoHelper()
	path = n.daemon.Host(path)
	Expect(os.MkdirAll(filepath.Dir(path), 0o755)).To(Succeed())
	Expect(os.WriteFile(path, content, 0o444)).To(Succeed())
	return path
}
