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
	"github.com/vireo-project/vireo/internal/agent/migration/qemutls"
	"github.com/vireo-project/vireo/internal/agent/podprocess"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/migration/protocol"
)

const (
	sourceAddress, sourceAddress6 = "192.0.2.1", "2001:db8::1"
	targetAddress, targetAddress6 = "192.0.2.2", "2001:db8::2"
)

// sharedDisk is a claim that both Pods mount.
var sharedDisk = launcherpod.DiskDir("data") + "/" + launcherpod.DiskImage

// move is a guest and the two Pods between which it moves.
type move struct {
	guest       *linux
	from, to    *pod
	here, there *rpc.Conn
	// address is that of the Pod to which it moves.
	address string
}

// newMove boots a guest with a disk that both Pods have.
func newMove() *move {
	GinkgoHelper()
	guestBoot()
	m := &move{from: newPod(), to: newPod(), address: targetAddress}
	join(m.from, m.to)
	m.guest = bootLinuxOn(m.from, sharedDisk, func(d *libvirtxml.Domain) { *d = *sharedDomain() })
	m.to.share(m.from, sharedDisk)
	m.to.prepareKernel(guestBoot())
	m.here, m.there = m.guest.conn, m.to.dial()
	return m
}

// sharedDomain is the guest's domain, in either Pod.
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

// share gives the Pod a file of another: the same one, with its locks.
func (p *pod) share(from *pod, podPath string) {
	GinkgoHelper()
	path := p.daemon.Host(podPath)
	Expect(os.MkdirAll(filepath.Dir(path), 0o755)).To(Succeed())
	Expect(os.Link(from.daemon.Host(podPath), path)).To(Succeed())
}

// request is a copy of the guest as it runs, to the other Pod.
func (m *move) request() hypervisor.TransferRequest {
	GinkgoHelper()
	live, err := m.here.LiveXML(GinkgoT().Context(), m.guest.domain)
	Expect(err).NotTo(HaveOccurred())
	there, err := domain.ForTarget(live, sharedDomain())
	Expect(err).NotTo(HaveOccurred())
	return hypervisor.TransferRequest{
		Domain: m.guest.domain, XML: there, Address: m.address,
		DialTarget: m.dial,
	}
}

// dial connects to the target's libvirtd.
func (m *move) dial(ctx context.Context) (net.Conn, error) {
	var dialer net.Dialer
	return dialer.DialContext(ctx, "unix", m.to.daemon.Socket())
}

func (m *move) source() hypervisor.SourceState {
	GinkgoHelper()
	state, err := m.here.SourceState(GinkgoT().Context(), m.guest.domain)
	Expect(err).NotTo(HaveOccurred())
	return state
}

func (m *move) target() protocol.TargetDomain {
	GinkgoHelper()
	state, err := m.there.TargetState(GinkgoT().Context(), m.guest.domain)
	Expect(err).NotTo(HaveOccurred())
	return state
}

// arrive lets the guest run at the target, and listens to it there.
func (m *move) arrive() *linux {
	GinkgoHelper()
	begin := time.Now()
	Expect(m.there.ResumeTarget(GinkgoT().Context(), m.guest.domain)).To(Succeed())
	AddReportEntry("resumed in", time.Since(begin).String())
	Expect(m.target()).To(Equal(protocol.TargetRunning))
	arrived := &linux{pod: m.to, conn: m.there, domain: m.guest.domain, asked: m.guest.asked}
	arrived.listen()
	return arrived
}

// back turns the move around.
func (m *move) back(arrived *linux) {
	m.guest, m.from, m.to, m.here, m.there = arrived, m.to, m.from, m.there, m.here
	if m.address == targetAddress {
		m.address = sourceAddress
	} else {
		m.address = targetAddress
	}
}

// secure gives both Pods the certificates of one migration.
func (m *move) secure(r *hypervisor.TransferRequest) {
	GinkgoHelper()
	ctx, uid := GinkgoT().Context(), types.UID("3f0e0d4c-8ab8-4d47-a0a5-7e3ce5fa3a2e")
	pair, err := qemutls.New(uid, netip.MustParseAddr(m.address), time.Now())
	Expect(err).NotTo(HaveOccurred())
	Expect(m.there.PutMigrationTLS(ctx, pair.Server)).To(Succeed())
	Expect(m.here.PutMigrationTLS(ctx, pair.Client)).To(Succeed())
	r.TLSName = qemutls.Name(uid)
}

// qemusOf counts the Pod's QEMUs that have not ended.
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

// allowPostCopy lets QEMU, which has no privileges, handle faults of the guest's memory, as post-copy needs it.
func allowPostCopy() {
	GinkgoHelper()
	const setting = "/proc/sys/vm/unprivileged_userfaultfd"
	before, err := os.ReadFile(setting)
	Expect(err).NotTo(HaveOccurred())
	Expect(os.WriteFile(setting, []byte("1"), 0o600)).To(Succeed())
	DeferCleanup(func() { Expect(os.WriteFile(setting, before, 0o600)).To(Succeed()) })
}

var _ = Describe("A migration between two libvirtds", Label("libvirt"), func() {
	It("hands a running guest over, which stays paused until it is told to run", func() {
		m := newMove()
		m.guest.run("mount /dev/vda /mnt/data; echo before > /mnt/data/log; sync")
		Expect(m.source()).To(Equal(hypervisor.SourceState{Domain: protocol.SourceRunning}))
		Expect(m.target()).To(Equal(protocol.TargetAbsent))

		begin := time.Now()
		Expect(m.here.Transfer(GinkgoT().Context(), m.request())).To(Succeed())
		AddReportEntry("copied in", time.Since(begin).String())
		Expect(m.source()).To(Equal(hypervisor.SourceState{Domain: protocol.SourceMigrated}))
		Expect(m.target()).To(Equal(protocol.TargetComplete))
		Consistently(m.target).WithTimeout(time.Second).Should(Equal(protocol.TargetComplete))

		arrived := m.arrive()
		Expect(strings.TrimSpace(arrived.run("echo after >> /mnt/data/log; sync; cat /mnt/data/log"))).To(Equal("before\nafter"))
	})

	It("tells that the source's QEMU has ended before libvirt notices, and not before that is so", func() {
		m := newMove()
		ctx := GinkgoT().Context()
		r := m.request()
		var dead, returned time.Time
		qemus := -1
		r.OnQEMUExit = func() {
			dead, qemus = time.Now(), qemusOf(m.from)
			Expect(m.target()).To(Equal(protocol.TargetComplete))
			Expect(m.there.ResumeTarget(ctx, m.guest.domain)).To(Succeed())
		}
		Expect(qemusOf(m.from)).To(Equal(1))
		Expect(m.here.Transfer(ctx, r)).To(Succeed())
		returned = time.Now()
		Expect(dead).NotTo(BeZero())
		Expect(qemus).To(BeZero(), "a QEMU that may run on")
		AddReportEntry("before libvirt", returned.Sub(dead).String())
		Expect(m.source()).To(Equal(hypervisor.SourceState{Domain: protocol.SourceMigrated}))
		Expect(strings.TrimSpace(m.arrive().run("echo $((40+2))"))).To(Equal("42"))
	})

	It("is encrypted with certificates of its own, and does not begin with those of another", func() {
		m := newMove()
		ctx := GinkgoT().Context()
		r := m.request()
		m.secure(&r)
		key := m.to.daemon.Host(launcherpod.MigrationTLSDir + "/server-key.pem")
		info, err := os.Stat(key)
		Expect(err).NotTo(HaveOccurred())
		Expect(info.Mode().Perm()).To(BeEquivalentTo(0o600))

		By("refusing a target whose certificate has another name")
		wrong := r
		wrong.TLSName = qemutls.Name("another")
		err = m.here.Transfer(ctx, wrong)
		Expect(err).To(HaveOccurred())
		AddReportEntry("refusal of the name", err.Error())
		Expect(m.source()).To(Equal(hypervisor.SourceState{Domain: protocol.SourceRunning}))
		Expect(m.target()).To(Equal(protocol.TargetAbsent))

		By("refusing a source of another migration")
		other, err := qemutls.New("another", netip.Addr{}, time.Now())
		Expect(err).NotTo(HaveOccurred())
		Expect(m.here.PutMigrationTLS(ctx, other.Client)).To(Succeed())
		Expect(m.here.Transfer(ctx, r)).NotTo(Succeed())
		Expect(m.source()).To(Equal(hypervisor.SourceState{Domain: protocol.SourceRunning}))
		Eventually(m.target).Should(Equal(protocol.TargetAbsent))

		By("moving with its own")
		m.secure(&r)
		Expect(m.here.Transfer(ctx, r)).To(Succeed())
		arrived := m.arrive()
		Expect(strings.TrimSpace(arrived.run("echo $((40+2))"))).To(Equal("42"))

		By("leaving nothing behind")
		for _, conn := range []*rpc.Conn{m.here, m.there} {
			Expect(conn.RemoveMigrationTLS(ctx)).To(Succeed())
			Expect(conn.RemoveMigrationTLS(ctx)).To(Succeed())
		}
		for _, p := range []*pod{m.from, m.to} {
			Expect(os.ReadDir(p.daemon.Host(launcherpod.MigrationTLSDir))).To(BeEmpty())
		}

		By("going back over several connections")
		m.back(arrived)
		r = m.request()
		r.Parallel, r.AutoConverge, r.MaxDowntime = 2, true, 500*time.Millisecond
		m.secure(&r)
		Expect(m.here.Transfer(ctx, r)).To(Succeed())
		Expect(strings.TrimSpace(m.arrive().run("echo $((40+3))"))).To(Equal("43"))
	})

	It("is compressed, and brings all of the memory", func() {
		m := newMove()
		ctx := GinkgoT().Context()
		const fill = 64 << 20
		m.guest.run("mkdir -p /tmp/d && mount -t tmpfs d /tmp/d && yes vireo | head -c 1048576 > /tmp/d/y")
		sum := m.guest.run(fmt.Sprintf("for i in $(seq %d); do cat /tmp/d/y; done > /tmp/d/x; md5sum < /tmp/d/x", fill>>20))
		for _, method := range []v1.MigrationCompression{v1.MigrationCompressionZstd, v1.MigrationCompressionNone} {
			r := m.request()
			if method != v1.MigrationCompressionNone {
				r.Parallel, r.Compression = 2, string(method)
			}
			m.secure(&r)
			copied := uint64(0)
			r.OnPaused = func(time.Time) {
				progress, err := m.here.TransferProgress(ctx, m.guest.domain)
				Expect(err).NotTo(HaveOccurred())
				copied = progress.Memory.Processed
			}
			Expect(m.here.Transfer(ctx, r)).To(Succeed())
			AddReportEntry("bytes copied with "+string(method), copied)
			arrived := m.arrive()
			Expect(arrived.run("md5sum < /tmp/d/x")).To(Equal(sum))
			if method == v1.MigrationCompressionNone {
				Expect(copied).To(BeNumerically(">", fill))
			} else {
				Expect(copied).To(And(BeNumerically(">", 0), BeNumerically("<", fill)))
			}
			m.back(arrived)
		}
	})

	It("lets the target's guest run at once in a post-copy", func() {
		allowPostCopy()
		m := newMove()
		ctx := GinkgoT().Context()
		r := m.request()
		r.PostCopy, r.Bandwidth = true, 8<<20
		var stopped time.Time
		r.OnPaused = func(since time.Time) { stopped = since }
		for _, conn := range []*rpc.Conn{m.here, m.there} {
			Expect(conn.Watch(ctx, func() {})).To(Succeed())
		}
		done := make(chan error, 1)
		go func() { done <- m.here.Transfer(ctx, r) }()
		Eventually(func() bool {
			progress, err := m.here.TransferProgress(ctx, m.guest.domain)
			Expect(err).NotTo(HaveOccurred())
			return progress != nil && progress.Memory.Processed > 0
		}).WithTimeout(time.Minute).Should(BeTrue())
		Expect(m.here.StartPostCopy(ctx, m.guest.domain)).To(Succeed())
		Eventually(m.target).WithTimeout(time.Minute).Should(Equal(protocol.TargetRunning))
		Eventually(m.there.ResumedSince).ShouldNot(BeZero())
		ran := m.there.ResumedSince()
		Expect(m.source().Domain).To(BeElementOf(protocol.SourcePostCopy, protocol.SourceMigrated))
		Eventually(done).WithTimeout(2 * time.Minute).Should(Receive(Succeed()))
		// libvirt says that the guest runs once more when all of it has arrived.
		Expect(m.there.ResumedSince()).To(And(Equal(ran), BeTemporally(">", stopped)))
		Expect(m.source()).To(Equal(hypervisor.SourceState{Domain: protocol.SourceMigrated}))
		Expect(strings.TrimSpace(m.arrive().run("echo $((40+2))"))).To(Equal("42"))
	})

	DescribeTable("copies a disk that only the source has, with what was written to its overlay", func(address string) {
		m := &move{from: newPod(), to: newPod(), address: address}
		join(m.from, m.to)
		base := ext4()
		for _, p := range []*pod{m.from, m.to} {
			p.overlay(base)
		}
		m.to.prepareKernel(guestBoot())
		m.guest = bootLinuxIn(m.from, overlayDomain())
		m.here, m.there = m.guest.conn, m.to.dial()
		m.guest.run("mount /dev/vda /mnt/data; echo before > /mnt/data/log; sync")
		ctx := GinkgoT().Context()
		live, err := m.here.LiveXML(ctx, m.guest.domain)
		Expect(err).NotTo(HaveOccurred())
		r := hypervisor.TransferRequest{Domain: m.guest.domain, Address: m.address, CopyDisks: []string{"vda"}, DialTarget: m.dial}
		r.XML, err = domain.ForTarget(live, overlayDomain())
		Expect(err).NotTo(HaveOccurred())
		m.secure(&r)
		Expect(m.here.Transfer(ctx, r)).To(Succeed())
		arrived := m.arrive()
		Expect(strings.TrimSpace(arrived.run("echo after >> /mnt/data/log; sync; echo 3 > /proc/sys/vm/drop_caches; cat /mnt/data/log"))).To(Equal("before\nafter"))
	},
		Entry("over IPv4", targetAddress),
		Entry("over IPv6", targetAddress6))

	It("moves a disk to a larger volume, and the guest sees no more of it than before", func() {
		m := &move{from: newPod(), to: newPod(), address: targetAddress}
		join(m.from, m.to)
		m.guest = bootLinuxOn(m.from, ownDisk, func(d *libvirtxml.Domain) { *d = *ownDomain(0) })
		m.to.prepareKernel(guestBoot())
		m.here, m.there = m.guest.conn, m.to.dial()
		m.guest.run("mount /dev/vda /mnt/data; echo before > /mnt/data/log; sync")
		ctx := GinkgoT().Context()
		sizes, err := m.here.DiskSizes(ctx, m.guest.domain)
		Expect(err).NotTo(HaveOccurred())
		Expect(sizes).To(Equal(map[string]uint64{"vda": ownSize}))
		request := func(size uint64) hypervisor.TransferRequest {
			GinkgoHelper()
			live, err := m.here.LiveXML(ctx, m.guest.domain)
			Expect(err).NotTo(HaveOccurred())
			r := hypervisor.TransferRequest{Domain: m.guest.domain, Address: m.address, CopyDisks: []string{"vda"}, DialTarget: m.dial}
			r.XML, err = domain.ForTarget(live, ownDomain(size))
			Expect(err).NotTo(HaveOccurred())
			m.secure(&r)
			return r
		}

		By("staying where it is when the other volume is smaller")
		m.to.write(ownDisk, make([]byte, ownSize/2))
		err = m.here.Transfer(ctx, request(ownSize))
		Expect(err).To(HaveOccurred())
		AddReportEntry("refusal of a smaller volume", err.Error())
		Expect(m.source()).To(Equal(hypervisor.SourceState{Domain: protocol.SourceRunning}))
		Expect(m.target()).To(Equal(protocol.TargetAbsent))

		By("moving to a larger one, in which something else was before")
		m.to.write(ownDisk, bytes.Repeat([]byte{0xa5}, 2*ownSize))
		Expect(m.here.Transfer(ctx, request(ownSize))).To(Succeed())
		arrived := m.arrive()
		Expect(strings.TrimSpace(arrived.run("echo after >> /mnt/data/log; sync; echo 3 > /proc/sys/vm/drop_caches; cat /mnt/data/log"))).To(Equal("before\nafter"))
		Expect(strings.TrimSpace(arrived.run("umount /mnt/data; blockdev --getsize64 /dev/vda || cat /sys/block/vda/size"))).To(
			Or(Equal(strconv.Itoa(ownSize)), HaveSuffix(strconv.Itoa(ownSize/512))))
		there, err := m.there.DiskSizes(ctx, m.guest.domain)
		Expect(err).NotTo(HaveOccurred())
		Expect(there).To(Equal(sizes))

		By("being all of the disk, with nothing of what was there before")
		copied, err := os.ReadFile(m.to.daemon.Host(ownDisk))
		Expect(err).NotTo(HaveOccurred())
		Expect(bytes.Contains(copied[:ownSize], bytes.Repeat([]byte{0xa5}, 4096))).To(BeFalse(), "something of what was there before is left")
		Expect(bytes.Equal(copied[ownSize:], bytes.Repeat([]byte{0xa5}, ownSize))).To(BeTrue(), "what is behind the guest's disk was written")

		By("going back to one of its own size")
		m.back(arrived)
		Expect(m.here.Transfer(ctx, request(0))).To(Succeed())
		Expect(strings.TrimSpace(m.arrive().run("mount /dev/vda /mnt/data; cat /mnt/data/log"))).To(Equal("before\nafter"))
	})
})

const (
	// ownDisk is a disk that each Pod has for itself, and ownSize how large the first one is.
	ownDisk = "/var/run/kubevirt-private/vmi-disks/own/disk.img"
	ownSize = 16 << 20
)

// ownDomain is the guest's domain with a disk on a claim, of which it sees so many bytes. 0 means all.
func ownDomain(size uint64) *libvirtxml.Domain {
	GinkgoHelper()
	d := linuxDomain(ownDisk)
	disk := &d.Devices.Disks[0]
	disk.Driver.Cache = "none"
	disk.Alias = &libvirtxml.DomainAlias{Name: "ua-disk-data"}
	if size > 0 {
		disk.Source.Slices = &libvirtxml.DomainDiskSlices{Slices: []libvirtxml.DomainDiskSlice{{Type: "storage", Size: uint(size)}}}
	}
	return d
}

const (
	overlayFile = launcherpod.EphemeralDisksDir + "/root.qcow2"
	overlayBase = launcherpod.ContainerDisksDir + "/root/disk.img"
)

// overlay makes an empty overlay on an image, as the media of a containerDisk are.
func (p *pod) overlay(base []byte) {
	GinkgoHelper()
	p.write(overlayBase, base)
	_, err := p.pool.StorageVolCreateXML(fmt.Sprintf(`<volume><name>%s</name><capacity>%d</capacity>
		<target><format type='qcow2'/></target><backingStore><path>%s</path><format type='raw'/></backingStore></volume>`,
		filepath.Base(overlayFile), len(base), overlayBase), 0)
	Expect(err).NotTo(HaveOccurred())
}

// overlayDomain is the guest's domain with its disk on an overlay.
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
