// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package imageupload

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/vireo-project/vireo/internal/virtctl/cli"
)

const (
	// redrawInterval is the time between updates of the line on a terminal.
	redrawInterval = 200 * time.Millisecond
	// Other outputs get a line every lineInterval and after every linePercent percent.
	lineInterval = 30 * time.Second
	linePercent  = 10
)

// progress prints the progress of an upload: on a terminal as one line that is updated, elsewhere as a few lines.
type progress struct {
	out      io.Writer
	terminal bool
	size     int64
	now      func() time.Time

	mu          sync.Mutex
	start, last time.Time
	sent, shown int64
	finished    bool
}

func newProgress(out io.Writer, size int64, now func() time.Time) *progress {
	_, isTerminal := cli.Terminal(out)
	start := now()
	return &progress{out: out, terminal: isTerminal, size: size, now: now, start: start, last: start}
}

// watch returns a reader that counts what is read.
func (p *progress) watch(from io.Reader) io.Reader { return &watched{from, p} }

type watched struct {
	from     io.Reader
	progress *progress
}

// Read implements io.Reader.
func (w *watched) Read(into []byte) (int, error) {
	n, err := w.from.Read(into)
	w.progress.add(int64(n))
	return n, err
}

func (p *progress) add(n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.finished || n == 0 {
		return
	}
	p.sent += n
	since := p.now().Sub(p.last)
	switch {
	case p.sent == p.size:
	case p.terminal && since >= redrawInterval:
	case !p.terminal && (since >= lineInterval || p.percent(p.sent)/linePercent > p.percent(p.shown)/linePercent):
	default:
		return
	}
	p.show()
}

func (p *progress) percent(sent int64) int64 { return sent * 100 / p.size }

func (p *progress) show() {
	p.last, p.shown = p.now(), p.sent
	line := fmt.Sprintf("%s of %s, %d %%, %s/s", formatBytes(p.sent), formatBytes(p.size), p.percent(p.sent), formatBytes(p.rate()))
	if p.terminal {
		// Overwrite the line.
		_, _ = fmt.Fprintf(p.out, "\r%s\x1b[K", line)
		return
	}
	_, _ = fmt.Fprintln(p.out, line)
}

// rate returns the average number of bytes per second.
func (p *progress) rate() int64 {
	seconds := p.now().Sub(p.start).Seconds()
	if seconds <= 0 {
		return p.sent
	}
	return int64(float64(p.sent) / seconds)
}

// finish prints the last line. Later reads by the transport are ignored.
func (p *progress) finish() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sent > 0 && p.sent != p.shown {
		p.show()
	}
	if p.terminal && p.sent > 0 {
		_, _ = fmt.Fprintln(p.out)
	}
	p.finished = true
}

// formatBytes returns a number of bytes with a binary unit.
func formatBytes(n int64) string {
	value, units := float64(n), []string{"B", "KiB", "MiB", "GiB", "TiB"}
	unit := 0
	for value >= 1024 && unit < len(units)-1 {
		value /= 1024
		unit++
	}
	if unit == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", value, units[unit])
}
