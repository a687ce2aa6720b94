// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package integration_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"image"
	"image/png"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"time"

	"github.com/coder/websocket"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/hypervisor/rpc"
	"github.com/vireo-project/vireo/internal/agent/server"
	agentvmi "github.com/vireo-project/vireo/internal/agent/vmi"
	"github.com/vireo-project/vireo/internal/wire/agentapi"
	"github.com/vireo-project/vireo/test/pki"
)

// one provides a single connection.
type one struct{ *rpc.Conn }

func (o one) Open(context.Context, hypervisor.PodRef) (server.Connection, error) { return o.Conn, nil }

// served is the server of an agent with one guest, and a client with virt-api's certificate.
type served struct {
	address string
	client  *http.Client
	key     types.NamespacedName
}

// serve runs an agent's server for the golden guest.
func serve(conn *rpc.Conn) *served {
	GinkgoHelper()
	vmi, pod := assignedVMI(), launcherPod()
	// The golden domains have this name.
	vmi.Name, pod.OwnerReferences[0].Name = "testvmi", "testvmi"
	vmi.Status.Phase = v1.Running
	scheme := apiruntime.NewScheme()
	Expect(corev1.AddToScheme(scheme)).To(Succeed())
	Expect(v1.AddToScheme(scheme)).To(Succeed())
	ca := pki.New(GinkgoT())
	s, err := server.New(server.Options{
		TLS: &tls.Config{
			Certificates: []tls.Certificate{ca.Issue(agentapi.ServerName(agentNode), x509.ExtKeyUsageServerAuth)},
			ClientCAs:    ca.Pool(),
		},
		Node: agentNode, Connections: one{conn}, Responses: hypervisor.NewResponseBudget(),
		Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(vmi, pod).WithIndex(&corev1.Pod{}, agentvmi.PodIndex,
			agentvmi.IndexPod).Build(),
	})
	Expect(err).NotTo(HaveOccurred())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, listener) }()
	DeferCleanup(func() {
		cancel()
		Eventually(done).WithTimeout(20 * time.Second).Should(Receive(BeNil()))
	})
	return &served{
		address: listener.Addr().String(), key: types.NamespacedName{Namespace: vmi.Namespace, Name: vmi.Name},
		client: &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{
			RootCAs: ca.Pool(), ServerName: agentapi.ServerName(agentNode),
			Certificates: []tls.Certificate{ca.Issue(agentapi.ClientName, x509.ExtKeyUsageClientAuth)},
		}}},
	}
}

func (s *served) url(verb string) string {
	return "https://" + s.address + agentapi.VMIPath(s.key, verb) + "?uid=" + string(vmiUID)
}

func (s *served) stream(ctx context.Context, verb string) net.Conn {
	GinkgoHelper()
	socket, _, err := websocket.Dial(ctx, s.url(verb), &websocket.DialOptions{HTTPClient: s.client, Subprotocols: []string{agentapi.StreamProtocol}}) //nolint:bodyclose // Dial's response needs none
	Expect(err).NotTo(HaveOccurred())
	return websocket.NetConn(ctx, socket, websocket.MessageBinary)
}

func (s *served) screenshot(ctx context.Context) (image.Image, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url(agentapi.Screenshot), nil)
	if err != nil {
		return nil, err
	}
	response, err := s.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%d: %s", response.StatusCode, body)
	}
	return png.Decode(bytes.NewReader(body))
}

// enterScreen performs the handshake of RFB (RFC 6143, 7.1 to 7.3) and returns the screen's size.
func enterScreen(screen net.Conn) image.Point {
	GinkgoHelper()
	read := func(n int) []byte {
		GinkgoHelper()
		buffer := make([]byte, n)
		_, err := io.ReadFull(screen, buffer)
		Expect(err).NotTo(HaveOccurred())
		return buffer
	}
	write := func(b string) {
		GinkgoHelper()
		_, err := io.WriteString(screen, b)
		Expect(err).NotTo(HaveOccurred())
	}
	Expect(string(read(12))).To(Equal("RFB 003.008\n"))
	write("RFB 003.008\n")
	Expect(read(int(read(1)[0]))).To(ContainElement(byte(1)), "None is a kind of security")
	write("\x01")
	Expect(read(4)).To(Equal([]byte{0, 0, 0, 0}))
	write("\x01")
	size := read(4)
	return image.Pt(int(binary.BigEndian.Uint16(size)), int(binary.BigEndian.Uint16(size[2:])))
}

func isLit(screen image.Image) bool {
	for y := range screen.Bounds().Dy() {
		for x := range screen.Bounds().Dx() {
			if r, g, b, _ := screen.At(x, y).RGBA(); r|g|b != 0 {
				return true
			}
		}
	}
	return false
}

var _ = Describe("The agent's server", Label("libvirt"), func() {
	It("serves a guest's screen and console, and frees all resources of closed streams", extended(2), func() {
		p := newPod()
		p.image = echoingDisk()
		p.start("cloudinit-first")
		Eventually(p.daemon.Console).WithTimeout(bootTimeout).Should(ContainSubstring(echoMessage))
		s := serve(p.dial())
		ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
		defer cancel()

		By("serving the screen as a stream")
		first := s.stream(ctx, agentapi.VNC)
		size := enterScreen(first)
		Expect(size.X).To(BeNumerically(">=", 320))

		By("serving a screenshot")
		var shot image.Image
		Eventually(func() (bool, error) {
			var err error
			if shot, err = s.screenshot(ctx); err != nil {
				return false, err
			}
			return isLit(shot), nil
		}).WithTimeout(bootTimeout).Should(BeTrue())
		Expect(shot.Bounds().Size()).To(Equal(size))

		By("closing the first stream when another client opens the screen")
		second := s.stream(ctx, agentapi.VNC)
		Expect(enterScreen(second)).To(Equal(size))
		_, err := io.Copy(io.Discard, first)
		var closed websocket.CloseError
		Expect(errors.As(err, &closed)).To(BeTrue(), "%v", err)
		Expect(closed.Code).To(BeEquivalentTo(agentapi.CloseTakenOver))
		Expect(closed.Reason).To(Equal("another client took over the screen"))
		Expect(second.Close()).To(Succeed())

		By("freeing goroutines and descriptors of a hundred screens and thirteen consoles")
		goroutines, descriptors := runtime.NumGoroutine(), ownDescriptors()
		for i := range 100 {
			screen := s.stream(ctx, agentapi.VNC)
			_, err = io.ReadFull(screen, make([]byte, 12))
			Expect(err).NotTo(HaveOccurred())
			// QEMU looks once a second whether the terminal of a console has been opened again: there are few more than
			// resources may be left.
			if i%8 == 0 {
				console := s.stream(ctx, agentapi.Console)
				_, err := io.WriteString(console, "x")
				Expect(err).NotTo(HaveOccurred())
				_, err = io.ReadFull(console, make([]byte, 1))
				Expect(err).NotTo(HaveOccurred())
				_ = console.Close()
			}
			_ = screen.Close()
		}
		s.client.CloseIdleConnections()
		Eventually(runtime.NumGoroutine).WithTimeout(30 * time.Second).Should(BeNumerically("<=", goroutines+10))
		Eventually(ownDescriptors).WithTimeout(30 * time.Second).Should(BeNumerically("<=", descriptors+10))
	})
})

func ownDescriptors() int {
	GinkgoHelper()
	entries, err := os.ReadDir("/proc/self/fd")
	Expect(err).NotTo(HaveOccurred())
	return len(entries)
}
