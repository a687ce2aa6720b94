// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/vireo-project/vireo/internal/brokerapi"
)

// maxRestKiB is the limit for the resident memory of the process at rest. docs/adr/0088-the-agent-in-two.md has what was measured.
const maxRestKiB = 16 << 10

// buildTags are those of the program in its image: see the Makefile.
const buildTags = "-tags=netgo,osusergo,grpcnotrace"

// atRest is how long the process has nothing to do before it is measured, and soon how long anything may take.
const atRest, soon = 4 * time.Second, time.Minute

// kubelet accepts registrations, and follows the devices of each like the kubelet.
type kubelet struct {
	pluginapi.UnimplementedRegistrationServer
	ctx      context.Context
	dir      string
	followed chan int
}

func (k *kubelet) Register(_ context.Context, r *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	conn, err := grpc.NewClient("unix://"+filepath.Join(k.dir, r.Endpoint), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	devices, err := pluginapi.NewDevicePluginClient(conn).ListAndWatch(k.ctx, &pluginapi.Empty{})
	if err != nil {
		return nil, err
	}
	go func() {
		defer func() { _ = conn.Close() }()
		for {
			list, err := devices.Recv()
			if err != nil {
				return
			}
			k.followed <- len(list.GetDevices())
		}
	}()
	return &pluginapi.Empty{}, nil
}

// requestMuch sends many requests at the same time, some of them large, as virt-handler does while guests start. They fail, because there
// are no guests.
func requestMuch(t *testing.T, socket string) {
	t.Helper()
	large := fmt.Sprintf(`{"steps":[{"do":"add-tap","link":%q}]}`, strings.Repeat("n", brokerapi.MaxRequest-200))
	var requests sync.WaitGroup
	for i := range 256 {
		requests.Go(func() {
			request := &brokerapi.Request{Verb: brokerapi.WatchGuest, Pod: uuid.NewString()}
			if i%8 == 0 {
				request.Verb, request.Arguments = brokerapi.ChangeNetwork, json.RawMessage(large)
			}
			conn, err := net.Dial("unix", socket)
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = conn.Close() }()
			if err := brokerapi.WriteRequest(conn, request); err != nil {
				t.Error(err)
			}
			if response, err := io.ReadAll(conn); err != nil || len(response) == 0 {
				t.Errorf("got %q, %v", response, err)
			}
		})
	}
	requests.Wait()
}

// serve serves the registration of device plugins until the test ends.
func (k *kubelet) serve(t *testing.T, listener net.Listener) {
	server := grpc.NewServer()
	pluginapi.RegisterRegistrationServer(server, k)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
}

// TestMemoryAtRest runs the program as its DaemonSet does: a kubelet has accepted its five devices, probes have run, virt-handler has sent
// requests and watches the devices.
func TestMemoryAtRest(t *testing.T) {
	program := filepath.Join(t.TempDir(), "virt-broker")
	build := exec.Command("go", "build", buildTags, "-ldflags", "-s -w", "-o", program, ".")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	root, dev := t.TempDir(), t.TempDir()
	// A socket's path has at most 108 bytes.
	plugins, err := os.MkdirTemp("", "p")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(plugins) })
	socket := brokerapi.Socket(root)
	for _, dir := range []string{filepath.Join(root, "pods"), filepath.Join(root, "pod-resources"), filepath.Join(dev, "net"), filepath.Dir(socket)} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	devices := []string{"kvm", "net/tun", "vhost-net", "vhost-vsock", "userfaultfd"}
	for _, name := range devices {
		if err := unix.Mknod(filepath.Join(dev, name), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
			t.Skipf("needs to be root to make device files: %v", err)
		}
	}
	listener, err := net.Listen("unix", filepath.Join(plugins, "kubelet.sock"))
	if err != nil {
		t.Fatal(err)
	}
	k := &kubelet{ctx: t.Context(), dir: plugins, followed: make(chan int, len(devices))}
	k.serve(t, listener)

	flags := []string{"--kubelet-root", root, "--pod-logs-dir", root, "--dev-dir", dev, "--device-plugin-dir", plugins}
	process := exec.CommandContext(t.Context(), program, flags...)
	process.Env = append(os.Environ(), "MEMORY_LIMIT="+strconv.Itoa(256<<20))
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = process.Process.Kill(); _ = process.Wait() })
	for range devices {
		select {
		case count := <-k.followed:
			if count != 1000 {
				t.Errorf("the kubelet got %d devices of a kind", count)
			}
		case <-time.After(soon):
			t.Fatal("the devices were not registered")
		}
	}
	watch, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = watch.Close() })
	if err := brokerapi.WriteRequest(watch, &brokerapi.Request{Verb: brokerapi.WatchDevices}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(watch, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if output, err := exec.Command(program, append([]string{"check"}, flags...)...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, output)
		}
	}
	requestMuch(t, socket)
	time.Sleep(atRest)
	if rss := resident(t, process.Process.Pid); rss > maxRestKiB {
		t.Errorf("%d KiB are resident at rest, more than %d", rss, maxRestKiB)
	}
}

// resident returns the resident memory of a process in KiB.
func resident(t *testing.T, pid int) int {
	t.Helper()
	rollup, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", rollup)
	found := regexp.MustCompile(`(?m)^Rss:\s+(\d+) kB$`).FindSubmatch(rollup)
	if found == nil {
		t.Fatal("there is no Rss")
	}
	rss, err := strconv.Atoi(string(found[1]))
	if err != nil {
		t.Fatal(err)
	}
	return rss
}
