// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package migration

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"testing"
	"time"

	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/media/overlay"
	"github.com/vireo-project/vireo/internal/agent/migration/peer"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

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

func (g *trackedGuest) keep(t *testing.T, d peer.Destination, built *libvirtxml.Domain, copied ...string) func(context.Context) error {
	t.Helper()
	vmi := &v1.VirtualMachineInstance{}
	vmi.UID = "guest"
	vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "m"}
	r := &hypervisor.TransferRequest{CopyDisks: copied}
	return g.transfers.keepBitmaps(&Transfer{vmi: vmi, source: g}, g, &d, r, trackedDomain(t, launcherpod.TrackedDisksDir), built)
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
	if !fits(nil) || !fits([]peer.DiskBitmaps{{Bytes: diskBytes, Bitmaps: []overlay.Bitmap{{Granularity: 16, Parts: parts[:1]}}}}) {
		t.Error("a small bitmap does not fit")
	}
	many := make([]peer.DiskBitmaps, 9)
	for i := range many {
		many[i] = peer.DiskBitmaps{Bytes: 1 << 40, Bitmaps: []overlay.Bitmap{{Granularity: 16, Parts: parts[:1]}}}
	}
	bits := []peer.DiskBitmaps{{Bytes: diskBytes, Bitmaps: []overlay.Bitmap{{Granularity: 16, Parts: make([]overlay.Part, 1025)}}}}
	if fits(many) || fits(bits) {
		t.Error("too much fits")
	}
}
