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
	"runtime"
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

	"github.com/vireo-project/vireo/internal/wire/brokerapi"
)

// maxRest are the limits for the resident memory of the programs at rest, in KiB. docs/adr/0088-the-agent-in-two.md has
// what was measured.
var maxRest = map[brokerapi.Program]int{brokerapi.Broker: 9 << 10, brokerapi.NetworkBroker: 9 << 10,
	brokerapi.DevicePlugin: 14 << 10}

// memoryLimit is the limit of their containers in bytes, and maxPeak that for the resident memory of the programs at
// any time, in KiB.
const (
	memoryLimit = 256 << 20
	maxPeak     = memoryLimit / 4 * 3 >> 10
)

// soon is how long anything may take, such as that a program that has nothing to do gives memory back.
const soon = time.Minute

// kubelet accepts registrations, and follows the devices of each like the kubelet.
type kubelet struct {
	pluginapi.UnimplementedRegistrationServer
	ctx      context.Context
	dir      string
	followed chan int
}

func (k *kubelet) Register(_ context.Context, r *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	conn, err := grpc.NewClient("unix://"+filepath.Join(k.dir, r.Endpoint),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
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

// requestMuch sends many requests at the same time, as virt-handler does while guests start. Some of them have large
// arguments. They fail, because there are no guests.
func requestMuch(t *testing.T, dial dialer, sockets, large string) {
	t.Helper()
	verbs := []brokerapi.Verb{brokerapi.WatchGuest, brokerapi.NetworkState, brokerapi.ExclusiveCPUs}
	var requests sync.WaitGroup
	for i := range 3 * 256 {
		requests.Go(func() {
			request := &brokerapi.Request{Verb: verbs[i%len(verbs)], Pod: uuid.NewString()}
			program := request.Verb.Program()
			if i/len(verbs)%8 == 0 {
				request.Verb, request.Arguments = brokerapi.ChangeNetwork, json.RawMessage(large)
			}
			conn, err := dial(program.Socket(sockets))
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

// dialer connects to a socket.
type dialer func(socket string) (net.Conn, error)

// dialAsClient returns a dialer whose connections are those of virt-handler's user, until the test ends. It needs to be
// root.
func dialAsClient(t *testing.T) dialer {
	t.Helper()
	type dialed struct {
		conn net.Conn
		err  error
	}
	sockets, results, started := make(chan string), make(chan dialed), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and not unlocked, so that the thread ends with the goroutine
		var err error
		for _, call := range []uintptr{unix.SYS_SETRESGID, unix.SYS_SETRESUID} {
			if _, _, errno := unix.RawSyscall(call, brokerapi.ClientUID, brokerapi.ClientUID, brokerapi.ClientUID); errno != 0 {
				err = errno
			}
		}
		started <- err
		for socket := range sockets {
			conn, err := net.Dial("unix", socket)
			results <- dialed{conn, err}
		}
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { close(sockets) })
	var one sync.Mutex
	return func(socket string) (net.Conn, error) {
		one.Lock()
		defer one.Unlock()
		sockets <- socket
		result := <-results
		return result.conn, result.err
	}
}

// serve serves the registration of device plugins until the test ends.
func (k *kubelet) serve(t *testing.T, listener net.Listener) {
	server := grpc.NewServer()
	pluginapi.RegisterRegistrationServer(server, k)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
}

// expectFollowed waits until the kubelet follows the devices of so many kinds.
func (k *kubelet) expectFollowed(t *testing.T, kinds int) {
	t.Helper()
	for range kinds {
		select {
		case count := <-k.followed:
			if count != 1000 && count != 2 { // Two are for the probe of the node.
				t.Errorf("the kubelet got %d devices of a kind", count)
			}
		case <-time.After(soon):
			t.Fatal("the devices were not registered")
		}
	}
}

// buildPrograms builds the programs as for their image.
func buildPrograms(t *testing.T, bin string) {
	t.Helper()
	for _, program := range brokerapi.Programs {
		build := exec.Command("go", "build", buildTags, "-ldflags", "-s -w", "-o", filepath.Join(bin, string(program)),
			sourceOf(program))
		if output, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, output)
		}
	}
}

// TestMemoryAtRest runs the programs as their DaemonSet does: a kubelet has accepted its six devices, probes have run,
// virt-handler has sent requests and watches the devices.
func TestMemoryAtRest(t *testing.T) {
	bin, root, dev := t.TempDir(), t.TempDir(), t.TempDir()
	buildPrograms(t, bin)
	// A socket's path has at most 108 bytes.
	plugins, err := os.MkdirTemp("", "p")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(plugins) })
	sockets := brokerapi.SocketDir(root)
	dirs := []string{filepath.Join(root, "pods"), filepath.Join(root, "pod-resources"), filepath.Join(dev, "net")}
	for _, program := range brokerapi.Programs {
		dirs = append(dirs, filepath.Dir(program.Socket(sockets)))
	}
	for _, dir := range dirs {
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
	if err := os.Chmod(filepath.Dir(root), 0o755); err != nil {
		t.Fatal(err)
	}
	dial := dialAsClient(t)
	listener, err := net.Listen("unix", filepath.Join(plugins, "kubelet.sock"))
	if err != nil {
		t.Fatal(err)
	}
	k := &kubelet{ctx: t.Context(), dir: plugins, followed: make(chan int, len(devices)+1)}
	k.serve(t, listener)

	flags := map[brokerapi.Program][]string{
		brokerapi.Broker: {"--pod-logs-dir", root, "--dev-dir", dev}, brokerapi.NetworkBroker: nil,
		brokerapi.DevicePlugin: {"--pod-logs-dir", root, "--dev-dir", dev, "--device-plugin-dir", plugins},
	}
	processes := map[brokerapi.Program]*os.Process{}
	for _, program := range brokerapi.Programs {
		process := exec.CommandContext(t.Context(), filepath.Join(bin, string(program)),
			append(flags[program], "--kubelet-root", root)...)
		process.Env = append(os.Environ(), "MEMORY_LIMIT="+strconv.Itoa(memoryLimit))
		if err := process.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = process.Process.Kill(); _ = process.Wait() })
		processes[program] = process.Process
	}
	k.expectFollowed(t, len(devices)+1)
	for _, program := range brokerapi.Programs {
		verb := brokerapi.WatchProgram
		if program == brokerapi.DevicePlugin {
			verb = brokerapi.WatchDevices
		}
		follow(t, dial, program.Socket(sockets), verb)
		for range 20 {
			if output, err := exec.Command(filepath.Join(bin, string(program)), "check", "--kubelet-root",
				root).CombinedOutput(); err != nil {
				t.Fatalf("%s: %v: %s", program, err, output)
			}
		}
	}
	requestMuch(t, dial, sockets, fmt.Sprintf(`{"steps":[{"do":"add-tap","link":%q}]}`, strings.Repeat("n", brokerapi.MaxRequest-200)))
	for program, process := range processes {
		expectRest(t, program, process)
	}
	// Each of these is decoded to a step, although it is none. Much memory is never given back entirely, so this is last.
	requestMuch(t, dial, sockets, `{"steps":[0`+strings.Repeat(",0", (brokerapi.MaxRequest-200)/2)+`]}`)
	for program, process := range processes {
		if peak := memoryOf(t, process.Pid, "status", "VmHWM"); peak > maxPeak {
			t.Errorf("%s had %d KiB resident at its peak, more than %d", program, peak, maxPeak)
		}
	}
}

// expectRest waits until a program that has nothing to do has no more memory than it may have at rest.
func expectRest(t *testing.T, program brokerapi.Program, process *os.Process) {
	t.Helper()
	for deadline := time.Now().Add(soon); ; time.Sleep(time.Second) {
		rss := memoryOf(t, process.Pid, "smaps_rollup", "Rss")
		if rss <= maxRest[program] {
			t.Logf("%s: %d KiB", program, rss)
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("%s has %d KiB resident at rest, more than %d", program, rss, maxRest[program])
			return
		}
	}
}

// follow sends a request with a verb that watches, until the test ends.
func follow(t *testing.T, dial dialer, socket string, verb brokerapi.Verb) {
	t.Helper()
	var watch net.Conn
	for deadline := time.Now().Add(soon); ; time.Sleep(10 * time.Millisecond) {
		var err error
		if watch, err = dial(socket); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = watch.Close() })
	if err := brokerapi.WriteRequest(watch, &brokerapi.Request{Verb: verb}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(watch, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
}

// memoryOf returns a value in KiB of a file in the process's directory of /proc.
func memoryOf(t *testing.T, pid int, file, key string) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", text)
	found := regexp.MustCompile(`(?m)^` + key + `:\s+(\d+) kB$`).FindSubmatch(text)
	if found == nil {
		t.Fatalf("%s has no %s", file, key)
	}
	value, err := strconv.Atoi(string(found[1]))
	if err != nil {
		t.Fatal(err)
	}
	return value
}
