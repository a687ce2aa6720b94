// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package media

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode/utf16"
)

// maxJolietName is the longest name in Joliet, in units of UTF-16. The specification allows 64; Windows reads those
// that fit into a record, and genisoimage writes up to 103 with -joliet-long. A longer name is shortened: the key of a
// ConfigMap may have 253 characters.
const maxJolietName = 103

// primaryNames returns the names of a directory's entries in ISO 9660, interchange level 1: eight characters, and three
// after a dot.
func primaryNames(nodes []*isoNode) [][]byte {
	return uniqueNames(nodes, func(node *isoNode, number string) []byte {
		base, extension := node.name, ""
		if !node.dir {
			extension = path.Ext(base)
			base = cmp.Or(strings.TrimSuffix(base, extension), "_")
		}
		base = primaryText(base, 8-len(number)) + number
		if node.dir {
			return []byte(base)
		}
		return []byte(base + "." + primaryText(strings.TrimPrefix(extension, "."), 3) + ";1")
	})
}

// primaryText returns a text of ISO 9660's characters (ECMA-119, annex A).
func primaryText(text string, length int) string {
	text = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z' || r >= '0' && r <= '9':
			return r
		default:
			return '_'
		}
	}, text)
	return text[:min(len(text), length)]
}

// jolietNames returns the names of a directory's entries in Joliet.
func jolietNames(nodes []*isoNode) [][]byte {
	return uniqueNames(nodes, func(node *isoNode, number string) []byte {
		name := utf16BE(strings.Map(func(r rune) rune {
			if r < ' ' || strings.ContainsRune(`*/:;?\`, r) { // Source: Joliet Specification, "Allowed Character Set"
				return '_'
			}
			return r
		}, node.name))
		if fit := 2 * (maxJolietName - len(number)); len(name) > fit {
			name = name[:fit]
		}
		return append(name, utf16BE(number)...)
	})
}

// uniqueNames returns a name for each entry of a directory. An entry whose name another one has, in any case, gets a
// number.
func uniqueNames(nodes []*isoNode, name func(node *isoNode, number string) []byte) [][]byte {
	out, taken := make([][]byte, len(nodes)), map[string]bool{}
	for i, node := range nodes {
		number := ""
		for n := i; ; n++ {
			out[i] = name(node, number)
			key := strings.ToUpper(string(out[i]))
			if !taken[key] {
				taken[key] = true
				break
			}
			number = fmt.Sprintf("%03d", n)
		}
	}
	return out
}

func utf16BE(text string) []byte {
	var out []byte
	for _, unit := range utf16.Encode([]rune(text)) {
		out = binary.BigEndian.AppendUint16(out, unit)
	}
	return out
}

// Lengths of entries of Rock Ridge. Source: SUSP and RRIP 1.09.
const (
	sizePX, sizeCE = 36, 28
	headNM, maxNM  = 5, 250 // an entry has at most 255 bytes
)

// addRockRidge adds the entries of Rock Ridge to the records of a directory: permissions, and names as they are.
func addRockRidge(dir *isoDir) {
	for i := range dir.records {
		r := &dir.records[i]
		system := posixEntry(r.file)
		switch {
		case i == 0 && dir.parent == dir: // the root's own record
			r.system, r.more = slices.Concat([]byte{'S', 'P', 7, 1, 0xBE, 0xEF, 0}, system, make([]byte, sizeCE)),
				rockRidgeReference()
		case i < 2:
			r.system = system
		default:
			names := nameEntries(r.file.name)
			if even(recordHead+len(r.id))+len(system)+len(names) <= maxRecord {
				r.system = slices.Concat(system, names)
			} else {
				r.system, r.more = slices.Concat(system, make([]byte, sizeCE)), names
			}
		}
	}
}

// posixEntry returns the entry with the permissions of a file or a directory.
func posixEntry(node *isoNode) []byte {
	mode, links := 0o100644, 1
	if node.dir {
		mode, links = 0o040755, 2
		for _, child := range node.children {
			if child.dir {
				links++
			}
		}
	}
	out := make([]byte, sizePX)
	copy(out, []byte{'P', 'X', sizePX, 1})
	putBoth32(out[4:], mode)
	putBoth32(out[12:], links)
	return out
}

// nameEntries returns the entries with a name.
func nameEntries(name string) []byte {
	var out []byte
	for len(name) > maxNM {
		out = append(append(out, 'N', 'M', headNM+maxNM, 1, 1), name[:maxNM]...) // It continues in the next entry.
		name = name[maxNM:]
	}
	return append(append(out, 'N', 'M', byte(headNM+len(name)), 1, 0), name...)
}

// rockRidgeReference returns the entry by which Linux recognizes Rock Ridge, with the texts of the specification.
func rockRidgeReference() []byte {
	const id, about = "RRIP_1991A", "THE ROCK RIDGE INTERCHANGE PROTOCOL PROVIDES SUPPORT FOR POSIX FILE SYSTEM SEMANTICS"
	const source = "PLEASE CONTACT DISC PUBLISHER FOR SPECIFICATION SOURCE.  SEE PUBLISHER IDENTIFIER IN PRIMARY VOLUME DESCRIPTOR FOR CONTACT INFORMATION."
	const size = 8 + len(id) + len(about) + len(source)
	return slices.Concat([]byte{'E', 'R', byte(size), 1, byte(len(id)), byte(len(about)), byte(len(source)), 1},
		[]byte(id+about+source))
}

// continueAt writes where the entries are that have no room in a record. It is the last entry of those in the record.
func continueAt(system []byte, sector, offset, length int) {
	entry := system[len(system)-sizeCE:]
	copy(entry, []byte{'C', 'E', sizeCE, 1})
	putBoth32(entry[4:], sector)
	putBoth32(entry[12:], offset)
	putBoth32(entry[20:], length)
}
