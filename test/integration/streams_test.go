// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package integration_test

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/vireo-project/vireo/internal/agent/brokerclient"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/hypervisor/rpc"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/test/broker"
)

// dial connects to the Pod's libvirtd as the agent does.
func (p *pod) dial(change ...func(*rpc.Options)) *rpc.Conn {
	GinkgoHelper()
	options := podOptions(broker.Start(GinkgoT(), brokerOptions(p.podsDir(), p.daemon.PID())), GinkgoT().TempDir())
	for _, do := range change {
		do(&options)
	}
	conn, err := rpc.Dial(context.Background(), options, podRef())
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(conn.Close)
	return conn
}

// podsDir creates a kubelet's directory with the Pod's sockets.
func (p *pod) podsDir() string {
	GinkgoHelper()
	pods := GinkgoT().TempDir()
	dir := filepath.Join(pods, string(agentPodUID), "volumes", "kubernetes.io~empty-dir", launcherpod.SocketsVolume)
	Expect(os.MkdirAll(dir, 0o755)).To(Succeed())
	Expect(os.Link(p.daemon.Socket(), filepath.Join(dir, launcherpod.LibvirtSocketName))).To(Succeed())
	for port := range launcherpod.USBPorts {
		// Only domains with USB redirection have these sockets.
		name := launcherpod.USBSocketName(port)
		err := os.Link(filepath.Join(filepath.Dir(p.daemon.Socket()), name), filepath.Join(dir, name))
		Expect(err).To(Or(Not(HaveOccurred()), MatchError(os.ErrNotExist)))
	}
	return pods
}

// podRef refers to the one Pod of such a directory.
func podRef() hypervisor.PodRef { return hypervisor.PodRef{UID: agentPodUID, VMI: vmiKey} }

// podOptions returns options of an agent. The broker runs until stop.
func podOptions(client *brokerclient.Client, relays string) rpc.Options {
	return rpc.Options{Broker: client, RelayDir: relays, Responses: hypervisor.NewResponseBudget()}
}

// brokerOptions returns options of a broker that accepts a Pod's PID 1 as the peer: there is no kubelet that creates
// cgroups.
func brokerOptions(pods string, pid int) broker.Options {
	return broker.Options{PodsDir: pods, DevDir: "/dev", CheckPeer: processOf(func() int { return pid })}
}

// transcript collects the output of a reader.
type transcript struct {
	mu   sync.Mutex
	text bytes.Buffer
	err  error
}

func follow(from io.Reader) *transcript {
	t := &transcript{}
	go func() {
		buffer := make([]byte, 4096)
		for {
			n, err := from.Read(buffer)
			t.mu.Lock()
			t.text.Write(buffer[:n])
			t.err = err
			t.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return t
}

func (t *transcript) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}

func (t *transcript) end() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

var _ = Describe("A stream to a guest", Label("libvirt"), func() {
	var (
		p      *pod
		conn   *rpc.Conn
		domain string
	)
	ctx := context.Background()

	BeforeEach(func() {
		p = newPod()
		p.image = echoingDisk()
		defined := p.start("cloudinit-first")
		var err error
		domain, err = defined.GetName()
		Expect(err).NotTo(HaveOccurred())
		Eventually(p.daemon.Console).WithTimeout(bootTimeout).Should(ContainSubstring(echoMessage))
		conn = p.dial()
	})

	It("transmits the console in both directions, also after a pause and a reset of the guest", func() {
		first, err := conn.OpenConsole(ctx, domain)
		Expect(err).NotTo(HaveOccurred())
		output := follow(first)
		_, err = io.WriteString(first, "hello")
		Expect(err).NotTo(HaveOccurred())
		Eventually(output.String).Should(ContainSubstring("hello"))

		By("closing the first console when a second one is opened")
		second, err := conn.OpenConsole(ctx, domain)
		Expect(err).NotTo(HaveOccurred())
		Eventually(output.end).Should(HaveOccurred())
		output = follow(second)
		_, err = io.WriteString(second, "again")
		Expect(err).NotTo(HaveOccurred())
		Eventually(output.String).Should(ContainSubstring("again"))

		By("getting no output while the guest is paused")
		Expect(conn.Pause(ctx, domain)).To(Succeed())
		Expect(conn.Pause(ctx, domain)).To(Succeed())
		d, err := conn.Domain(ctx, domain)
		Expect(err).NotTo(HaveOccurred())
		Expect(d.State).To(Equal(hypervisor.StatePaused))
		Expect(d.Reason).To(Equal(hypervisor.PausedByUser))
		_, err = io.WriteString(second, "paused?")
		Expect(err).NotTo(HaveOccurred())
		Consistently(output.String).ShouldNot(ContainSubstring("paused"))
		Expect(conn.Unpause(ctx, domain)).To(Succeed())
		Expect(conn.Unpause(ctx, domain)).To(Succeed())
		Eventually(output.String).Should(ContainSubstring("paused?"))

		By("getting the output of the boot after a reset")
		Expect(conn.Reset(ctx, domain)).To(Succeed())
		Eventually(output.String).WithTimeout(bootTimeout).Should(ContainSubstring(echoMessage))
		Expect(second.Close()).To(Succeed())
		Expect(conn.Destroy(ctx, domain)).To(Succeed())
		_, err = conn.OpenConsole(ctx, domain)
		Expect(err).To(MatchError(hypervisor.ErrNotRunning))
	})

	It("transmits the screen", func() {
		screen, err := conn.OpenGraphics(ctx, domain)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(screen.Close)
		banner := make([]byte, len("RFB 003.008\n"))
		_, err = io.ReadFull(screen, banner)
		Expect(err).NotTo(HaveOccurred())
		Expect(string(banner)).To(HavePrefix("RFB 003."))
	})
})
