// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package integration_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/media/overlay"
	"github.com/vireo-project/vireo/internal/agent/migrate"
	"github.com/vireo-project/vireo/internal/agent/migrate/peer"
	"github.com/vireo-project/vireo/internal/decide/migration/protocol"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// keptOverlay is the overlay of the guest's disk, with the name that the agent gives it.
var keptOverlay = launcherpod.TrackedDisksDir + "/" + overlay.FileName("data", ext4Bytes)

// ext4Bytes is the size of what ext4 returns.
const ext4Bytes = 16 << 20

// keptPair is a guest with a tracked disk, and the two Pods between which it migrates.
type keptPair struct {
	*podPair
	guest *trackedGuest
	// alter changes what is written to the target's overlay. Nil writes all of it.
	alter func(name string, at uint64, data []byte) error
	// then is called when all is written, and its error ends the migration. Nil does nothing.
	then func() error
}

func keptDomain() *libvirtxml.Domain {
	GinkgoHelper()
	d := trackedDomain(sharedDisk)
	d.Devices.Disks[0].Source.File.File = keptOverlay
	return d
}

// newKeptPair boots the guest with a file system on a tracked disk.
func newKeptPair() *keptPair {
	GinkgoHelper()
	guestBoot()
	k := &keptPair{podPair: &podPair{sourcePod: newPod(), targetPod: newPod(), address: targetAddress}}
	join(k.sourcePod, k.targetPod)
	k.sourcePod.writeOverlay(keptOverlay, sharedDisk, ext4Bytes)
	k.guest = &trackedGuest{linux: startLinuxOn(k.sourcePod, sharedDisk,
		func(d *libvirtxml.Domain) { *d = *keptDomain() })}
	k.podPair.guest = k.guest.linux
	k.sourceConn = k.guest.conn
	k.prepareTarget()
	return k
}

// prepareTarget prepares the target's Pod.
func (k *keptPair) prepareTarget() {
	GinkgoHelper()
	k.targetPod.share(k.sourcePod, sharedDisk)
	k.targetPod.prepareKernel(guestBoot())
	k.targetConn = k.targetPod.dial()
}

// replaceTarget makes the target of the last migration the source, and a new Pod the target. A libvirtd that had the
// guest before would remember its checkpoints.
func (k *keptPair) replaceTarget(migrated *linux) {
	GinkgoHelper()
	k.podPair.guest, k.sourcePod, k.sourceConn, k.targetPod = migrated, k.targetPod, k.targetConn, newPod()
	Expect(inNamespace(k.sourcePod.daemon.NetNS(), func() error {
		link, err := netlink.LinkByName(launcherpod.PrimaryInterface)
		if err != nil {
			return err
		}
		return netlink.LinkDel(link)
	})).To(Succeed())
	join(k.sourcePod, k.targetPod)
	k.prepareTarget()
}

// alteredWriter passes writes to the overlays of a Pod on, as far as alter returns no error.
type alteredWriter struct {
	peer.Launcher
	alter func(name string, at uint64, data []byte) error
}

// UploadAt implements peer.Launcher.
func (w alteredWriter) UploadAt(ctx context.Context, pool, name string, at uint64, data []byte) error {
	if w.alter != nil {
		if err := w.alter(name, at, data); err != nil {
			return err
		}
	}
	return w.Launcher.UploadAt(ctx, pool, name, at, data)
}

// transfer transfers the guest with the bitmaps of its disk, which the agents send as migrate.Transfers does. An error
// of the target is reported, and the migration continues.
func (k *keptPair) transfer(ctx context.Context, change func(*hypervisor.TransferRequest)) error {
	GinkgoHelper()
	k.targetPod.writeOverlay(keptOverlay, sharedDisk, ext4Bytes)
	live, err := k.sourceConn.LiveXML(ctx, k.guest.domain)
	Expect(err).NotTo(HaveOccurred())
	built := keptDomain()
	r := hypervisor.TransferRequest{Domain: k.guest.domain, Address: k.address, DialTarget: k.dial}
	r.XML, err = domain.ForTarget(live, built)
	Expect(err).NotTo(HaveOccurred())
	r.KeepBitmaps = func(ctx context.Context) error {
		begin := time.Now()
		disks, err := migrate.ReadBitmaps(ctx, k.sourceConn, live, built, nil)
		Expect(err).NotTo(HaveOccurred())
		read := time.Since(begin)
		err = peer.WriteBitmaps(ctx, alteredWriter{k.targetConn, k.alter}, built, disks)
		AddReportEntry("bitmaps",
			fmt.Sprintf("%d disks, read in %s, written after %s, %v", len(disks), read, time.Since(begin), err))
		if k.then != nil {
			return k.then()
		}
		return nil
	}
	if change != nil {
		change(&r)
	}
	return k.sourceConn.Transfer(ctx, r)
}

// migrate migrates the guest. The images of its backups are on a claim that the target mounts, too.
func (k *keptPair) migrate() {
	GinkgoHelper()
	Expect(k.transfer(GinkgoT().Context(), nil)).To(Succeed())
	Expect(checkpoints(k.targetConn, k.guest.domain)).To(BeEmpty())
	next := &trackedGuest{linux: k.resumeOnTarget(), chain: k.guest.chain}
	for _, file := range next.chain {
		content, err := os.ReadFile(k.sourcePod.daemon.Host(file))
		Expect(err).NotTo(HaveOccurred())
		k.targetPod.write(file, content)
		Expect(os.Chown(k.targetPod.daemon.Host(backupsDir), launcherpod.QEMUUser, launcherpod.QEMUUser)).To(Succeed())
	}
	k.replaceTarget(next.linux)
	k.guest = next
}

// write makes the guest write a line, and a file of random data.
func (k *keptPair) write(line string) {
	GinkgoHelper()
	k.guest.run(fmt.Sprintf("echo %s >> /mnt/data/log; head -c 100000 /dev/urandom > /mnt/data/%s; sync", line, line))
}

// redefine makes libvirt know a checkpoint of the guest that only QEMU has, as the agent does before a backup.
func (k *keptPair) redefine(name string) error {
	return k.guest.conn.RedefineCheckpoint(GinkgoT().Context(), k.guest.domain,
		hypervisor.Checkpoint{Name: name, Targets: []string{"vda"}})
}

// incremental makes an incremental backup, and compares the chain with the disk.
func (k *keptPair) incremental(name, since string) {
	GinkgoHelper()
	k.guest.backUp(name, since)
	k.guest.expectChain(sharedDisk)
	last, err := os.Stat(k.guest.pod.daemon.Host(k.guest.chain[len(k.guest.chain)-1]))
	Expect(err).NotTo(HaveOccurred())
	first, err := os.Stat(k.guest.pod.daemon.Host(k.guest.chain[0]))
	Expect(err).NotTo(HaveOccurred())
	AddReportEntry("bytes of "+name, fmt.Sprintf("%d, of the full backup %d", last.Size(), first.Size()))
}

// expectNoBitmaps checks that no backup can be an incremental one, and that a full one works.
func (k *keptPair) expectNoBitmaps(name string, lost ...string) {
	GinkgoHelper()
	for _, checkpoint := range lost {
		Expect(k.redefine(checkpoint)).To(MatchError(ContainSubstring("inconsistent")))
	}
	Expect(checkpoints(k.guest.conn, k.guest.domain)).To(BeEmpty())
	k.guest.backUp(name, "")
	k.write(name)
	k.incremental(name+"-next", name)
}

// expectOnSource resumes the guest, if libvirt has not, and checks that the target has none.
func (k *keptPair) expectOnSource() {
	GinkgoHelper()
	Eventually(k.targetState).Should(Equal(protocol.TargetAbsent))
	Eventually(func(e Gomega) {
		if k.sourceState().Domain == protocol.SourceSuspended {
			e.Expect(k.sourceConn.ResumeSource(GinkgoT().Context(), k.guest.domain)).To(Succeed())
		}
		e.Expect(k.sourceState()).To(Equal(hypervisor.SourceState{Domain: protocol.SourceRunning}))
	}).WithTimeout(time.Minute).Should(Succeed())
}

var _ = Describe("Changed blocks of a guest that migrates", Label("libvirt"), func() {
	It("are what the next backup has, after each migration", func() {
		k := newKeptPair()
		k.write("one")
		k.guest.backUp("b1", "")
		k.write("two")
		k.incremental("b2", "b1")
		k.write("three")
		k.migrate()
		k.write("four")
		Expect(k.redefine("missing")).To(MatchError(ContainSubstring("inconsistent")))
		Expect(k.redefine("b2")).To(Succeed())
		Expect(checkpoints(k.guest.conn, k.guest.domain)).To(ConsistOf("b2"))
		k.incremental("b3", "b2")
		// An older one of another tracker.
		Expect(k.redefine("b1")).To(Succeed())
		k.guest.chain = k.guest.chain[:1]
		k.incremental("b4", "b1")

		By("migrating twice without a backup in between")
		k.write("five")
		k.migrate()
		k.write("six")
		k.migrate()
		k.write("seven")
		Expect(k.redefine("b4")).To(Succeed())
		k.incremental("b5", "b4")
		Expect(k.guest.conn.DeleteCheckpoint(GinkgoT().Context(), k.guest.domain, "b4")).To(Succeed())
		k.write("eight")
		k.migrate()
		Expect(k.redefine("b4")).To(MatchError(ContainSubstring("inconsistent")))
		Expect(k.redefine("b5")).To(Succeed())
		k.incremental("b6", "b5")
	})

	It("stay tracked at the source if the migration fails when the target has them", func() {
		k := newKeptPair()
		k.write("one")
		k.guest.backUp("b1", "")
		k.write("two")

		By("failing after they were written")
		k.then = func() error { return errors.New("the test does not want it") }
		Expect(k.transfer(GinkgoT().Context(), nil)).To(MatchError(ContainSubstring("does not want it")))
		k.expectOnSource()
		k.write("three")
		k.incremental("b2", "b1")

		By("killing the target's QEMU after they were written")
		k.then = func() error {
			qemu, _ := process(k.targetPod.daemon, "qemu-system-x86_64")
			return unix.Kill(qemu, unix.SIGKILL)
		}
		Expect(k.transfer(GinkgoT().Context(), nil)).NotTo(Succeed())
		k.expectOnSource()
		k.write("four")
		k.incremental("b3", "b2")

		By("ending the source's agent after they were written")
		ctx, stop := context.WithCancel(GinkgoT().Context())
		defer stop()
		k.then = nil
		Expect(k.transfer(ctx, func(r *hypervisor.TransferRequest) {
			r.DialTarget = func(ctx context.Context) (net.Conn, error) {
				conn, err := k.dial(ctx)
				return &cutConn{Conn: conn, stop: stop}, err
			}
		})).NotTo(Succeed())
		k.expectOnSource()
		k.write("five")
		k.incremental("b4", "b3")

		By("migrating")
		k.write("six")
		k.migrate()
		k.write("seven")
		Expect(k.redefine("b4")).To(Succeed())
		k.incremental("b5", "b4")
	})

	It("are not known at the target unless all were written before it opens the overlay", func() {
		k := newKeptPair()
		k.write("one")
		k.guest.backUp("b1", "")
		k.write("two")
		k.guest.backUp("b2", "b1")
		full := errors.New("no space left on device")
		k.alter = func(_ string, at uint64, _ []byte) error {
			if at == 0 {
				return full
			}
			return nil
		}
		k.migrate()
		k.expectNoBitmaps("c1", "b1", "b2")

		By("without anything")
		k.alter = func(string, uint64, []byte) error { return full }
		k.migrate()
		k.expectNoBitmaps("d1", "c1", "c1-next")

		By("refusing to write when the guest is complete")
		Expect(peer.WriteBitmaps(GinkgoT().Context(), k.guest.conn, keptDomain(), []peer.DiskBitmaps{
			{Volume: "data", Bytes: ext4Bytes, Bitmaps: []overlay.Bitmap{{Name: "d1", Granularity: 16}}},
		})).To(MatchError(ContainSubstring("not being received")))
		k.write("last")
		k.incremental("d2", "d1-next")
	})

	It("are not sent in a post-copy", func() {
		allowPostCopy()
		k := newKeptPair()
		k.write("one")
		k.guest.backUp("b1", "")
		sent := false
		k.then = func() error {
			sent = true
			return nil
		}
		done := make(chan error, 1)
		go func() {
			defer GinkgoRecover()
			done <- k.transfer(GinkgoT().Context(),
				func(r *hypervisor.TransferRequest) { r.PostCopy, r.Bandwidth = true, 8<<20 })
		}()
		Eventually(func() bool {
			progress, err := k.sourceConn.TransferProgress(GinkgoT().Context(), k.guest.domain)
			Expect(err).NotTo(HaveOccurred())
			return progress != nil && progress.Memory.Processed > 0
		}).WithTimeout(time.Minute).Should(BeTrue())
		Expect(k.sourceConn.StartPostCopy(GinkgoT().Context(), k.guest.domain)).To(Succeed())
		Eventually(done).WithTimeout(2 * time.Minute).Should(Receive(Succeed()))
		Expect(sent).To(BeFalse())
		k.guest = &trackedGuest{linux: k.resumeOnTarget()}
		k.expectNoBitmaps("c1", "b1")
	})

	It("are in ten incremental backups under load with a migration in between, and in none after QEMU was killed", func() {
		k := newKeptPair()
		k.write("one")
		// Writes random blocks of 4 KiB all the time.
		const load = `(while :; do dd if=/dev/urandom of=/mnt/data/load bs=4096 count=1 seek=$((RANDOM % 500)) conv=notrunc,fsync 2>/dev/null; ` +
			`rm -f /mnt/data/gone; head -c 20000 /dev/urandom > /mnt/data/gone; done) & echo $! > /tmp/load`
		pause := func() { k.guest.run("kill -STOP $(cat /tmp/load); sleep 1; sync") }
		k.guest.run(load)
		k.guest.backUp("b0", "")
		last := "b0"
		for i := 1; i <= 10; i++ {
			if i == 5 {
				k.migrate()
				Expect(k.redefine(last)).To(Succeed())
			}
			time.Sleep(300 * time.Millisecond)
			next := fmt.Sprintf("b%d", i)
			k.guest.backUp(next, last)
			last = next
		}
		Expect(k.guest.chain).To(HaveLen(11))
		By("restoring the chain")
		pause()
		k.guest.backUp("quiet", last)
		k.guest.expectChain(sharedDisk)

		By("killing QEMU")
		k.guest.run("kill -CONT $(cat /tmp/load); echo flushed >> /mnt/data/log; sync")
		qemu, _ := process(k.guest.pod.daemon, "qemu-system-x86_64")
		Expect(unix.Kill(qemu, unix.SIGKILL)).To(Succeed())
		next := newPod()
		next.share(k.guest.pod, sharedDisk)
		next.writeOverlay(keptOverlay, sharedDisk, ext4Bytes)
		k.guest = &trackedGuest{linux: bootLinuxIn(next, keptDomain())}
		Expect(k.guest.run("cat /mnt/data/log")).To(ContainSubstring("flushed"))
		k.expectNoBitmaps("c1", "b0", last, "quiet")
		Expect(strings.Count(k.guest.run("cat /mnt/data/log"), "flushed")).To(Equal(1))
	})
})
