// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package peer_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/media/overlay"
	"github.com/vireo-project/vireo/internal/agent/migrate/peer"
	"github.com/vireo-project/vireo/internal/agent/migrate/qemutls"
	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/internal/decide/migration/protocol"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/test/agentpki"
)

const (
	attempt = types.UID("11111111-2222-3333-4444-555555555555")
	podIP   = "10.244.1.7"
)

// target is the agent of node blue, to which a guest of node red migrates.
type target struct {
	pki     *agentpki.World
	targets *peer.Targets
	port    int

	mu    sync.Mutex
	vmi   *v1.VirtualMachineInstance
	tls   *qemutls.Files
	files hypervisor.StateFiles
	nvram []byte
	// overlay is the content of the overlay of the guest's disk, state that of the guest, and uploadErr the error of each
	// upload.
	overlay   []byte
	state     protocol.TargetDomain
	uploadErr error
	released  []types.UID
	// runs is how long the guest has run.
	runs time.Duration
	// libvirtd receives the other end of each tunnel.
	libvirtd chan net.Conn
}

// Get implements client.Reader for the one VMI.
func (t *target) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	vmi, ok := into.(*v1.VirtualMachineInstance)
	if !ok || t.vmi == nil || key != client.ObjectKeyFromObject(t.vmi) {
		return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
	}
	t.vmi.DeepCopyInto(vmi)
	return nil
}

// List implements client.Reader.
func (t *target) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.New("not implemented")
}

// TargetState implements peer.Launcher.
func (t *target) TargetState(_ context.Context, domain string) (protocol.TargetDomain, error) {
	if domain != "ns_vm" {
		return protocol.TargetAbsent, nil
	}
	return t.state, nil
}

// Pool implements peer.Launcher.
func (t *target) Pool(_ context.Context, name, dir string) (*hypervisor.Pool, error) {
	if name != launcherpod.TrackedPool || dir != launcherpod.TrackedDisksDir {
		return nil, errors.New("another directory")
	}
	return &hypervisor.Pool{Volumes: []hypervisor.Volume{{Name: "data-1048576.qcow2"}}}, nil
}

// UploadAt implements peer.Launcher.
func (t *target) UploadAt(_ context.Context, _, name string, at uint64, data []byte) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.uploadErr != nil {
		return t.uploadErr
	}
	end := at + uint64(len(data))
	if have := uint64(len(t.overlay)); name == "data-1048576.qcow2" && end > have {
		t.overlay = append(t.overlay, make([]byte, end-have)...)
	}
	copy(t.overlay[at:], data)
	return nil
}

// PutMigrationTLS implements peer.Launcher.
func (t *target) PutMigrationTLS(_ context.Context, files qemutls.Files) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tls = &files
	return nil
}

// KeepState implements peer.Launcher.
func (t *target) KeepState(_ context.Context, files hypervisor.StateFiles, nvram []byte) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.files, t.nvram = files, nvram
	return nil
}

func (t *target) change(do func(*v1.VirtualMachineInstanceMigrationState)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	do(t.vmi.Status.MigrationState)
}

func startTarget(t *testing.T) *target {
	t.Helper()
	w := &target{pki: agentpki.New(t), targets: peer.NewTargets(), libvirtd: make(chan net.Conn, 8)}
	w.vmi = &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "vm", UID: "u"}}
	w.vmi.Status = v1.VirtualMachineInstanceStatus{
		Phase: v1.Running, NodeName: "red",
		MigrationState: &v1.VirtualMachineInstanceMigrationState{MigrationUID: attempt, SourceNode: "red", TargetNode: "blue",
			TargetPod: "p"},
	}
	w.targets.Put(attempt, peer.Target{Pod: hypervisor.PodRef{UID: "pod"}, Address: podIP, Domain: "<domain/>"})
	s, err := peer.NewServer(peer.ServerOptions{
		TLS: w.pki.Server("blue"), PeerNode: certificate.PeerNode, Node: "blue", Incoming: w, Targets: w.targets,
		Open: func(hypervisor.PodRef) (peer.Launcher, error) { return w, nil },
		Tunnel: func(_ context.Context, pod hypervisor.PodRef) (net.Conn, error) {
			if pod.UID != "pod" {
				return nil, errors.New("another Pod")
			}
			ours, theirs := net.Pipe()
			w.libvirtd <- theirs
			return ours, nil
		},
		Run: func(_ context.Context, _ types.NamespacedName, migration types.UID) (time.Duration, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.released = append(w.released, migration)
			return w.runs, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address, ok := listener.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatal("no TCP address")
	}
	w.port = address.Port
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, listener) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return w
}

// from returns the client of a node's agent.
func (t *target) from(node string) *peer.Client {
	return peer.NewClient(t.pki.Client(node), t.port)
}

func migrationOf(change ...func(*peer.Attempt)) peer.Attempt {
	m := peer.Attempt{
		VMI: types.NamespacedName{Namespace: "ns", Name: "vm"}, UID: attempt, TargetNode: "blue", Agent: "127.0.0.1",
	}
	for _, c := range change {
		c(&m)
	}
	return m
}

func TestDestination(t *testing.T) {
	w := startTarget(t)
	d, err := w.from("red").Destination(t.Context(), migrationOf())
	if err != nil {
		t.Fatal(err)
	}
	if d.Address != podIP || d.Domain != "<domain/>" || d.TLSName != qemutls.Name(attempt) || d.TLS == nil {
		t.Errorf("got %+v", d)
	}
	if w.tls == nil || bytes.Equal(w.tls.Certificate, d.TLS.Certificate) || !bytes.Equal(w.tls.CA, d.TLS.CA) ||
		bytes.Equal(w.tls.Key, d.TLS.Key) {
		t.Error("the certificates of Pod and source are not different ones of the same authority")
	}
	w.targets.Put(attempt, peer.Target{Pod: hypervisor.PodRef{UID: "pod"}, Address: podIP, Plain: true})
	if d, err = w.from("red").Destination(t.Context(), migrationOf()); err != nil || d.TLS != nil || d.TLSName != "" {
		t.Errorf("without encryption: %+v, %v", d, err)
	}
}

func TestRefusedRequests(t *testing.T) {
	elsewhere := func(m *peer.Attempt) { m.UID = "another" }
	ended := func(m *v1.VirtualMachineInstanceMigrationState) { m.Completed = true }
	for name, tc := range map[string]struct {
		peer    string
		request func(*peer.Attempt)
		// state changes the VMI's status.
		state func(*v1.VirtualMachineInstanceMigrationState)
		code  int
		// releases reports whether the release is served all the same.
		releases bool
	}{
		"an agent of another node":    {peer: "green", code: http.StatusForbidden},
		"the target's agent":          {peer: "blue", code: http.StatusForbidden},
		"another migration":           {peer: "red", request: elsewhere, code: http.StatusNotFound},
		"another guest":               {peer: "red", request: func(m *peer.Attempt) { m.VMI.Name = "other" }, code: http.StatusNotFound},
		"a guest with another target": {peer: "red", state: func(m *v1.VirtualMachineInstanceMigrationState) { m.TargetNode = "green" }, code: http.StatusNotFound},
		"a migration that has failed": {peer: "red", state: func(m *v1.VirtualMachineInstanceMigrationState) { m.Failed = true }, code: http.StatusConflict},
		"a completed migration":       {peer: "red", state: ended, code: http.StatusConflict, releases: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := startTarget(t)
			if tc.state != nil {
				w.change(tc.state)
			}
			m := migrationOf()
			if tc.request != nil {
				tc.request(&m)
			}
			peer := w.from(tc.peer)
			_, err := peer.Destination(t.Context(), m)
			expectRefusal(t, "the destination", err, tc.code)
			_, err = peer.Tunnel(t.Context(), m)
			expectRefusal(t, "a tunnel", err, tc.code)
			_, err = peer.Release(t.Context(), m)
			if tc.releases {
				if err != nil || len(w.released) != 1 {
					t.Errorf("the release: %v, %v", err, w.released)
				}
				return
			}
			expectRefusal(t, "the release", err, tc.code)
			if len(w.released) > 0 || w.targets.IsReleased(attempt) || len(w.libvirtd) > 0 || w.tls != nil {
				t.Error("it had an effect")
			}
		})
	}
}

func expectRefusal(t *testing.T, what string, err error, code int) {
	t.Helper()
	var refused *peer.RefusedError
	if !errors.As(err, &refused) || refused.Code != code {
		t.Errorf("%s: %v, want code %d", what, err, code)
	}
}

func TestOtherAgentsAreRejected(t *testing.T) {
	w := startTarget(t)
	stranger := peer.NewClient(agentpki.New(t).Client("red"), w.port)
	if _, err := stranger.Release(t.Context(), migrationOf()); err == nil || len(w.released) > 0 {
		t.Errorf("the agent of another cluster: %v", err)
	}
	elsewhere := migrationOf(func(m *peer.Attempt) { m.TargetNode = "green" })
	if _, err := w.from("red").Release(t.Context(), elsewhere); err == nil || !strings.Contains(err.Error(), "green") {
		t.Errorf("an agent responds for another node: %v", err)
	}
}

func TestReleaseReturnsAfterTheGuestRuns(t *testing.T) {
	w := startTarget(t)
	for _, w.runs = range []time.Duration{0, 12 * time.Minute} {
		if runs, err := w.from("red").Release(t.Context(), migrationOf()); err != nil || runs != w.runs {
			t.Fatal(runs, err)
		}
	}
	if len(w.released) != 2 || !w.targets.IsReleased(attempt) {
		t.Errorf("released: %v", w.released)
	}
}

// call returns a message of libvirt's protocol.
func call(proc uint32, body string) []byte {
	var out []byte
	for _, word := range []uint32{uint32(28 + len(body)), 0x20008086, 1, proc, 0, 1, 0} {
		out = binary.BigEndian.AppendUint32(out, word)
	}
	return append(out, body...)
}

func TestTunnelForwardsMigrationCallsOnly(t *testing.T) {
	w := startTarget(t)
	tunnel, err := w.from("red").Tunnel(t.Context(), migrationOf())
	if err != nil {
		t.Fatal(err)
	}
	libvirtd := <-w.libvirtd
	if _, err := w.from("red").Tunnel(t.Context(), migrationOf()); err == nil {
		t.Error("a second tunnel at the same time")
	}
	good := call(303, "prepare")
	go func() { _, _ = tunnel.Write(good) }()
	got := make([]byte, len(good))
	if _, err := io.ReadFull(libvirtd, got); err != nil || !bytes.Equal(got, good) {
		t.Fatalf("libvirtd got %q, %v", got, err)
	}
	// virDomainDestroyFlags.
	go func() { _, _ = tunnel.Write(call(234, "destroy")) }()
	if rest, _ := io.ReadAll(libvirtd); len(rest) > 0 {
		t.Errorf("libvirtd got %q", rest)
	}
	_ = tunnel.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := tunnel.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the tunnel is open: %v", err)
	}
	// Another tunnel is possible again.
	again, err := w.from("red").Tunnel(t.Context(), migrationOf())
	if err != nil {
		t.Fatal(err)
	}
	_ = again.Close()
}

func TestUnpreparedTargetReturnsServiceUnavailable(t *testing.T) {
	w := startTarget(t)
	w.targets.Forget("pod", attempt)
	_, err := w.from("red").Destination(t.Context(), migrationOf())
	expectRefusal(t, "the destination", err, http.StatusServiceUnavailable)
}

func TestStateIsWrittenToTheTargetsFiles(t *testing.T) {
	w := startTarget(t)
	const nvram, tpm = launcherpod.StateDir + "/nvram/vm_VARS.fd", launcherpod.StateDir + "/swtpm/u/tpm2"
	expect := func(os, devices string) {
		w.targets.Put(attempt,
			peer.Target{Pod: hypervisor.PodRef{UID: "pod"},
				Domain: "<domain><os>" + os + "</os><devices>" + devices + "</devices></domain>"})
	}
	tpmDevice := func(dir string) string {
		return `<tpm model="tpm-crb"><backend type="emulator" version="2.0"><source type="dir" path="` + dir + `"/></backend></tpm>`
	}
	source := w.from("red")
	expect("<nvram>"+nvram+"</nvram>", tpmDevice(tpm))
	if err := source.KeepState(t.Context(), migrationOf(), []byte("variables")); err != nil {
		t.Fatal(err)
	}
	if want := (hypervisor.StateFiles{NVRAM: nvram, TPM: tpm}); w.files != want || string(w.nvram) != "variables" {
		t.Errorf("got %+v and %q", w.files, w.nvram)
	}
	expectRefusal(t, "no variables", source.KeepState(t.Context(), migrationOf(), nil), http.StatusBadRequest)
	expectRefusal(t, "too many", source.KeepState(t.Context(), migrationOf(), make([]byte, hypervisor.MaxNVRAM+1)),
		http.StatusBadRequest)
	expectRefusal(t, "another node", w.from("green").KeepState(t.Context(), migrationOf(), []byte("x")),
		http.StatusForbidden)

	expect("<nvram>/var/run/libvirt/nvram.fd</nvram>", tpmDevice(tpm))
	expectRefusal(t, "variables that are not persistent", source.KeepState(t.Context(), migrationOf(), []byte("x")),
		http.StatusBadRequest)
	if err := source.KeepState(t.Context(), migrationOf(), nil); err != nil || w.files.NVRAM != "" || w.files.TPM != tpm {
		t.Errorf("a TPM alone: %v, %+v", err, w.files)
	}
	w.change(func(m *v1.VirtualMachineInstanceMigrationState) { m.Completed = true })
	expectRefusal(t, "a completed migration", source.KeepState(t.Context(), migrationOf(), nil), http.StatusConflict)
}

func TestBitmapsAreWrittenToTheTargetsOverlay(t *testing.T) {
	w := startTarget(t)
	source := w.from("red")
	const disk, file = `<disk type="file" device="disk"><source file="`, launcherpod.TrackedDisksDir + `/data-1048576.qcow2">`
	const rest = `<dataStore type="file"><format type="raw"/><source file="/disk.img"/></dataStore></source><alias name="ua-disk-`
	w.targets.Put(attempt, peer.Target{Pod: hypervisor.PodRef{UID: "pod"}, Address: podIP, Domain: `<domain><name>ns_vm</name><devices>` +
		disk + file + rest + `data"/></disk>` + disk + `/disk.img"></source><alias name="ua-disk-plain"/></disk></devices></domain>`})
	bitmaps := []overlay.Bitmap{{Name: "b1", Granularity: 16, Parts: []overlay.Part{{Bits: []byte{1, 2}}}}}
	of := func(volume string, bytes uint64, bitmaps []overlay.Bitmap) []peer.DiskBitmaps {
		return []peer.DiskBitmaps{{Volume: volume, Bytes: bytes, Bitmaps: bitmaps}}
	}
	keep := func(disks []peer.DiskBitmaps) error { return source.KeepBitmaps(t.Context(), migrationOf(), disks) }
	ok := of("data", 1<<20, bitmaps)

	expectRefusal(t, "a guest that is complete", keep(ok), http.StatusConflict)
	w.state = protocol.TargetReceiving
	for name, disks := range map[string][]peer.DiskBitmaps{
		"another size": of("data", 2<<20, bitmaps), "no overlay": of("plain", 1<<20, bitmaps), "no disk": of("other", 1<<20, bitmaps),
		"a path": of("../data", 1<<20, bitmaps), "no bitmaps": of("data", 1<<20, nil), "the same disk twice": append(ok, ok...),
		"a part behind the end": of("data", 1<<20, []overlay.Bitmap{{Name: "b1", Granularity: 16, Parts: []overlay.Part{{At: 4096, Bits: []byte{1}}}}}),
	} {
		expectRefusal(t, name, keep(disks), http.StatusConflict)
	}
	expectRefusal(t, "too much", keep(of("data", 1<<20, []overlay.Bitmap{{Name: strings.Repeat("x", 9<<20)}})),
		http.StatusBadRequest)
	expectRefusal(t, "another node", w.from("green").KeepBitmaps(t.Context(), migrationOf(), ok), http.StatusForbidden)
	if len(w.overlay) > 0 {
		t.Fatalf("a refused request has written %d bytes", len(w.overlay))
	}

	if err := keep(ok); err != nil {
		t.Fatal(err)
	}
	bytesOf, found, err := overlay.ReadBitmaps(bytes.NewReader(w.overlay))
	if err != nil || bytesOf != 1<<20 || len(found) != 1 || found[0].Name != "b1" ||
		!bytes.Equal(found[0].Parts[0].Bits, []byte{1, 2}) {
		t.Errorf("the overlay of a disk of %d bytes has %+v: %v", bytesOf, found, err)
	}

	w.uploadErr = errors.New("no space left on device")
	if err := keep(ok); peer.IsTemporary(err) {
		t.Errorf("an error of libvirt, after which nothing more is written: %v", err)
	}
	w.uploadErr = hypervisor.ErrUnreachable
	if err := keep(ok); err == nil || !peer.IsTemporary(err) {
		t.Errorf("libvirt may still be writing: %v", err)
	}
}
