// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package overlay

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// full returns the part of a bitmap at an offset, with bits that are all 1.
func full(at uint64, size int) Part { return Part{At: at, Bits: bytes.Repeat([]byte{0xff}, size)} }

// addTo returns the file of an overlay with bitmaps.
func addTo(t *testing.T, o Overlay, bitmaps []Bitmap) []byte {
	t.Helper()
	image := marshal(t, o)
	ranges, err := o.AddBitmaps(bitmaps)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range ranges {
		if _, found, err := ReadBitmaps(bytes.NewReader(image)); err != nil || len(found) > 0 {
			t.Fatalf("the overlay has %d bitmaps before the range %d was written: %v", len(found), i, err)
		}
		if end := r.At + uint64(len(r.Bytes)); end > uint64(len(image)) {
			image = append(image, make([]byte, end-uint64(len(image)))...)
		}
		copy(image[r.At:], r.Bytes)
	}
	return image
}

func TestBitmapsAreReadAsTheyWereAdded(t *testing.T) {
	for name, tc := range map[string]struct {
		disk    uint64
		bitmaps []Bitmap
	}{
		"an empty one": {mib, []Bitmap{{Name: "a", Granularity: 16}}},
		"one bit":      {mib, []Bitmap{{Name: "a", Granularity: 16, Parts: []Part{{Bits: []byte{1, 0}}}}}},
		"the end":      {10*mib + 512, []Bitmap{{Name: "a", Granularity: 16, Parts: []Part{{Bits: append(make([]byte, 20), 1)}}}}},
		"several": {65 * gib, []Bitmap{
			{Name: "vm-1", Granularity: 16, Parts: []Part{full(PartBytes, PartBytes), full(20*PartBytes, PartBytes), full(32*PartBytes, 2048)}},
			{Name: "vm-2", Granularity: 16},
			{Name: strings.Repeat("x", maxBitmapName), Granularity: 20, Parts: []Part{full(PartBytes, PartBytes)}},
		}},
		"a large disk": {2 * tib, []Bitmap{{Name: "a", Granularity: 16, Parts: []Part{full(4*mib-PartBytes, PartBytes)}}}},
	} {
		o := Overlay{DiskBytes: tc.disk, DataFile: "/disk.img"}
		disk, found, err := ReadBitmaps(bytes.NewReader(addTo(t, o, tc.bitmaps)))
		if err != nil || disk != tc.disk || !reflect.DeepEqual(found, tc.bitmaps) {
			t.Errorf("%s: read a disk of %d bytes with %+v: %v", name, disk, found, err)
		}
	}
}

func TestInvalidBitmaps(t *testing.T) {
	o := Overlay{DiskBytes: 4*gib + mib, DataFile: "/disk.img"}
	part := func(at uint64, size int) []Bitmap {
		return []Bitmap{{Name: "a", Granularity: 16, Parts: []Part{full(at, size)}}}
	}
	many := make([]Bitmap, MaxBitmaps+1)
	for i := range many {
		many[i] = Bitmap{Name: strings.Repeat("a", i+1), Granularity: 16}
	}
	for name, bitmaps := range map[string][]Bitmap{
		"none":                     nil,
		"too many":                 many,
		"no name":                  {{Granularity: 16}},
		"a long name":              {{Name: strings.Repeat("a", 1024), Granularity: 16}},
		"the same name":            {{Name: "a", Granularity: 16}, {Name: "a", Granularity: 16}},
		"a small granularity":      {{Name: "a", Granularity: 8}},
		"a large granularity":      {{Name: "a", Granularity: 32}},
		"a part behind the end":    part(3*PartBytes, PartBytes),
		"a part beyond the end":    part(2*PartBytes, PartBytes),
		"a part between two":       part(8, PartBytes),
		"a short part":             part(0, 8),
		"the same part twice":      {{Name: "a", Granularity: 16, Parts: []Part{full(0, PartBytes), full(0, PartBytes)}}},
		"more than may be written": {{Name: "a", Granularity: 9, Parts: []Part{full(0, PartBytes)}}, {Name: "b", Granularity: 9}},
	} {
		o := o
		if name == "more than may be written" {
			o.DiskBytes = 2 * tib // With clusters of 2 MiB, of which two bitmaps need at least 4.
			bitmaps = append(bitmaps, Bitmap{Name: "c", Granularity: 16})
		}
		if ranges, err := o.AddBitmaps(bitmaps); err == nil {
			t.Errorf("%s: got %d ranges", name, len(ranges))
		}
	}
}

// TestScatteredPartsAreRefusedBeforeTheyAreAllocated has a part in each of a thousand clusters of a large disk, which
// takes a few MiB to send and would occupy two GiB.
func TestScatteredPartsAreRefusedBeforeTheyAreAllocated(t *testing.T) {
	o := Overlay{DataFile: "/data", DiskBytes: 16 << 40}
	b := Bitmap{Name: "a", Granularity: 9}
	for n := range uint64(1000) {
		b.Parts = append(b.Parts, Part{At: n << 21, Bits: make([]byte, PartBytes)})
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := o.AddBitmaps([]Bitmap{b})
	runtime.ReadMemStats(&after)
	if err == nil || !strings.Contains(err.Error(), "bytes of the overlay") {
		t.Errorf("got %v", err)
	}
	if allocated := after.TotalAlloc - before.TotalAlloc; allocated > maxTail {
		t.Errorf("%d bytes were allocated", allocated)
	}
}

// addCopy adds a copy of the first bitmap of a file with a newer name of the same size. All of them have names of this
// size.
func addCopy(t *testing.T, o Overlay, image []byte, bitmaps int, name string) {
	t.Helper()
	_, at, err := o.Open()
	if err != nil {
		t.Fatal(err)
	}
	size := roundUp(directoryEntryBytes+uint64(len(name)), 8)
	last := at + uint64(bitmaps)*size
	copy(image[last:], image[at:at+size])
	copy(image[last+directoryEntryBytes:], name)
	extension := findExtension(image[:maxHeader], extensionBitmaps)
	binary.BigEndian.PutUint32(extension, uint32(bitmaps+1))
	binary.BigEndian.PutUint64(extension[8:], uint64(bitmaps+1)*size)
}

// TestOldestBitmapsAreNotReadBeyondLimits uses files as QEMU makes them, with more bitmaps than can be added.
func TestOldestBitmapsAreNotReadBeyondLimits(t *testing.T) {
	var many []Bitmap
	for i := range MaxBitmaps {
		many = append(many, Bitmap{Name: fmt.Sprintf("b%02d-2026-01-%02d_10-00-00", MaxBitmaps-i, i+1), Granularity: 16})
	}
	var bits []Part
	for at := uint64(0); at < 3*mib; at += PartBytes {
		bits = append(bits, full(at, PartBytes))
	}
	const newer = "b00-2027-01-01_10-00-00"
	for name, tc := range map[string]struct {
		disk    uint64
		bitmaps []Bitmap
		want    int
	}{
		"too many":      {mib, many, MaxBitmaps},
		"too many bits": {16 * gib, []Bitmap{{Name: many[0].Name, Granularity: 9, Parts: bits}}, 1},
		"too large":     {2 * tib, []Bitmap{{Name: many[0].Name, Granularity: 16, Parts: []Part{full(0, PartBytes)}}}, 1},
		"not too large": {tib, []Bitmap{{Name: many[0].Name, Granularity: 16, Parts: []Part{full(0, PartBytes)}}}, 2},
	} {
		o := Overlay{DiskBytes: tc.disk, DataFile: "/disk.img"}
		image := addTo(t, o, tc.bitmaps)
		addCopy(t, o, image, len(tc.bitmaps), newer)
		_, found, err := ReadBitmaps(bytes.NewReader(image))
		if err != nil || len(found) != tc.want || found[len(found)-1].Name != newer {
			t.Errorf("%s: read %d bitmaps: %v", name, len(found), err)
			continue
		}
		if dropped := len(found) == len(tc.bitmaps); dropped && found[0].Name == many[0].Name {
			t.Errorf("%s: the oldest bitmap was read", name)
		}
		if _, err := o.AddBitmaps(found); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestBitmapsInUseAreNotRead(t *testing.T) {
	o := Overlay{DiskBytes: mib, DataFile: "/disk.img"}
	image := addTo(t, o, []Bitmap{{Name: "a", Granularity: 16}, {Name: "b", Granularity: 16}})
	_, size, err := o.Open()
	if err != nil {
		t.Fatal(err)
	}
	binary.BigEndian.PutUint32(image[size+12:], bitmapAuto|bitmapInUse)
	if _, found, err := ReadBitmaps(bytes.NewReader(image)); err != nil || len(found) != 1 || found[0].Name != "b" {
		t.Errorf("read %+v: %v", found, err)
	}
}

func TestClustersOfOnesAreRead(t *testing.T) {
	o := Overlay{DiskBytes: 100*mib + 512, DataFile: "/disk.img"}
	image := addTo(t, o, []Bitmap{{Name: "a", Granularity: 16}})
	_, size, err := o.Open()
	if err != nil {
		t.Fatal(err)
	}
	binary.BigEndian.PutUint64(image[size+64<<10:], tableOnes) // the table is behind the directory
	want := []Part{{Bits: append(bytes.Repeat([]byte{0xff}, 200), 1)}}
	if _, found, err := ReadBitmaps(bytes.NewReader(image)); err != nil || len(found) != 1 ||
		!reflect.DeepEqual(found[0].Parts, want) {
		t.Errorf("read %+v: %v", found, err)
	}
}

// TestBitsKeepNoClusters reads a file with large clusters, as a launcher may write it, in which few bits are set.
func TestBitsKeepNoClusters(t *testing.T) {
	const clusters, clusterBits, every = 3, 21, 8
	o := Overlay{DiskBytes: clusters << (clusterBits + 3 + 9), DataFile: "/disk.img"}
	image := addTo(t, o, []Bitmap{{Name: "a", Granularity: 9}})
	_, directory, err := o.Open()
	if err != nil {
		t.Fatal(err)
	}
	// Each entry of the table is the same cluster.
	table := uint64(len(image))
	content := bytes.Repeat(append([]byte{1}, make([]byte, every*PartBytes-1)...), 1<<clusterBits/(every*PartBytes))
	for range clusters {
		image = binary.BigEndian.AppendUint64(image, roundUp(table+clusters*entryBytes, 512))
	}
	image = append(append(image, make([]byte, roundUp(uint64(len(image)), 512)-uint64(len(image)))...), content...)
	binary.BigEndian.PutUint32(image[20:], clusterBits)
	binary.BigEndian.PutUint64(image[directory:], table)
	binary.BigEndian.PutUint32(image[directory+8:], clusters)

	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	_, found, err := ReadBitmaps(bytes.NewReader(image))
	runtime.GC()
	runtime.ReadMemStats(&after)
	if err != nil || len(found) != 1 {
		t.Fatalf("read %d bitmaps: %v", len(found), err)
	}
	counted := PartBytes * len(found[0].Parts)
	if want := clusters << clusterBits / every; counted != want {
		t.Errorf("%d bytes of bits were read, want %d", counted, want)
	}
	if kept := int64(after.HeapAlloc) - int64(before.HeapAlloc); kept > 2*int64(counted) {
		t.Errorf("%d bytes are kept for %d bytes of bits", kept, counted)
	}
	runtime.KeepAlive(found)
	runtime.KeepAlive(image)
}

// TestQEMUReadsBitmaps compares the bitmaps with what qemu-img reads.
func TestQEMUReadsBitmaps(t *testing.T) {
	qemuImg, err := exec.LookPath("qemu-img")
	if err != nil {
		t.Skip("there is no qemu-img")
	}
	for name, disk := range map[string]int64{"10 MiB": 10*mib + 512, "65 GiB": 65 * gib} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			raw, file := filepath.Join(dir, "disk.img"), filepath.Join(dir, "overlay.qcow2")
			writeRaw(t, raw, disk)
			size := (&Bitmap{Granularity: 16}).size(uint64(disk))
			image := addTo(t, Overlay{DiskBytes: uint64(disk), DataFile: raw}, []Bitmap{
				{Name: "empty", Granularity: 16}, {Name: "begin", Granularity: 16, Parts: []Part{full(0, int(min(PartBytes, size)))}},
			})
			if err := os.WriteFile(file, image, 0o600); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.Command(qemuImg, "check", "-f", "qcow2", file).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			out, err := exec.Command(qemuImg, "info", "--output=json", "-f", "qcow2", file).CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			var info struct {
				FormatSpecific struct {
					Data struct {
						Bitmaps []struct {
							Name        string   `json:"name"`
							Granularity int      `json:"granularity"`
							Flags       []string `json:"flags"`
						} `json:"bitmaps"`
					} `json:"data"`
				} `json:"format-specific"`
			}
			if err := json.Unmarshal(out, &info); err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, b := range info.FormatSpecific.Data.Bitmaps {
				names = append(names, b.Name)
				if b.Granularity != 64<<10 || !slices.Equal(b.Flags, []string{"auto"}) {
					t.Errorf("qemu-img reads %+v", b)
				}
			}
			if !slices.Equal(names, []string{"empty", "begin"}) {
				t.Errorf("qemu-img reads %s", out)
			}
		})
	}
}

// FuzzReadBitmaps checks that any file can be read, and that what is read can be added to an overlay.
func FuzzReadBitmaps(f *testing.F) {
	o := Overlay{DiskBytes: mib, DataFile: "/disk.img"}
	ranges, err := o.AddBitmaps(
		[]Bitmap{{Name: "a", Granularity: 16, Parts: []Part{{Bits: []byte{1, 2}}}}, {Name: "b", Granularity: 9}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(ranges[2].Bytes, ranges[0].Bytes)
	f.Fuzz(func(t *testing.T, header, rest []byte) {
		_, size, _ := o.Open()
		image := make([]byte, size, size+uint64(len(rest)))
		copy(image[:4096], header)
		disk, found, err := ReadBitmaps(bytes.NewReader(append(image, rest...)))
		if err != nil || len(found) == 0 || disk > mib || disk%512 != 0 {
			return
		}
		names := map[string]bool{"": true}
		for i := range found {
			if names[found[i].Name] {
				return
			}
			names[found[i].Name] = true
		}
		if _, err := (Overlay{DiskBytes: disk, DataFile: "/disk.img"}).AddBitmaps(found); err != nil {
			t.Errorf("bitmaps that were read cannot be added: %v", err)
		}
	})
}
