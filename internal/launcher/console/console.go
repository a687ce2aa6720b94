// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package console copies the output of the guest's serial console from QEMU's FIFO to that of the container
// guest-console-log, which logs it. It always drains QEMU's FIFO, so that a guest that prints endlessly, or a log that
// is not read, never blocks QEMU: output above the limits is dropped and counted.
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

// Limits of the console's log. A Debian guest prints about 60 KiB while it boots; a kernel with full debugging prints
// less than 1 MiB. The kubelet rotates a container's log at 10 MiB, so that the sustained rate does not fill the node's
// disk.
const (
	// BytesPerSecond is the rate that a guest may sustain.
	BytesPerSecond = 64 << 10
	// Burst is how much a guest may print in a burst.
	Burst = 1 << 20
	// LineLimit is the longest line; a longer one is broken. CRI runtimes break lines at 16 KiB too.
	LineLimit = 16 << 10

	chunkSize = 16 << 10
	// backlogLimit bounds the buffer for a slow reader of the log.
	backlogLimit = 256 << 10
)

// Open creates the FIFO if it is missing and opens it for reading and writing: there is no end of file when its writer
// closes it, and opening it for writing does not block.
func Open(path string) (*os.File, error) {
	if err := tail.Make(path); err != nil {
		return nil, fmt.Errorf("create the console's FIFO: %w", err)
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

// Copy copies from the console to the log until the console is closed or ctx is done. limiter limits bytes.
func Copy(ctx context.Context, log io.Writer, console io.Reader, limiter *rate.Limiter) error {
	b := &backlog{limiter: limiter, lines: lineBreaker{limit: LineLimit}, ready: make(chan struct{}, 1)}
	written := make(chan struct{})
	go func() {
		defer close(written)
		for range b.ready {
			// An error means that the container's log is gone.
			_, _ = log.Write(b.take())
		}
		_, _ = log.Write(b.rest())
	}()
	err := drain(ctx, console, b)
	close(b.ready)
	select {
	case <-written:
	case <-ctx.Done():
		// A log that is not read must not block the launcher's exit.
	}
	return err
}

// NewLimiter returns the limiter for a guest's console.
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

// backlog is output of the guest that is not written to the log yet. It is bounded in bytes, not in writes, as a guest
// often prints single bytes.
type backlog struct {
	limiter *rate.Limiter
	// ready has an entry when there is output to take.
	ready chan struct{}

	mu      sync.Mutex
	lines   lineBreaker
	pending []byte
	dropped int
}

// offer adds data, after a marker if bytes before it were dropped, or drops it.
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
	case b.ready <- struct{}{}:
	default: // The writer has not yet taken the output before.
	}
}

// mark adds a marker if output was dropped.
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

// rest returns the remaining output at the end, with a marker if output after it was dropped.
func (b *backlog) rest() []byte {
	b.mu.Lock()
	b.mark()
	b.mu.Unlock()
	return b.take()
}

func marker(dropped int) []byte {
	return fmt.Appendf(nil, "\n[%d bytes of console output dropped]\n", dropped)
}

// lineBreaker breaks lines that are longer than a limit. A line may consist of several chunks.
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
