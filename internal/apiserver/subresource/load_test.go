// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/coder/websocket"
)

// What people have open at once, and what goes through each: 250 streams carry 250 MiB in each direction.
const (
	consoles = 50
	tunnels  = 200
	piece    = 32 << 10
	pieces   = 32
	// perStream bounds the memory of a stream, in bytes: the buffers of all four websocket connections, which are in this
	// process.
	perStream = 600 << 10
)

// TestLoad copies bytes through many streams at once, beside a client that does not read what its guest sends.
func TestLoad(t *testing.T) {
	if testing.Short() {
		t.Skip("copies 500 MiB")
	}
	w := newWorld(t, running("a").Obj(), running("b").Obj(), running("flooding").Obj())
	conns := make([]*websocket.Conn, 0, consoles+tunnels)
	open := func(path string) *websocket.Conn {
		conn, _, err := w.dial(vmiPath + path)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		conn.SetReadLimit(-1)
		return conn
	}
	before := heap()
	for i := range consoles {
		conns = append(conns, open([]string{"a", "b"}[i%2]+"/console"))
	}
	for i := range tunnels {
		conns = append(conns, open([]string{"a", "b"}[i%2]+fmt.Sprintf("/portforward/%d", 1000+i)))
	}
	w.agent.Stream("console", fakeFlood)
	silent := open("flooding/console")
	defer func() { _ = silent.CloseNow() }()

	exchange(t, conns, 1) // allocates all buffers
	idle := heap()
	exchange(t, conns, pieces)
	after := heap()
	t.Logf("heap: %d KiB before, %d KiB with %d streams, %d KiB after %d MiB went through them",
		before>>10, idle>>10, len(conns), after>>10, 2*len(conns)*pieces*piece>>20)
	if grown := after - idle; grown > 16<<20 {
		t.Errorf("the heap grew by %d KiB while bytes were copied", grown>>10)
	}
	if cost := (idle - before) / int64(len(conns)); cost > perStream {
		t.Errorf("a stream costs %d KiB", cost>>10)
	}
	for _, conn := range conns {
		_ = conn.CloseNow()
	}
}

// fakeFlood is a guest that writes without end.
func fakeFlood(ctx context.Context, conn *websocket.Conn) {
	for conn.Write(ctx, websocket.MessageBinary, make([]byte, piece)) == nil {
	}
}

// exchange sends pieces on all streams at once, and waits for their echoes.
func exchange(t *testing.T, conns []*websocket.Conn, pieces int) {
	t.Helper()
	sent := bytes.Repeat([]byte("x"), piece)
	var group sync.WaitGroup
	for _, conn := range conns {
		group.Go(func() {
			for range pieces {
				if err := conn.Write(t.Context(), websocket.MessageBinary, sent); err != nil {
					t.Errorf("cannot send: %v", err)
					return
				}
				_, got, err := conn.Read(t.Context())
				if err != nil || len(got) != len(sent) {
					t.Errorf("got %d bytes, %v", len(got), err)
					return
				}
			}
		})
	}
	group.Wait()
}

// heap returns the bytes in use after a garbage collection.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}
