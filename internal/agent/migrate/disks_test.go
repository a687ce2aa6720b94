// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package migrate

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/media/overlay"
	"github.com/vireo-project/vireo/internal/agent/migrate/peer"
	"github.com/vireo-project/vireo/internal/agent/migrate/qemutls"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// imageDomain is a guest with two containerDisks, of which one is below an overlay, a claim and a kernel of an image.
//
//go:embed peer/testdata/images.xml
var imageDomain string

func parse(t *testing.T, text string) *libvirtxml.Domain {
	t.Helper()
	d := &libvirtxml.Domain{}
	if err := d.Unmarshal(text); err != nil {
		t.Fatal(err)
	}
	return d
}

// imagePeer is the agent of a target with images.
type imagePeer struct {
	Peer
	// checksums are those of the target's images; nil if the agent does not support the comparison.
	checksums map[string]peer.Checksum
	// digests are those that the spec of the target's Pod names.
	digests map[string]string
	// failures are returned first.
	failures []error
	// onRequest is called with each request.
	onRequest func(ctx context.Context) error
}

func (p *imagePeer) Destination(context.Context, peer.Attempt) (*peer.Destination, error) {
	return &peer.Destination{
		Address: "10.0.0.7", Domain: imageDomain, TLSName: "migration-m", TLS: &qemutls.Files{}, Images: p.checksums != nil,
		Digests: p.digests,
	}, nil
}

func (p *imagePeer) Images(ctx context.Context, _ peer.Attempt) (*peer.Images, error) {
	if p.onRequest != nil {
		return nil, p.onRequest(ctx)
	}
	if len(p.failures) > 0 {
		err := p.failures[0]
		p.failures = p.failures[1:]
		return nil, err
	}
	return &peer.Images{Checksums: p.checksums}, nil
}

// imageSource runs imageDomain, and fails the transfer when it is started.
type imageSource struct {
	unresponsiveSource
	domain      *libvirtxml.Domain
	transferred bool
}

func (m *imageSource) LiveXML(context.Context, string) (*libvirtxml.Domain, error) {
	return m.domain, nil
}

var errTransferred = errors.New("libvirt transfers")

func (m *imageSource) Transfer(context.Context, hypervisor.TransferRequest) error {
	m.transferred = true
	return errTransferred
}

func (*imageSource) CancelTransfer(context.Context, string) error { return nil }

// sourceDigests are the digests in the spec of the source's Pod: only root has one.
var sourceDigests = map[string]string{"/var/run/kubevirt/container-disks/root": "sha256:1"}

var (
	rootChecksum   = peer.Checksum{Size: 1 << 20, CRC32: 1}
	toolsChecksum  = peer.Checksum{Size: 1 << 10, CRC32: 2}
	kernelChecksum = peer.Checksum{Size: 1 << 12, CRC32: 3}
)

// transferWithImages migrates a guest with images. It returns whether the transfer was started, its events and its
// error.
func transferWithImages(
	t *testing.T, peers *imagePeer, live string, started func(*Transfers),
) (transferred bool, events []string, ended error) {
	t.Helper()
	var mu sync.Mutex
	enqueued := make(chan types.NamespacedName, 1)
	transfers := NewTransfers(Options{
		Peer: peers, Enqueue: func(key types.NamespacedName) { enqueued <- key },
		Checksum: func(_ context.Context, pod hypervisor.PodRef, _, name string) (peer.Checksum, error) {
			if pod.UID != "here" {
				return peer.Checksum{}, errors.New("another Pod")
			}
			return map[string]peer.Checksum{"disk.img": rootChecksum, "tools.iso": toolsChecksum,
				"vmlinuz": kernelChecksum}[name[strings.LastIndex(name, "/")+1:]], nil
		},
		RecordEvent: func(_ *v1.VirtualMachineInstance, reason v1.SyncEvent, _, message string) {
			mu.Lock()
			defer mu.Unlock()
			events = append(events, reason.String()+": "+message)
		},
	})
	t.Cleanup(transfers.stop)
	vmi := &v1.VirtualMachineInstance{}
	vmi.Spec.Volumes = []v1.Volume{{Name: "root",
		VolumeSource: v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{Image: "registry/os:latest"}}}}
	vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "m", TargetNode: "blue",
		TargetPod: "launcher-b"}
	source := &imageSource{domain: parse(t, live)}
	source.canceled = make(chan struct{})
	transfers.StartTransfer(vmi, hypervisor.PodRef{UID: "here"}, sourceDigests, source)
	if started != nil {
		started(transfers)
	}
	<-enqueued
	mu.Lock()
	defer mu.Unlock()
	return source.transferred, events, transfers.Find("m").State().Err
}

func TestGuestIsTransferredOnlyWithSameImages(t *testing.T) {
	same := map[string]peer.Checksum{"root": rootChecksum, "tools": toolsChecksum, peer.KernelFile: kernelChecksum}
	with := func(key string, checksum peer.Checksum) map[string]peer.Checksum {
		changed := maps.Clone(same)
		changed[key] = checksum
		return changed
	}
	without := maps.Clone(same)
	delete(without, "tools")
	for what, test := range map[string]struct {
		peers imagePeer
		// failure is a part of the error; empty if the guest is transferred.
		failure string
	}{
		"the same images":            {peers: imagePeer{checksums: same}},
		"an image that is larger":    {imagePeer{checksums: with("root", peer.Checksum{Size: 1, CRC32: 1})}, "image registry/os:latest (volume root)"},
		"an image that differs":      {imagePeer{checksums: with("root", peer.Checksum{Size: 1 << 20, CRC32: 9})}, "launcher Pod launcher-b"},
		"a kernel that differs":      {imagePeer{checksums: with(peer.KernelFile, peer.Checksum{Size: 1 << 12, CRC32: 9})}, peer.KernelFile},
		"an image that is not there": {imagePeer{checksums: without}, "volume tools"},
		"a digest that is the same":  {peers: imagePeer{checksums: with("root", peer.Checksum{Size: 1}), digests: sourceDigests}},
		"another digest": {
			imagePeer{checksums: with("root", peer.Checksum{Size: 1}),
				digests: map[string]string{"/var/run/kubevirt/container-disks/root": "sha256:2"}}, "volume root",
		},
		"a digest that is the target's alone": {
			imagePeer{checksums: with("tools", peer.Checksum{Size: 1}),
				digests: map[string]string{"/var/run/kubevirt/container-disks/tools": "sha256:1"}}, "volume tools",
		},
		"a target that cannot compare": {imagePeer{}, "node blue"},
		"a target that refuses": {
			imagePeer{checksums: same,
				failures: []error{&peer.RefusedError{Node: "blue", Code: http.StatusForbidden, Message: "no"}}}, "refused",
		},
		"a target that starts again": {peers: imagePeer{checksums: same, failures: []error{errors.New("connection refused")}}},
	} {
		t.Run(what, func(t *testing.T) {
			transferred, events, err := transferWithImages(t, &test.peers, imageDomain, nil)
			if test.failure == "" {
				if !transferred || !errors.Is(err, errTransferred) {
					t.Errorf("the guest is not transferred: %v", err)
				}
				return
			}
			if transferred || err == nil || !strings.Contains(err.Error(), test.failure) {
				t.Errorf("transferred: %v, %v, want %q", transferred, err, test.failure)
			}
			if strings.Contains(err.Error(), "do not match") != (len(events) == 1 &&
				strings.HasPrefix(events[0], "ContainerDiskFailedChecksum: Aborting migration as ")) {
				t.Errorf("events %q of %v", events, err)
			}
		})
	}
}

func TestLauncherCannotHideImage(t *testing.T) {
	incomplete := `<domain type="kvm"><devices><disk type="file" device="disk"><source file="/var/run/kubevirt-ephemeral-disks/root.qcow2"/>
		<target dev="vda" bus="virtio"/><alias name="ua-disk-root"/></disk></devices></domain>`
	peers := &imagePeer{checksums: map[string]peer.Checksum{"root": {Size: 1}, "tools": toolsChecksum,
		peer.KernelFile: kernelChecksum}}
	transferred, _, err := transferWithImages(t, peers, incomplete, nil)
	if transferred || err == nil || !strings.Contains(err.Error(), "volume root") {
		t.Errorf("transferred: %v, %v", transferred, err)
	}
}

func TestReadingImagesEndsWithMigration(t *testing.T) {
	requested := make(chan struct{})
	peers := &imagePeer{checksums: map[string]peer.Checksum{}, onRequest: func(ctx context.Context) error {
		close(requested)
		<-ctx.Done()
		return ctx.Err()
	}}
	transferred, _, err := transferWithImages(t, peers, imageDomain, func(transfers *Transfers) {
		<-requested
		if err := transfers.Find("m").Cancel(t.Context(), "canceled by the test"); err != nil {
			t.Error(err)
		}
	})
	var canceled *CanceledError
	if transferred || !errors.As(err, &canceled) {
		t.Errorf("transferred: %v, %v", transferred, err)
	}
}

const diskBytes = 1 << 20

// trackedGuest is a guest with one tracked disk, and the agent of its target.
type trackedGuest struct {
	Source
	Peer
	// content is the content of the disk's overlay, readErr the error of reading it, and keepErr that of the target.
	content          []byte
	readErr, keepErr error
	sent             []peer.DiskBitmaps
	transfers        *Transfers
}

func (g *trackedGuest) ReadTracked(_ context.Context, name string, read func(io.ReaderAt) error) error {
	if name != overlay.FileName("data", diskBytes) {
		return errors.New("another file")
	}
	if g.readErr != nil {
		return g.readErr
	}
	return read(bytes.NewReader(g.content))
}

func (g *trackedGuest) KeepBitmaps(_ context.Context, _ peer.Attempt, disks []peer.DiskBitmaps) error {
	g.sent = disks
	return g.keepErr
}

// newTrackedGuest returns a guest whose disk has a bitmap.
func newTrackedGuest(t *testing.T, bitmaps ...overlay.Bitmap) *trackedGuest {
	t.Helper()
	o := overlay.Overlay{DiskBytes: diskBytes, DataFile: "/disk.img"}
	reader, _, err := o.Open()
	if err != nil {
		t.Fatal(err)
	}
	g := &trackedGuest{transfers: NewTransfers(Options{})}
	if g.content, err = io.ReadAll(reader); err != nil {
		t.Fatal(err)
	}
	if len(bitmaps) == 0 {
		return g
	}
	ranges, err := o.AddBitmaps(bitmaps)
	if err != nil {
		t.Fatal(err)
	}
	g.content = append(g.content, make([]byte, 1<<20)...)
	for _, r := range ranges {
		copy(g.content[r.At:], r.Bytes)
	}
	return g
}

// trackedDomain returns a domain with the tracked disk and another one.
func trackedDomain(t *testing.T, dir string) *libvirtxml.Domain {
	t.Helper()
	d := &libvirtxml.Domain{}
	err := d.Unmarshal(`<domain><devices>
		<disk type="file" device="disk"><source file="/other.img"/><target dev="vdb"/><alias name="ua-disk-other"/></disk>
		<disk type="file" device="disk"><target dev="vda"/><alias name="ua-disk-data"/>
		<source file="` + dir + "/" + overlay.FileName("data", diskBytes) + `"><dataStore type="file"><format type="raw"/><source file="/disk.img"/></dataStore>
		</source></disk></devices></domain>`)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (g *trackedGuest) keep(
	t *testing.T, d peer.Destination, built *libvirtxml.Domain, copied ...string,
) func(context.Context) error {
	t.Helper()
	vmi := &v1.VirtualMachineInstance{}
	vmi.UID = "guest"
	vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "m"}
	r := &hypervisor.TransferRequest{CopyDisks: copied}
	return g.transfers.keepBitmaps(&Transfer{vmi: vmi, source: g}, g, &d, r, trackedDomain(t, launcherpod.TrackedDisksDir),
		built)
}

var oneBitmap = overlay.Bitmap{Name: "b1", Granularity: 16, Parts: []overlay.Part{{Bits: []byte{1, 2}}}}

func TestBitmapsThatTheTargetCannotKeepAreNotSent(t *testing.T) {
	here := trackedDomain(t, launcherpod.TrackedDisksDir)
	g := newTrackedGuest(t, oneBitmap)
	if g.keep(t, peer.Destination{}, here) != nil {
		t.Error("bitmaps are sent to an agent that does not know them")
	}
	if g.keep(t, peer.Destination{Bitmaps: true}, &libvirtxml.Domain{}) != nil {
		t.Error("bitmaps are sent to a guest without an overlay")
	}
	if g.keep(t, peer.Destination{Bitmaps: true}, here, "vda") != nil {
		t.Error("bitmaps are sent of a disk that libvirt copies")
	}
}

func TestOnlyUnknownOutcomesOfBitmapsFailTheMigration(t *testing.T) {
	refusal := func(code int) error { return &peer.RefusedError{Node: "blue", Code: code} }
	many := make([]overlay.Bitmap, 0, 3)
	for _, name := range []string{"a", "b", "c"} {
		many = append(many, overlay.Bitmap{Name: name, Granularity: 16})
	}
	for name, tc := range map[string]struct {
		bitmaps          []overlay.Bitmap
		readErr, keepErr error
		sent             int
		fails            bool
	}{
		"kept":              {bitmaps: []overlay.Bitmap{oneBitmap}, sent: 1},
		"several":           {bitmaps: many, sent: 3},
		"none":              {},
		"not read":          {bitmaps: []overlay.Bitmap{oneBitmap}, readErr: context.DeadlineExceeded},
		"refused":           {bitmaps: []overlay.Bitmap{oneBitmap}, keepErr: refusal(http.StatusConflict), sent: 1},
		"invalid":           {bitmaps: []overlay.Bitmap{oneBitmap}, keepErr: refusal(http.StatusBadRequest), sent: 1},
		"perhaps written":   {bitmaps: []overlay.Bitmap{oneBitmap}, keepErr: refusal(http.StatusServiceUnavailable), sent: 1, fails: true},
		"a lost connection": {bitmaps: []overlay.Bitmap{oneBitmap}, keepErr: io.ErrUnexpectedEOF, sent: 1, fails: true},
	} {
		g := newTrackedGuest(t, tc.bitmaps...)
		g.readErr, g.keepErr = tc.readErr, tc.keepErr
		err := g.keep(t, peer.Destination{Bitmaps: true}, trackedDomain(t, launcherpod.TrackedDisksDir))(t.Context())
		sent := 0
		for _, disk := range g.sent {
			if sent += len(disk.Bitmaps); disk.Volume != "data" || disk.Bytes != diskBytes {
				t.Errorf("%s: sent %+v", name, disk)
			}
		}
		if (err != nil) != tc.fails || sent != tc.sent {
			t.Errorf("%s: %d bitmaps were sent: %v", name, sent, err)
		}
	}
}

func TestBitmapsFailOneMigrationAnHour(t *testing.T) {
	here := trackedDomain(t, launcherpod.TrackedDisksDir)
	g := newTrackedGuest(t, oneBitmap)
	now := time.Now()
	g.transfers.now = func() time.Time { return now }
	migrate := func(ctx context.Context) error {
		g.sent = nil
		return g.keep(t, peer.Destination{Bitmaps: true}, here)(ctx)
	}
	g.keepErr = context.DeadlineExceeded
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if migrate(canceled) == nil || migrate(t.Context()) == nil || g.sent == nil {
		t.Fatal("the migration does not fail, or a canceled one before it has changed it")
	}
	if err := migrate(t.Context()); err != nil || g.sent != nil {
		t.Errorf("the next migration has sent %+v: %v", g.sent, err)
	}
	now = now.Add(untrackedTime)
	if err := migrate(t.Context()); err == nil || g.sent == nil {
		t.Error("an hour later, no bitmaps are sent")
	}
	g.transfers.noteUntracked("another")
	now = now.Add(untrackedTime)
	if g.transfers.noteUntracked("a third"); len(g.transfers.untracked) != 1 {
		t.Errorf("%d VMIs are remembered", len(g.transfers.untracked))
	}
}

func TestOldestBitmapsOfAllDisksAreDropped(t *testing.T) {
	const older, newer = "z-2026-01-01_10-00-00", "a-2026-01-02_10-00-00"
	parts := make([]overlay.Part, overlay.MaxBits/overlay.PartBytes/3)
	disks := []peer.DiskBitmaps{
		{Volume: "a", Bytes: 1 << 40, Bitmaps: []overlay.Bitmap{{Name: older, Parts: parts}, {Name: newer, Parts: parts}}},
		{Volume: "b", Bytes: 1 << 40, Bitmaps: []overlay.Bitmap{{Name: newer, Parts: parts}, {Name: older}}},
		{Volume: "c", Bytes: 1 << 40, Bitmaps: []overlay.Bitmap{{Name: older}}},
	}
	if got := oldest(disks); got != older {
		t.Errorf("the oldest bitmap is %s", got)
	}
	left := without(disks, map[string]bool{older: true})
	if len(left) != 2 || len(left[0].Bitmaps) != 1 || len(left[1].Bitmaps) != 1 || left[1].Bitmaps[0].Name != newer {
		t.Errorf("what is left is %+v", left)
	}
	if !fits(nil) || !fits(
		[]peer.DiskBitmaps{{Bytes: diskBytes, Bitmaps: []overlay.Bitmap{{Granularity: 16, Parts: parts[:1]}}}}) {
		t.Error("a small bitmap does not fit")
	}
	many := make([]peer.DiskBitmaps, 9)
	for i := range many {
		many[i] = peer.DiskBitmaps{Bytes: 1 << 40, Bitmaps: []overlay.Bitmap{{Granularity: 16, Parts: parts[:1]}}}
	}
	bits := []peer.DiskBitmaps{{Bytes: diskBytes,
		Bitmaps: []overlay.Bitmap{{Granularity: 16, Parts: make([]overlay.Part, 1025)}}}}
	if fits(many) || fits(bits) {
		t.Error("too much fits")
	}
}
