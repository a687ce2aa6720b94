// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package integration_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/hypervisor/rpc"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// dial connects to the Pod's libvirtd as the agent does.
func (p *pod) dial() *rpc.Conn {
	GinkgoHelper()
	conn, err := rpc.Dial(context.Background(), podOptions(p.podsDir(), GinkgoT().TempDir(), p.daemon.PID()), podRef())
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(conn.Close)
	return conn
}

// podsDir is a kubelet's directory with the Pod's sockets.
func (p *pod) podsDir() string {
	GinkgoHelper()
	pods := GinkgoT().TempDir()
	dir := filepath.Join(pods, string(agentPodUID), "volumes", "kubernetes.io~empty-dir", launcherpod.SocketsVolume)
	Expect(os.MkdirAll(dir, 0o755)).To(Succeed())
	Expect(os.Link(p.daemon.Socket(), filepath.Join(dir, launcherpod.LibvirtSocketName))).To(Succeed())
	for port := range launcherpod.USBPorts {
		// A domain that has none is none the worse for it.
		name := launcherpod.USBSocketName(port)
		err := os.Link(filepath.Join(filepath.Dir(p.daemon.Socket()), name), filepath.Join(dir, name))
		Expect(err).To(Or(Not(HaveOccurred()), MatchError(os.ErrNotExist)))
	}
	return pods
}

// podRef is the one Pod of such a directory.
func podRef() hypervisor.PodRef { return hypervisor.PodRef{UID: agentPodUID, VMI: vmiKey} }

// podOptions are those of an agent for whom the Pod's PID 1 is the Pod: there is no kubelet that made cgroups.
func podOptions(pods, relays string, pid int) rpc.Options {
	return rpc.Options{
		PodsDir: pods, RelayDir: relays, Responses: hypervisor.NewResponseBudget(),
		CheckPeer: func(*net.UnixConn, types.UID) (*hypervisor.Process, error) {
			fd, err := unix.Open("/proc/"+strconv.Itoa(pid), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			return &hypervisor.Process{Dir: os.NewFile(uintptr(fd), "process")}, err
		},
	}
}

// transcript collects what a reader gives.
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

	It("carries the console both ways, and pauses and resets it with the guest", func() {
		first, err := conn.OpenConsole(ctx, domain)
		Expect(err).NotTo(HaveOccurred())
		heard := follow(first)
		_, err = io.WriteString(first, "hello")
		Expect(err).NotTo(HaveOccurred())
		Eventually(heard.String).Should(ContainSubstring("hello"))

		By("a second console, which takes over")
		second, err := conn.OpenConsole(ctx, domain)
		Expect(err).NotTo(HaveOccurred())
		Eventually(heard.end).Should(HaveOccurred())
		heard = follow(second)
		_, err = io.WriteString(second, "again")
		Expect(err).NotTo(HaveOccurred())
		Eventually(heard.String).Should(ContainSubstring("again"))

		By("a pause, in which the guest does nothing")
		Expect(conn.Pause(ctx, domain)).To(Succeed())
		Expect(conn.Pause(ctx, domain)).To(Succeed())
		d, err := conn.Domain(ctx, domain)
		Expect(err).NotTo(HaveOccurred())
		Expect(d.State).To(Equal(hypervisor.StatePaused))
		Expect(d.Reason).To(Equal(hypervisor.PausedByUser))
		_, err = io.WriteString(second, "asleep?")
		Expect(err).NotTo(HaveOccurred())
		Consistently(heard.String).ShouldNot(ContainSubstring("asleep"))
		Expect(conn.Unpause(ctx, domain)).To(Succeed())
		Expect(conn.Unpause(ctx, domain)).To(Succeed())
		Eventually(heard.String).Should(ContainSubstring("asleep?"))

		By("a reset, after which it boots again")
		Expect(conn.Reset(ctx, domain)).To(Succeed())
		Eventually(heard.String).WithTimeout(bootTimeout).Should(ContainSubstring(echoMessage))
		Expect(second.Close()).To(Succeed())
		Expect(conn.Destroy(ctx, domain)).To(Succeed())
		_, err = conn.OpenConsole(ctx, domain)
		Expect(err).To(MatchError(hypervisor.ErrNotRunning))
	})

	It("carries the screen", func() {
		screen, err := conn.OpenGraphics(ctx, domain)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(screen.Close)
		banner := make([]byte, len("RFB 003.008\n"))
		_, err = io.ReadFull(screen, banner)
		Expect(err).NotTo(HaveOccurred())
		Expect(string(banner)).To(HavePrefix("RFB 003."))
	})
})
