// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package overlay

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const (
	mib = 1 << 20
	gib = 1 << 30
	tib = 1 << 40
)

func marshal(t *testing.T, o Overlay) []byte {
	t.Helper()
	content, size, err := o.Open()
	if err != nil {
		t.Fatal(err)
	}
	image, err := io.ReadAll(content)
	if err != nil || uint64(len(image)) != size {
		t.Fatalf("%d bytes were read, not %d: %v", len(image), size, err)
	}
	return image
}

func TestSizes(t *testing.T) {
	for name, tc := range map[string]struct {
		disk          uint64
		cluster, size int
	}{
		"one sector":        {512, 64 << 10, 5 * 64 << 10},
		"64 MiB":            {64 * mib, 64 << 10, 5 * 64 << 10},
		"one table":         {512 * mib, 64 << 10, 5 * 64 << 10},
		"more than a table": {512*mib + 512, 64 << 10, 6 * 64 << 10},
		"64 GiB":            {64 * gib, 64 << 10, 132 * 64 << 10},
		"more than 64 GiB":  {64*gib + 512, 128 << 10, 4*128<<10 + 33*128<<10},
		"1 TiB":             {1 * tib, 1 << 20, 12 * mib},
		"2 TiB":             {2 * tib, 2 << 20, 16 * mib},
		"16 TiB":            {16 * tib, 2 << 20, 72 * mib},
	} {
		image := marshal(t, Overlay{DiskBytes: tc.disk, DataFile: "/disk.img"})
		if cluster := 1 << binary.BigEndian.Uint32(image[20:]); cluster != tc.cluster {
			t.Errorf("%s: clusters of %d bytes, not %d", name, cluster, tc.cluster)
		}
		if len(image) != tc.size {
			t.Errorf("%s: %d bytes, not %d", name, len(image), tc.size)
		}
	}
}

func TestInvalid(t *testing.T) {
	for name, o := range map[string]Overlay{
		"no size":         {DataFile: "/disk.img"},
		"half a sector":   {DiskBytes: 256, DataFile: "/disk.img"},
		"a huge disk":     {DiskBytes: 16*tib + 512, DataFile: "/disk.img"},
		"no data file":    {DiskBytes: mib},
		"a very long one": {DiskBytes: mib, DataFile: strings.Repeat("x", 1024)},
	} {
		if _, size, err := o.Open(); err == nil {
			t.Errorf("%s: there is an overlay of %d bytes", name, size)
		}
	}
}

// TestTables reads the tables as QEMU does.
func TestTables(t *testing.T) {
	for _, disk := range []uint64{512, 3*mib + 512, 600 * mib, 65 * gib} {
		image := marshal(t, Overlay{DiskBytes: disk, DataFile: "/disk.img"})
		read := func(at uint64) uint64 { return binary.BigEndian.Uint64(image[at:]) }
		cluster := uint64(1) << binary.BigEndian.Uint32(image[20:])
		perTable := cluster / 8
		l1, entries := read(40), uint64(binary.BigEndian.Uint32(image[36:]))
		if want := (disk + cluster*perTable - 1) / (cluster * perTable); entries != want {
			t.Fatalf("%d bytes: %d L2 tables, not %d", disk, entries, want)
		}
		for at := uint64(0); at < entries*perTable; at++ {
			want := uint64(0)
			if at*cluster < disk {
				want = 1<<63 | at*cluster
			}
			table := read(l1+at/perTable*8) &^ (1 << 63)
			if got := read(table + at%perTable*8); got != want {
				t.Fatalf("%d bytes: the cluster %d is %#x, not %#x", disk, at, got, want)
			}
		}
	}
}

// TestQEMU compares overlays with what qemu-img reads in them.
func TestQEMU(t *testing.T) {
	qemuImg, err := exec.LookPath("qemu-img")
	if err != nil {
		t.Skip("there is no qemu-img")
	}
	run := func(t *testing.T, arguments ...string) []byte {
		t.Helper()
		out, err := exec.Command(qemuImg, arguments...).CombinedOutput()
		if err != nil {
			t.Fatalf("qemu-img %s: %v\n%s", strings.Join(arguments, " "), err, out)
		}
		return out
	}
	for name, disk := range map[string]int64{
		"one sector": 512, "3 MiB and a sector": 3*mib + 512, "600 MiB": 600 * mib, "65 GiB": 65 * gib, "3 TiB": 3 * tib,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			raw, file := filepath.Join(dir, "disk.img"), filepath.Join(dir, "overlay.qcow2")
			writeRaw(t, raw, disk)
			if err := os.WriteFile(file, marshal(t, Overlay{DiskBytes: uint64(disk), DataFile: raw}), 0o600); err != nil {
				t.Fatal(err)
			}
			run(t, "check", "-f", "qcow2", file)
			var info struct {
				VirtualSize    int64 `json:"virtual-size"`
				FormatSpecific struct {
					Data struct {
						DataFile    string `json:"data-file"`
						DataFileRaw bool   `json:"data-file-raw"`
						Corrupt     bool   `json:"corrupt"`
					} `json:"data"`
				} `json:"format-specific"`
			}
			if err := json.Unmarshal(run(t, "info", "--output=json", "-f", "qcow2", file), &info); err != nil {
				t.Fatal(err)
			}
			if got := info.FormatSpecific.Data; info.VirtualSize != disk || got.DataFile != raw || !got.DataFileRaw ||
				got.Corrupt {
				t.Errorf("qemu-img reads %+v", info)
			}
			if disk <= gib { // To compare takes long for large disks, even for sparse ones.
				run(t, "compare", "-f", "raw", "-F", "qcow2", raw, file)
			}
		})
	}
}

// writeRaw writes a sparse image that has data at its beginning, in its middle and at its end.
func writeRaw(t *testing.T, path string, size int64) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	data := make([]byte, 512)
	for _, at := range []int64{0, size / 2 / 512 * 512, size - 512} {
		_, _ = rand.Read(data)
		if _, err := f.WriteAt(data, at); err != nil {
			t.Fatal(err)
		}
	}
}
