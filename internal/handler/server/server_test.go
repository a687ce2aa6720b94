// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
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
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agentapi"
	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/handler/hypervisor/fake"
	"github.com/vireo-project/vireo/internal/handler/server"
	"github.com/vireo-project/vireo/test/pki"
)

func TestNobodyIsServedWithoutTLS(t *testing.T) {
	if _, err := server.New(server.Options{}); err == nil {
		t.Error("a server without certificates was made")
	}
}

func TestOnlyVirtAPIIsServed(t *testing.T) {
	n := newNode(t, nil)
	for name, certificate := range map[string]*tls.Certificate{
		"no certificate":                   nil,
		"another authority's certificate":  ptrTo(pki.New(t).Issue(agentapi.ClientName, x509.ExtKeyUsageClientAuth)),
		"an agent's certificate":           ptrTo(n.ca.Issue(agentapi.ServerName(nodeName), x509.ExtKeyUsageServerAuth)),
		"virt-api's certificate to serve":  ptrTo(n.ca.Issue(agentapi.ClientName, x509.ExtKeyUsageServerAuth)),
		"a client that is not virt-api":    ptrTo(n.ca.Issue("somebody", x509.ExtKeyUsageClientAuth)),
		"an agent's certificate to call":   ptrTo(n.ca.Issue(agentapi.ServerName(nodeName), x509.ExtKeyUsageClientAuth)),
		"a name that begins like virt-api": ptrTo(n.ca.Issue(agentapi.ClientName+"x", x509.ExtKeyUsageClientAuth)),
	} {
		t.Run(name, func(t *testing.T) {
			stranger := n.clientWith()
			if certificate != nil {
				stranger = n.clientWith(*certificate)
			}
			request, err := http.NewRequest(http.MethodPut, n.url("", agentapi.Pause), nil)
			if err != nil {
				t.Fatal(err)
			}
			response, err := stranger.Do(request)
			if err == nil {
				_ = response.Body.Close()
				if response.StatusCode != http.StatusForbidden {
					t.Errorf("answered with %d", response.StatusCode)
				}
			}
			if n.launcher.Snapshot().State != hypervisor.StateRunning {
				t.Error("the guest was paused")
			}
		})
	}
}

func ptrTo[T any](v T) *T { return &v }

func TestARequestNamesAnInstanceOfTheNode(t *testing.T) {
	elsewhere := instance()
	elsewhere.Status.NodeName = "node-2"
	finished := launcherPod()
	finished.Status.Phase = corev1.PodSucceeded
	strange := launcherPod()
	strange.OwnerReferences[0].UID = "another"
	for name, c := range map[string]struct {
		objects    []client.Object
		parameters string
		code       int
		says       string
	}{
		"no instance":               {[]client.Object{launcherPod()}, "", http.StatusNotFound, `"db" not found`},
		"another of its name":       {nil, "uid=other", http.StatusConflict, "made again"},
		"no UID":                    {nil, "uid=", http.StatusBadRequest, "uid"},
		"one of another node":       {[]client.Object{elsewhere, launcherPod()}, "", http.StatusConflict, "does not run on this node"},
		"no Pod":                    {[]client.Object{instance()}, "", http.StatusConflict, "not running"},
		"a Pod that has finished":   {[]client.Object{instance(), finished}, "", http.StatusConflict, "not running"},
		"a Pod of an earlier one":   {[]client.Object{instance(), strange}, "", http.StatusConflict, "not running"},
		"an instance that is there": {nil, "", http.StatusAccepted, ""},
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
			expectStatus(t, code, body, c.code, c.says)
		})
	}
}

func TestErrorsSayWhoIsAtFault(t *testing.T) {
	for name, c := range map[string]struct {
		break_ func(*fake.Launcher)
		code   int
		says   string
	}{
		"the connection":                  {func(l *fake.Launcher) { l.Unreachable(fmt.Errorf("%w: it hung up", hypervisor.ErrUnreachable)) }, http.StatusServiceUnavailable, "no connection to the guest's hypervisor"},
		"a connection that is being made": {func(l *fake.Launcher) { l.Unreachable(hypervisor.ErrConnecting) }, http.StatusServiceUnavailable, "try again"},
		"libvirtd":                        {func(l *fake.Launcher) { l.Fail("pause", fmt.Errorf("out of\nmemory")) }, http.StatusInternalServerError, "hypervisor refused: out of memory"},
		"the guest, which ended":          {func(l *fake.Launcher) { l.Crash() }, http.StatusConflict, "the guest is not running"},
		"the guest, which is mute":        {func(l *fake.Launcher) { l.Fail("pause", hypervisor.ErrGuestSilent) }, http.StatusInternalServerError, "the guest does not take part"},
		"libvirtd, at length":             {func(l *fake.Launcher) { l.Fail("pause", fmt.Errorf("%s", strings.Repeat("é", 5000))) }, http.StatusInternalServerError, "é"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, nil)
			c.break_(n.launcher)
			code, body := n.do(http.MethodPut, n.url("", agentapi.Pause), "")
			expectStatus(t, code, body, c.code, c.says)
			if len(body) > 1000 {
				t.Errorf("the answer has %d bytes", len(body))
			}
		})
	}
}

func TestPower(t *testing.T) {
	n := newNode(t, nil)
	for _, step := range []struct {
		verb  string
		state hypervisor.State
	}{{agentapi.Pause, hypervisor.StatePaused}, {agentapi.Unpause, hypervisor.StateRunning}, {agentapi.Reset, hypervisor.StateRunning}, {agentapi.SoftReboot, hypervisor.StateRunning}} {
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
	say(t, first, "hello")
	hear(t, first, "hello")

	second := n.stream(n.url("", agentapi.Console))
	expectEnd(t, first, agentapi.CloseTakenOver, "another client took over the console")
	say(t, second, "again")
	hear(t, second, "again")
	if err := second.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Error(err)
	}
	third := n.stream(n.url("", agentapi.Console))
	say(t, third, "and again")
	hear(t, third, "and again")
}

func TestConsoleEndsWithItsGuest(t *testing.T) {
	n := newNode(t, nil)
	end := make(chan struct{})
	n.launcher.Serial(func(guest net.Conn) {
		_, _ = io.WriteString(guest, "bye")
		<-end
		_ = guest.Close()
	})
	socket := n.stream(n.url("", agentapi.Console))
	hear(t, socket, "bye")
	close(end)
	expectEnd(t, socket, websocket.StatusNormalClosure, "the guest's end of the console was closed")
}

func TestStreamsAreRefusedBeforeTheUpgrade(t *testing.T) {
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
	hear(t, first, fake.RFBBanner)
	code, body := n.refused(n.url("preserveSession=true", agentapi.VNC))
	expectStatus(t, code, body, http.StatusServiceUnavailable, "Active VNC connection. Request denied.")
	say(t, first, "still here")
	hear(t, first, "still here")

	second := n.stream(n.url("", agentapi.VNC))
	expectEnd(t, first, agentapi.CloseTakenOver, "another client took over the screen")
	hear(t, second, fake.RFBBanner)
	console := n.stream(n.url("", agentapi.Console))
	say(t, second, "a console takes no screen")
	hear(t, second, "a console takes no screen")
	say(t, console, "x")
	hear(t, console, "x")
}

// A client that does not read must not keep the guest from writing, or from being read by the next client.
func TestAClientThatDoesNotRead(t *testing.T) {
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
	lazy := n.stream(n.url("", agentapi.Console))
	select {
	case err := <-written:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(patience):
		t.Fatal("the guest waits for a client that does not read")
	}
	lazy.SetReadLimit(-1)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	got, lost := 0, 0
	for got+lost < much {
		_, message, err := lazy.Read(ctx)
		if err != nil {
			t.Fatalf("%d bytes came and %d were told as lost, of %d: %v", got, lost, much, err)
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
		t.Fatalf("%d bytes came and %d were told as lost, of %d", got, lost, much)
	}
	say(t, lazy, "hello")
	hear(t, lazy, "hello")
}

var lostBytes = regexp.MustCompile(`\[(\d+) bytes of the console were lost: the client is too slow\]`)

func echo(conn net.Conn) { _, _ = io.Copy(conn, conn) }

func TestStreamsAreLimited(t *testing.T) {
	n := newNode(t, func(o *server.Options) { o.Limits = server.Limits{PerVMI: 2, Streams: 3, Questions: 1} })
	n.stream(n.url("", agentapi.Console))
	screen := n.stream(n.url("", agentapi.VNC))
	code, body := n.refused(n.url("", agentapi.VNC))
	expectStatus(t, code, body, http.StatusTooManyRequests, "the instance has 2 streams open")
	_ = screen.Close(websocket.StatusNormalClosure, "")
	deadline := time.Now().Add(patience)
	for {
		socket, _, _ := n.dial(n.url("", agentapi.VNC))
		if socket != nil {
			hear(t, socket, fake.RFBBanner)
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the place of a stream that ended is not free")
		}
	}
}

func TestANamespaceHasAShareOfStreams(t *testing.T) {
	n := newNode(t, func(o *server.Options) { o.Limits = server.Limits{PerNamespace: 2} })
	n.stream(n.url("", agentapi.Console))
	n.stream(n.url("", agentapi.VNC))
	code, body := n.refused(n.url("", agentapi.VNC))
	expectStatus(t, code, body, http.StatusTooManyRequests, "namespace "+vmiKey.Namespace+" has 2 streams open on the node")
}

func TestTheLastStreamsAreForThoseWhoHaveFew(t *testing.T) {
	n := newNode(t, func(o *server.Options) { o.Limits = server.Limits{Streams: 4, Reserve: 2, Few: 2} })
	n.stream(n.url("", agentapi.Console))
	n.stream(n.url("", agentapi.VNC))
	code, body := n.refused(n.url("", agentapi.VNC))
	expectStatus(t, code, body, http.StatusTooManyRequests, "the rest are reserved for namespaces with fewer than 2")
}

func TestStreamsAreToldThatTheAgentStops(t *testing.T) {
	n := newNode(t, nil)
	console, screen := n.stream(n.url("", agentapi.Console)), n.stream(n.url("", agentapi.VNC))
	go n.stop()
	expectEnd(t, console, websocket.StatusGoingAway, "virt-handler on the node is stopping")
	expectEnd(t, screen, websocket.StatusGoingAway, "virt-handler on the node is stopping")
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
		says      string
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
			// What the guest reports must lead nowhere.
			vmi := instance()
			vmi.Status.Interfaces = []v1.VirtualMachineInstanceNetworkInterface{{IP: "127.0.0.1", IPs: []string{"127.0.0.1"}}}
			n := newNode(t, nil, vmi, pod)
			code, body := n.refused(n.url("", agentapi.PortForward, c.arguments...))
			expectStatus(t, code, body, c.code, c.says)
		})
	}
}

func TestPortForwardCarries(t *testing.T) {
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
	say(t, stream, "hello")
	hear(t, stream, "hello")
	stream = n.stream(n.url("", agentapi.PortForward, portOf(t, udp.LocalAddr()), "udp"))
	stream.SetReadLimit(-1)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, datagram := range []string{"one", "", strings.Repeat("x", 40000), "two"} {
		say(t, stream, datagram)
		_, got, err := stream.Read(ctx)
		if err != nil || string(got) != datagram {
			t.Errorf("%d bytes came back of %d (%v)", len(got), len(datagram), err)
		}
	}
	stop()
	code, body := n.refused(n.url("", agentapi.PortForward, tcp))
	expectStatus(t, code, body, http.StatusInternalServerError, "dialing VM: cannot connect to the guest")
}

// What streams and refusals took must be given back.
func TestStreamsLeaveNothingBehind(t *testing.T) {
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
		say(t, stream, "x")
		hear(t, stream, "x")
		if i%3 == 0 {
			// Without a word, as a client that dies.
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
	deadline := time.Now().Add(patience)
	for runtime.NumGoroutine() > goroutines+10 || openDescriptors(t) > descriptors+10 {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines and %d descriptors, before %d and %d", runtime.NumGoroutine(), openDescriptors(t), goroutines, descriptors)
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
