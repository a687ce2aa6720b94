// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/server"
	"github.com/vireo-project/vireo/internal/component/profiler"
	"github.com/vireo-project/vireo/internal/wire/agentapi"
	"github.com/vireo-project/vireo/test/fakes/libvirt"
	"github.com/vireo-project/vireo/test/pki"
)

func TestNewNeedsTLS(t *testing.T) {
	if _, err := server.New(server.Options{}); err == nil {
		t.Error("New returned a server without certificates")
	}
}

func TestOnlyVirtAPIIsServed(t *testing.T) {
	n := newNode(t, nil)
	for name, certificate := range map[string]*tls.Certificate{
		"no certificate":                   nil,
		"another authority's certificate":  ptr.To(pki.New(t).Issue(agentapi.ClientName, x509.ExtKeyUsageClientAuth)),
		"an agent's certificate":           ptr.To(n.ca.Issue(agentapi.ServerName(nodeName), x509.ExtKeyUsageServerAuth)),
		"virt-api's certificate to serve":  ptr.To(n.ca.Issue(agentapi.ClientName, x509.ExtKeyUsageServerAuth)),
		"a client that is not virt-api":    ptr.To(n.ca.Issue("somebody", x509.ExtKeyUsageClientAuth)),
		"an agent's certificate to call":   ptr.To(n.ca.Issue(agentapi.ServerName(nodeName), x509.ExtKeyUsageClientAuth)),
		"a name that begins like virt-api": ptr.To(n.ca.Issue(agentapi.ClientName+"x", x509.ExtKeyUsageClientAuth)),
	} {
		t.Run(name, func(t *testing.T) {
			other := n.clientWith()
			if certificate != nil {
				other = n.clientWith(*certificate)
			}
			request, err := http.NewRequest(http.MethodPut, n.url("", agentapi.Pause), nil)
			if err != nil {
				t.Fatal(err)
			}
			response, err := other.Do(request)
			if err == nil {
				_ = response.Body.Close()
				if response.StatusCode != http.StatusForbidden {
					t.Errorf("got %d", response.StatusCode)
				}
			}
			if n.launcher.Snapshot().State != hypervisor.StateRunning {
				t.Error("the guest was paused")
			}
		})
	}
}

func TestRequestNamesAVMIOfTheNode(t *testing.T) {
	elsewhere := instance()
	elsewhere.Status.NodeName = "node-2"
	finished := launcherPod()
	finished.Status.Phase = corev1.PodSucceeded
	former := launcherPod()
	former.OwnerReferences[0].UID = "another"
	for name, c := range map[string]struct {
		objects    []client.Object
		parameters string
		code       int
		message    string
	}{
		"no VMI":                  {[]client.Object{launcherPod()}, "", http.StatusNotFound, `"db" not found`},
		"another of its name":     {nil, "uid=other", http.StatusConflict, "created again"},
		"no UID":                  {nil, "uid=", http.StatusBadRequest, "uid"},
		"one of another node":     {[]client.Object{elsewhere, launcherPod()}, "", http.StatusConflict, "does not run on this node"},
		"no Pod":                  {[]client.Object{instance()}, "", http.StatusConflict, "not running"},
		"a Pod that has finished": {[]client.Object{instance(), finished}, "", http.StatusConflict, "not running"},
		"a Pod of an earlier VMI": {[]client.Object{instance(), former}, "", http.StatusConflict, "not running"},
		"a VMI of the node":       {nil, "", http.StatusAccepted, ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, nil, c.objects...)
			code, body := n.do(http.MethodPut, n.url(c.parameters, agentapi.Pause), "")
			if c.code == http.StatusAccepted {
				if code != c.code || len(body) != 0 {
					t.Errorf("%d: %q", code, body)
				}
				return
			}
			expectStatus(t, code, body, c.code, c.message)
		})
	}
}

func TestErrorsNameWhatFailed(t *testing.T) {
	for name, c := range map[string]struct {
		break_  func(*libvirt.Launcher)
		code    int
		message string
	}{
		"the connection":                  {func(l *libvirt.Launcher) { l.Unreachable(fmt.Errorf("%w: it hung up", hypervisor.ErrUnreachable)) }, http.StatusServiceUnavailable, "no connection"},
		"a connection that is being made": {func(l *libvirt.Launcher) { l.Unreachable(hypervisor.ErrConnecting) }, http.StatusServiceUnavailable, "try again"},
		"libvirtd":                        {func(l *libvirt.Launcher) { l.Fail("pause", fmt.Errorf("out of\nmemory")) }, http.StatusInternalServerError, "out of memory"},
		"the guest, which ended":          {func(l *libvirt.Launcher) { l.Crash() }, http.StatusConflict, "the guest is not running"},
		"the guest, which is silent":      {func(l *libvirt.Launcher) { l.Fail("pause", hypervisor.ErrGuestSilent) }, http.StatusInternalServerError, "the guest agent failed"},
		"libvirtd, with a long message":   {func(l *libvirt.Launcher) { l.Fail("pause", fmt.Errorf("%s", strings.Repeat("é", 5000))) }, http.StatusInternalServerError, "é"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, nil)
			c.break_(n.launcher)
			code, body := n.do(http.MethodPut, n.url("", agentapi.Pause), "")
			expectStatus(t, code, body, c.code, c.message)
			if len(body) > 1000 {
				t.Errorf("the response has %d bytes", len(body))
			}
		})
	}
}

func TestPower(t *testing.T) {
	n := newNode(t, nil)
	for _, step := range []struct {
		verb  string
		state hypervisor.State
	}{{agentapi.Pause, hypervisor.StatePaused}, {agentapi.Unpause, hypervisor.StateRunning},
		{agentapi.Reset, hypervisor.StateRunning}, {agentapi.SoftReboot, hypervisor.StateRunning}} {
		if code, body := n.do(http.MethodPut, n.url("", step.verb), ""); code != http.StatusAccepted {
			t.Errorf("%s: %d %s", step.verb, code, body)
		}
		if got := n.launcher.Snapshot().State; got != step.state {
			t.Errorf("%s: the guest is %s", step.verb, got)
		}
	}
	if resets, reboots := n.launcher.Pressed(); resets != 1 || reboots != 1 {
		t.Errorf("%d resets and %d reboots", resets, reboots)
	}
	code, body := n.do(http.MethodGet, n.url("", agentapi.Pause), "")
	expectStatus(t, code, body, http.StatusNotFound, "does not serve")
}

func TestConsole(t *testing.T) {
	n := newNode(t, nil)
	first := n.stream(n.url("", agentapi.Console))
	send(t, first, "hello")
	expectMessage(t, first, "hello")

	second := n.stream(n.url("", agentapi.Console))
	expectClose(t, first, agentapi.CloseTakenOver, "another client took over the console")
	send(t, second, "again")
	expectMessage(t, second, "again")
	if err := second.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Error(err)
	}
	third := n.stream(n.url("", agentapi.Console))
	send(t, third, "and again")
	expectMessage(t, third, "and again")
}

func TestConsoleClosesWithItsGuest(t *testing.T) {
	n := newNode(t, nil)
	end := make(chan struct{})
	n.launcher.Serial(func(guest net.Conn) {
		_, _ = io.WriteString(guest, "bye")
		<-end
		_ = guest.Close()
	})
	socket := n.stream(n.url("", agentapi.Console))
	expectMessage(t, socket, "bye")
	close(end)
	expectClose(t, socket, websocket.StatusNormalClosure, "console")
}

func TestStreamsAreRejectedBeforeTheUpgrade(t *testing.T) {
	n := newNode(t, nil)
	code, body := n.do(http.MethodGet, n.url("", agentapi.Console), "")
	expectStatus(t, code, body, http.StatusBadRequest, "websocket")
	n.launcher.Crash()
	code, body = n.refused(n.url("", agentapi.Console))
	expectStatus(t, code, body, http.StatusConflict, "not running")
	code, body = n.refused(n.url("", agentapi.VNC))
	expectStatus(t, code, body, http.StatusConflict, "not running")
	code, body = n.refused(n.url("preserveSession=maybe", agentapi.VNC))
	expectStatus(t, code, body, http.StatusBadRequest, "preserveSession")
}

func TestScreen(t *testing.T) {
	n := newNode(t, nil)
	first := n.stream(n.url("preserveSession=true", agentapi.VNC))
	expectMessage(t, first, libvirt.RFBBanner)
	code, body := n.refused(n.url("preserveSession=true", agentapi.VNC))
	expectStatus(t, code, body, http.StatusServiceUnavailable, "Active VNC connection. Request denied.")
	send(t, first, "still here")
	expectMessage(t, first, "still here")

	second := n.stream(n.url("", agentapi.VNC))
	expectClose(t, first, agentapi.CloseTakenOver, "another client took over the screen")
	expectMessage(t, second, libvirt.RFBBanner)
	console := n.stream(n.url("", agentapi.Console))
	send(t, second, "a console does not take over the screen")
	expectMessage(t, second, "a console does not take over the screen")
	send(t, console, "x")
	expectMessage(t, console, "x")
}

// A client that does not read must not block the guest.
func TestClientThatDoesNotRead(t *testing.T) {
	n := newNode(t, nil)
	const much = 64 << 20
	written := make(chan error, 1)
	n.launcher.Serial(func(guest net.Conn) {
		piece := make([]byte, 32<<10)
		for range much / len(piece) {
			if _, err := guest.Write(piece); err != nil {
				written <- err
				return
			}
		}
		written <- nil
		echo(guest)
	})
	socket := n.stream(n.url("", agentapi.Console))
	select {
	case err := <-written:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(timeout):
		t.Fatal("the guest is blocked by a client that does not read")
	}
	socket.SetReadLimit(-1)
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	got, lost := 0, 0
	for got+lost < much {
		_, message, err := socket.Read(ctx)
		if err != nil {
			t.Fatalf("%d bytes were received and %d reported as lost, of %d: %v", got, lost, much, err)
		}
		got += bytes.Count(message, []byte{0})
		for _, gap := range lostBytes.FindAllSubmatch(message, -1) {
			size, err := strconv.Atoi(string(gap[1]))
			if err != nil {
				t.Fatal(err)
			}
			lost += size
		}
	}
	if got+lost != much || lost == 0 {
		t.Fatalf("%d bytes were received and %d reported as lost, of %d", got, lost, much)
	}
	send(t, socket, "hello")
	expectMessage(t, socket, "hello")
}

var lostBytes = regexp.MustCompile(`\[(\d+) bytes of the console were lost: the client is too slow\]`)

func echo(conn net.Conn) { _, _ = io.Copy(conn, conn) }

func TestStreamsAreLimited(t *testing.T) {
	n := newNode(t, func(o *server.Options) { o.Limits = server.Limits{PerVMI: 2, Streams: 3, GuestRequests: 1} })
	n.stream(n.url("", agentapi.Console))
	screen := n.stream(n.url("", agentapi.VNC))
	code, body := n.refused(n.url("", agentapi.VNC))
	expectStatus(t, code, body, http.StatusTooManyRequests, "the instance has 2 streams open")
	_ = screen.Close(websocket.StatusNormalClosure, "")
	deadline := time.Now().Add(timeout)
	for {
		socket, _, _ := n.dial(n.url("", agentapi.VNC))
		if socket != nil {
			expectMessage(t, socket, libvirt.RFBBanner)
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the slot of a closed stream is not free")
		}
	}
}

func TestStreamsPerNamespaceAreLimited(t *testing.T) {
	n := newNode(t, func(o *server.Options) { o.Limits = server.Limits{PerNamespace: 2} })
	n.stream(n.url("", agentapi.Console))
	n.stream(n.url("", agentapi.VNC))
	code, body := n.refused(n.url("", agentapi.VNC))
	expectStatus(t, code, body, http.StatusTooManyRequests, "namespace "+vmiKey.Namespace+" has 2 streams")
}

func TestReservedStreams(t *testing.T) {
	n := newNode(t, func(o *server.Options) { o.Limits = server.Limits{Streams: 4, Reserve: 2, Few: 2} })
	n.stream(n.url("", agentapi.Console))
	n.stream(n.url("", agentapi.VNC))
	code, body := n.refused(n.url("", agentapi.VNC))
	expectStatus(t, code, body, http.StatusTooManyRequests, "fewer than 2")
}

func TestStreamsCloseWhenTheAgentStops(t *testing.T) {
	n := newNode(t, nil)
	console, screen := n.stream(n.url("", agentapi.Console)), n.stream(n.url("", agentapi.VNC))
	go n.stop()
	expectClose(t, console, websocket.StatusGoingAway, "virt-handler on the node is stopping")
	expectClose(t, screen, websocket.StatusGoingAway, "virt-handler on the node is stopping")
}

func TestTheServerListensWhenItHasACertificate(t *testing.T) {
	// While the address is in use, a server that listens fails.
	used, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	certified := make(chan struct{})
	n := newNode(t, func(o *server.Options) { o.Address, o.Ready = used.Addr().String(), certified })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- n.server.Start(ctx) }()
	cancel()
	if err := <-done; err != nil {
		t.Errorf("without a certificate: %v", err)
	}

	_ = used.Close()
	close(certified)
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	go func() { done <- n.server.Start(ctx) }()
	deadline := time.Now().Add(timeout)
	for {
		conn, err := net.Dial("tcp", n.server.Address)
		if err == nil {
			_ = conn.Close()
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestARequestWaitsForTheConnection(t *testing.T) {
	opened := make(chan struct{})
	n := newNode(t, func(o *server.Options) { o.Connections = &slowConnections{o.Connections, opened} })
	go close(opened)
	if code, body := n.do(http.MethodPut, n.url("", agentapi.Pause), ""); code != http.StatusAccepted {
		t.Errorf("%d %s", code, body)
	}
}

// slowConnections makes its connections when opened is closed.
type slowConnections struct {
	server.Connections
	opened <-chan struct{}
}

func (c *slowConnections) Open(ctx context.Context, pod hypervisor.PodRef) (server.Connection, error) {
	if _, bounded := ctx.Deadline(); !bounded {
		return nil, errors.New("the wait for a connection is not bounded")
	}
	select {
	case <-ctx.Done():
		return nil, hypervisor.ErrConnecting
	case <-c.opened:
		return c.Connections.Open(ctx, pod)
	}
}

func TestPortForward(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	for name, c := range map[string]struct {
		change    func(*corev1.Pod)
		arguments []string
		code      int
		message   string
	}{
		"no number":          {nil, []string{"http"}, http.StatusBadRequest, "1 to 65535"},
		"port 0":             {nil, []string{"0"}, http.StatusBadRequest, "1 to 65535"},
		"a large port":       {nil, []string{"65536"}, http.StatusBadRequest, "1 to 65535"},
		"another protocol":   {nil, []string{"80", "sctp"}, http.StatusBadRequest, "neither tcp nor udp"},
		"no address":         {func(p *corev1.Pod) { p.Status.PodIP = "" }, []string{"80"}, http.StatusServiceUnavailable, "no address yet"},
		"the node itself":    {func(p *corev1.Pod) { p.Status.PodIP = "127.0.0.1" }, []string{"80"}, http.StatusServiceUnavailable, "not its own"},
		"metadata service":   {func(p *corev1.Pod) { p.Status.PodIP = "169.254.169.254" }, []string{"80"}, http.StatusServiceUnavailable, "not its own"},
		"the node's network": {func(p *corev1.Pod) { p.Spec.HostNetwork = true }, []string{"80"}, http.StatusServiceUnavailable, "not its own"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := launcherPod()
			if c.change != nil {
				c.change(pod)
			}
			// Addresses that the guest reports must never be dialed.
			vmi := instance()
			vmi.Status.Interfaces = []v1.VirtualMachineInstanceNetworkInterface{{IP: "127.0.0.1", IPs: []string{"127.0.0.1"}}}
			n := newNode(t, nil, vmi, pod)
			code, body := n.refused(n.url("", agentapi.PortForward, c.arguments...))
			expectStatus(t, code, body, c.code, c.message)
		})
	}
}

func TestPortForwardCopies(t *testing.T) {
	tcp, stop := echoServer(t)
	udp, err := net.ListenPacket("udp", net.JoinHostPort(podAddress, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = udp.Close() }()
	go func() {
		buffer := make([]byte, 64<<10)
		for {
			count, from, err := udp.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = udp.WriteTo(buffer[:count], from)
		}
	}()
	n := newNode(t, nil)
	stream := n.stream(n.url("", agentapi.PortForward, tcp))
	send(t, stream, "hello")
	expectMessage(t, stream, "hello")
	stream = n.stream(n.url("", agentapi.PortForward, portOf(t, udp.LocalAddr()), "udp"))
	stream.SetReadLimit(-1)
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	for _, datagram := range []string{"one", "", strings.Repeat("x", 40000), "two"} {
		send(t, stream, datagram)
		_, got, err := stream.Read(ctx)
		if err != nil || string(got) != datagram {
			t.Errorf("%d bytes came back of %d (%v)", len(got), len(datagram), err)
		}
	}
	stop()
	code, body := n.refused(n.url("", agentapi.PortForward, tcp))
	expectStatus(t, code, body, http.StatusInternalServerError, "dialing VM: cannot connect to the guest")
}

func TestStreamsReleaseTheirResources(t *testing.T) {
	port, _ := echoServer(t)
	n := newNode(t, nil)
	round := func(i int) {
		var stream *websocket.Conn
		switch i % 4 {
		case 0:
			stream = n.stream(n.url("", agentapi.Console))
		case 1:
			stream = n.stream(n.url("", agentapi.VNC))
		case 2:
			stream = n.stream(n.url("", agentapi.PortForward, port))
		default:
			n.refused(n.url("preserveSession=maybe", agentapi.VNC))
			return
		}
		send(t, stream, "x")
		expectMessage(t, stream, "x")
		if i%3 == 0 {
			// Without a close frame, like a client that dies.
			_ = stream.CloseNow()
		} else {
			_ = stream.Close(websocket.StatusNormalClosure, "")
		}
	}
	round(0)
	goroutines, descriptors := runtime.NumGoroutine(), openDescriptors(t)
	for i := range 200 {
		round(i)
	}
	n.client.CloseIdleConnections()
	deadline := time.Now().Add(timeout)
	for runtime.NumGoroutine() > goroutines+10 || openDescriptors(t) > descriptors+10 {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines and %d descriptors, before %d and %d", runtime.NumGoroutine(), openDescriptors(t),
				goroutines, descriptors)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func openDescriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestProfilesAreServed(t *testing.T) {
	n := newNode(t, nil)
	for _, path := range profiler.Paths() {
		if code, body := n.do(http.MethodGet, "https://"+n.address+path, ""); code != http.StatusOK || string(body) != path {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
}
