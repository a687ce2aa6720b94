// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/vireo-project/vireo/internal/agentapi"
)

// consoleBuffer is how much of a console's output is buffered for a client that is slower than the guest.
const consoleBuffer = 256 << 10

// console streams the guest's first serial port. A new client takes it over from the one before, as in KubeVirt.
func (s *Server) console(w http.ResponseWriter, r *http.Request, v *runningVMI) error {
	return s.stream(w, r, v, func(session *session) (backend, error) {
		// The earlier session gets its reason before libvirt breaks its stream.
		s.sessions.acquire(session, agentapi.Console, false, &closeError{agentapi.CloseTakenOver, "another client took over the console"})
		stream, err := v.conn.OpenConsole(session.ctx, v.domain)
		if err != nil {
			return backend{}, err
		}
		return backend{ReadWriteCloser: newConsoleReader(stream), what: "console"}, nil
	})
}

// consoleReader reads a console continuously, even while its client does not: a guest blocks while its serial port is not read.
// Output that does not fit into the buffer is dropped, and a line in the output reports how much.
type consoleReader struct {
	io.ReadWriteCloser
	mu     sync.Mutex
	filled *sync.Cond
	buffer []byte
	lost   int
	err    error
}

func newConsoleReader(of io.ReadWriteCloser) *consoleReader {
	c := &consoleReader{ReadWriteCloser: of}
	c.filled = sync.NewCond(&c.mu)
	go c.fill()
	return c
}

// fill reads until the console is closed.
func (c *consoleReader) fill() {
	chunk := make([]byte, chunkSize)
	for {
		n, err := c.ReadWriteCloser.Read(chunk)
		c.mu.Lock()
		room := min(n, consoleBuffer-len(c.buffer))
		// Once output was dropped, all of it is until the client has read the buffer: one gap reads better than many.
		if c.lost > 0 {
			room = 0
		}
		c.buffer = append(c.buffer, chunk[:room]...)
		c.lost += n - room
		c.err = err
		c.filled.Signal()
		c.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// Read blocks until there is output.
func (c *consoleReader) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.buffer) == 0 && c.lost == 0 && c.err == nil {
		c.filled.Wait()
	}
	if len(c.buffer) == 0 && c.lost > 0 {
		c.buffer = fmt.Appendf(c.buffer[:0], "\r\n[%d bytes of the console were lost: the client is too slow]\r\n", c.lost)
		c.lost = 0
	}
	if len(c.buffer) == 0 {
		c.buffer = nil
		return 0, c.err
	}
	n := copy(p, c.buffer)
	c.buffer = c.buffer[n:]
	return n, nil
}
