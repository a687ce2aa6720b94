// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package broker

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vireo-project/vireo/internal/agent/media"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/wire/brokerapi"
	"github.com/vireo-project/vireo/internal/wire/brokerapi/networkapi"
	"github.com/vireo-project/vireo/test/kubelet"
)

// The client of these tests is an attacker who has taken over virt-handler, and may have Pods of any shape on the node.

// valid are valid arguments of each verb.
var valid = map[brokerapi.Verb]any{
	brokerapi.Ping:         nil,
	brokerapi.OpenSocket:   brokerapi.OpenSocketArguments{Name: launcherpod.LibvirtSocketName},
	brokerapi.WatchGuest:   nil,
	brokerapi.ReadVolume:   brokerapi.ReadVolumeArguments{Kind: secrets, Volume: "disk-udata"},
	brokerapi.OpenFile:     brokerapi.OpenFileArguments{Mount: launcherpod.StateDir, Name: "nvram/vm_VARS.fd"},
	brokerapi.SyncState:    nil,
	brokerapi.GiveHostDir:  brokerapi.GiveHostDirArguments{Directory: launcherpod.DiskDir("disk")},
	brokerapi.OwnDevices:   nil,
	brokerapi.Inspect:      brokerapi.InspectArguments{Path: "/dev/null"},
	brokerapi.CPUs:         nil,
	brokerapi.SetRealtime:  brokerapi.SetRealtimeArguments{VCPUs: []uint{0}},
	brokerapi.NetworkState: nil,
	brokerapi.ChangeNetwork: networkapi.ChangeNetworkArguments{Steps: []networkapi.Step{{Do: networkapi.SetUp,
		Link: "eth0"}}},
	brokerapi.OpenRouter:    networkapi.OpenRouterArguments{Bridge: "k6t-eth0"},
	brokerapi.AttachVolume:  brokerapi.VolumeArguments{Volume: "data", Attachment: otherUID},
	brokerapi.DetachVolume:  brokerapi.VolumeArguments{Volume: "data", Block: true},
	brokerapi.WatchDevices:  nil,
	brokerapi.CPUPolicy:     nil,
	brokerapi.ExclusiveCPUs: nil,
	brokerapi.WatchProgram:  nil,
}

func requestOf(t testing.TB, verb brokerapi.Verb, pod string, arguments any) *brokerapi.Request {
	t.Helper()
	request := &brokerapi.Request{Verb: verb, Pod: pod}
	if arguments != nil {
		var err error
		if request.Arguments, err = json.Marshal(arguments); err != nil {
			t.Fatal(err)
		}
	}
	return request
}

// ask sends a request and returns the error of the response.
func (w *world) ask(request *brokerapi.Request) error {
	w.t.Helper()
	conn := w.dial()
	defer func() { _ = conn.Close() }()
	if err := brokerapi.WriteRequest(conn, request); err != nil {
		w.t.Fatal(err)
	}
	return errorIn(w.t, conn)
}

// errorIn receives a response and returns its error.
func errorIn(t testing.TB, from io.Reader) error {
	t.Helper()
	header := make([]byte, brokerapi.HeaderBytes)
	if _, err := io.ReadFull(from, header); err != nil {
		t.Fatal(err)
	}
	text := make([]byte, binary.BigEndian.Uint32(header))
	if _, err := io.ReadFull(from, text); err != nil {
		t.Fatal(err)
	}
	var response brokerapi.Response
	if err := json.Unmarshal(text, &response); err != nil {
		t.Fatal(err)
	}
	if response.Error == nil {
		return nil
	}
	return response.Error
}

func TestEveryVerbHasValidArguments(t *testing.T) {
	w := newWorld(t, nil)
	for verb := range w.server.Verbs {
		arguments, found := valid[verb]
		if !found {
			t.Errorf("no arguments for %s", verb)
		}
		pod := podUID
		if verb.OfNode() {
			pod = ""
		}
		if _, err := w.server.Task(requestOf(t, verb, pod, arguments)); err != nil {
			t.Errorf("%s: %v", verb, err)
		}
	}
}

// Nothing is done for a Pod whose socket a process serves that is not the Pod's, nor for one without a socket.
func TestPodsThatAreNoLaunchers(t *testing.T) {
	w := newWorld(t, nil)
	w.stop()
	w.start(func(*net.UnixConn, string) (*os.File, error) { return nil, brokerapi.Refused("it is no launcher") })
	w.addPod(podUID)
	if err := kubelet.WriteVolume(w.pods, podUID, secrets, "disk-udata",
		map[string]string{"userdata": "secret"}); err != nil {
		t.Fatal(err)
	}
	for verb, arguments := range valid {
		if verb.OfNode() || verb == brokerapi.ExclusiveCPUs {
			continue // The latter reads from the kubelet which CPUs it has given to a Pod of any kind.
		}
		expectCode(t, w.ask(requestOf(t, verb, podUID, arguments)), brokerapi.CodeRefused)
		// A directory of the kubelet without a libvirtd, and no directory.
		if err := os.MkdirAll(filepath.Join(w.pods, otherUID), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, pod := range []string{otherUID, "none"} {
			if code := brokerapi.CodeOf(w.ask(requestOf(t, verb, pod, arguments))); code != brokerapi.CodeNoLauncher &&
				code != brokerapi.CodeNotFound {
				t.Errorf("%s about %s: %q", verb, pod, code)
			}
		}
	}
}

// The process behind the socket is checked with the kernel: the test's own is in no Pod.
func TestRealCheckRefusesThisProcess(t *testing.T) {
	if os.Getuid() == launcherpod.QEMUUser {
		t.Skip("this user is QEMU's")
	}
	w := newWorld(t, nil)
	w.stop()
	w.start(nil)
	w.addPod(podUID)
	expectCode(t, w.ask(requestOf(t, brokerapi.OpenSocket, podUID, valid[brokerapi.OpenSocket])), brokerapi.CodeRefused)
}

func TestForgedRequests(t *testing.T) {
	w := newWorld(t, nil)
	w.addPod(podUID)
	w.write("etc/shadow", "secret")
	for _, pod := range []string{"", ".", "..", "../" + podUID, podUID + "/..", "/", podUID + "\x00",
		strings.Repeat("a", 64), "*"} {
		for verb, arguments := range valid {
			if !verb.OfNode() {
				expectCode(t, w.ask(requestOf(t, verb, pod, arguments)), brokerapi.CodeInvalid)
			}
		}
	}
	for verb, arguments := range valid {
		if verb.OfNode() {
			expectCode(t, w.ask(requestOf(t, verb, podUID, arguments)), brokerapi.CodeInvalid)
		}
		if arguments == nil {
			pod := podUID
			if verb.OfNode() {
				pod = ""
			}
			expectCode(t, w.ask(&brokerapi.Request{Verb: verb, Pod: pod, Arguments: json.RawMessage(`{}`)}), brokerapi.CodeInvalid)
			continue
		}
		for _, text := range []string{"", `[]`, `{"unknown":1}`, `{} {}`, `null`, `{"steps":[null]}`, `"x"`, `{"name":7}`} {
			if text == "null" && (verb == brokerapi.ChangeNetwork || verb == brokerapi.SetRealtime) {
				continue // the same as no fields, which these verbs accept
			}
			var raw json.RawMessage
			if text != "" && json.Valid([]byte(text)) {
				raw = json.RawMessage(text)
			}
			if err := w.ask(&brokerapi.Request{Verb: verb, Pod: podUID, Arguments: raw}); err == nil {
				t.Errorf("%s with %s was accepted", verb, text)
			}
		}
	}
	expectCode(t, w.ask(&brokerapi.Request{Verb: "rm", Pod: podUID}), brokerapi.CodeInvalid)
	w.expectAlive()
}

func TestForgedPaths(t *testing.T) {
	w := newWorld(t, nil)
	w.addPod(podUID)
	w.write("secret", "x")
	w.write(launcherpod.ContainerDiskDir("disk")+"/disk.img", "image")
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("of the node"), 0o600); err != nil {
		t.Fatal(err)
	}
	disk := filepath.Join(w.root, launcherpod.ContainerDiskDir("disk"))
	for link, to := range map[string]string{"absolute": outside, "climbs": "../../../../../secret", "root": "/secret"} {
		if err := os.Symlink(to, filepath.Join(disk, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(unix.Mkfifo(filepath.Join(disk, "pipe"), 0o600),
		os.MkdirAll(filepath.Join(w.root, launcherpod.StateDir), 0o755)); err != nil {
		t.Fatal(err)
	}
	for mount, names := range map[string][]string{
		launcherpod.ContainerDiskDir("disk"): {"absolute", "climbs", "root", "pipe", ".", "..", "../../../../secret",
			"/secret", "", "a\x00b", strings.Repeat("a/", 3000)},
		launcherpod.StateDir: {"../../../secret", "/secret", ".", ""},
		"/":                  {"secret"}, "": {"secret"}, "/proc/1": {"environ"}, launcherpod.ContainerDisksDir: {"disk/disk.img"},
		launcherpod.ContainerDisksDir + "/..":                 {"secret"},
		launcherpod.ContainerDisksDir + "/../../../../":       {"secret"},
		launcherpod.ContainerDiskDir("disk") + "/":            {"disk.img"},
		launcherpod.ContainerDiskDir("disk") + "/a":           {"disk.img"},
		launcherpod.SecretDir("disk"):                         {"userdata"},
		"/var/run/secrets/kubernetes.io/serviceaccount":       {"token"},
		launcherpod.ContainerDiskDir("disk") + "\x00":         {"disk.img"},
		launcherpod.StateDir + "/nvram":                       {"vm_VARS.fd"},
		strings.Repeat("/a", 5000):                            {"a"},
		launcherpod.ContainerDisksDir + "/" + "../../secrets": {"token"},
	} {
		for _, name := range names {
			if err := w.ask(requestOf(t, brokerapi.OpenFile, podUID,
				brokerapi.OpenFileArguments{Mount: mount, Name: name})); err == nil {
				t.Errorf("%.100q in %.100q was opened", name, mount)
			}
		}
	}
	for _, a := range []brokerapi.ReadVolumeArguments{
		{Kind: secrets, Volume: "kube-api-access-x7d2p"}, {Kind: "kubernetes.io~projected", Volume: "istio-token"}, {Kind: secrets, Volume: "../disk-files"},
		{Kind: "kubernetes.io~empty-dir", Volume: "disk-files"}, {Kind: "..", Volume: "disk-files"}, {Kind: secrets, Volume: "-files"},
		{Kind: secrets, Volume: "a/../b-files"}, {Kind: secrets, Volume: "a\x00-files"}, {Kind: "kubernetes.io~csi", Volume: "a-files"},
	} {
		expectCode(t, w.ask(requestOf(t, brokerapi.ReadVolume, podUID, a)), brokerapi.CodeRefused)
	}
	for _, dir := range []string{"/", "", "/etc", launcherpod.DisksDir, launcherpod.DiskDir("a") + "/b",
		launcherpod.DiskDir("..") + "/", launcherpod.DisksDir + "/../x", launcherpod.DisksDir + "/.."} {
		expectCode(t, w.ask(requestOf(t, brokerapi.GiveHostDir, podUID, brokerapi.GiveHostDirArguments{Directory: dir})),
			brokerapi.CodeRefused)
	}
	for _, path := range []string{"", "relative", "/a\x00b", "/" + strings.Repeat("a", 5000)} {
		expectCode(t, w.ask(requestOf(t, brokerapi.Inspect, podUID, brokerapi.InspectArguments{Path: path})),
			brokerapi.CodeInvalid)
	}
	for _, name := range []string{"", "lo", "..", "eth0/../all", "a b", "all.x", strings.Repeat("a", 16), "eth0\x00",
		"../../kernel/core_pattern"} {
		expectCode(t, w.ask(requestOf(t, brokerapi.OpenRouter, podUID, networkapi.OpenRouterArguments{Bridge: name})),
			brokerapi.CodeInvalid)
	}
	for _, name := range []string{"", "lo", "all", "default", "..", "eth0/../all", "a b", "all.x", strings.Repeat("a", 16),
		"eth0\x00", "../../kernel/core_pattern"} {
		for _, step := range []networkapi.Step{
			{Do: networkapi.SetUp, Link: name}, {Do: networkapi.Rename, Link: "eth0", Other: name}, {Do: networkapi.Attach, Link: "tap0", Other: name},
			{Do: networkapi.Set, Setting: networkapi.IgnoreARP, Link: name}, {Do: networkapi.AddTap, Link: name},
			{Do: networkapi.Set, Setting: networkapi.Setting("ipv4/conf/" + name), Link: "eth0"},
			{Do: networkapi.Translate, Rules: []networkapi.Rule{{Chain: networkapi.Chain(name), Do: networkapi.Drop}}},
			{Do: networkapi.Translate, Rules: []networkapi.Rule{{Chain: networkapi.Guard, Do: networkapi.Action(name)}}},
			{Do: networkapi.Change(name), Link: "eth0"},
		} {
			steps := networkapi.ChangeNetworkArguments{Steps: []networkapi.Step{{Do: networkapi.SetUp, Link: "eth0"}, step}}
			expectCode(t, w.ask(requestOf(t, brokerapi.ChangeNetwork, podUID, steps)), brokerapi.CodeInvalid)
		}
	}
	w.expectAlive()
}

// A link that a Pod made in its own files leads nowhere else: the broker resolves it in the Pod.
func TestLinksStayInThePod(t *testing.T) {
	w := newWorld(t, nil)
	w.addPod(podUID)
	node := filepath.Join(t.TempDir(), "device")
	if err := errors.Join(os.WriteFile(node, nil, 0o600), os.Symlink("/dev/null", filepath.Join(w.root, "link")),
		os.Symlink(node, filepath.Join(w.root, "absolute"))); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/link", "/absolute", "/../../../../../../dev/null", node} {
		err := w.ask(requestOf(t, brokerapi.Inspect, podUID, brokerapi.InspectArguments{Path: path}))
		expectCode(t, err, brokerapi.CodeNotFound)
	}
}

func TestHostileFrames(t *testing.T) {
	w := newWorld(t, nil)
	length := func(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }
	for name, data := range map[string][]byte{
		"too long":            length(brokerapi.MaxRequest + 1),
		"much too long":       length(1<<32 - 1),
		"empty":               length(0),
		"noise":               append(length(8), "\x00\xff{[\"\\u00"...),
		"deep":                append(length(100000), strings.Repeat("[", 100000)...),
		"of another protocol": []byte("GET / HTTP/1.1\r\n\r\n"),
	} {
		conn := w.dial()
		if _, err := conn.Write(data); err != nil {
			t.Fatal(err)
		}
		if err := errorIn(t, conn); err == nil {
			t.Errorf("%s: it was accepted", name)
		}
		// The kernel reports a reset if the broker has not read everything.
		if n, err := conn.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("%s: the connection remains: %v", name, err)
		}
	}
	// Those that end in the middle are not answered, and cost no memory for what was announced.
	for _, data := range [][]byte{nil, {0}, length(brokerapi.MaxRequest), append(length(100), "{"...)} {
		conn := w.dial()
		if _, err := conn.Write(data); err != nil {
			t.Fatal(err)
		}
		if err := conn.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, conn); err != nil {
			t.Fatal(err)
		}
	}
	w.expectAlive()
}

// A client that sends nothing more is disconnected.
func TestSilentClient(t *testing.T) {
	w := newWorld(t, nil)
	start := time.Now()
	conn := w.dial()
	if _, err := conn.Write([]byte{0, 0}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, conn); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < brokerapi.RequestTimeout/2 {
		t.Errorf("disconnected after %s", took)
	}
}

// Descriptors that a client sends are closed: the broker makes no room for them.
func TestDescriptorsAreNotReceived(t *testing.T) {
	w := newWorld(t, nil)
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = read.Close() }()
	text, err := json.Marshal(requestOf(t, brokerapi.Ping, "", nil))
	if err != nil {
		t.Fatal(err)
	}
	conn := w.dial()
	frame := append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...)
	if _, _, err := conn.WriteMsgUnix(frame, unix.UnixRights(int(write.Fd())), nil); err != nil {
		t.Fatal(err)
	}
	if err := write.Close(); err != nil {
		t.Fatal(err)
	}
	if err := errorIn(t, conn); err != nil {
		t.Error(err)
	}
	if err := read.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if n, err := read.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("the broker keeps a descriptor that was sent to it: %v", err)
	}
}

// Only virt-handler's user and the broker's own are served, even if another can open the socket.
func TestOtherUsersAreRefused(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to be another user")
	}
	w := newWorld(t, nil)
	if err := errors.Join(os.Chmod(w.dir, 0o755), os.Chmod(w.socket, 0o666)); err != nil {
		t.Fatal(err)
	}
	for uid, served := range map[int]bool{0: true, 65534: false, launcherpod.QEMUUser: false} {
		result := make(chan error, 1)
		go func() {
			runtime.LockOSThread() // Never unlocked: the thread ends with the goroutine.
			// Of this thread only, whose user the kernel reports.
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
				result <- errno
				return
			}
			result <- talk(w.socket)
		}()
		if err := <-result; (err == nil) != served {
			t.Errorf("user %d: %v", uid, err)
		}
	}
}

// talk makes a request with system calls only, on the calling thread.
func talk(socket string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: socket}); err != nil {
		return err
	}
	text := `{"verb":"ping"}`
	if _, err := unix.Write(fd, append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...)); err != nil {
		return err
	}
	response := make([]byte, 64)
	n, err := unix.Read(fd, response)
	if err == nil && string(response[min(n, brokerapi.HeaderBytes):n]) != "{}" {
		err = errors.New("no response")
	}
	return err
}

// A flood about one Pod delays no other Pod.
func TestFlood(t *testing.T) {
	w := newWorld(t, nil)
	w.addPod(podUID)
	w.addPod(otherUID)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var flood sync.WaitGroup
	client := w.client()
	for i := range 64 {
		flood.Go(func() {
			for ctx.Err() == nil {
				if i%2 == 0 {
					_, _ = client.Files(podUID).HasDevice(ctx, "/nothing")
				} else if conn, err := client.OpenSocket(ctx, podUID, launcherpod.USBSocketName(1), true); err == nil {
					_ = conn.Close()
				}
			}
		})
	}
	for range 50 {
		bounded, end := context.WithTimeout(t.Context(), patience)
		conn, err := client.OpenSocket(bounded, otherUID, launcherpod.LibvirtSocketName, false)
		if err != nil {
			t.Fatalf("another Pod: %v", err)
		}
		_ = conn.Close()
		if _, err := client.Files(otherUID).HasDevice(bounded, "/nothing"); err != nil {
			t.Fatalf("another Pod: %v", err)
		}
		end()
	}
	cancel()
	flood.Wait()
	w.expectAlive()
}

// Few volumes are read at a time. Pods whose processes cannot be found because their files hang take no part of that
// from others.
func TestPodsThatHangDelayNoVolumeOfOthers(t *testing.T) {
	hang, hanging := make(chan struct{}), make(chan struct{}, largeInAll)
	var w *world
	w = newWorld(t, func(_ *net.UnixConn, pod string) (*os.File, error) {
		if pod != podUID {
			hanging <- struct{}{}
			<-hang
		}
		return os.Open(w.process)
	})
	t.Cleanup(func() { close(hang) })
	w.addPod(podUID)
	volume := launcherpod.UserDataVolume("disk")
	if err := kubelet.WriteVolume(w.pods, podUID, string(media.SecretVolume), volume,
		map[string]string{"userdata": "#cloud-config"}); err != nil {
		t.Fatal(err)
	}
	const perPod = 2
	for i := range largeInAll / perPod {
		pod := fmt.Sprintf("%08d-hangs", i)
		w.addPod(pod)
		for range perPod {
			go func() { _, _ = w.client().Content(types.UID(pod)).Secret(volume, "userdata") }()
		}
	}
	for range largeInAll {
		<-hanging
	}
	start := time.Now()
	data, err := w.client().Content(podUID).Secret(volume, "userdata")
	if err != nil || string(data) != "#cloud-config" || time.Since(start) > brokerapi.VerbTimeout/2 {
		t.Errorf("got %q, %v after %s", data, err, time.Since(start))
	}
}

// Connections that send nothing do not keep others out for longer than the time limit, and their number is limited.
func TestManyConnections(t *testing.T) {
	w := newWorld(t, nil)
	const more = 2048 + 100 // than the server's limit
	for range more {
		conn, err := net.Dial("unix", w.socket)
		if err != nil {
			break
		}
		t.Cleanup(func() { _ = conn.Close() })
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		err := w.client().Ping(ctx, brokerapi.Broker)
		cancel()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the broker does not respond again: %v", err)
		}
	}
}

// Whatever a client sends, a line of the log stays short.
func TestLinesOfTheLogAreShort(t *testing.T) {
	w := newWorld(t, nil)
	lines := make(chan string, 16)
	w.stop()
	w.log = funcr.NewJSON(func(line string) { lines <- line }, funcr.Options{})
	w.start(func(*net.UnixConn, string) (*os.File, error) { return os.Open(w.process) })
	w.addPod(podUID)
	long := strings.Repeat("x", 100<<10)
	for what, request := range map[string]*brokerapi.Request{
		"a verb":    {Verb: brokerapi.Verb(long)},
		"a Pod":     {Verb: brokerapi.Ping, Pod: long},
		"a file":    requestOf(t, brokerapi.OpenFile, podUID, brokerapi.OpenFileArguments{Mount: launcherpod.StateDir, Name: long}),
		"a mount":   requestOf(t, brokerapi.OpenFile, podUID, brokerapi.OpenFileArguments{Mount: long, Name: "x"}),
		"an unused": {Verb: brokerapi.CPUs, Pod: long},
	} {
		if err := w.ask(request); err == nil {
			t.Errorf("%s was accepted", what)
		}
		if line := <-lines; len(line) > 8<<10 {
			t.Errorf("%s: a line has %d bytes", what, len(line))
		}
	}
}
