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
	"github.com/vireo-project/vireo/internal/decide/migration/protocol"
	"github.com/vireo-project/vireo/internal/wire/libvirtwire"
)

// procFinish is REMOTE_PROC_DOMAIN_MIGRATE_FINISH3_PARAMS (libvirt src/remote/remote_protocol.x).
const procFinish = 306

// cutConn simulates the end of the agent's process before it sends the target the request to finish, or when the
// response arrives.
type cutConn struct {
	net.Conn
	// afterResponse waits for the response.
	afterResponse bool
	stop          context.CancelFunc
	requested     bool
}

func (c *cutConn) Write(message []byte) (int, error) {
	if len(message) >= 16 && binary.BigEndian.Uint32(message[12:]) == procFinish {
		if !c.afterResponse {
			c.stop()
			return 0, io.ErrClosedPipe
		}
		c.requested = true
	}
	return c.Conn.Write(message)
}

func (c *cutConn) Read(into []byte) (int, error) {
	if c.afterResponse && len(into) == 4 {
		// There is one call at a time: the next message after Finish is its response.
		n, err := c.Conn.Read(into)
		if c.requested {
			c.stop()
			return 0, io.ErrClosedPipe
		}
		return n, err
	}
	return c.Conn.Read(into)
}

// settle executes the decisions of both agents until there are none, and returns the record.
func (m *podPair) settle(record protocol.Record) protocol.Record {
	GinkgoHelper()
	ctx, released := GinkgoT().Context(), false
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		source, target := m.sourceState(), m.targetState()
		Expect(source.Domain == protocol.SourceRunning && target == protocol.TargetRunning).
			To(BeFalse(), "both guests run: %+v", source)
		ofSource := protocol.DecideSource(protocol.SourceView{Record: record, Domain: source.Domain, Orphaned: source.Job})
		ofTarget := protocol.DecideTarget(protocol.TargetView{Record: record, Domain: target, Released: released})
		if len(ofSource)+len(ofTarget) == 0 && !source.Job && target != protocol.TargetReceiving {
			return record
		}
		for _, action := range append(ofSource, ofTarget...) {
			switch action {
			case protocol.Cancel:
				Expect(m.sourceConn.CancelTransfer(ctx, m.guest.domain)).To(Succeed())
			case protocol.Resume:
				// It fails as long as the target's QEMU has the images.
				if err := m.sourceConn.ResumeSource(ctx, m.guest.domain); err != nil {
					Expect(target).To(Equal(protocol.TargetComplete), "%v", err)
				}
			case protocol.RecordFailure:
				record.Failed = true
			case protocol.Release:
				released = true
			case protocol.TransferOwnership, protocol.TakeOwnership:
				record.Owner = protocol.Target
			case protocol.Run:
				Expect(m.targetConn.ResumeTarget(ctx, m.guest.domain)).To(Succeed())
			case protocol.Destroy:
				Expect(record.Failed).To(BeTrue(), "only the target's guest of a failed migration may be destroyed")
				Expect(m.targetConn.Destroy(ctx, m.guest.domain)).To(Succeed())
			default:
				Fail("an unexpected action")
			}
		}
	}
	Fail("the migration does not finish")
	return record
}

// expectOnSource checks that the guest runs on the source only, and can write its disk.
func (m *podPair) expectOnSource(record protocol.Record) {
	GinkgoHelper()
	Expect(record).To(Equal(protocol.Record{Started: true, Failed: true}))
	Expect(m.sourceState()).To(Equal(hypervisor.SourceState{Domain: protocol.SourceRunning}))
	Expect(m.targetState()).To(Equal(protocol.TargetAbsent))
	Expect(strings.TrimSpace(m.guest.run("echo alive >> /mnt/data/log && sync && tail -n 1 /mnt/data/log"))).
		To(Equal("alive"))
}

var _ = Describe("A migration whose source's agent ends", Label("libvirt"), func() {
	It("leaves exactly one running guest, whenever the agent ends", func() {
		m := newPodPair()
		m.guest.run("mount /dev/vda /mnt/data; echo before > /mnt/data/log; sync")
		started := protocol.Record{Started: true}

		By("ending during the transfer")
		ctx, stop := context.WithCancel(GinkgoT().Context())
		slow := m.request()
		slow.Bandwidth = 1 << 20
		done := make(chan error, 1)
		go func() { done <- m.sourceConn.Transfer(ctx, slow) }()
		Eventually(func() uint64 {
			progress, err := m.sourceConn.TransferProgress(GinkgoT().Context(), m.guest.domain)
			Expect(err).NotTo(HaveOccurred())
			if progress == nil {
				return 0
			}
			return progress.Memory.Processed
		}).WithTimeout(time.Minute).Should(BeNumerically(">", 0))
		Expect(m.targetState()).To(Equal(protocol.TargetReceiving))
		Expect(m.sourceState()).To(Equal(hypervisor.SourceState{Domain: protocol.SourceRunning, Job: true}))
		stop()
		Eventually(done).Should(Receive(HaveOccurred()))
		m.expectOnSource(m.settle(started))

		By("ending before the request to finish is sent to the target")
		m.transferAndStop(false)
		Expect(m.sourceState().Domain).To(Equal(protocol.SourceSuspended))
		Eventually(m.targetState).Should(Equal(protocol.TargetAbsent))
		m.expectOnSource(m.settle(started))

		By("ending after the target has finished the transfer")
		m.transferAndStop(true)
		Expect(m.sourceState().Domain).To(Equal(protocol.SourceSuspended))
		Expect(m.targetState()).To(Equal(protocol.TargetComplete))
		Eventually(m.sourceState).Should(Equal(hypervisor.SourceState{Domain: protocol.SourceSuspended}))
		Expect(m.sourceConn.ResumeSource(GinkgoT().Context(), m.guest.domain)).
			To(MatchError(ContainSubstring("lock")), "the target has the images")
		Expect(m.sourceState()).To(Equal(hypervisor.SourceState{Domain: protocol.SourceSuspended}))
		m.expectOnSource(m.settle(started))

		By("migrating afterwards")
		Expect(m.sourceConn.Transfer(GinkgoT().Context(), m.request())).To(Succeed())
		Expect(m.settle(started)).To(Equal(protocol.Record{Started: true, Owner: protocol.Target}))
		migrated := m.resumeOnTarget()
		Expect(strings.Count(migrated.run("cat /mnt/data/log"), "alive")).To(Equal(3))
	})

	It("has libvirt's job until the agent's connection ends, and libvirt refuses to confirm it afterwards", extended(3),
		func() {
			m := newPodPair()
			ctx := GinkgoT().Context()
			client, domain := m.transferOnly()

			By("having a job as long as the connection exists")
			Consistently(m.sourceState).WithTimeout(2 * time.Second).
				Should(Equal(hypervisor.SourceState{Domain: protocol.SourceSuspended, Job: true}))
			Expect(m.sourceConn.ResumeSource(ctx, m.guest.domain)).To(MatchError(hypervisor.ErrNotRunning))

			By("refusing the confirmation over another connection")
			client.Close()
			Eventually(m.sourceState).Should(Equal(hypervisor.SourceState{Domain: protocol.SourceSuspended}))
			other, err := libvirtwire.Dial(ctx, m.sourcePod.daemon.Socket())
			Expect(err).NotTo(HaveOccurred())
			defer other.Close()
			late := other.MigrateConfirm(ctx, domain, nil, nil, libvirtwire.MigrateLive|libvirtwire.MigrateProtect, false)
			Expect(late).To(HaveOccurred())
			AddReportEntry("libvirt's refusal", late.Error())
			Expect(m.sourceState()).To(Equal(hypervisor.SourceState{Domain: protocol.SourceSuspended}))

			By("resuming the guest")
			Expect(m.sourceConn.ResumeSource(ctx, m.guest.domain)).To(Succeed())
			Expect(strings.TrimSpace(m.guest.run("echo $((40+2))"))).To(Equal("42"))
		})
})

// transferAndStop transfers the guest up to the request to finish.
func (m *podPair) transferAndStop(afterResponse bool) {
	GinkgoHelper()
	ctx, stop := context.WithCancel(GinkgoT().Context())
	defer stop()
	r := m.request()
	dial := r.DialTarget
	r.DialTarget = func(ctx context.Context) (net.Conn, error) {
		conn, err := dial(ctx)
		return &cutConn{Conn: conn, afterResponse: afterResponse, stop: stop}, err
	}
	Expect(m.sourceConn.Transfer(ctx, r)).NotTo(Succeed())
}

// transferOnly transfers the guest over the test's own connections, without finishing.
func (m *podPair) transferOnly() (*libvirtwire.Client, libvirtwire.Domain) {
	GinkgoHelper()
	ctx := GinkgoT().Context()
	from, err := libvirtwire.Dial(ctx, m.sourcePod.daemon.Socket())
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(from.Close)
	to, err := libvirtwire.Dial(ctx, m.targetPod.daemon.Socket())
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

var _ = Describe("A source's libvirtd that hangs during a transfer", Label("libvirt"), func() {
	It("is detected by keepalive, and a running one is not disconnected", func() {
		p := newPod()
		client, err := libvirtwire.Dial(GinkgoT().Context(), p.daemon.Socket())
		Expect(err).NotTo(HaveOccurred())
		defer client.Close()
		const patience = 3 * time.Second
		client.KeepAlive(200*time.Millisecond, patience)
		// A libvirtd that is not seen to respond would be disconnected after that time.
		Consistently(client.Done()).WithTimeout(patience + time.Second).ShouldNot(BeClosed())
		Expect(unix.Kill(p.libvirtd(), unix.SIGSTOP)).To(Succeed())
		Eventually(client.Done()).Should(BeClosed())
	})

	It("lets the migration fail, and the guest runs on the source when libvirtd continues", extended(2), func() {
		m := newPodPair()
		m.guest.run("mount /dev/vda /mnt/data; echo before > /mnt/data/log; sync")
		slow := m.request()
		slow.Bandwidth, slow.Silence = 1<<20, 15*time.Second
		done := make(chan error, 1)
		go func() { done <- m.sourceConn.Transfer(GinkgoT().Context(), slow) }()
		Eventually(m.targetState).WithTimeout(time.Minute).Should(Equal(protocol.TargetReceiving))

		hung := m.sourcePod.libvirtd()
		Expect(unix.Kill(hung, unix.SIGSTOP)).To(Succeed())
		DeferCleanup(func() { _ = unix.Kill(hung, unix.SIGCONT) })
		var err error
		Eventually(done).WithTimeout(3 * time.Minute).Should(Receive(&err))
		Expect(err).To(MatchError(hypervisor.ErrUnreachable))
		Eventually(m.targetState).WithTimeout(time.Minute).Should(Equal(protocol.TargetAbsent))

		Expect(unix.Kill(hung, unix.SIGCONT)).To(Succeed())
		// The connection was closed as well.
		m.sourceConn = m.sourcePod.dial()
		m.guest.conn = m.sourceConn
		m.guest.openConsole()
		m.expectOnSource(m.settle(protocol.Record{Started: true}))
	})
})

// libvirtd returns the PID of the Pod's libvirtd.
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
