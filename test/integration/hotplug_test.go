// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package integration_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// hotplugDir makes the launcher Pod's directory for hotplugged volumes, which is the kubelet's emptyDir.
func (n *node) hotplugDir() {
	GinkgoHelper()
	inPod := n.daemon.Host(launcherpod.HotplugDisksDir)
	made := filepath.Join(n.pods, string(agentPodUID), "volumes", "kubernetes.io~empty-dir",
		launcherpod.HotplugDisksVolume)
	for _, dir := range []string{inPod, made,
		filepath.Join(n.logs, vmiKey.Namespace+"_virt-launcher-vm-x_"+string(agentPodUID))} {
		Expect(os.MkdirAll(dir, 0o755)).To(Succeed())
	}
	Expect(os.Chmod(inPod, 0o777)).To(Succeed())
	Expect(unix.Mount(inPod, made, "", unix.MS_BIND, "")).To(Succeed())
	DeferCleanup(unix.Unmount, made, unix.MNT_DETACH)
}

// attachToNode does what the kubelet does for the attachment Pod of a volume, whose claim it returns the mount of.
func (n *node) attachToNode(volume string, uid types.UID) string {
	GinkgoHelper()
	claim := filepath.Join(n.pods, string(uid), "volumes", "kubernetes.io~csi", "pvc-"+volume, "mount")
	name := launcherpod.AttachmentPod(string(agentPodUID), volume)
	for _, dir := range []string{claim, filepath.Join(n.logs, vmiKey.Namespace+"_"+name+"_"+string(uid))} {
		Expect(os.MkdirAll(dir, 0o755)).To(Succeed())
	}
	Expect(unix.Mount("none", claim, "tmpfs", 0, "mode=0755")).To(Succeed())
	DeferCleanup(func() { _ = unix.Unmount(claim, unix.MNT_DETACH) })
	image := filepath.Join(claim, launcherpod.DiskImage)
	Expect(os.WriteFile(image, make([]byte, 4<<20), 0o600)).To(Succeed())
	Expect(os.Chown(image, launcherpod.QEMUUser, launcherpod.QEMUUser)).To(Succeed())
	return claim
}

// change changes the VMI as its users and virt-controller do.
func (n *node) change(spec func(*v1.VirtualMachineInstanceSpec), status func(*v1.VirtualMachineInstanceStatus)) {
	GinkgoHelper()
	vmi := n.vmi()
	spec(&vmi.Spec)
	Expect(n.client.Update(GinkgoT().Context(), vmi)).To(Succeed())
	vmi = n.vmi()
	status(&vmi.Status)
	Expect(n.client.Status().Update(GinkgoT().Context(), vmi)).To(Succeed())
}

// plug adds a volume and its disk to the VMI, unless it has that disk, and the status of a volume that is attached to
// the node.
func (n *node) plug(name string, device v1.DiskDevice, uid types.UID) {
	GinkgoHelper()
	n.change(func(s *v1.VirtualMachineInstanceSpec) {
		if device.CDRom == nil {
			s.Domain.Devices.Disks = append(s.Domain.Devices.Disks, v1.Disk{Name: name, DiskDevice: device})
		}
		s.Volumes = append(s.Volumes,
			v1.Volume{Name: name,
				VolumeSource: v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: name, Hotpluggable: true}}})
	}, func(s *v1.VirtualMachineInstanceStatus) {
		s.VolumeStatus = append(s.VolumeStatus, v1.VolumeStatus{
			Name: name, Phase: v1.HotplugVolumeAttachedToNode, HotplugVolume: &v1.HotplugVolumeStatus{AttachPodUID: uid},
			PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{
				ClaimName: name, Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("4Mi")},
			},
		})
	})
}

// unplug removes a volume, and its disk unless that is a drive.
func (n *node) unplug(name string) {
	GinkgoHelper()
	n.change(func(s *v1.VirtualMachineInstanceSpec) {
		s.Volumes = slices.DeleteFunc(s.Volumes, func(v v1.Volume) bool { return v.Name == name })
		s.Domain.Devices.Disks = slices.DeleteFunc(s.Domain.Devices.Disks,
			func(d v1.Disk) bool { return d.Name == name && d.CDRom == nil })
	}, func(*v1.VirtualMachineInstanceStatus) {})
}

func volumeIs(name string, phase v1.VolumePhase) func(*v1.VirtualMachineInstance) bool {
	return func(vmi *v1.VirtualMachineInstance) bool {
		v := vmistatus.FindVolume(&vmi.Status, name)
		return v != nil && v.Phase == phase
	}
}

// disk returns the path of the medium of a disk that the guest has, "" without a medium, and "none" without a disk.
func (n *node) disk(name string) string {
	GinkgoHelper()
	conn, err := n.manager.Connect(hypervisor.PodRef{UID: agentPodUID, VMI: vmiKey})
	Expect(err).NotTo(HaveOccurred())
	live, err := conn.Domain(GinkgoT().Context(), launcherpod.DomainName(vmiKey.Namespace, vmiKey.Name))
	Expect(err).NotTo(HaveOccurred())
	for _, disk := range live.XML.Devices.Disks {
		if disk.Alias == nil || disk.Alias.Name != domain.DiskAlias(name) {
			continue
		}
		if disk.Source == nil || disk.Source.File == nil {
			return ""
		}
		return disk.Source.File.File
	}
	return "none"
}

// mountsIn returns how many mounts the launcher Pod has in its directory for hotplugged volumes.
func (n *node) mountsIn() int {
	GinkgoHelper()
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", n.daemon.PID()))
	Expect(err).NotTo(HaveOccurred())
	return strings.Count(string(mounts), "/kubevirt/hotplug-disks/")
}

var _ = Describe("The agent and hotplugged volumes", Label("libvirt"), func() {
	It("plugs disks and media into a running guest, and unplugs them", func() {
		vmi := assignedVMI()
		vmi.Spec.Domain.Devices.Disks = append(vmi.Spec.Domain.Devices.Disks, v1.Disk{
			Name: "cd", DiskDevice: v1.DiskDevice{CDRom: &v1.CDRomTarget{Bus: v1.DiskBusSATA}},
		})
		n := newNode(launcherPod(), vmi)
		n.addPrimaryInterface()
		n.writeImage()
		n.linkSocket()
		n.hotplugDir()
		n.settle(isRunning)

		claims := map[string]string{}
		for name, device := range map[string]v1.DiskDevice{
			"data": {Disk: &v1.DiskTarget{Bus: v1.DiskBusSCSI}}, "cd": {CDRom: &v1.CDRomTarget{Bus: v1.DiskBusSATA}},
		} {
			uid := types.UID("attachment-" + name)
			claims[name] = n.attachToNode(name, uid)
			n.plug(name, device, uid)
			n.settle(volumeIs(name, v1.VolumeReady))
			Expect(n.disk(name)).To(Equal(launcherpod.HotplugDisk(name, false)))
		}
		Expect(n.mountsIn()).To(Equal(2))
		plugged := vmistatus.FindVolume(&n.vmi().Status, "data")
		Expect(plugged.Target).To(Equal("sdb"))
		Expect(plugged.Size).To(BeEquivalentTo(4 << 20))

		By("replacing the agent, and losing the attachment Pods")
		n.stopAgent()
		n.startAgent()
		for _, claim := range claims {
			Expect(unix.Unmount(claim, 0)).To(Succeed(), "the kubelet can unmount it")
		}
		n.settle(func(*v1.VirtualMachineInstance) bool {
			_, err := n.manager.Connect(hypervisor.PodRef{UID: agentPodUID, VMI: vmiKey})
			return err == nil
		})
		Expect(n.disk("data")).To(Equal(launcherpod.HotplugDisk("data", false)))

		By("unplugging them")
		for name, left := range map[string]string{"data": "none", "cd": ""} {
			n.unplug(name)
			n.settle(volumeIs(name, v1.HotplugVolumeUnMounted))
			Expect(n.disk(name)).To(Equal(left))
		}
		Expect(n.mountsIn()).To(BeZero())
		Expect(n.guestRuns()).To(BeTrue())
	})

	It("starts a guest with the volumes that it has", func() {
		n := newNode(launcherPod(), assignedVMI())
		n.addPrimaryInterface()
		n.writeImage()
		n.linkSocket()
		n.hotplugDir()
		n.attachToNode("data", "attachment-data")
		n.plug("data", v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}}, "attachment-data")
		n.settle(volumeIs("data", v1.VolumeReady))
		Expect(n.disk("data")).To(Equal(launcherpod.HotplugDisk("data", false)))
	})
})

var _ = Describe("A running Linux guest and hotplugged disks", Label("libvirt"), func() {
	It("uses disks on both buses and releases them", func() {
		g := startLinux()
		ctx := GinkgoT().Context()
		var events atomic.Int64
		Expect(g.conn.Watch(ctx, func() { events.Add(1) })).To(Succeed())
		vmi := &v1.VirtualMachineInstance{}
		facts := domain.Facts{Disks: map[string]domain.DiskFact{}}
		for name, bus := range map[string]v1.DiskBus{"one": v1.DiskBusSCSI, "two": v1.DiskBusVirtio} {
			g.pod.write(launcherpod.HotplugDisk(name, false), ext4())
			vmi.Spec.Domain.Devices.Disks = append(vmi.Spec.Domain.Devices.Disks, v1.Disk{
				Name: name, Serial: name, DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: bus}},
			})
			facts.Disks[name] = domain.DiskFact{Path: launcherpod.HotplugDisk(name, false), Format: hypervisor.FormatRaw}
		}
		plug := func() []domain.Operation {
			GinkgoHelper()
			live, err := g.conn.Domain(ctx, g.domain)
			Expect(err).NotTo(HaveOccurred())
			desired, err := domain.PluggedDisks(vmi, facts)
			Expect(err).NotTo(HaveOccurred())
			operations := domain.DiffDisks(desired, live.XML, nil)
			for _, o := range operations {
				Expect(g.conn.ChangeDisk(ctx, g.domain, o)).To(Succeed())
			}
			return operations
		}
		By("plugging them")
		Expect(plug()).To(HaveLen(2))
		Expect(plug()).To(BeEmpty())
		// The guest finds a disk by its serial number.
		find := func(serial string) string {
			return strings.TrimSpace(
				g.run("for d in /sys/block/*; do case $(cat $d/serial $d/device/vpd_pg80 2>/dev/null | tr -cd 'a-z') in *" +
					serial + "*) echo ${d##*/};; esac; done"))
		}
		for _, name := range []string{"one", "two"} {
			Eventually(find).WithArguments(name).WithTimeout(time.Minute).ShouldNot(BeEmpty())
			device := find(name)
			g.run(fmt.Sprintf("mkdir -p /tmp/%[1]s && mount -t ext4 /dev/%[2]s /tmp/%[1]s && echo written > /tmp/%[1]s/file && sync", name, device))
			Expect(g.run(fmt.Sprintf("cat /tmp/%s/file", name))).To(ContainSubstring("written"))
			g.run("umount /tmp/" + name)
		}

		By("unplugging them")
		events.Store(0)
		facts.Disks, vmi.Spec.Domain.Devices.Disks = nil, nil
		Expect(plug()).To(HaveLen(2))
		Eventually(func() int {
			live, err := g.conn.Domain(ctx, g.domain)
			Expect(err).NotTo(HaveOccurred())
			desired, err := domain.PluggedDisks(vmi, facts)
			Expect(err).NotTo(HaveOccurred())
			return len(domain.DiffDisks(desired, live.XML, nil))
		}).WithTimeout(time.Minute).Should(BeZero())
		Eventually(events.Load).Should(BeNumerically(">=", 2), "libvirt's events about removed devices arrive")
		for _, name := range []string{"one", "two"} {
			out, err := exec.Command("/usr/sbin/debugfs", "-R", "cat /file",
				g.pod.daemon.Host(launcherpod.HotplugDisk(name, false))).Output()
			Expect(err).NotTo(HaveOccurred())
			Expect(string(out)).To(ContainSubstring("written"))
		}
	})
})
