// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// outside writes a file that is not in the volume.
func outside(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(name, []byte("of somebody else"), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// irregular are ways to make a file that must not be opened.
var irregular = map[string]func(t *testing.T, name string){
	"an absolute link": func(t *testing.T, name string) { must(t, os.Symlink(outside(t), name)) },
	"a relative link": func(t *testing.T, name string) {
		must(t, os.Symlink(strings.Repeat("../", 20)+strings.TrimPrefix(outside(t), "/"), name))
	},
	"a link within the volume": func(t *testing.T, name string) { must(t, os.Symlink("regular", name)) },
	"a link to itself":         func(t *testing.T, name string) { must(t, os.Symlink(filepath.Base(name), name)) },
	"a FIFO":                   func(t *testing.T, name string) { must(t, unix.Mkfifo(name, 0o666)) },
	"a socket": func(t *testing.T, name string) {
		short := filepath.Join("/tmp", fmt.Sprintf("export-socket-%d", time.Now().UnixNano()))
		listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", short)
		must(t, err)
		t.Cleanup(func() { _ = listener.Close() })
		must(t, os.Rename(short, name))
	},
	"a device": func(t *testing.T, name string) {
		if err := unix.Mknod(name, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))); err != nil {
			t.Skip("devices cannot be made here:", err)
		}
	},
}

func TestIrregularDisks(t *testing.T) {
	for name, create := range irregular {
		t.Run(name, func(t *testing.T) {
			w := serve(t, diskVolume())
			w.write("regular", []byte("regular"))
			create(t, filepath.Join(w.dir, "disk.img"))
			for _, path := range []string{"/volumes/root/disk.img", "/volumes/root/disk.img.gz"} {
				if body, _ := w.get(http.StatusForbidden, path); bytes.Contains(body, []byte("somebody")) {
					t.Errorf("got %q", body)
				}
			}
		})
	}
}

func TestIrregularFiles(t *testing.T) {
	for name, create := range irregular {
		t.Run(name, func(t *testing.T) {
			w := serve(t, filesVolume())
			w.write("regular", []byte("regular"))
			w.write("sub/regular", []byte("regular"))
			create(t, filepath.Join(w.dir, "sub", "odd"))
			w.get(http.StatusForbidden, "/volumes/data/dir/sub/odd")
			if page, _ := w.get(http.StatusOK, "/volumes/data/dir/sub/"); !bytes.Contains(page, []byte("odd")) {
				t.Errorf("got %s", page)
			}
			body, _ := w.get(http.StatusOK, "/volumes/data/disk.tar.gz")
			got := contents(t, body)
			if got["regular"] != "regular" || got["sub/regular"] != "regular" {
				t.Errorf("got %v", got)
			}
			if odd, found := got["sub/odd"]; found && !strings.HasPrefix(odd, "-> ") {
				t.Errorf("got %q", odd)
			}
		})
	}
}

func TestLinkedDirectories(t *testing.T) {
	w := serve(t, filesVolume())
	w.write("real/file", []byte("file"))
	must(t, os.Symlink(filepath.Dir(outside(t)), filepath.Join(w.dir, "out")))
	must(t, os.Symlink(".", filepath.Join(w.dir, "loop")))
	must(t, os.Symlink("real", filepath.Join(w.dir, "in")))
	for _, path := range []string{"out/outside", "out/", "loop/loop/"} {
		if got, err := w.do(http.MethodGet, "/volumes/data/dir/"+path); err != nil || got.code < 400 {
			t.Errorf("%s: got %d, %v: %s", path, got.code, err, got.body)
		}
	}
	body, _ := w.get(http.StatusOK, "/volumes/data/disk.tar.gz")
	if got := contents(t, body); len(got) != 5 || got["loop"] != "-> ." {
		t.Errorf("got %v", got)
	}
}

func TestDiskOfANewVolume(t *testing.T) {
	w := serve(t, diskVolume())
	if body, _ := w.get(http.StatusNotFound, "/volumes/root/disk.img"); !bytes.Contains(body, []byte("no file disk.img")) {
		t.Errorf("got %s", body)
	}
	must(t, os.Mkdir(filepath.Join(w.dir, "disk.img"), 0o750))
	w.get(http.StatusForbidden, "/volumes/root/disk.img")
}

// A file that becomes shorter while it is read must not look complete.
func TestFilesThatShrink(t *testing.T) {
	const size = 64 << 20
	for path, c := range map[string]struct {
		volume bool
		file   string
	}{
		"/volumes/root/disk.img": {true, "disk.img"}, "/volumes/root/disk.img.gz": {true, "disk.img"}, "/volumes/data/disk.tar.gz": {false, "file"},
		"/volumes/data/dir/file": {false, "file"},
	} {
		t.Run(path, func(t *testing.T) {
			exported := filesVolume()
			if c.volume {
				exported = diskVolume()
			}
			w := serve(t, exported)
			name := filepath.Join(w.dir, c.file)
			w.write(c.file, random(t, size))
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
				w.server.URL+path+"?x-kubevirt-export-token="+token, nil)
			must(t, err)
			response, err := http.DefaultClient.Do(request)
			must(t, err)
			defer func() { _ = response.Body.Close() }()
			if _, err := io.ReadFull(response.Body, make([]byte, 1<<20)); err != nil {
				t.Fatal(err)
			}
			must(t, os.Truncate(name, 1<<20))
			if n, err := io.Copy(io.Discard, response.Body); err == nil {
				t.Errorf("the download looks complete after %d bytes", n+1<<20)
			}
		})
	}
}

func TestHugeDirectory(t *testing.T) {
	w := serve(t, filesVolume())
	const count = 20000
	for i := range count {
		file, err := os.Create(filepath.Join(w.dir, fmt.Sprintf("file-%d", i)))
		must(t, err)
		must(t, file.Close())
	}
	if page, _ := w.get(http.StatusOK, "/volumes/data/dir/"); bytes.Count(page, []byte("<a href")) != count {
		t.Errorf("got %d entries", bytes.Count(page, []byte("<a href")))
	}
	body, _ := w.get(http.StatusOK, "/volumes/data/disk.tar.gz")
	if got := contents(t, body); len(got) != count {
		t.Errorf("got %d files", len(got))
	}
}

// The server keeps files open for each level, so a deep directory is refused. The archive does not look complete.
func TestDeepDirectory(t *testing.T) {
	w := serve(t, filesVolume())
	w.write(strings.Repeat("d/", maxDepth+1)+"file", []byte("deep"))
	if _, err := w.do(http.MethodGet, "/volumes/data/disk.tar.gz"); err == nil {
		t.Error("the archive looks complete")
	}
	if log := w.log.Contents(); !bytes.Contains(log, []byte("levels")) {
		t.Errorf("the log is %q", log)
	}
}

func TestUnreadableFilesFailAnArchive(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root reads everything")
	}
	w := serve(t, filesVolume())
	w.write("file", []byte("x"))
	must(t, os.Chmod(filepath.Join(w.dir, "file"), 0))
	if _, err := w.do(http.MethodGet, "/volumes/data/disk.tar.gz"); err == nil {
		t.Error("the archive looks complete")
	}
	w.get(http.StatusForbidden, "/volumes/data/dir/file")
}

func FuzzRelative(f *testing.F) {
	for _, seed := range []string{"", "a", "a/b/", "../a", "a/../..", "/etc/passwd", "a//b", ".", "a\x00b", "a/."} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, requested string) {
		name, _, err := relative(requested)
		if err == nil && !filepath.IsLocal(name) {
			t.Errorf("%q is out of the volume: %q", requested, name)
		}
	})
}
