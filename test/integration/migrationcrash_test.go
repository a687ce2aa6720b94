// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package integration_test

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/libvirtwire"
	"github.com/vireo-project/vireo/internal/migration/protocol"
)

// procFinish is REMOTE_PROC_DOMAIN_MIGRATE_FINISH3_PARAMS (libvirt src/remote/remote_protocol.x).
const procFinish = 306

// cutConn ends a process, so to say, when it is about to ask the target to complete the guest, or when the answer is there.
type cutConn struct {
	net.Conn
	// afterAnswer waits for the answer.
	afterAnswer bool
	die         context.CancelFunc
	asked       bool
}

func (c *cutConn) Write(message []byte) (int, error) {
	if len(message) >= 16 && binary.BigEndian.Uint32(message[12:]) == procFinish {
		if !c.afterAnswer {
			c.die()
			return 0, io.ErrClosedPipe
		}
		c.asked = true
	}
	return c.Conn.Write(message)
}

func (c *cutConn) Read(into []byte) (int, error) {
	if c.afterAnswer && len(into) == 4 {
		// Nothing is asked of the target while something else is waited for: what comes after Finish is its answer.
		n, err := c.Conn.Read(into)
		if c.asked {
			c.die()
			return 0, io.ErrClosedPipe
		}
		return n, err
	}
	return c.Conn.Read(into)
}

// settle has the agents of both sides do what they decide until there is nothing left to do, and returns the record.
func (m *move) settle(record protocol.Record) protocol.Record {
	GinkgoHelper()
	ctx, released := GinkgoT().Context(), false
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		source, target := m.source(), m.target()
		Expect(source.Domain == protocol.SourceRunning && target == protocol.TargetRunning).To(BeFalse(), "both guests run: %+v", source)
		here := protocol.DecideSource(protocol.SourceView{Record: record, Domain: source.Domain, Orphaned: source.Job})
		there := protocol.DecideTarget(protocol.TargetView{Record: record, Domain: target, Released: released})
		if len(here)+len(there) == 0 && !source.Job && target != protocol.TargetReceiving {
			return record
		}
		for _, action := range append(here, there...) {
			switch action {
			case protocol.Cancel:
				Expect(m.here.CancelTransfer(ctx, m.guest.domain)).To(Succeed())
			case protocol.Resume:
				// It fails as long as the target's QEMU has the images.
				if err := m.here.ResumeSource(ctx, m.guest.domain); err != nil {
					Expect(target).To(Equal(protocol.TargetComplete), "%v", err)
				}
			case protocol.RecordFailure:
				record.Failed = true
			case protocol.Release:
				released = true
			case protocol.TransferOwnership, protocol.TakeOwnership:
				record.Owner = protocol.Target
			case protocol.Run:
				Expect(m.there.ResumeTarget(ctx, m.guest.domain)).To(Succeed())
			case protocol.Destroy:
				Expect(record.Failed).To(BeTrue(), "only the target's guest of a failed migration is to be destroyed")
				Expect(m.there.Destroy(ctx, m.guest.domain)).To(Succeed())
			default:
				Fail("an action that nobody should take")
			}
		}
	}
	Fail("the migration does not come to an end")
	return record
}

// expectStayed fails unless the guest runs at the source, writes its disk, and is nowhere else.
func (m *move) expectStayed(record protocol.Record) {
	GinkgoHelper()
	Expect(record).To(Equal(protocol.Record{Started: true, Failed: true}))
	Expect(m.source()).To(Equal(hypervisor.SourceState{Domain: protocol.SourceRunning}))
	Expect(m.target()).To(Equal(protocol.TargetAbsent))
	Expect(strings.TrimSpace(m.guest.run("echo alive >> /mnt/data/log && sync && tail -n 1 /mnt/data/log"))).To(Equal("alive"))
}

var _ = Describe("The end of the source's agent during a migration", Label("libvirt"), func() {
	It("leaves one guest, whenever it comes", func() {
		m := newMove()
		m.guest.run("mount /dev/vda /mnt/data; echo before > /mnt/data/log; sync")
		started := protocol.Record{Started: true}

		By("dying while the guest is copied")
		ctx, die := context.WithCancel(GinkgoT().Context())
		slow := m.request()
		slow.Bandwidth = 1 << 20
		done := make(chan error, 1)
		go func() { done <- m.here.Transfer(ctx, slow) }()
		Eventually(func() uint64 {
			progress, err := m.here.TransferProgress(GinkgoT().Context(), m.guest.domain)
			Expect(err).NotTo(HaveOccurred())
			if progress == nil {
				return 0
			}
			return progress.Memory.Processed
		}).WithTimeout(time.Minute).Should(BeNumerically(">", 0))
		Expect(m.target()).To(Equal(protocol.TargetReceiving))
		Expect(m.source()).To(Equal(hypervisor.SourceState{Domain: protocol.SourceRunning, Job: true}))
		die()
		Eventually(done).Should(Receive(HaveOccurred()))
		m.expectStayed(m.settle(started))

		By("dying before the target is asked to complete the guest")
		m.copyAndDie(false)
		Expect(m.source().Domain).To(Equal(protocol.SourceSuspended))
		Eventually(m.target).Should(Equal(protocol.TargetAbsent))
		m.expectStayed(m.settle(started))

		By("dying after the target has completed the guest")
		m.copyAndDie(true)
		Expect(m.source().Domain).To(Equal(protocol.SourceSuspended))
		Expect(m.target()).To(Equal(protocol.TargetComplete))
		Eventually(m.source).Should(Equal(hypervisor.SourceState{Domain: protocol.SourceSuspended}))
		Expect(m.here.ResumeSource(GinkgoT().Context(), m.guest.domain)).To(MatchError(ContainSubstring("lock")), "the target has the images")
		Expect(m.source()).To(Equal(hypervisor.SourceState{Domain: protocol.SourceSuspended}))
		m.expectStayed(m.settle(started))

		By("moving in the end")
		Expect(m.here.Transfer(GinkgoT().Context(), m.request())).To(Succeed())
		Expect(m.settle(started)).To(Equal(protocol.Record{Started: true, Owner: protocol.Target}))
		arrived := m.arrive()
		Expect(strings.Count(arrived.run("cat /mnt/data/log"), "alive")).To(Equal(3))
	})

	It("is what libvirt tells of a job until, and it refuses what comes later", func() {
		m := newMove()
		ctx := GinkgoT().Context()
		client, domain := m.half()

		By("having a job as long as the connection is there")
		Consistently(m.source).WithTimeout(2 * time.Second).Should(Equal(hypervisor.SourceState{Domain: protocol.SourceSuspended, Job: true}))
		Expect(m.here.ResumeSource(ctx, m.guest.domain)).To(MatchError(hypervisor.ErrNotRunning))

		By("refusing the last word of a process that is gone")
		client.Close()
		Eventually(m.source).Should(Equal(hypervisor.SourceState{Domain: protocol.SourceSuspended}))
		other, err := libvirtwire.Dial(ctx, m.from.daemon.Socket())
		Expect(err).NotTo(HaveOccurred())
		defer other.Close()
		late := other.MigrateConfirm(ctx, domain, nil, nil, libvirtwire.MigrateLive|libvirtwire.MigrateProtect, false)
		Expect(late).To(HaveOccurred())
		AddReportEntry("libvirt's refusal", late.Error())
		Expect(m.source()).To(Equal(hypervisor.SourceState{Domain: protocol.SourceSuspended}))

		By("letting the guest go on")
		Expect(m.here.ResumeSource(ctx, m.guest.domain)).To(Succeed())
		Expect(strings.TrimSpace(m.guest.run("echo $((40+2))"))).To(Equal("42"))
	})
})

// copyAndDie copies the guest up to the request to complete it.
func (m *move) copyAndDie(afterAnswer bool) {
	GinkgoHelper()
	ctx, die := context.WithCancel(GinkgoT().Context())
	defer die()
	r := m.request()
	dial := r.DialTarget
	r.DialTarget = func(ctx context.Context) (net.Conn, error) {
		conn, err := dial(ctx)
		return &cutConn{Conn: conn, afterAnswer: afterAnswer, die: die}, err
	}
	Expect(m.here.Transfer(ctx, r)).NotTo(Succeed())
}

// half copies the guest over connections of the test's own, and leaves it at that.
func (m *move) half() (*libvirtwire.Client, libvirtwire.Domain) {
	GinkgoHelper()
	ctx := GinkgoT().Context()
	from, err := libvirtwire.Dial(ctx, m.from.daemon.Socket())
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(from.Close)
	to, err := libvirtwire.Dial(ctx, m.to.daemon.Socket())
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(to.Close)
	domain, err := from.Lookup(ctx, m.guest.domain)
	Expect(err).NotTo(HaveOccurred())
	flags := libvirtwire.MigrateLive | libvirtwire.MigratePersist | libvirtwire.MigrateUnsafe
	params := []libvirtwire.Param{
		{Name: libvirtwire.ParamName, Value: m.guest.domain},
		{Name: libvirtwire.ParamURI, Value: "tcp://" + m.address + ":49152"},
	}
	cookie, xml, err := from.MigrateBegin(ctx, domain, params, flags|libvirtwire.MigrateProtect)
	Expect(err).NotTo(HaveOccurred())
	params = append(params, libvirtwire.Param{Name: libvirtwire.ParamXML, Value: xml})
	cookie, _, err = to.MigratePrepare(ctx, params, cookie, flags)
	Expect(err).NotTo(HaveOccurred())
	_, err = from.MigratePerform(ctx, domain, params, cookie, flags|libvirtwire.MigrateProtect)
	Expect(err).NotTo(HaveOccurred())
	return from, domain
}

var _ = Describe("A source's libvirtd that hangs while the guest is copied", Label("libvirt"), func() {
	It("is told from one that is there, which answers whatever it does", func() {
		p := newPod()
		client, err := libvirtwire.Dial(GinkgoT().Context(), p.daemon.Socket())
		Expect(err).NotTo(HaveOccurred())
		defer client.Close()
		client.KeepAlive(200*time.Millisecond, 3*time.Second)
		Consistently(client.Done()).WithTimeout(10 * time.Second).ShouldNot(BeClosed())
		Expect(unix.Kill(p.libvirtd(), unix.SIGSTOP)).To(Succeed())
		Eventually(client.Done()).Should(BeClosed())
	})

	It("is not waited for without end, and leaves one guest when it goes on", func() {
		m := newMove()
		m.guest.run("mount /dev/vda /mnt/data; echo before > /mnt/data/log; sync")
		slow := m.request()
		slow.Bandwidth = 1 << 20
		done := make(chan error, 1)
		go func() { done <- m.here.Transfer(GinkgoT().Context(), slow) }()
		Eventually(m.target).WithTimeout(time.Minute).Should(Equal(protocol.TargetReceiving))

		hung := m.from.libvirtd()
		Expect(unix.Kill(hung, unix.SIGSTOP)).To(Succeed())
		DeferCleanup(func() { _ = unix.Kill(hung, unix.SIGCONT) })
		var err error
		Eventually(done).WithTimeout(3 * time.Minute).Should(Receive(&err))
		Expect(err).To(MatchError(hypervisor.ErrUnreachable))
		Eventually(m.target).WithTimeout(time.Minute).Should(Equal(protocol.TargetAbsent))

		Expect(unix.Kill(hung, unix.SIGCONT)).To(Succeed())
		// The connection was given up as well.
		m.here = m.from.dial()
		m.guest.conn = m.here
		m.guest.listen()
		m.expectStayed(m.settle(protocol.Record{Started: true}))
	})
})

// libvirtd is the process id of the Pod's.
func (p *pod) libvirtd() int {
	GinkgoHelper()
	found := 0
	p.processes(func(pid string) {
		comm, err := os.ReadFile(filepath.Join("/proc", pid, "comm"))
		if err == nil && strings.TrimSpace(string(comm)) == "libvirtd" {
			found, err = strconv.Atoi(pid)
			Expect(err).NotTo(HaveOccurred())
		}
	})
	Expect(found).NotTo(BeZero())
	return found
}
