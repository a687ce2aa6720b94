// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package broker

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"k8s.io/utils/cpuset"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vireo-project/vireo/internal/agent/brokerclient"
	"github.com/vireo-project/vireo/internal/broker/device"
	"github.com/vireo-project/vireo/internal/broker/network"
	"github.com/vireo-project/vireo/internal/broker/pods"
	"github.com/vireo-project/vireo/internal/broker/server"
	"github.com/vireo-project/vireo/internal/launcherpod/layout"
	"github.com/vireo-project/vireo/internal/wire/brokerapi"
)

const (
	podUID   = "0b7a6b0e-6d53-4f0b-9a41-3a1d8f1f7a11"
	otherUID = "1b7a6b0e-6d53-4f0b-9a41-3a1d8f1f7a11"
	// patience is the timeout for what must end by itself.
	patience = 20 * time.Second
)

func TestMain(m *testing.M) {
	if root := os.Getenv(launcherRoot); root != "" {
		beLauncher(root)
	}
	log.SetLogger(logr.Discard())
	if kubelet := os.Getenv(confinedBroker); kubelet != "" {
		beBroker(kubelet)
	}
	os.Exit(m.Run())
}

// devices are a node's devices.
type devices struct {
	mu      sync.Mutex
	usable  bool
	changed chan struct{}
}

func (d *devices) Usable() (usable, kvm, known bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.usable, false, true
}

func (d *devices) Changed() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.changed
}

func (d *devices) set(usable bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.usable = usable
	close(d.changed)
	d.changed = make(chan struct{})
}

// world is a node with a broker and with Pods, whose root directory and files are in directories of the test.
type world struct {
	t       testing.TB
	broker  *Broker
	server  *server.Server
	devices *devices
	// dir is the directory of the sockets, and socket that of virt-broker.
	dir, socket string
	// pods is the kubelet's directory of Pods.
	pods string
	// root is the root directory of every Pod, and processes are directories like those in /proc.
	root, process string
	// logs and published are the kubelet's directories of the logs of Pods, and of devices. By default they are pods.
	logs, published string
	// log is the log of a broker that is started later. By default it is discarded.
	log logr.Logger
	// open opens a block device. By default that is the real one.
	open func(path string) (*os.File, error)
	stop func()
}

// newWorld starts a broker. Without a check, every process is that of every Pod.
func newWorld(t testing.TB, check pods.CheckPeer) *world {
	t.Helper()
	short, err := os.MkdirTemp("", "b")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(short) })
	w := &world{
		t: t, devices: &devices{changed: make(chan struct{})}, dir: short, socket: brokerapi.Broker.Socket(short),
		log: logr.Discard(), pods: t.TempDir(), root: t.TempDir(), process: t.TempDir(),
	}
	if err := os.Symlink(w.root, filepath.Join(w.process, "root")); err != nil {
		t.Fatal(err)
	}
	if check == nil {
		check = func(*net.UnixConn, string) (*os.File, error) { return os.Open(w.process) }
	}
	w.start(check)
	return w
}

func (w *world) start(check pods.CheckPeer) {
	w.t.Helper()
	found := pods.New(w.pods, check)
	w.broker = New(Options{
		Pods: found, PodLogsDir: cmp.Or(w.logs, w.pods), PublishedDevices: w.published, DevDir: "/dev", Log: w.log,
		ExclusiveCPUs: func(context.Context, string) (cpuset.CPUSet, error) { return cpuset.New(), nil },
	})
	if w.open != nil {
		w.broker.open = w.open
	}
	w.broker.Start()
	// One process serves the verbs of all programs, on the socket of each.
	verbs := w.broker.Verbs()
	maps.Copy(verbs, network.Verbs(found))
	maps.Copy(verbs, device.Verbs(w.devices, device.PodResources{Dir: w.pods}, cmp.Or(w.logs, w.pods)))
	w.server = server.New(server.Options{Program: brokerapi.Broker, Verbs: verbs, ClientUID: uint32(os.Geteuid()),
		Log: w.log})
	ctx, cancel := context.WithCancel(context.Background())
	var serving errgroup.Group
	serving.Go(func() error { return w.broker.Sweep(ctx) })
	for _, program := range brokerapi.Programs {
		if err := os.MkdirAll(filepath.Dir(program.Socket(w.dir)), 0o755); err != nil {
			w.t.Fatal(err)
		}
		listener, err := server.Listen(program.Socket(w.dir), os.Getegid())
		if err != nil {
			w.t.Fatal(err)
		}
		serving.Go(func() error { return w.server.Serve(ctx, listener) })
	}
	served, opened := w.server, w.broker.opened
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := serving.Wait(); err != nil {
			w.t.Error(err)
		}
		served.Close()
		found.Close()
		for _, device := range opened { // as the kernel does when the process ends
			_ = device.Close()
		}
	})
	w.t.Cleanup(w.stop)
}

// client returns a client of the broker.
func (w *world) client() *brokerclient.Client { return brokerclient.New(w.dir) }

// addPod adds a Pod with a libvirtd that sends a greeting.
func (w *world) addPod(pod string) {
	w.t.Helper()
	dir := filepath.Join(w.pods, pod, "volumes", "kubernetes.io~empty-dir", layout.SocketsVolume)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		w.t.Fatal(err)
	}
	// Bound to a short name and moved: a socket's address has at most 108 bytes.
	short := filepath.Join(w.dir, "l-"+pod[:8])
	listener, err := net.Listen("unix", short)
	if err == nil {
		err = os.Rename(short, filepath.Join(dir, layout.LibvirtSocketName))
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("hello"))
		}
	}()
}

// write writes a file in the root directory of the Pods.
func (w *world) write(name, content string) {
	w.t.Helper()
	path := filepath.Join(w.root, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o600)); err != nil {
		w.t.Fatal(err)
	}
}

// dial connects to the broker as a client that does not keep to the protocol.
func (w *world) dial() *net.UnixConn {
	w.t.Helper()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: w.socket})
	if err == nil {
		err = conn.SetDeadline(time.Now().Add(patience))
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// expectAlive checks that the broker still responds.
func (w *world) expectAlive() {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := w.client().Ping(ctx, brokerapi.Broker); err != nil {
		w.t.Errorf("the broker does not respond any more: %v", err)
	}
}

// expectCode checks the code of an error.
func expectCode(t testing.TB, err error, want brokerapi.Code) {
	t.Helper()
	if got := brokerapi.CodeOf(err); got != want {
		t.Errorf("got %v with code %q, want %q", err, got, want)
	}
}
