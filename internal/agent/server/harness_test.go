// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"libvirt.org/go/libvirtxml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	clientfake "sigs.k8s.io/controller-runtime/pkg/client/fake"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/server"
	agentvmi "github.com/vireo-project/vireo/internal/agent/vmi"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/wire/agentapi"
	"github.com/vireo-project/vireo/test/fakes/libvirt"
	"github.com/vireo-project/vireo/test/pki"
)

const (
	nodeName = "node-1"
	vmiUID   = types.UID("7d9bdd2c-9e57-4c8f-a1d5-5a07b8f0a0b1")
	podUID   = types.UID("0b7a6b0e-6d53-4f0b-9a41-3a1d8f1f7a11")
	// timeout bounds waiting for what should happen soon.
	timeout = 20 * time.Second
)

var vmiKey = types.NamespacedName{Namespace: "shop", Name: "db"}

// node is an agent's server with one running guest, and a client of it.
type node struct {
	t        *testing.T
	ca       *pki.Authority
	address  string
	launcher *libvirt.Launcher
	client   *http.Client
	server   *server.Server
	// stop stops the server and waits for it.
	stop func()
}

type connections struct{ *libvirt.Node }

func (c connections) Open(_ context.Context, pod hypervisor.PodRef) (server.Connection, error) {
	launcher, err := c.Node.Open(pod)
	if err != nil {
		return nil, err
	}
	return launcher, nil
}

func instance() *v1.VirtualMachineInstance {
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: vmiKey.Namespace, Name: vmiKey.Name,
		UID: vmiUID}}
	vmi.Status.Phase, vmi.Status.NodeName = v1.Running, nodeName
	return vmi
}

func launcherPod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: vmiKey.Namespace, Name: "virt-launcher-db-x", UID: podUID,
			Labels: map[string]string{v1.AppLabel: launcherpod.AppLabelValue},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance", Name: vmiKey.Name, UID: vmiUID,
				Controller: ptr.To(true),
			}},
		},
		Spec:   corev1.PodSpec{NodeName: nodeName},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: podAddress},
	}
}

func newNode(t *testing.T, change func(*server.Options), objects ...client.Object) *node {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, v1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	if len(objects) == 0 {
		objects = []client.Object{instance(), launcherPod()}
	}
	launchers := libvirt.NewNode()
	n := &node{t: t, ca: pki.New(t), launcher: launchers.Launcher(podUID)}
	domain := &libvirtxml.Domain{Name: launcherpod.DomainName(vmiKey.Namespace, vmiKey.Name)}
	if err := n.launcher.Start(context.Background(), domain, false); err != nil {
		t.Fatal(err)
	}
	options := server.Options{
		TLS: &tls.Config{
			Certificates: []tls.Certificate{n.ca.Issue(agentapi.ServerName(nodeName), x509.ExtKeyUsageServerAuth)},
			ClientCAs:    n.ca.Pool(),
		},
		Node: nodeName, Profiles: http.HandlerFunc(
			func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.URL.Path) }),
		Connections: connections{launchers}, Responses: hypervisor.NewResponseBudget(),
		Client: clientfake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
			WithIndex(&corev1.Pod{}, agentvmi.PodIndex, agentvmi.IndexPod).Build(),
	}
	if change != nil {
		change(&options)
	}
	var err error
	if n.server, err = server.New(options); err != nil {
		t.Fatal(err)
	}
	n.serve()
	n.client = n.clientWith(n.ca.Issue(agentapi.ClientName, x509.ExtKeyUsageClientAuth))
	return n
}

func (n *node) serve() {
	n.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		n.t.Fatal(err)
	}
	n.address = listener.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.server.Serve(ctx, listener) }()
	stopped := false
	n.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		select {
		case err := <-done:
			if err != nil {
				n.t.Error(err)
			}
		case <-time.After(timeout):
			n.t.Error("the server does not stop")
		}
	}
	n.t.Cleanup(n.stop)
}

func (n *node) clientWith(certificates ...tls.Certificate) *http.Client {
	transport := &http.Transport{TLSClientConfig: &tls.Config{
		RootCAs: n.ca.Pool(), Certificates: certificates, ServerName: agentapi.ServerName(nodeName),
	}}
	n.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: timeout}
}

func (n *node) url(parameters, verb string, arguments ...string) string {
	query, err := url.ParseQuery(parameters)
	if err != nil {
		n.t.Fatal(err)
	}
	if !query.Has(agentapi.UIDParameter) {
		query.Set(agentapi.UIDParameter, string(vmiUID))
	}
	return "https://" + n.address + agentapi.VMIPath(vmiKey, verb, arguments...) + "?" + query.Encode()
}

// do sends a request and returns the code and the body of the response.
func (n *node) do(method, url, body string) (int, []byte) {
	n.t.Helper()
	request, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		n.t.Fatal(err)
	}
	response, err := n.client.Do(request)
	if err != nil {
		n.t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		n.t.Fatal(err)
	}
	return response.StatusCode, content
}

// expectStatus fails unless a response is a Status with a code and a message that contains a text.
func expectStatus(t *testing.T, code int, body []byte, wanted int, message string) {
	t.Helper()
	status := metav1.Status{}
	if err := json.Unmarshal(body, &status); err != nil || status.Kind != "Status" ||
		status.Status != metav1.StatusFailure {
		t.Fatalf("%d, which is no Status of a failure: %q", code, body)
	}
	if code != wanted || int(status.Code) != wanted {
		t.Errorf("got %d (%d in the Status), want %d: %s", code, status.Code, wanted, status.Message)
	}
	if !strings.Contains(status.Message, message) {
		t.Errorf("%q does not contain %q", status.Message, message)
	}
}

// stream opens a stream.
func (n *node) stream(url string) *websocket.Conn {
	n.t.Helper()
	socket, code, body := n.dial(url)
	if socket == nil {
		n.t.Fatalf("refused with %d: %s", code, body)
	}
	return socket
}

// refused opens a stream that the server must reject, and returns the response.
func (n *node) refused(url string) (int, []byte) {
	n.t.Helper()
	socket, code, body := n.dial(url)
	if socket != nil {
		n.t.Fatal("the stream was not refused")
	}
	return code, body
}

// dial opens a stream, or returns the response that rejected it.
func (n *node) dial(url string) (*websocket.Conn, int, []byte) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	untimed := &http.Client{Transport: n.client.Transport}
	socket, response, err := websocket.Dial(ctx, url,
		&websocket.DialOptions{HTTPClient: untimed, Subprotocols: []string{agentapi.StreamProtocol}})
	if err == nil {
		n.t.Cleanup(func() { _ = socket.CloseNow() })
		return socket, http.StatusSwitchingProtocols, nil
	}
	if response == nil {
		n.t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		n.t.Fatal(err)
	}
	return nil, response.StatusCode, body
}

// send sends a message.
func send(t *testing.T, socket *websocket.Conn, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if err := socket.Write(ctx, websocket.MessageBinary, []byte(text)); err != nil {
		t.Fatal(err)
	}
}

// expectMessage reads until the messages contain a text.
func expectMessage(t *testing.T, socket *websocket.Conn, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	received := ""
	for !strings.Contains(received, text) {
		kind, message, err := socket.Read(ctx)
		if err != nil {
			t.Fatalf("received %q, not %q: %v", received, text, err)
		}
		if kind != websocket.MessageBinary {
			t.Fatalf("a message of kind %s", kind)
		}
		received += string(message)
	}
}

// expectClose reads until the stream is closed, and fails unless the close frame has a code and a reason that contains
// a text.
func expectClose(t *testing.T, socket *websocket.Conn, code websocket.StatusCode, reason string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	for {
		_, _, err := socket.Read(ctx)
		if err == nil {
			continue
		}
		if got := websocket.CloseStatus(err); got != code || !strings.Contains(err.Error(), reason) {
			t.Errorf("closed with %d (%v), want %d and %q", got, err, code, reason)
		}
		return
	}
}
