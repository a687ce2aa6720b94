// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"fmt"
	"io"
	"sync"
)

// lossyBytes is how much of a console's output waits for a client that is slower than the guest.
const lossyBytes = 256 << 10

// lossy reads a console without pause, whether or not its client does: while nobody takes what the guest writes to its
// serial port, the guest waits. What the client does not take in time is lost to it, as it would be on a screen, and it is
// told how much.
type lossy struct {
	io.ReadWriteCloser
	mu     sync.Mutex
	filled *sync.Cond
	queue  []byte
	lost   int
	err    error
}

func newLossy(of io.ReadWriteCloser) *lossy {
	l := &lossy{ReadWriteCloser: of}
	l.filled = sync.NewCond(&l.mu)
	go l.fill()
	return l
}

// fill ends with the console, which Close ends.
func (l *lossy) fill() {
	buffer := make([]byte, pieceSize)
	for {
		n, err := l.ReadWriteCloser.Read(buffer)
		l.mu.Lock()
		room := min(n, lossyBytes-len(l.queue))
		// Once something is lost, all is until the client has taken what there is: one gap reads better than many.
		if l.lost > 0 {
			room = 0
		}
		l.queue = append(l.queue, buffer[:room]...)
		l.lost += n - room
		l.err = err
		l.filled.Signal()
		l.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// Read waits for output.
func (l *lossy) Read(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.queue) == 0 && l.lost == 0 && l.err == nil {
		l.filled.Wait()
	}
	if len(l.queue) == 0 && l.lost > 0 {
		l.queue = fmt.Appendf(l.queue[:0], "\r\n[%d bytes of the console were lost: the client is too slow]\r\n", l.lost)
		l.lost = 0
	}
	if len(l.queue) == 0 {
		l.queue = nil
		return 0, l.err
	}
	n := copy(p, l.queue)
	l.queue = l.queue[n:]
	return n, nil
}
