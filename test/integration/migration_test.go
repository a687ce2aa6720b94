// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package integration_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/hypervisor/rpc"
	"github.com/vireo-project/vireo/internal/agent/migrate/qemutls"
	"github.com/vireo-project/vireo/internal/broker/podprocess"
	"github.com/vireo-project/vireo/internal/decide/migration/protocol"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

const (
	sourceAddress, sourceAddress6 = "192.0.2.1", "2001:db8::1"
	targetAddress, targetAddress6 = "192.0.2.2", "2001:db8::2"
)

// sharedDisk is a claim that both Pods mount.
var sharedDisk = launcherpod.DiskDir("data") + "/" + launcherpod.DiskImage

// podPair is a guest and the two Pods between which it migrates.
type podPair struct {
	guest                  *linux
	sourcePod, targetPod   *pod
	sourceConn, targetConn *rpc.Conn
	// address is the target Pod's.
	address string
}

// newPodPair boots a guest on a disk that both Pods share.
func newPodPair() *podPair {
	GinkgoHelper()
	return newPodPairOf(func(*libvirtxml.Domain) {})
}

// newPodPairOf boots a guest, whose domain adapt changes, on a disk that both Pods share.
func newPodPairOf(adapt func(*libvirtxml.Domain)) *podPair {
	GinkgoHelper()
	guestBoot()
	m := &podPair{sourcePod: newPod(), targetPod: newPod(), address: targetAddress}
	join(m.sourcePod, m.targetPod)
	m.guest = startLinuxOn(m.sourcePod, sharedDisk, func(d *libvirtxml.Domain) {
		*d = *sharedDomain()
		adapt(d)
	})
	m.targetPod.share(m.sourcePod, sharedDisk)
	m.targetPod.prepareKernel(guestBoot())
	m.sourceConn, m.targetConn = m.guest.conn, m.targetPod.dial()
	return m
}

// sharedDomain returns the guest's domain, which is the same in both Pods.
func sharedDomain() *libvirtxml.Domain {
	GinkgoHelper()
	d := linuxDomain(sharedDisk)
	d.Devices.Disks[0].Driver.Cache = "none"
	d.Devices.Disks[0].Alias = &libvirtxml.DomainAlias{Name: "ua-disk-data"}
	return d
}

// join connects the network namespaces of two Pods.
func join(from, to *pod) {
	GinkgoHelper()
	up := func(link netlink.Link, addresses ...string) error {
		for _, address := range addresses {
			parsed, err := netlink.ParseAddr(address)
			if err != nil {
				return err
			}
			// An address that is still checked for duplicates cannot be listened on.
			parsed.Flags = unix.IFA_F_NODAD
			if err := netlink.AddrAdd(link, parsed); err != nil {
				return err
			}
		}
		return netlink.LinkSetUp(link)
	}
	Expect(inNamespace(from.daemon.NetNS(), func() error {
		veth := &netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: launcherpod.PrimaryInterface}, PeerName: launcherpod.PrimaryInterface,
			PeerNamespace: netlink.NsPid(to.daemon.PID()),
		}
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		return up(veth, sourceAddress+"/24", sourceAddress6+"/64")
	})).To(Succeed())
	Expect(inNamespace(to.daemon.NetNS(), func() error {
		link, err := netlink.LinkByName(launcherpod.PrimaryInterface)
		if err != nil {
			return err
		}
		return up(link, targetAddress+"/24", targetAddress6+"/64")
	})).To(Succeed())
}

// share links a file of another Pod into this one, so that both share its locks.
func (p *pod) share(from *pod, podPath string) {
	GinkgoHelper()
	path := p.daemon.Host(podPath)
	Expect(os.MkdirAll(filepath.Dir(path), 0o755)).To(Succeed())
	Expect(os.Link(from.daemon.Host(podPath), path)).To(Succeed())
}

// request returns a transfer of the running guest to the target Pod.
func (m *podPair) request() hypervisor.TransferRequest {
	GinkgoHelper()
	live, err := m.sourceConn.LiveXML(GinkgoT().Context(), m.guest.domain)
	Expect(err).NotTo(HaveOccurred())
	xml, err := domain.ForTarget(live, sharedDomain())
	Expect(err).NotTo(HaveOccurred())
	return hypervisor.TransferRequest{
		Domain: m.guest.domain, XML: xml, Address: m.address,
		DialTarget: m.dial,
	}
}

// dial connects to the target's libvirtd.
func (m *podPair) dial(ctx context.Context) (net.Conn, error) {
	var dialer net.Dialer
	return dialer.DialContext(ctx, "unix", m.targetPod.daemon.Socket())
}

func (m *podPair) sourceState() hypervisor.SourceState {
	GinkgoHelper()
	state, err := m.sourceConn.SourceState(GinkgoT().Context(), m.guest.domain)
	Expect(err).NotTo(HaveOccurred())
	return state
}

func (m *podPair) targetState() protocol.TargetDomain {
	GinkgoHelper()
	state, err := m.targetConn.TargetState(GinkgoT().Context(), m.guest.domain)
	Expect(err).NotTo(HaveOccurred())
	return state
}

// resumeOnTarget resumes the guest on the target, and opens its console there.
func (m *podPair) resumeOnTarget() *linux {
	GinkgoHelper()
	begin := time.Now()
	Expect(m.targetConn.ResumeTarget(GinkgoT().Context(), m.guest.domain)).To(Succeed())
	AddReportEntry("resumed in", time.Since(begin).String())
	Expect(m.targetState()).To(Equal(protocol.TargetRunning))
	migrated := &linux{pod: m.targetPod, conn: m.targetConn, domain: m.guest.domain, commands: m.guest.commands}
	migrated.openConsole()
	return migrated
}

// reverse exchanges source and target.
func (m *podPair) reverse(migrated *linux) {
	m.guest, m.sourcePod, m.targetPod, m.sourceConn, m.targetConn = migrated, m.targetPod, m.sourcePod, m.targetConn,
		m.sourceConn
	if m.address == targetAddress {
		m.address = sourceAddress
	} else {
		m.address = targetAddress
	}
}

// installCertificates writes the certificates of one migration to both Pods.
func (m *podPair) installCertificates(r *hypervisor.TransferRequest) {
	GinkgoHelper()
	ctx, uid := GinkgoT().Context(), types.UID("3f0e0d4c-8ab8-4d47-a0a5-7e3ce5fa3a2e")
	pair, err := qemutls.New(uid, netip.MustParseAddr(m.address), time.Now())
	Expect(err).NotTo(HaveOccurred())
	Expect(m.targetConn.PutMigrationTLS(ctx, pair.Server)).To(Succeed())
	Expect(m.sourceConn.PutMigrationTLS(ctx, pair.Client)).To(Succeed())
	r.TLSName = qemutls.Name(uid)
}

// qemusOf returns the number of the Pod's running QEMU processes.
func qemusOf(p *pod) int {
	GinkgoHelper()
	process, err := os.Open(fmt.Sprintf("/proc/%d", p.daemon.PID()))
	Expect(err).NotTo(HaveOccurred())
	defer func() { Expect(process.Close()).To(Succeed()) }()
	count := 0
	Expect(podprocess.EachQEMU(process, func(qemu *os.File, _ int) {
		stat, err := podprocess.OpenIn(qemu, "stat")
		if err != nil {
			return
		}
		defer func() { _ = stat.Close() }()
		line, err := io.ReadAll(stat)
		// A zombie has ended.
		if err == nil && !strings.Contains(string(line), ") Z ") {
			count++
		}
	})).To(Succeed())
	return count
}

// allowPostCopy permits unprivileged processes such as QEMU to handle page faults of the guest's memory, which
// post-copy needs.
func allowPostCopy() {
	GinkgoHelper()
	const setting = "/proc/sys/vm/unprivileged_userfaultfd"
	before, err := os.ReadFile(setting)
	Expect(err).NotTo(HaveOccurred())
	Expect(os.WriteFile(setting, []byte("1"), 0o600)).To(Succeed())
	DeferCleanup(func() { Expect(os.WriteFile(setting, before, 0o600)).To(Succeed()) })
}

var _ = Describe("A migration between two libvirtds", Label("libvirt"), func() {
	It("transfers a running guest, which stays paused on the target until it is resumed", func() {
		m := newPodPair()
		m.guest.run("mount /dev/vda /mnt/data; echo before > /mnt/data/log; sync")
		Expect(m.sourceState()).To(Equal(hypervisor.SourceState{Domain: protocol.SourceRunning}))
		Expect(m.targetState()).To(Equal(protocol.TargetAbsent))

		begin := time.Now()
		Expect(m.sourceConn.Transfer(GinkgoT().Context(), m.request())).To(Succeed())
		AddReportEntry("transferred in", time.Since(begin).String())
		Expect(m.sourceState()).To(Equal(hypervisor.SourceState{Domain: protocol.SourceMigrated}))
		Expect(m.targetState()).To(Equal(protocol.TargetComplete))
		Consistently(m.targetState).WithTimeout(time.Second).Should(Equal(protocol.TargetComplete))

		migrated := m.resumeOnTarget()
		Expect(strings.TrimSpace(migrated.run("echo after >> /mnt/data/log; sync; cat /mnt/data/log"))).
			To(Equal("before\nafter"))
	})

	It("reports the end of the source's QEMU before libvirt does, and not before QEMU has ended", extended(1), func() {
		m := newPodPair()
		ctx := GinkgoT().Context()
		r := m.request()
		var ended, returned time.Time
		qemus := -1
		r.OnQEMUExit = func() {
			ended, qemus = time.Now(), qemusOf(m.sourcePod)
			Expect(m.targetState()).To(Equal(protocol.TargetComplete))
			Expect(m.targetConn.ResumeTarget(ctx, m.guest.domain)).To(Succeed())
		}
		Expect(qemusOf(m.sourcePod)).To(Equal(1))
		Expect(m.sourceConn.Transfer(ctx, r)).To(Succeed())
		returned = time.Now()
		Expect(ended).NotTo(BeZero())
		Expect(qemus).To(BeZero(), "QEMU has not ended")
		AddReportEntry("before libvirt", returned.Sub(ended).String())
		Expect(m.sourceState()).To(Equal(hypervisor.SourceState{Domain: protocol.SourceMigrated}))
		Expect(strings.TrimSpace(m.resumeOnTarget().run("echo $((40+2))"))).To(Equal("42"))
	})

	It("is encrypted with its own certificates, and does not start with those of another migration", extended(2), func() {
		m := newPodPair()
		ctx := GinkgoT().Context()
		r := m.request()
		m.installCertificates(&r)
		key := m.targetPod.daemon.Host(launcherpod.MigrationTLSDir + "/server-key.pem")
		info, err := os.Stat(key)
		Expect(err).NotTo(HaveOccurred())
		Expect(info.Mode().Perm()).To(BeEquivalentTo(0o600))

		By("refusing a target whose certificate has another name")
		wrong := r
		wrong.TLSName = qemutls.Name("another")
		err = m.sourceConn.Transfer(ctx, wrong)
		Expect(err).To(HaveOccurred())
		AddReportEntry("refusal of the name", err.Error())
		Expect(m.sourceState()).To(Equal(hypervisor.SourceState{Domain: protocol.SourceRunning}))
		Expect(m.targetState()).To(Equal(protocol.TargetAbsent))

		By("refusing a source of another migration")
		other, err := qemutls.New("another", netip.Addr{}, time.Now())
		Expect(err).NotTo(HaveOccurred())
		Expect(m.sourceConn.PutMigrationTLS(ctx, other.Client)).To(Succeed())
		Expect(m.sourceConn.Transfer(ctx, r)).NotTo(Succeed())
		Expect(m.sourceState()).To(Equal(hypervisor.SourceState{Domain: protocol.SourceRunning}))
		Eventually(m.targetState).Should(Equal(protocol.TargetAbsent))

		By("migrating with its own")
		m.installCertificates(&r)
		Expect(m.sourceConn.Transfer(ctx, r)).To(Succeed())
		migrated := m.resumeOnTarget()
		Expect(strings.TrimSpace(migrated.run("echo $((40+2))"))).To(Equal("42"))

		By("removing the certificates")
		for _, conn := range []*rpc.Conn{m.sourceConn, m.targetConn} {
			Expect(conn.RemoveMigrationTLS(ctx)).To(Succeed())
			Expect(conn.RemoveMigrationTLS(ctx)).To(Succeed())
		}
		for _, p := range []*pod{m.sourcePod, m.targetPod} {
			Expect(os.ReadDir(p.daemon.Host(launcherpod.MigrationTLSDir))).To(BeEmpty())
		}

		By("migrating back over several connections")
		m.reverse(migrated)
		r = m.request()
		r.Parallel, r.AutoConverge, r.MaxDowntime = 2, true, 500*time.Millisecond
		m.installCertificates(&r)
		Expect(m.sourceConn.Transfer(ctx, r)).To(Succeed())
		Expect(strings.TrimSpace(m.resumeOnTarget().run("echo $((40+3))"))).To(Equal("43"))
	})

	It("transfers all memory, with and without compression", extended(3), func() {
		m := newPodPair()
		ctx := GinkgoT().Context()
		const fill = 64 << 20
		m.guest.prepareLines("vireo", 1)
		m.guest.run("mkdir -p /tmp/d && mount -t tmpfs d /tmp/d && cat $lines > /tmp/d/y")
		sum := m.guest.run(fmt.Sprintf("for i in $(seq %d); do cat /tmp/d/y; done > /tmp/d/x; md5sum < /tmp/d/x", fill>>20))
		for _, method := range []v1.MigrationCompression{v1.MigrationCompressionZstd, v1.MigrationCompressionNone} {
			r := m.request()
			if method != v1.MigrationCompressionNone {
				r.Parallel, r.Compression = 2, string(method)
			}
			m.installCertificates(&r)
			transferred := uint64(0)
			r.OnPaused = func(time.Time) {
				progress, err := m.sourceConn.TransferProgress(ctx, m.guest.domain)
				Expect(err).NotTo(HaveOccurred())
				transferred = progress.Memory.Processed
			}
			Expect(m.sourceConn.Transfer(ctx, r)).To(Succeed())
			AddReportEntry("bytes transferred with "+string(method), transferred)
			migrated := m.resumeOnTarget()
			Expect(migrated.run("md5sum < /tmp/d/x")).To(Equal(sum))
			if method == v1.MigrationCompressionNone {
				Expect(transferred).To(BeNumerically(">", fill))
			} else {
				Expect(transferred).To(And(BeNumerically(">", 0), BeNumerically("<", fill)))
			}
			m.reverse(migrated)
		}
	})

	It("runs the target's guest at once after a switch to post-copy", func() {
		allowPostCopy()
		m := newPodPair()
		ctx := GinkgoT().Context()
		r := m.request()
		r.PostCopy, r.Bandwidth = true, 8<<20
		var stopped time.Time
		r.OnPaused = func(since time.Time) { stopped = since }
		for _, conn := range []*rpc.Conn{m.sourceConn, m.targetConn} {
			Expect(conn.Watch(ctx, func() {})).To(Succeed())
		}
		done := make(chan error, 1)
		go func() { done <- m.sourceConn.Transfer(ctx, r) }()
		Eventually(func() bool {
			progress, err := m.sourceConn.TransferProgress(ctx, m.guest.domain)
			Expect(err).NotTo(HaveOccurred())
			return progress != nil && progress.Memory.Processed > 0
		}).WithTimeout(time.Minute).Should(BeTrue())
		Expect(m.sourceConn.StartPostCopy(ctx, m.guest.domain)).To(Succeed())
		Eventually(m.targetState).WithTimeout(time.Minute).Should(Equal(protocol.TargetRunning))
		Eventually(m.targetConn.ResumedSince).ShouldNot(BeZero())
		ran := m.targetConn.ResumedSince()
		Expect(m.sourceState().Domain).To(BeElementOf(protocol.SourcePostCopy, protocol.SourceMigrated))
		Eventually(done).WithTimeout(2 * time.Minute).Should(Receive(Succeed()))
		// libvirt reports again that the guest runs when all memory is transferred.
		Expect(m.targetConn.ResumedSince()).To(And(Equal(ran), BeTemporally(">", stopped)))
		Expect(m.sourceState()).To(Equal(hypervisor.SourceState{Domain: protocol.SourceMigrated}))
		Expect(strings.TrimSpace(m.resumeOnTarget().run("echo $((40+2))"))).To(Equal("42"))
	})

	DescribeTable("transfers a disk that is not shared, including its overlay", func(address string) {
		m := &podPair{sourcePod: newPod(), targetPod: newPod(), address: address}
		join(m.sourcePod, m.targetPod)
		booted := bootedLinux(overlayDomain())
		for _, p := range []*pod{m.sourcePod, m.targetPod} {
			p.overlay(booted.disk)
		}
		m.targetPod.prepareKernel(guestBoot())
		m.guest = booted.restoreIn(m.sourcePod, overlayDomain())
		m.sourceConn, m.targetConn = m.guest.conn, m.targetPod.dial()
		m.guest.run("mount /dev/vda /mnt/data; echo before > /mnt/data/log; sync")
		ctx := GinkgoT().Context()
		live, err := m.sourceConn.LiveXML(ctx, m.guest.domain)
		Expect(err).NotTo(HaveOccurred())
		r := hypervisor.TransferRequest{Domain: m.guest.domain, Address: m.address, CopyDisks: []string{"vda"},
			DialTarget: m.dial}
		r.XML, err = domain.ForTarget(live, overlayDomain())
		Expect(err).NotTo(HaveOccurred())
		m.installCertificates(&r)
		Expect(m.sourceConn.Transfer(ctx, r)).To(Succeed())
		migrated := m.resumeOnTarget()
		Expect(strings.TrimSpace(
			migrated.run("echo after >> /mnt/data/log; sync; echo 3 > /proc/sys/vm/drop_caches; cat /mnt/data/log"))).
			To(Equal("before\nafter"))
	},
		Entry("over IPv4", targetAddress),
		Entry("over IPv6", extended(3), targetAddress6))

	It("transfers a disk to a larger volume, and its size in the guest does not change", extended(3), func() {
		m := &podPair{sourcePod: newPod(), targetPod: newPod(), address: targetAddress}
		join(m.sourcePod, m.targetPod)
		m.guest = startLinuxOn(m.sourcePod, ownDisk, func(d *libvirtxml.Domain) { *d = *ownDomain(0) })
		m.targetPod.prepareKernel(guestBoot())
		m.sourceConn, m.targetConn = m.guest.conn, m.targetPod.dial()
		m.guest.run("mount /dev/vda /mnt/data; echo before > /mnt/data/log; sync")
		ctx := GinkgoT().Context()
		sizes, err := m.sourceConn.DiskSizes(ctx, m.guest.domain)
		Expect(err).NotTo(HaveOccurred())
		Expect(sizes).To(Equal(map[string]uint64{"vda": ownSize}))
		request := func(size uint64) hypervisor.TransferRequest {
			GinkgoHelper()
			live, err := m.sourceConn.LiveXML(ctx, m.guest.domain)
			Expect(err).NotTo(HaveOccurred())
			r := hypervisor.TransferRequest{Domain: m.guest.domain, Address: m.address, CopyDisks: []string{"vda"},
				DialTarget: m.dial}
			r.XML, err = domain.ForTarget(live, ownDomain(size))
			Expect(err).NotTo(HaveOccurred())
			m.installCertificates(&r)
			return r
		}

		By("staying on the source when the target's volume is smaller")
		m.targetPod.write(ownDisk, make([]byte, ownSize/2))
		err = m.sourceConn.Transfer(ctx, request(ownSize))
		Expect(err).To(HaveOccurred())
		AddReportEntry("refusal of a smaller volume", err.Error())
		Expect(m.sourceState()).To(Equal(hypervisor.SourceState{Domain: protocol.SourceRunning}))
		Expect(m.targetState()).To(Equal(protocol.TargetAbsent))

		By("migrating to a larger one with other contents")
		m.targetPod.write(ownDisk, bytes.Repeat([]byte{0xa5}, 2*ownSize))
		Expect(m.sourceConn.Transfer(ctx, request(ownSize))).To(Succeed())
		migrated := m.resumeOnTarget()
		Expect(strings.TrimSpace(
			migrated.run("echo after >> /mnt/data/log; sync; echo 3 > /proc/sys/vm/drop_caches; cat /mnt/data/log"))).
			To(Equal("before\nafter"))
		Expect(strings.TrimSpace(
			migrated.run("umount /mnt/data; blockdev --getsize64 /dev/vda || cat /sys/block/vda/size"))).To(
			Or(Equal(strconv.Itoa(ownSize)), HaveSuffix(strconv.Itoa(ownSize/512))))
		after, err := m.targetConn.DiskSizes(ctx, m.guest.domain)
		Expect(err).NotTo(HaveOccurred())
		Expect(after).To(Equal(sizes))

		By("overwriting all of the disk's size, and nothing beyond")
		transferred, err := os.ReadFile(m.targetPod.daemon.Host(ownDisk))
		Expect(err).NotTo(HaveOccurred())
		Expect(bytes.Contains(transferred[:ownSize], bytes.Repeat([]byte{0xa5}, 4096))).
			To(BeFalse(), "some of the former contents are left")
		Expect(bytes.Equal(transferred[ownSize:], bytes.Repeat([]byte{0xa5}, ownSize))).
			To(BeTrue(), "data beyond the guest's disk was written")

		By("migrating back to one of its own size")
		m.reverse(migrated)
		Expect(m.sourceConn.Transfer(ctx, request(0))).To(Succeed())
		Expect(strings.TrimSpace(m.resumeOnTarget().run("mount /dev/vda /mnt/data; cat /mnt/data/log"))).
			To(Equal("before\nafter"))
	})
})

const (
	// ownDisk is a disk that is not shared between the Pods, and ownSize the size of the first one.
	ownDisk = "/var/run/kubevirt-private/vmi-disks/own/disk.img"
	ownSize = 16 << 20
)

// ownDomain returns the guest's domain with a disk on a claim. size limits the disk's size in the guest; 0 means no
// limit.
func ownDomain(size uint64) *libvirtxml.Domain {
	GinkgoHelper()
	d := linuxDomain(ownDisk)
	disk := &d.Devices.Disks[0]
	disk.Driver.Cache = "none"
	disk.Alias = &libvirtxml.DomainAlias{Name: "ua-disk-data"}
	if size > 0 {
		disk.Source.Slices = &libvirtxml.DomainDiskSlices{Slices: []libvirtxml.DomainDiskSlice{{Type: "storage",
			Size: uint(size)}}}
	}
	return d
}

const (
	overlayFile = launcherpod.EphemeralDisksDir + "/root.qcow2"
	overlayBase = launcherpod.ContainerDisksDir + "/root/disk.img"
)

// overlay creates an empty overlay on an image, as for a containerDisk.
func (p *pod) overlay(base []byte) {
	GinkgoHelper()
	p.write(overlayBase, base)
	_, err := p.pool.StorageVolCreateXML(fmt.Sprintf(`<volume><name>%s</name><capacity>%d</capacity>
		<target><format type='qcow2'/></target><backingStore><path>%s</path><format type='raw'/></backingStore></volume>`,
		filepath.Base(overlayFile), len(base), overlayBase), 0)
	Expect(err).NotTo(HaveOccurred())
}

// overlayDomain returns the guest's domain with its disk on an overlay.
func overlayDomain() *libvirtxml.Domain {
	GinkgoHelper()
	d := linuxDomain(overlayFile)
	disk := &d.Devices.Disks[0]
	disk.Driver.Type, disk.Driver.Cache = "qcow2", "none"
	disk.Alias = &libvirtxml.DomainAlias{Name: "ua-disk-root"}
	disk.BackingStore = &libvirtxml.DomainDiskBackingStore{
		Format:       &libvirtxml.DomainDiskFormat{Type: "raw"},
		Source:       &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: overlayBase}},
		BackingStore: &libvirtxml.DomainDiskBackingStore{},
	}
	return d
}
