// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package console carries what the guest prints on its serial console from QEMU's FIFO to that of the container
// guest-console-log, whose log it becomes. It always drains QEMU's FIFO, so a guest that prints
// without end, or a log that is not read, never blocks QEMU: what passes the limits is dropped and counted.
package console

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/vireo-project/vireo/internal/launcher/tail"
)

// Limits of the console's log. A Debian guest prints about 60 KiB while it boots; a kernel with all its
// debugging on prints under 1 MiB. The kubelet rotates a container's log at 10 MiB, so an endless guest at the
// sustained rate turns it over every few minutes and no node's disk fills up.
const (
	// BytesPerSecond is the rate that a guest may sustain.
	BytesPerSecond = 64 << 10
	// Burst is how much a guest may print at once.
	Burst = 1 << 20
	// LineLimit is the longest line; a longer one is broken. CRI runtimes break lines at 16 KiB too.
	LineLimit = 16 << 10

	chunkSize = 16 << 10
	// backlogLimit bounds what waits for a slow reader of the log.
	backlogLimit = 256 << 10
)

// Open makes the FIFO if it is missing and opens it for reading and writing, so that it neither ends when
// its writer closes it nor keeps its writer waiting for a reader.
func Open(path string) (*os.File, error) {
	if err := tail.Make(path); err != nil {
		return nil, fmt.Errorf("make the console's FIFO: %w", err)
	}
	file, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0) //nolint:gosec // the launcher's own path
	if err != nil {
		return nil, fmt.Errorf("open the console's FIFO: %w", err)
	}
	info, err := file.Stat()
	if err == nil && info.Mode()&fs.ModeNamedPipe == 0 {
		err = fmt.Errorf("%s is not a FIFO", path)
	}
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("open the console's FIFO: %w", err)
	}
	return file, nil
}

// Copy copies from the console to the log until the console is closed or ctx ends. limiter counts bytes.
func Copy(ctx context.Context, log io.Writer, console io.Reader, limiter *rate.Limiter) error {
	b := &backlog{limiter: limiter, lines: lineBreaker{limit: LineLimit}, wake: make(chan struct{}, 1)}
	written := make(chan struct{})
	go func() {
		defer close(written)
		for range b.wake {
			// An error here means that the container's log is gone; there is nobody to tell.
			_, _ = log.Write(b.take())
		}
		_, _ = log.Write(b.rest())
	}()
	err := drain(ctx, console, b)
	close(b.wake)
	select {
	case <-written:
	case <-ctx.Done():
		// A log that nobody reads must not keep the launcher from ending.
	}
	return err
}

// NewLimiter is the limiter for a guest's console.
func NewLimiter() *rate.Limiter { return rate.NewLimiter(BytesPerSecond, Burst) }

func drain(ctx context.Context, console io.Reader, b *backlog) error {
	buf := make([]byte, chunkSize)
	for ctx.Err() == nil {
		n, err := console.Read(buf)
		if n > 0 {
			b.offer(buf[:n])
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF), errors.Is(err, fs.ErrClosed):
			return nil
		default:
			return fmt.Errorf("read the console: %w", err)
		}
	}
	return nil
}

// backlog is what the guest has printed and the log has not taken yet. A guest often prints a byte at a time, so it
// is bounded by bytes and not by writes.
type backlog struct {
	limiter *rate.Limiter
	// wake has an entry when there is something to take.
	wake chan struct{}

	mu      sync.Mutex
	lines   lineBreaker
	pending []byte
	dropped int
}

// offer keeps data for the log, led by a marker when bytes before it were dropped, or drops it.
func (b *backlog) offer(data []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.pending)+len(data) > backlogLimit || !b.limiter.AllowN(time.Now(), len(data)) {
		b.dropped += len(data)
		return
	}
	b.mark()
	b.pending = append(b.pending, b.lines.breakLines(data)...)
	select {
	case b.wake <- struct{}{}:
	default: // the writer has not yet come for what was there before
	}
}

// mark says how much is missing, where it is missing.
func (b *backlog) mark() {
	if b.dropped > 0 {
		b.pending = append(b.pending, marker(b.dropped)...)
		b.dropped, b.lines.length = 0, 0
	}
}

func (b *backlog) take() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	taken := b.pending
	b.pending = nil
	return taken
}

// rest is what is left at the end, with the marker of a drop that nothing followed.
func (b *backlog) rest() []byte {
	b.mu.Lock()
	b.mark()
	b.mu.Unlock()
	return b.take()
}

func marker(dropped int) []byte {
	return fmt.Appendf(nil, "\n[%d bytes of console output dropped]\n", dropped)
}

// lineBreaker breaks lines that are longer than a limit, across chunks.
type lineBreaker struct {
	limit  int
	length int
}

func (l *lineBreaker) breakLines(data []byte) []byte {
	out := make([]byte, 0, len(data)+1+len(data)/l.limit)
	for len(data) > 0 {
		end := bytes.IndexByte(data, '\n')
		room := l.limit - l.length
		switch {
		case end >= 0 && end <= room:
			out = append(out, data[:end+1]...)
			data, l.length = data[end+1:], 0
		case end < 0 && len(data) <= room:
			l.length += len(data)
			return append(out, data...)
		default:
			out = append(append(out, data[:room]...), '\n')
			data, l.length = data[room:], 0
		}
	}
	return out
}
