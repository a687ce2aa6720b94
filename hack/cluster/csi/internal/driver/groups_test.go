// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/vireo-project/vireo/hack/cluster/csi/internal/pool"
)

func (w *world) groupSnapshot(name string, of ...claim) (*csi.VolumeGroupSnapshot, error) {
	request := &csi.CreateVolumeGroupSnapshotRequest{Name: name}
	for _, c := range of {
		request.SourceVolumeIds = append(request.SourceVolumeIds, c.id)
	}
	response, err := w.controller.CreateVolumeGroupSnapshot(w.Context(), request)
	return response.GetGroupSnapshot(), err
}

func (w *world) snapshots() int {
	w.Helper()
	response, err := w.controller.ListSnapshots(w.Context(), &csi.ListSnapshotsRequest{})
	if err != nil {
		w.Fatal(err)
	}
	return len(response.GetEntries())
}

func TestGroup(t *testing.T) {
	w := newWorld(t)
	a, b := w.create("a", capability(true, once), gib, nil), w.create("b", capability(true, once), gib, nil)
	for _, c := range []claim{a, b} {
		if err := os.WriteFile(c.mount(0), []byte(c.id), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	g, err := w.groupSnapshot("group", b, a)
	if err != nil {
		t.Fatal(err)
	}
	again, err := w.groupSnapshot("group", a, b)
	if err != nil || again.String() != g.String() {
		t.Errorf("a repeated request returned %v, %v, and not %v", again, err, g)
	}
	var ids []string
	for _, s := range g.GetSnapshots() {
		ids = append(ids, s.GetSnapshotId())
		restored := w.create("from "+s.GetSnapshotId(), a.use, gib,
			&csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
				Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: s.GetSnapshotId()},
			}})
		if got := head(t, filepath.Join(w.dir, "volumes", restored.id, "disk"),
			len(s.GetSourceVolumeId())); got != s.GetSourceVolumeId() {
			t.Errorf("the snapshot of %s has %q", s.GetSourceVolumeId(), got)
		}
		_, err := w.controller.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: s.GetSnapshotId()})
		expectCode(t, err, codes.InvalidArgument)
	}
	if len(ids) != 2 {
		t.Errorf("the group has the snapshots %v", ids)
	}
	_, err = w.groupSnapshot("group", a)
	expectCode(t, err, codes.AlreadyExists)
	_, err = w.groupSnapshot("other", a, claim{id: "vol-none"})
	expectCode(t, err, codes.NotFound)
	remove := &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: g.GetGroupSnapshotId(), SnapshotIds: ids[:1]}
	_, err = w.controller.DeleteVolumeGroupSnapshot(t.Context(), remove)
	expectCode(t, err, codes.InvalidArgument)
	remove.SnapshotIds = ids
	for range 2 {
		_, err = w.controller.DeleteVolumeGroupSnapshot(t.Context(), remove)
		expectCode(t, err, codes.OK)
	}
	if left := w.snapshots(); left != 0 {
		t.Errorf("%d snapshots are left", left)
	}
}

// A writer increments a counter in one volume, and then the same one in another. In every moment the first is as large
// as the second, or larger by one.
func TestGroupInUseIsOfOneMoment(t *testing.T) {
	w := newWorld(t)
	a, b := w.create("a", capability(false, once), 64*mib, nil), w.create("b", capability(false, many), 64*mib, nil)
	places := []place{{filepath.Join(a.mount(0), "counter"), 0}, {filepath.Join(b.mount(1), "counter"), 0}}
	for _, p := range places {
		if err := os.WriteFile(p.path, make([]byte, 4096), 0o600); err != nil {
			t.Fatal(err)
		}
		run(t, "sync", p.path)
	}
	ctx, stop := context.WithCancel(t.Context())
	started, done := make(chan struct{}), make(chan error)
	go func() { done <- count(ctx, places, started) }()
	<-started
	var before uint64
	for i := range 3 {
		g, err := w.groupSnapshot(fmt.Sprint("group", i), a, b)
		if err != nil {
			t.Fatal(err)
		}
		first, second := w.restoredCounter(g, a), w.restoredCounter(g, b)
		if first != second && first != second+1 || first <= before {
			t.Errorf("group %d has the counters %d and %d after %d", i, first, second, before)
		}
		before = first
	}
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// restoredCounter reads the counter from a clone of the snapshot that a group has of a volume.
func (w *world) restoredCounter(g *csi.VolumeGroupSnapshot, of claim) uint64 {
	w.Helper()
	for _, s := range g.GetSnapshots() {
		if s.GetSourceVolumeId() != of.id {
			continue
		}
		restored := w.create("from "+s.GetSnapshotId(), of.use, 64*mib,
			&csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
				Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: s.GetSnapshotId()},
			}})
		file, err := os.Open(filepath.Join(restored.mount(0), "counter"))
		if err != nil {
			w.Fatal(err)
		}
		value := counter(w.T, file, 0)
		_ = file.Close()
		restored.unmount(0)
		return value
	}
	w.Fatalf("the group has no snapshot of %s", of.id)
	return 0
}

// thaw thaws a mounted filesystem, and reports whether it was frozen. A test that wrote to one that stays frozen would
// never end.
func thaw(t *testing.T, path string) bool {
	t.Helper()
	root, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	err = unix.IoctlSetInt(int(root.Fd()), fiThaw, 0)
	_ = root.Close()
	if err != nil && !errors.Is(err, unix.EINVAL) {
		t.Fatal(err)
	}
	return err == nil
}

// Of a group that cannot be made, nothing is left: no snapshot, and no frozen filesystem.
func TestFailedGroupLeavesNothing(t *testing.T) {
	w := newWorld(t)
	a, b := w.create("a", capability(false, once), 64*mib, nil), w.create("b", capability(false, once), 64*mib, nil)
	first, second := a, b
	if a.id > b.id {
		first, second = b, a
	}
	path, busy := first.mount(0), second.mount(0)
	run(t, "fsfreeze", "--freeze", busy)
	if _, err := w.groupSnapshot("group", a, b); !errors.Is(err, unix.EBUSY) {
		t.Errorf("with a filesystem that another program has frozen: %v", err)
	}
	if thaw(t, path) {
		t.Error("a filesystem stays frozen")
	}
	if !thaw(t, busy) {
		t.Error("what another program has frozen is thawed")
	}
	if left := w.snapshots(); left != 0 {
		t.Errorf("%d snapshots are left", left)
	}
	if _, err := w.groupSnapshot("group", a, b); err != nil {
		t.Errorf("the repeated call: %v", err)
	}
}

// While a group is made, nothing can be mounted that is not frozen.
func TestFreezeHoldsWhatIsNotMounted(t *testing.T) {
	w := newWorld(t)
	c := w.create("a", capability(false, once), 64*mib, nil)
	if err := c.attach(0); err != nil {
		t.Fatal(err)
	}
	if err := w.controller.frozen([]string{c.id}, func() error { return c.stage(0) }); err == nil {
		t.Error("a node has mounted a volume while it was frozen")
	}
	c.mount(0)
}

func TestThawAfterKill(t *testing.T) {
	w := newWorld(t)
	c, other := w.create("a", capability(false, once), 64*mib, nil), w.create("b", capability(false, once), 64*mib, nil)
	path := c.mount(0)
	other.mount(0)
	run(t, "fsfreeze", "--freeze", path)
	w.restart()
	if thaw(t, path) {
		t.Error("the filesystem stays frozen")
	}
}

func TestHalfGroupIsRemoved(t *testing.T) {
	w := newWorld(t)
	id := w.pool.Snapshots.ID("member")
	if _, err := w.pool.Snapshots.Create(id, pool.Snapshot{Group: w.pool.Groups.ID("group")},
		func(*os.File) error { return nil }); err != nil {
		t.Fatal(err)
	}
	w.restart()
	if left := w.snapshots(); left != 0 {
		t.Errorf("%d snapshots are left", left)
	}
}
