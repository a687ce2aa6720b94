// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package oracle

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"
)

// disk is a guest's log in memory.
type disk struct {
	blocks [][]byte
	last   string
}

func newDisk() *disk { return &disk{blocks: [][]byte{make([]byte, RecordSize)}, last: First} }

func record(number int, boot, uptime, previous string) (text, hash string) {
	body := fmt.Sprintf("%d %s %s %s", number, boot, uptime, previous)
	hash = fmt.Sprintf("%x", sha256.Sum256([]byte(body)))
	return body + " " + hash + "\n", hash
}

// write appends records of a boot.
func (d *disk) write(boot string, n int) *disk {
	for range n {
		var text string
		text, d.last = record(len(d.blocks), boot, fmt.Sprint(len(d.blocks)), d.last)
		d.put(len(d.blocks), text)
	}
	return d
}

func (d *disk) put(number int, text string) *disk {
	for len(d.blocks) <= number {
		d.blocks = append(d.blocks, make([]byte, RecordSize))
	}
	block := make([]byte, RecordSize)
	copy(block, text)
	d.blocks[number] = block
	return d
}

func (d *disk) reader() *bytes.Reader { return bytes.NewReader(bytes.Join(d.blocks, nil)) }

func TestChain(t *testing.T) {
	other := func(number int, previous string) string {
		text, _ := record(number, "a", "other", previous)
		return text
	}
	tests := map[string]struct {
		before, after func(*disk)
		want          string
	}{
		"more records":           {func(d *disk) { d.write("a", 5) }, func(d *disk) { d.write("a", 5) }, ""},
		"another boot":           {func(d *disk) { d.write("a", 5) }, func(d *disk) { d.write("b", 5) }, ""},
		"empty":                  {func(*disk) {}, func(*disk) {}, ""},
		"incomplete last record": {func(d *disk) { d.write("a", 5) }, func(d *disk) { d.put(6, "6 a 12") }, ""},
		"gap":                    {func(d *disk) { d.write("a", 5) }, func(d *disk) { d.put(7, other(7, d.last)) }, "record 6 is missing"},
		"wrong checksum":         {func(d *disk) { d.write("a", 5) }, func(d *disk) { d.blocks[3][4] ^= 1 }, "record 3: the checksum is wrong"},
		"two guests continue after the same record": {func(d *disk) { d.write("a", 5) }, func(d *disk) {
			before := d.last
			d.write("a", 2)
			d.put(6, other(6, before))
		}, "record 7 does not contain the hash"},
		"one guest continues before the last record of the other": {func(d *disk) { d.write("a", 5) }, func(d *disk) {
			text, _ := record(5, "a", "other", strings.Fields(string(d.blocks[5]))[3])
			d.put(5, text)
		}, "record 5 was overwritten"},
		"missing record":                {func(d *disk) { d.write("a", 5) }, func(d *disk) { d.put(5, "") }, "record 5 has disappeared"},
		"wrong number":                  {func(d *disk) { d.write("a", 5) }, func(d *disk) { d.put(6, other(8, d.last)) }, "record 6 has number 8"},
		"record of an earlier boot":     {func(d *disk) { d.write("a", 5).write("b", 2) }, func(d *disk) { d.write("a", 1) }, "earlier boot a"},
		"garbage before the last block": {func(d *disk) { d.write("a", 5) }, func(d *disk) { d.put(6, "x").put(7, "y") }, "block 7 is not empty"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			d, chain := newDisk(), &Chain{}
			test.before(d)
			if err := chain.Read(d.reader(), 1); err != nil {
				t.Fatal(err)
			}
			test.after(d)
			err := chain.Read(d.reader(), 1)
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("error %v, want %q", err, test.want)
			}
		})
	}
}

func TestChainCounts(t *testing.T) {
	d, chain := newDisk().write("a", 3).write("b", 4), &Chain{}
	if err := chain.Read(d.reader(), 1); err != nil {
		t.Fatal(err)
	}
	if chain.Length() != 7 || chain.Boots() != 2 {
		t.Errorf("%d records of %d boots, want 7 of 2", chain.Length(), chain.Boots())
	}
	d.write("b", 3)
	if err := chain.Read(d.reader(), chain.Length()-1); err != nil || chain.Length() != 10 {
		t.Errorf("%d records, want 10; error %v", chain.Length(), err)
	}
}
