// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package nbd

import (
	"testing"
)

// FuzzSession has a session with a server that says anything. Whatever it says, what the client returns is consistent.
func FuzzSession(f *testing.F) {
	data := make([]byte, 512)
	status := join(
		chunk(0, chunkBlockStatus, 2, be(uint32(7), uint32(512), uint32(0), uint32(1024), Zero)),
		chunk(chunkDone, chunkBlockStatus, 2, be(uint32(9), uint32(4096), Dirty)),
	)
	f.Add(join(ready, simple(0, 1, data), status))
	f.Add(join(ready, chunk(chunkDone, chunkData, 1, be(uint64(0), string(data))), status))
	f.Add(join(ready, chunk(chunkDone, chunkHole, 1, be(uint64(0), uint32(512))),
		chunk(chunkDone, chunkError+1, 2, be(uint32(5), uint16(2), "no"))))
	f.Add(join(greeting, simpleOnly))
	f.Fuzz(func(t *testing.T, server []byte) {
		c, err := Open(says(server), both)
		if err != nil {
			return
		}
		if c.Size() > maxDisk || c.MaxRead() == 0 || c.MaxRead() > maxRead || c.BlockSize() == 0 {
			t.Fatalf("%d bytes, blocks of %d, reads of %d", c.Size(), c.BlockSize(), c.MaxRead())
		}
		block := uint64(c.BlockSize())
		_ = c.Read(make([]byte, max(block, min(512, uint64(c.MaxRead()))/block*block)), 0)
		const requested = 1 << 17
		extents, err := c.Status(0, requested)
		if err != nil {
			return
		}
		for name, list := range extents {
			total := uint64(0)
			for _, e := range list {
				total += e.Length
			}
			if total == 0 || total > requested {
				t.Fatalf("the extents of %s have %d bytes", name, total)
			}
		}
	})
}
