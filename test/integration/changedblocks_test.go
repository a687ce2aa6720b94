// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package integration_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/hypervisor/rpc"
	"github.com/vireo-project/vireo/internal/decide/backup"
	"github.com/vireo-project/vireo/internal/decide/migration/protocol"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

const (
	trackedOverlay = launcherpod.TrackedDisksDir + "/data.qcow2"
	backupsDir     = launcherpod.RuntimeDir + "/backups"
)

// trackedDomain returns the guest's domain with an overlay of its disk.
func trackedDomain(image string) *libvirtxml.Domain {
	GinkgoHelper()
	d := linuxDomain(image)
	disk := &d.Devices.Disks[0]
	disk.Driver = &libvirtxml.DomainDiskDriver{Name: "qemu", Type: "qcow2", Cache: "none", Discard: "unmap", IO: "threads"}
	disk.Source = &libvirtxml.DomainDiskSource{
		File: &libvirtxml.DomainDiskSourceFile{File: trackedOverlay},
		DataStore: &libvirtxml.DomainDiskDataStore{
			Format: &libvirtxml.DomainDiskFormat{Type: "raw"},
			Source: &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: image}},
		},
	}
	disk.BackingStore = &libvirtxml.DomainDiskBackingStore{}
	disk.Alias = &libvirtxml.DomainAlias{Name: "ua-disk-data"}
	return d
}

// trackedGuest is a guest whose disk has an overlay.
type trackedGuest struct {
	*linux
	// chain are the images of the last full backup and of the incremental ones since, in the Pod.
	chain []string
}

// backUp makes a backup of the guest's first disk, a full one if since is empty.
func (g *trackedGuest) backUp(name, since string) {
	GinkgoHelper()
	r := hypervisor.BackupRequest{
		Pool: "backup-" + name, Dir: path.Join(backupsDir, name), Checkpoint: name, Since: since,
		Images: []hypervisor.BackupImage{{Target: "vda", File: "data.qcow2", Tracked: true}},
	}
	ctx := GinkgoT().Context()
	Expect(g.conn.DiscardJobResult(ctx, g.domain)).To(Succeed())
	Expect(g.conn.BeginBackup(ctx, g.domain, r)).To(Succeed())
	var job backup.Job
	Eventually(func(e Gomega) {
		var err error
		job, err = g.conn.BackupJob(ctx, g.domain)
		e.Expect(err).NotTo(HaveOccurred())
		e.Expect(job.State).NotTo(BeElementOf(backup.JobActive, backup.JobOther), "it runs, or is ending")
	}).WithTimeout(2 * time.Minute).Should(Succeed())
	Expect(job).To(Equal(backup.Job{State: backup.JobSucceeded}))
	if since == "" {
		g.chain = nil
	}
	g.chain = append(g.chain, r.File(r.Images[0]))
}

// expectChain compares what the backups have with the raw image. The guest must not write meanwhile.
func (g *trackedGuest) expectChain(image string) {
	GinkgoHelper()
	dir := GinkgoT().TempDir()
	base := ""
	for i, file := range g.chain {
		content, err := os.ReadFile(g.pod.daemon.Host(file))
		Expect(err).NotTo(HaveOccurred())
		AddReportEntry("bytes of "+path.Base(path.Dir(file)), len(content))
		part := filepath.Join(dir, string(rune('a'+i)))
		Expect(os.WriteFile(part, content, 0o600)).To(Succeed())
		if base != "" {
			expectOutput(qemuImg("rebase", "-u", "-f", "qcow2", "-b", base, "-F", "qcow2", part), "")
		}
		base = part
	}
	expectOutput(qemuImg("compare", "-U", "-f", "qcow2", "-F", "raw", base, g.pod.daemon.Host(image)),
		"Images are identical")
}

// blocksOf returns the space that a file occupies, in units of 512 bytes.
func blocksOf(path string) int64 {
	GinkgoHelper()
	var stat unix.Stat_t
	Expect(unix.Stat(path, &stat)).To(Succeed())
	return stat.Blocks
}

func expectOutput(command *exec.Cmd, text string) {
	GinkgoHelper()
	out, err := command.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(out))
	Expect(string(out)).To(ContainSubstring(text))
}

// defineLostCheckpoint makes libvirt know a checkpoint of the only guest, of which QEMU has no bitmaps.
func defineLostCheckpoint(uri, name string) {
	GinkgoHelper()
	conn, err := libvirt.NewConnect(uri)
	Expect(err).NotTo(HaveOccurred())
	defer func() { _, _ = conn.Close() }()
	domains, err := conn.ListAllDomains(0)
	Expect(err).NotTo(HaveOccurred())
	Expect(domains).To(HaveLen(1))
	defer func() { _ = domains[0].Free() }()
	text, err := domains[0].GetXMLDesc(0)
	Expect(err).NotTo(HaveOccurred())
	guest := &libvirtxml.Domain{}
	Expect(guest.Unmarshal(text)).To(Succeed())
	lost := &libvirtxml.DomainCheckpoint{Name: name, CreationTime: "1", Disks: &libvirtxml.DomainCheckpointDisks{}}
	for i := range guest.Devices.Disks {
		if disk := &guest.Devices.Disks[i]; domain.IsTracked(disk) {
			lost.Disks.Disks = append(lost.Disks.Disks,
				libvirtxml.DomainCheckpointDisk{Name: disk.Target.Dev, Checkpoint: "bitmap", Bitmap: name})
		}
	}
	text, err = lost.Marshal()
	Expect(err).NotTo(HaveOccurred())
	created, err := domains[0].CreateCheckpointXML(text, libvirt.DOMAIN_CHECKPOINT_CREATE_REDEFINE)
	Expect(err).NotTo(HaveOccurred())
	Expect(created.Free()).To(Succeed())
}

// checkpoints returns the names of the checkpoints of a guest that have its first disk.
func checkpoints(conn *rpc.Conn, name string) []string {
	GinkgoHelper()
	list, err := conn.Checkpoints(GinkgoT().Context(), name)
	Expect(err).NotTo(HaveOccurred())
	var names []string
	for _, checkpoint := range list {
		Expect(checkpoint.Targets).To(ConsistOf("vda"))
		names = append(names, checkpoint.Name)
	}
	return names
}

var _ = Describe("Changed blocks of a running guest", Label("libvirt"), func() {
	It("are what an incremental backup has, also after the disk has grown and after a discard", func() {
		const image = launcherpod.EphemeralDisksDir + "/data.img"
		p := newPod()
		p.writeOverlay(trackedOverlay, image, ext4Bytes)
		g := &trackedGuest{linux: startLinuxOn(p, image, func(d *libvirtxml.Domain) { *d = *trackedDomain(image) })}
		g.prepareLines("one", 1)
		g.run("cat $lines > /mnt/data/one; cat $lines > /mnt/data/two; sync")
		_, args := process(p.daemon, "qemu-system-x86_64")
		Expect(args).To(ContainElement(And(
			ContainSubstring(`"filename":"`+image+`"`), ContainSubstring(`"direct":true`), ContainSubstring(`"discard":"unmap"`))))
		g.backUp("b1", "")
		g.prepareLines("three", 1)
		g.run("cat $lines > /mnt/data/three; sync")
		g.backUp("b2", "b1")
		g.expectChain(image)
		full, err := os.Stat(p.daemon.Host(g.chain[0]))
		Expect(err).NotTo(HaveOccurred())
		changed, err := os.Stat(p.daemon.Host(g.chain[1]))
		Expect(err).NotTo(HaveOccurred())
		Expect(changed.Size()).To(BeNumerically("<", full.Size()))

		By("deleting the older checkpoint")
		ctx := GinkgoT().Context()
		Expect(g.conn.DeleteCheckpoint(ctx, g.domain, "b1")).To(Succeed())
		Expect(g.conn.DeleteCheckpoint(ctx, g.domain, "b1")).To(Succeed())
		Expect(checkpoints(g.conn, g.domain)).To(ConsistOf("b2"))
		before := blocksOf(p.daemon.Host(image))
		g.run("mount -o remount,discard /mnt/data; rm /mnt/data/one; sync; yes four | head -c 65536 > /mnt/data/four; sync")
		Eventually(func() int64 { return blocksOf(p.daemon.Host(image)) }).
			Should(BeNumerically("<", before-1000), "the discard does not reach the image")
		g.backUp("b3", "b2")
		g.expectChain(image)

		By("growing the disk")
		Expect(g.conn.GrowDisk(ctx, g.domain, "vda", 2*ext4Bytes)).To(Succeed())
		info, err := os.Stat(p.daemon.Host(image))
		Expect(err).NotTo(HaveOccurred())
		Expect(info.Size()).To(BeEquivalentTo(2 * ext4Bytes))
		g.run("echo five | dd of=/dev/vda bs=1 seek=$(($(blockdev --getsize64 /dev/vda) - 512)) conv=notrunc; sync")
		g.backUp("b4", "b3")
		g.expectChain(image)

		By("refusing a backup since a checkpoint that does not exist")
		err = g.conn.BeginBackup(ctx, g.domain, hypervisor.BackupRequest{
			Pool: "backup-x", Dir: path.Join(backupsDir, "x"), Checkpoint: "x", Since: "b1",
			Images: []hypervisor.BackupImage{{Target: "vda", File: "data.qcow2", Tracked: true}},
		})
		Expect(err).To(HaveOccurred())
		AddReportEntry("refused", err.Error())
		Expect(checkpoints(g.conn, g.domain)).To(ConsistOf("b2", "b3", "b4"))
	})

	It("are not known after QEMU was killed, and the image has all data that the guest has flushed", func() {
		const image = launcherpod.EphemeralDisksDir + "/data.img"
		p := newPod()
		p.writeOverlay(trackedOverlay, image, ext4Bytes)
		g := &trackedGuest{linux: startLinuxOn(p, image, func(d *libvirtxml.Domain) { *d = *trackedDomain(image) })}
		g.prepareLines("one", 1)
		g.run("cat $lines > /mnt/data/one; sync")
		g.backUp("b1", "")
		g.run("echo flushed > /mnt/data/log; sync; cat $lines > /mnt/data/two")
		qemu, _ := process(p.daemon, "qemu-system-x86_64")
		Expect(unix.Kill(qemu, unix.SIGKILL)).To(Succeed())

		By("starting the guest in another Pod, with a new overlay")
		next := newPod()
		next.share(p, image)
		next.writeOverlay(trackedOverlay, image, ext4Bytes)
		g = &trackedGuest{linux: bootLinuxIn(next, trackedDomain(image))}
		Expect(strings.TrimSpace(g.run("cat /mnt/data/log"))).To(Equal("flushed"))
		Expect(checkpoints(g.conn, g.domain)).To(BeEmpty())
		g.backUp("b2", "")
		g.run("echo more >> /mnt/data/log; sync")
		g.backUp("b3", "b2")
		g.expectChain(image)
	})

	It("stay tracked after a migration that failed, and are not after one that succeeded", func() {
		m := &podPair{sourcePod: newPod(), targetPod: newPod(), address: targetAddress}
		join(m.sourcePod, m.targetPod)
		// A second disk is copied, as that of a containerDisk is.
		const copiedDisk = launcherpod.EphemeralDisksDir + "/copied.img"
		withCopiedDisk := func() *libvirtxml.Domain {
			d := trackedDomain(sharedDisk)
			d.Devices.Disks = append(d.Devices.Disks, libvirtxml.DomainDisk{
				Device: "disk", Driver: &libvirtxml.DomainDiskDriver{Name: "qemu", Type: "raw", Cache: "none"},
				Source: &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: copiedDisk}},
				Target: &libvirtxml.DomainDiskTarget{Dev: "vdb", Bus: "virtio"},
				Alias:  &libvirtxml.DomainAlias{Name: "ua-disk-copied"},
			})
			return d
		}
		for _, p := range []*pod{m.sourcePod, m.targetPod} {
			p.writeOverlay(trackedOverlay, sharedDisk, ext4Bytes)
			p.write(copiedDisk, make([]byte, diskBytes))
		}
		g := &trackedGuest{linux: bootLinuxOn(m.sourcePod, sharedDisk, func(d *libvirtxml.Domain) { *d = *withCopiedDisk() })}
		m.guest = g.linux
		m.targetPod.share(m.sourcePod, sharedDisk)
		m.targetPod.prepareKernel(guestBoot())
		m.sourceConn, m.targetConn = m.guest.conn, m.targetPod.dial()
		ctx := GinkgoT().Context()
		request := func() hypervisor.TransferRequest {
			GinkgoHelper()
			live, err := m.sourceConn.LiveXML(ctx, m.guest.domain)
			Expect(err).NotTo(HaveOccurred())
			r := hypervisor.TransferRequest{Domain: m.guest.domain, Address: m.address, CopyDisks: []string{"vdb"},
				DialTarget: m.dial}
			r.XML, err = domain.ForTarget(live, withCopiedDisk())
			Expect(err).NotTo(HaveOccurred())
			m.installCertificates(&r)
			return r
		}
		g.run("echo before > /mnt/data/log; sync")
		g.backUp("b1", "")
		g.run("echo more >> /mnt/data/log; sync")

		By("failing when all is transferred")
		r := request()
		failed := false
		r.BeforeFinish = func(context.Context) error {
			failed = true
			return errors.New("the test does not want it")
		}
		err := m.sourceConn.Transfer(ctx, r)
		Expect(err).To(MatchError(ContainSubstring("the test does not want it")))
		Eventually(m.targetState).Should(Equal(protocol.TargetAbsent))
		Expect(failed).To(BeTrue())
		Expect(checkpoints(m.sourceConn, m.guest.domain)).To(ConsistOf("b1"))
		if m.sourceState().Domain != protocol.SourceRunning {
			Expect(m.sourceConn.ResumeSource(ctx, m.guest.domain)).To(Succeed())
		}
		g.run("echo again >> /mnt/data/log; sync")
		g.backUp("b2", "b1")
		g.expectChain(sharedDisk)

		By("migrating")
		m.targetPod.writeOverlay(trackedOverlay, sharedDisk, ext4Bytes)
		Expect(m.sourceConn.Transfer(ctx, request())).To(Succeed())
		migrated := m.resumeOnTarget()
		Expect(strings.TrimSpace(migrated.run("echo after >> /mnt/data/log; sync; cat /mnt/data/log"))).
			To(Equal("before\nmore\nagain\nafter"))
		Expect(checkpoints(m.targetConn, m.guest.domain)).To(BeEmpty())
		there := &trackedGuest{linux: migrated}
		there.backUp("b3", "")
		migrated.run("echo last >> /mnt/data/log; sync")
		there.backUp("b4", "b3")
		there.expectChain(sharedDisk)
	})

	It("of a block device are tracked, also after it has grown", func() {
		const device = "/dev/tracked"
		p := newPod()
		grow := p.prepareBlockDevice(device)
		p.writeOverlay(launcherpod.TrackedDisksDir+"/device.qcow2", device, diskBytes)
		const image = launcherpod.EphemeralDisksDir + "/data.img"
		g := &trackedGuest{linux: bootLinuxOn(p, image, func(d *libvirtxml.Domain) {
			tracked := trackedDomain(image).Devices.Disks[0]
			tracked.Source = &libvirtxml.DomainDiskSource{
				File: &libvirtxml.DomainDiskSourceFile{File: launcherpod.TrackedDisksDir + "/device.qcow2"},
				DataStore: &libvirtxml.DomainDiskDataStore{
					Format: &libvirtxml.DomainDiskFormat{Type: "raw"},
					Source: &libvirtxml.DomainDiskSource{Block: &libvirtxml.DomainDiskSourceBlock{Dev: device}},
				},
			}
			tracked.Serial = ""
			d.Devices.Disks[0].Target.Dev = "vdb"
			d.Devices.Disks = append([]libvirtxml.DomainDisk{tracked}, d.Devices.Disks...)
			d.Devices.Disks[0].Target = &libvirtxml.DomainDiskTarget{Dev: "vda", Bus: "virtio"}
		})}
		ctx := GinkgoT().Context()
		disk := strings.TrimSpace(g.run("for d in vda vdb; do [ $(cat /sys/block/$d/size) = 2048 ] && echo $d; done"))
		g.run("yes one | dd of=/dev/" + disk + " bs=65536 count=4 conv=fsync")
		g.backUp("b1", "")
		g.run("yes two | dd of=/dev/" + disk + " bs=65536 count=2 seek=8 conv=fsync")
		grow(4 * diskBytes)
		Expect(g.conn.GrowDisk(ctx, g.domain, "vda", 4*diskBytes)).To(Succeed())
		sizes, err := g.conn.DiskSizes(ctx, g.domain)
		Expect(err).NotTo(HaveOccurred())
		Expect(sizes).To(HaveKeyWithValue("vda", BeEquivalentTo(4*diskBytes)))
		g.run("yes three | dd of=/dev/" + disk + " bs=65536 count=2 seek=40 conv=fsync")
		g.backUp("b2", "b1")
		g.expectChain(device)
	})
})

var _ = Describe("The agent and changed blocks", Label("libvirt"), func() {
	It("backs up what has changed of an image and of a device", func() {
		vmi := assignedVMI()
		vmi.Status.ChangedBlockTracking = &v1.ChangedBlockTrackingStatus{State: v1.ChangedBlockTrackingInitializing}
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
		image := n.writeInPod(launcherpod.DiskDir("file")+"/disk.img", make([]byte, 2*diskBytes))
		target := n.daemon.Host(launcherpod.UtilityVolumeDir("target"))
		Expect(os.MkdirAll(target, 0o755)).To(Succeed())
		for _, path := range []string{image, target} {
			Expect(os.Chown(path, launcherpod.QEMUUser, launcherpod.QEMUUser)).To(Succeed())
		}
		Expect(os.Chmod(image, 0o600)).To(Succeed())
		grow := (&pod{daemon: n.daemon}).prepareBlockDevice(launcherpod.BlockDevice("device"))
		n.linkSocket()
		n.settle(isRunning)
		Expect(n.vmi().Status.TrackedVolumes).To(ConsistOf("device", "file"))
		n.addUtilityVolume("target")

		By("copying everything first")
		intent := &backup.Intent{
			ID: "a", UtilityVolume: "target", Directory: "vm/a", FilePrefix: "a-", Volumes: []string{"file", "device"},
			Checkpoint: "of-a",
		}
		Expect(n.backUp(intent)).To(
			And(HaveField("Stage", v1.DiskBackupSucceeded), HaveField("Checkpoint", "of-a"), HaveField("Since", "")))

		By("copying what has changed with a restarted agent")
		n.stopAgent()
		n.startAgent()
		intent = &backup.Intent{
			ID: "b", UtilityVolume: "target", Directory: "vm/b", FilePrefix: "b-", Volumes: []string{"file", "device"},
			Checkpoint: "of-b", Since: "of-a", Kept: []string{"of-a"},
		}
		Expect(n.backUp(intent)).To(
			And(HaveField("Stage", v1.DiskBackupSucceeded), HaveField("Checkpoint", "of-b"), HaveField("Since", "of-a")))
		for _, volume := range intent.Volumes {
			Expect(filepath.Join(target, intent.File(volume))).To(BeAnExistingFile())
		}

		By("copying everything if libvirt refuses an incremental backup, since the bitmaps are missing")
		defineLostCheckpoint(n.daemon.URI(), "lost")
		intent = &backup.Intent{
			ID: "lost", UtilityVolume: "target", Directory: "vm/lost", FilePrefix: "lost-", Volumes: []string{"file", "device"},
			Checkpoint: "of-lost", Since: "lost", Kept: []string{"lost"},
		}
		Expect(n.backUp(intent)).To(
			And(HaveField("Stage", v1.DiskBackupSucceeded), HaveField("Checkpoint", "of-lost"), HaveField("Since", ""),
				HaveField("FullBecause", ContainSubstring("libvirt refused an incremental one"))))
		intent = &backup.Intent{
			ID: "next", UtilityVolume: "target", Directory: "vm/next", FilePrefix: "next-", Volumes: []string{"file", "device"},
			Checkpoint: "of-next", Since: "of-lost", Kept: []string{"of-lost"},
		}
		Expect(n.backUp(intent)).To(And(HaveField("Stage", v1.DiskBackupSucceeded), HaveField("Since", "of-lost")))

		By("growing both disks")
		grow(4 * diskBytes)
		n.setCapacity("4Mi")
		n.settle(func(vmi *v1.VirtualMachineInstance) bool {
			grown := 0
			for _, volume := range vmi.Status.VolumeStatus {
				if volume.Size == 4*diskBytes {
					grown++
				}
			}
			return grown == 2
		})
		intent = &backup.Intent{
			ID: "c", UtilityVolume: "target", Directory: "vm/c", FilePrefix: "c-", Volumes: []string{"file", "device"},
			Checkpoint: "of-c", Since: "gone",
		}
		Expect(n.backUp(intent)).To(And(HaveField("Stage", v1.DiskBackupSucceeded), HaveField("Since", ""),
			HaveField("FullBecause", ContainSubstring("does not have the checkpoint gone"))))
	})
})
