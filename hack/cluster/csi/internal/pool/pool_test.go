// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package pool

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func open(t *testing.T, dir string) *Pool {
	t.Helper()
	p, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func sized(size int64) func(*os.File) error {
	return func(disk *os.File) error { return disk.Truncate(size) }
}

func TestItems(t *testing.T) {
	p := open(t, t.TempDir())
	a, b := p.Volumes.ID("a"), p.Volumes.ID("../b")
	want := Item[Volume]{ID: a, Size: 4096, Record: Volume{Name: "a", Block: true}}
	got, err := p.Volumes.Create(a, want.Record, sized(4096))
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v, created (-want +got):\n%s", err, diff)
	}
	if _, err := p.Volumes.Create(b, Volume{Name: "../b"}, sized(1)); err != nil {
		t.Fatal(err)
	}
	want.Record.Nodes = map[string]string{"node1": "mode"}
	if err := p.Volumes.Update(a, want.Record); err != nil {
		t.Fatal(err)
	}
	got, err = p.Volumes.Get(a)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v, updated (-want +got):\n%s", err, diff)
	}
	for range 2 {
		if err := p.Volumes.Delete(b); err != nil {
			t.Error(err)
		}
	}
	all, err := p.Volumes.List()
	if diff := cmp.Diff([]Item[Volume]{want}, all); err != nil || diff != "" {
		t.Errorf("%v, listed (-want +got):\n%s", err, diff)
	}
}

func TestFailedCreationLeavesNothing(t *testing.T) {
	p := open(t, t.TempDir())
	id := p.Snapshots.ID("s")
	full := errors.New("full")
	if _, err := p.Snapshots.Create(id, Snapshot{}, func(*os.File) error { return full }); !errors.Is(err, full) {
		t.Errorf("got %v", err)
	}
	if _, err := p.Snapshots.Get(id); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	if left, err := p.entries(halfMadeDir); err != nil || len(left) != 0 {
		t.Errorf("%v is left, %v", left, err)
	}
}

func TestOwn(t *testing.T) {
	dir := t.TempDir()
	p := open(t, dir)
	if err := os.MkdirAll(filepath.Join(dir, halfMadeDir, "vol-x", "disk"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := p.Own(); err != nil {
		t.Fatal(err)
	}
	if left, err := p.entries(halfMadeDir); err != nil || len(left) != 0 {
		t.Errorf("%v is left, %v", left, err)
	}
	if err := open(t, dir).Own(); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("a second owner got %v", err)
	}
}

func TestOnlyIDsAreFound(t *testing.T) {
	p := open(t, t.TempDir())
	id := p.Volumes.ID("a")
	if _, err := p.Volumes.Create(id, Volume{}, sized(1)); err != nil {
		t.Fatal(err)
	}
	for _, other := range []string{"", ".", "..", "/", "vol-", id + "/", "./" + id, "../volumes/" + id,
		p.Snapshots.ID("a"), "snap" + id[3:]} {
		_, err1 := p.Volumes.Get(other)
		_, err2 := p.Volumes.Open(other)
		for _, err := range []error{err1, err2, p.Volumes.Update(other, Volume{})} {
			if !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%q: %v", other, err)
			}
		}
		if err := p.Volumes.Delete(other); err != nil {
			t.Errorf("%q: %v", other, err)
		}
	}
	if _, err := p.Volumes.Get(id); err != nil {
		t.Error(err)
	}
}

func TestNodes(t *testing.T) {
	p := open(t, t.TempDir())
	if err := p.AddNode("node1"); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"node1": true, "node2": false, "": false, ".": false, "..": false,
		"../nodes/node1": false, "./node1": false} {
		if got, err := p.HasNode(name); err != nil || got != want {
			t.Errorf("%q: %v, %v", name, got, err)
		}
	}
	if err := p.AddNode("../x"); err == nil {
		t.Error("a path became a node")
	}
}

func TestCopy(t *testing.T) {
	const size = 16 << 20
	content := map[int64][]byte{0: []byte("start"), 8 << 20: bytes.Repeat([]byte("x"), 100_000), size - 3: []byte("end")}
	dir := t.TempDir()
	source, err := os.Create(filepath.Join(dir, "source"))
	if err != nil {
		t.Fatal(err)
	}
	target, err := os.Create(filepath.Join(dir, "target"))
	if err != nil {
		t.Fatal(err)
	}
	for offset, data := range content {
		if _, err := source.WriteAt(data, offset); err != nil {
			t.Fatal(err)
		}
	}
	if err := Copy(target, source); err != nil {
		t.Fatal(err)
	}
	want, err1 := os.ReadFile(source.Name())
	got, err2 := os.ReadFile(target.Name())
	if err := errors.Join(err1, err2); err != nil || !bytes.Equal(want, got) {
		t.Errorf("the copy differs, %v", err)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(int(target.Fd()), &stat); err != nil || stat.Blocks*512 > 1<<20 {
		t.Errorf("the copy takes %d bytes, %v", stat.Blocks*512, err)
	}
	if err := errors.Join(source.Close(), target.Close()); err != nil {
		t.Error(err)
	}
}
