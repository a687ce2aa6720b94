// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package media

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// media are the files of media by label.
func media() map[string]map[string][]byte {
	long := strings.Repeat("n", 252)
	return map[string]map[string][]byte{
		"cidata": {
			"meta-data": []byte(`{"instance-id":"a.b"}`), "user-data": []byte(strings.Repeat("0123456789abcdef", 5000)),
			"network-config": []byte("version: 2\n"), "empty": {},
		},
		"config-2": {
			"openstack/latest/meta_data.json": []byte("{}"), "openstack/latest/user_data": []byte("#cloud-config"),
			"openstack/latest/network_data.json": []byte(strings.Repeat("x", 4096)), "openstack/content/0000": []byte("y"),
		},
		"as many as there may be": manyFiles(),
		"longest": {
			long + "a": []byte("1"), long + "b": []byte("2"), strings.Repeat("n", 103): []byte("3"),
			strings.Repeat("m", 165): []byte("4"),
			strings.Repeat("m", 166): []byte("5"), strings.Repeat("d", 200) + "/" + strings.Repeat("k", 253): []byte("6"),
			"Unattend.xml": []byte("7"),
		},
		"names":                            {"a": []byte("1"), "A.b": []byte("2"), ".hidden": []byte("3"), "é*€.txt": []byte("4"), "x/y/z/a/b/c/d/e/f/g": []byte("5")},
		"no files":                         nil,
		strings.Repeat("l", maxLabelBytes): {"a": []byte("1")},
	}
}

func TestISO(t *testing.T) {
	for label, files := range media() {
		t.Run(label, func(t *testing.T) {
			data, err := buildISO(label, files)
			if err != nil {
				t.Fatal(err)
			}
			disc := &isoReader{t: t, data: data}
			if got := strings.TrimRight(string(disc.at(16)[40:72]), " "); got != label {
				t.Errorf("the label is %q", got)
			}
			if got := string(disc.at(17)[88:91]); disc.at(17)[0] != 2 || got != "%/E" {
				t.Errorf("no volume descriptor of Joliet: %q", got)
			}
			if blocks := binary.LittleEndian.Uint32(disc.at(16)[80:]); int(blocks)*isoBlock != len(data) {
				t.Errorf("%d sectors, and %d bytes", blocks, len(data))
			}
			if diff := cmp.Diff(files, disc.tree(16, rockRidgeName), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("Rock Ridge (-want +got):\n%.2000s", diff)
			}
			want := map[string][]byte{}
			for name, content := range files {
				want[jolietPath(name)] = content
			}
			got := disc.tree(17, jolietName)
			for name, content := range got { // Names that had to be shortened.
				if _, found := want[name]; !found && len(path.Base(name)) == maxJolietName {
					delete(got, name)
					delete(want, keyWith(want, content))
				}
			}
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("Joliet (-want +got):\n%.2000s", diff)
			}
		})
	}
}

func keyWith(files map[string][]byte, content []byte) string {
	for name := range files {
		if string(files[name]) == string(content) && len(path.Base(name)) > maxJolietName {
			return name
		}
	}
	return ""
}

// jolietPath returns a path with the characters and the directories of the media above in Joliet.
func jolietPath(name string) string {
	parts := strings.Split(strings.ReplaceAll(name, "*", "_"), "/")
	for i := range parts[:len(parts)-1] {
		parts[i] = parts[i][:min(len(parts[i]), maxJolietName)]
	}
	return strings.Join(parts, "/")
}

// isoReader reads a medium as the specifications demand it.
type isoReader struct {
	t    *testing.T
	data []byte
}

func (r *isoReader) at(sector int) []byte { return r.data[sector*isoBlock:] }

// tree returns the files of the tree with a volume descriptor. It also compares the tree with its path table.
func (r *isoReader) tree(descriptor int, name func(r *isoReader, record []byte) string) map[string][]byte {
	out, dirs := map[string][]byte{}, map[uint32]bool{}
	d := r.at(descriptor)
	r.dir(d[156:190], "", name, out, dirs)
	for table := r.at(int(binary.LittleEndian.Uint32(d[140:])))[:binary.LittleEndian.Uint32(d[132:])]; len(table) > 0; {
		if extent := binary.LittleEndian.Uint32(table[2:]); !dirs[extent] {
			r.t.Errorf("the path table has a directory at %d", extent)
		} else {
			delete(dirs, extent)
		}
		table = table[8+even(int(table[0])):]
	}
	if len(dirs) > 0 {
		r.t.Errorf("the path table lacks %v", dirs)
	}
	return out
}

func (r *isoReader) dir(
	record []byte, prefix string, name func(r *isoReader, record []byte) string, out map[string][]byte,
	dirs map[uint32]bool,
) {
	extent, size := binary.LittleEndian.Uint32(record[2:]), binary.LittleEndian.Uint32(record[10:])
	if big := binary.BigEndian.Uint32(record[6:]); big != extent || dirs[extent] {
		r.t.Fatalf("directory %q is at %d and %d, or twice", prefix, extent, big)
	}
	dirs[extent] = true
	content, last := r.at(int(extent))[:size], []byte(nil)
	for i, at := 0, 0; at < len(content); i++ {
		length := int(content[at])
		if length == 0 {
			at = (at/isoBlock + 1) * isoBlock
			continue
		}
		entry := content[at : at+length]
		at += length
		id := entry[33 : 33+int(entry[32])]
		if i < 2 {
			if len(id) != 1 || int(id[0]) != i {
				r.t.Errorf("entry %d of %q is %x", i, prefix, id)
			}
			continue
		}
		if bytes.Compare(last, id) >= 0 {
			r.t.Errorf("%q: %q comes after %q", prefix, id, last)
		}
		last = id
		full := prefix + name(r, entry)
		if entry[25]&2 != 0 {
			r.dir(entry, full+"/", name, out, dirs)
			continue
		}
		start := int(binary.LittleEndian.Uint32(entry[2:])) * isoBlock
		out[full] = r.data[start : start+int(binary.LittleEndian.Uint32(entry[10:]))]
	}
}

func jolietName(_ *isoReader, record []byte) string {
	id := record[33 : 33+int(record[32])]
	var units []uint16
	for ; len(id) > 0; id = id[2:] {
		units = append(units, binary.BigEndian.Uint16(id))
	}
	return string(utf16.Decode(units))
}

func rockRidgeName(r *isoReader, record []byte) string {
	name, system := "", record[even(33+int(record[32])):]
	for len(system) > 4 {
		entry := system[:system[2]]
		system = system[system[2]:]
		switch string(entry[:2]) {
		case "NM":
			name += string(entry[5:])
		case "CE":
			sector, offset := binary.LittleEndian.Uint32(entry[4:]), binary.LittleEndian.Uint32(entry[12:])
			length := binary.LittleEndian.Uint32(entry[20:])
			if offset+length > isoBlock {
				r.t.Errorf("a continuation of %d bytes at %d", length, offset)
			}
			system = r.at(int(sector))[offset : offset+length]
		}
	}
	return name
}

// TestISOWithOtherReaders reads media with isoinfo: -R is Rock Ridge, -J is Joliet.
func TestISOWithOtherReaders(t *testing.T) {
	if _, err := exec.LookPath("isoinfo"); err != nil {
		t.Skip("needs isoinfo (Debian package genisoimage)")
	}
	for label, files := range media() {
		if label == "names" || label == "longest" {
			continue // isoinfo has other names for them.
		}
		t.Run(label, func(t *testing.T) {
			data, err := buildISO(label, files)
			if err != nil {
				t.Fatal(err)
			}
			image := filepath.Join(t.TempDir(), "iso")
			if err := os.WriteFile(image, data, 0o600); err != nil {
				t.Fatal(err)
			}
			if text := isoinfo(t, "-d", "-i", image); !strings.Contains(text, "Volume id: "+label+"\n") ||
				!strings.Contains(text, "Joliet") {
				t.Errorf("isoinfo -d:\n%s", text)
			}
			for _, view := range []string{"-R", "-J"} {
				for name, want := range files {
					got := isoinfo(t, view, "-i", image, "-x", "/"+name)
					if diff := cmp.Diff(string(want), got); diff != "" {
						t.Errorf("%s %s: %.300s", view, name, diff)
					}
				}
			}
		})
	}
}

func TestISOLimits(t *testing.T) {
	deep := map[string][]byte{}
	for i := range 10 {
		deep[fmt.Sprintf("%d%s/f", i, strings.Repeat("/a", maxDirs/10))] = nil
	}
	for name, files := range map[string]map[string][]byte{
		"too many directories": deep, "a name that is too long": {strings.Repeat("n", maxNameBytes+1): nil}, "a path outside": {"../x": nil}, "no name": {"": nil},
	} {
		if _, err := buildISO("x", files); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// manyFiles returns files with similar names, more than fit into a directory's first sector.
func manyFiles() map[string][]byte {
	files := map[string][]byte{}
	for i := range 40 {
		files[fmt.Sprintf("application-config-%03d.properties", i)] = fmt.Append(nil, i)
	}
	return files
}

func isoinfo(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("isoinfo", args...).Output()
	if err != nil {
		t.Fatalf("isoinfo %v: %v", args, err)
	}
	return string(out)
}
