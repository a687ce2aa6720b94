// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package device

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	kubeletapi "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/vireo-project/vireo/internal/wire/brokerapi"
)

// timeout bounds waiting for what should happen soon.
const timeout = 20 * time.Second

// kubelet is a fake kubelet that accepts registrations.
type kubelet struct {
	pluginapi.UnimplementedRegistrationServer
	registered chan *pluginapi.RegisterRequest
	server     *grpc.Server
	// during is called by each registration.
	during func()
}

func (k *kubelet) Register(_ context.Context, r *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	k.during()
	k.registered <- r
	return &pluginapi.Empty{}, nil
}

func startKubelet(t *testing.T, dir string, during func()) *kubelet {
	t.Helper()
	listener, err := net.Listen("unix", filepath.Join(dir, "kubelet.sock"))
	if err != nil {
		t.Fatal(err)
	}
	return serveKubelet(t, listener, during)
}

func serveKubelet(t *testing.T, listener net.Listener, during func()) *kubelet {
	t.Helper()
	k := &kubelet{registered: make(chan *pluginapi.RegisterRequest, 10), server: grpc.NewServer(), during: during}
	pluginapi.RegisterRegistrationServer(k.server, k)
	go func() { _ = k.server.Serve(listener) }()
	t.Cleanup(k.server.Stop)
	return k
}

// expectRegistered waits for a registration of each resource.
func (k *kubelet) expectRegistered(t *testing.T, resources ...string) map[string]string {
	t.Helper()
	endpoints := map[string]string{}
	for len(endpoints) < len(resources) {
		select {
		case r := <-k.registered:
			endpoints[r.ResourceName] = r.Endpoint
		case <-time.After(timeout):
			t.Fatalf("registered: %v, want %v", endpoints, resources)
		}
	}
	for _, resource := range resources {
		if endpoints[resource] == "" {
			t.Fatalf("registered: %v, want %v", endpoints, resources)
		}
	}
	return endpoints
}

func makeDevice(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	// The null device stands for any device: the Manager does not open it.
	if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
		t.Skipf("needs to be root to make device files: %v", err)
	}
}

// node has a node's directories and a running Manager.
type node struct {
	plugins, dev string
	manager      *Manager
}

func startNode(t *testing.T, devices ...string) *node {
	t.Helper()
	plugins, err := os.MkdirTemp("", "p")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(plugins) })
	n := &node{plugins: plugins, dev: t.TempDir()}
	if err := os.Mkdir(filepath.Join(n.dev, "net"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, d := range devices {
		makeDevice(t, filepath.Join(n.dev, d))
	}
	return n
}

func (n *node) start(t *testing.T) {
	t.Helper()
	n.manager = NewManager(Options{PluginDir: n.plugins, DevDir: n.dev, Count: 3})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.manager.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func (n *node) client(t *testing.T, endpoint string) pluginapi.DevicePluginClient {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+filepath.Join(n.plugins, endpoint),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return pluginapi.NewDevicePluginClient(conn)
}

func (n *node) expectUsable(t *testing.T, usable, kvm bool) {
	t.Helper()
	deadline := time.After(timeout)
	for {
		changed := n.manager.Changed()
		if gotUsable, gotKVM, known := n.manager.Usable(); known && gotUsable == usable && gotKVM == kvm {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("never usable=%v kvm=%v", usable, kvm)
		}
	}
}

func TestPresentDevicesAreAdvertised(t *testing.T) {
	n := startNode(t, "net/tun")
	k := startKubelet(t, n.plugins, func() {})
	n.start(t)
	endpoints := k.expectRegistered(t, "devices.kubevirt.io/tun", "devices.kubevirt.io/userfaultfd",
		"devices.kubevirt.io/kvm-probe")
	n.expectUsable(t, true, false)

	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	plugin := n.client(t, endpoints["devices.kubevirt.io/tun"])
	stream, err := plugin.ListAndWatch(ctx, &pluginapi.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	expectDevices(t, stream, pluginapi.Healthy)
	allocated, err := plugin.Allocate(ctx, &pluginapi.AllocateRequest{
		ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: []string{"tun0"}}},
	})
	if err != nil || len(allocated.ContainerResponses) != 1 {
		t.Fatalf("got %v (%v)", allocated, err)
	}
	if got := allocated.ContainerResponses[0].Devices[0]; got.HostPath != "/dev/net/tun" ||
		got.ContainerPath != "/dev/net/tun" || got.Permissions != "rw" {
		t.Errorf("allocated %v", got)
	}

	// An optional device is allocated if it is present.
	for name, device := range map[string]string{"userfaultfd": "userfaultfd", "kvm-probe": "kvm"} {
		for want := range 2 {
			optional, err := n.client(t, endpoints["devices.kubevirt.io/"+name]).Allocate(ctx, &pluginapi.AllocateRequest{
				ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: []string{name + "0"}}},
			})
			if err != nil || len(optional.ContainerResponses) != 1 || len(optional.ContainerResponses[0].Devices) != want {
				t.Fatalf("%s: got %v (%v), want %d devices", name, optional, err, want)
			}
			if want == 0 {
				makeDevice(t, filepath.Join(n.dev, device))
			} else if got := optional.ContainerResponses[0].Devices[0].ContainerPath; got != "/dev/"+device {
				t.Errorf("%s: allocated %s", name, got)
			}
		}
	}

	// A device that appeared later is advertised since then, and one that disappears is unhealthy.
	k.expectRegistered(t, "devices.kubevirt.io/kvm")
	n.expectUsable(t, true, true)
	if err := os.Remove(filepath.Join(n.dev, "net", "tun")); err != nil {
		t.Fatal(err)
	}
	expectDevices(t, stream, pluginapi.Unhealthy)
	n.expectUsable(t, false, true)
}

func expectDevices(t *testing.T, stream pluginapi.DevicePlugin_ListAndWatchClient, health string) {
	t.Helper()
	list, err := stream.Recv()
	if err != nil || len(list.Devices) != 3 || list.Devices[0].Health != health {
		t.Fatalf("got %v (%v), want 3 that are %s", list, err, health)
	}
}

func TestDevicesAreRegisteredWithEachKubelet(t *testing.T) {
	n := startNode(t, "net/tun", "kvm", "vhost-net")
	all := []string{"devices.kubevirt.io/kvm", "devices.kubevirt.io/tun", "devices.kubevirt.io/vhost-net",
		"devices.kubevirt.io/userfaultfd", "devices.kubevirt.io/kvm-probe"}
	first := startKubelet(t, n.plugins, func() {})
	n.start(t)
	first.expectRegistered(t, all...)
	n.expectUsable(t, true, true)
	first.server.Stop()
	// A kubelet that starts removes every socket it finds.
	sockets, err := filepath.Glob(filepath.Join(n.plugins, "*.sock"))
	if err != nil {
		t.Fatal(err)
	}
	for _, socket := range sockets {
		_ = os.Remove(socket)
	}
	// The Node's labels must not change while the kubelet admits the running guests' Pods again.
	second := startKubelet(t, n.plugins, func() {
		if usable, kvm, known := n.manager.Usable(); !usable || !kvm || !known {
			t.Errorf("while the kubelet starts: usable %t, KVM %t, known %t", usable, kvm, known)
		}
	})
	endpoints := second.expectRegistered(t, all...)
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if _, err := n.client(t, endpoints[all[0]]).GetDevicePluginOptions(ctx, &pluginapi.Empty{}); err != nil {
		t.Errorf("the new kubelet cannot call the plugin: %v", err)
	}
}

// follow does what a kubelet does after a registration. The returned function ends it.
func (n *node) follow(t *testing.T, endpoint string) (leave func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	t.Cleanup(cancel)
	stream, err := n.client(t, endpoint).ListAndWatch(ctx, &pluginapi.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	expectDevices(t, stream, pluginapi.Healthy)
	return cancel
}

// An earlier version of virt-handler advertises the same resources on sockets of its own. When it ends, a kubelet may
// leave our plugin.
func TestADeviceThatTheKubeletLeavesIsRegisteredAgain(t *testing.T) {
	const tun, optional, probe = "devices.kubevirt.io/tun", "devices.kubevirt.io/userfaultfd",
		"devices.kubevirt.io/kvm-probe"
	n := startNode(t, "net/tun")
	earlier := filepath.Join(n.plugins, "kubevirt-tun.sock")
	if err := os.WriteFile(earlier, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	first := startKubelet(t, n.plugins, func() {})
	n.start(t)
	endpoint := first.expectRegistered(t, tun, optional, probe)[tun]
	for range 2 {
		leave := n.follow(t, endpoint)
		leave()
		endpoint = first.expectRegistered(t, tun)[tun]
	}
	if _, err := os.Stat(earlier); err != nil {
		t.Errorf("the socket of an earlier virt-handler: %v", err)
	}

	// A kubelet that stops leaves too. Its successor gets one registration.
	leave := n.follow(t, endpoint)
	first.server.Stop()
	leave()
	time.Sleep(restartDelay + 500*time.Millisecond)
	_ = os.Remove(filepath.Join(n.plugins, "kubelet.sock"))
	second := startKubelet(t, n.plugins, func() {})
	n.follow(t, second.expectRegistered(t, tun, optional, probe)[tun])
	select {
	case r := <-second.registered:
		t.Errorf("%s was registered twice with a kubelet", r.ResourceName)
	case <-time.After(restartDelay + 500*time.Millisecond):
	}
}

// A kubelet that has not noticed the end of a connection rejects its socket for good.
func TestEachRegistrationHasASocketOfItsOwn(t *testing.T) {
	const tun = "devices.kubevirt.io/tun"
	n := startNode(t, "net/tun")
	sockets := func() []string {
		t.Helper()
		found, err := filepath.Glob(filepath.Join(n.plugins, "kubevirt-broker-tun.*"))
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	// That of an earlier version, and of a process that was killed.
	for _, name := range []string{"kubevirt-broker-tun.sock", "kubevirt-broker-tun.killed.sock"} {
		if err := os.WriteFile(filepath.Join(n.plugins, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	k := startKubelet(t, n.plugins, func() {})
	n.start(t)
	former := map[string]bool{}
	for range 3 {
		endpoint := k.expectRegistered(t, tun, "devices.kubevirt.io/userfaultfd", "devices.kubevirt.io/kvm-probe")[tun]
		if former[endpoint] {
			t.Errorf("%s was registered twice", endpoint)
		}
		former[endpoint] = true
		if want := []string{filepath.Join(n.plugins, endpoint)}; !slices.Equal(sockets(), want) {
			t.Errorf("sockets %v, want %v", sockets(), want)
		}
		// The devices are registered again when the kubelet's socket appears, here without a restart of the kubelet.
		socket := filepath.Join(n.plugins, "kubelet.sock")
		if err := errors.Join(os.Rename(socket, socket+".moved"), os.Rename(socket+".moved", socket)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestUsableIsUnknownBeforeTheFirstRegistration(t *testing.T) {
	for name, c := range map[string]struct {
		devices []string
		known   bool
	}{
		"tun and KVM": {[]string{"net/tun", "kvm"}, false},
		"KVM":         {[]string{"kvm"}, false},
		"none":        {nil, true},
	} {
		n := startNode(t, c.devices...)
		manager := NewManager(Options{PluginDir: n.plugins, DevDir: n.dev, Count: 3})
		if usable, kvm, known := manager.Usable(); usable || kvm || known != c.known {
			t.Errorf("%s: usable %t, KVM %t, known %t, want %t", name, usable, kvm, known, c.known)
		}
	}
}

// The kubelet's socket exists before the kubelet serves it: a first attempt fails, and the registration waits for
// another.
func TestRegistrationWaitsForTheKubelet(t *testing.T) {
	n := startNode(t)
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: filepath.Join(n.plugins, "kubelet.sock")})
	if err != nil {
		t.Fatal(err)
	}
	if err := listener.SetDeadline(time.Now().Add(timeout)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	registered := make(chan error, 1)
	p := &plugin{
		Manager: NewManager(Options{PluginDir: n.plugins, DevDir: n.dev}), device: device{name: TUN}, endpoint: "tun.sock",
	}
	go func() { registered <- p.register(ctx) }()
	attempt, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if err := attempt.Close(); err != nil {
		t.Fatal(err)
	}
	if err := listener.SetDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	k := serveKubelet(t, listener, func() {})
	if err := <-registered; err != nil {
		t.Fatal(err)
	}
	k.expectRegistered(t, "devices.kubevirt.io/tun")
}

// slowKubelet counts how many requests it has at the same time.
type slowKubelet struct {
	kubeletapi.UnimplementedPodResourcesListerServer

	mu        sync.Mutex
	now, most int
}

func (k *slowKubelet) List(
	context.Context, *kubeletapi.ListPodResourcesRequest,
) (*kubeletapi.ListPodResourcesResponse, error) {
	k.add(1)
	time.Sleep(20 * time.Millisecond)
	k.add(-1)
	return &kubeletapi.ListPodResourcesResponse{}, nil
}

func (k *slowKubelet) add(number int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.now += number
	k.most = max(k.most, k.now)
}

// The kubelet limits requests. Guests that start at the same time must not have it refuse each other's.
func TestFewRequestsToTheKubelet(t *testing.T) {
	dir, logs, kubelet := t.TempDir(), t.TempDir(), &slowKubelet{}
	listener, err := net.Listen("unix", filepath.Join(dir, "kubelet.sock"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	kubeletapi.RegisterPodResourcesListerServer(server, kubelet)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	verb := Verbs(nil, PodResources{Dir: dir}, logs)[brokerapi.ExclusiveCPUs]
	var requests sync.WaitGroup
	for i := range 40 {
		pod := fmt.Sprintf("0b7a6b0e-6d53-4f0b-9a41-3a1d8f1f7a%02d", i)
		if err := os.Mkdir(filepath.Join(logs, "ns_pod_"+pod), 0o755); err != nil {
			t.Fatal(err)
		}
		requests.Go(func() {
			task, err := verb(pod, nil)
			if err != nil {
				t.Error(err)
				return
			}
			answer, err := task.Do(t.Context(), pod)
			if err != nil {
				t.Error(err)
			}
			answer.Close()
		})
	}
	requests.Wait()
	if kubelet.most > kubeletCalls {
		t.Errorf("the kubelet has got %d requests at the same time, more than %d", kubelet.most, kubeletCalls)
	}
}
