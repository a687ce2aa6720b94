// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package integration_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/handler/hypervisor/rpc"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/migration"
)

const (
	sourceAddress = "192.0.2.1"
	targetAddress = "192.0.2.2"
)

// sharedDisk is a claim that both Pods mount.
var sharedDisk = launcherpod.DiskDir("data") + "/" + launcherpod.DiskImage

// move is a guest and the two Pods between which it moves.
type move struct {
	guest       *linux
	from, to    *pod
	here, there *rpc.Conn
}

// newMove boots a guest with a disk that both Pods have.
func newMove() *move {
	GinkgoHelper()
	guestBoot()
	m := &move{from: newPod(), to: newPod()}
	join(m.from, m.to)
	m.guest = bootLinuxOn(m.from, sharedDisk, func(d *libvirtxml.Domain) { d.Devices.Disks[0].Driver.Cache = "none" })
	m.to.share(m.from, sharedDisk)
	m.to.prepareKernel(guestBoot())
	m.here, m.there = m.guest.conn, m.to.dial()
	return m
}

// join connects the network namespaces of two Pods.
func join(from, to *pod) {
	GinkgoHelper()
	up := func(link netlink.Link, address string) error {
		parsed, err := netlink.ParseAddr(address + "/24")
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(link, parsed); err != nil {
			return err
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
		return up(veth, sourceAddress)
	})).To(Succeed())
	Expect(inNamespace(to.daemon.NetNS(), func() error {
		link, err := netlink.LinkByName(launcherpod.PrimaryInterface)
		if err != nil {
			return err
		}
		return up(link, targetAddress)
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
func (m *move) request() hypervisor.CopyRequest {
	GinkgoHelper()
	live, err := m.here.LiveXML(GinkgoT().Context(), m.guest.domain)
	Expect(err).NotTo(HaveOccurred())
	return hypervisor.CopyRequest{
		Domain: m.guest.domain, XML: live, Address: targetAddress, Unsafe: true,
		Target: func(ctx context.Context) (net.Conn, error) {
			var dialer net.Dialer
			return dialer.DialContext(ctx, "unix", m.to.daemon.Socket())
		},
	}
}

func (m *move) source() hypervisor.SourceState {
	GinkgoHelper()
	state, err := m.here.Source(GinkgoT().Context(), m.guest.domain)
	Expect(err).NotTo(HaveOccurred())
	return state
}

func (m *move) target() migration.TargetDomain {
	GinkgoHelper()
	state, err := m.there.Target(GinkgoT().Context(), m.guest.domain)
	Expect(err).NotTo(HaveOccurred())
	return state
}

// arrive lets the guest run at the target, and listens to it there.
func (m *move) arrive() *linux {
	GinkgoHelper()
	Expect(m.there.ResumeTarget(GinkgoT().Context(), m.guest.domain)).To(Succeed())
	Expect(m.target()).To(Equal(migration.TargetRunning))
	arrived := &linux{pod: m.to, conn: m.there, domain: m.guest.domain, asked: m.guest.asked}
	arrived.listen()
	return arrived
}

var _ = Describe("A migration between two libvirtds", Label("libvirt"), func() {
	It("hands a running guest over, which stays paused until it is told to run", func() {
		m := newMove()
		m.guest.run("mount /dev/vda /mnt/data; echo before > /mnt/data/log; sync")
		Expect(m.source()).To(Equal(hypervisor.SourceState{Domain: migration.SourceRunning}))
		Expect(m.target()).To(Equal(migration.TargetAbsent))

		begin := time.Now()
		Expect(m.here.Copy(GinkgoT().Context(), m.request())).To(Succeed())
		AddReportEntry("copied in", time.Since(begin).String())
		Expect(m.source()).To(Equal(hypervisor.SourceState{Domain: migration.SourceHandedOver}))
		Expect(m.target()).To(Equal(migration.TargetComplete))
		Consistently(m.target).WithTimeout(time.Second).Should(Equal(migration.TargetComplete))

		arrived := m.arrive()
		Expect(strings.TrimSpace(arrived.run("echo after >> /mnt/data/log; sync; cat /mnt/data/log"))).To(Equal("before\nafter"))
	})
})
