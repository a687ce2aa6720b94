// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package imageupload

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"
)

const (
	// redrawEvery is how often a terminal's line is drawn anew.
	redrawEvery = 200 * time.Millisecond
	// lineEvery is how often there is a new line elsewhere, besides one for each lineShare percent.
	lineEvery = 30 * time.Second
	lineShare = 10
)

// progress shows how far an upload is: one line that changes at a terminal, and a few lines elsewhere.
type progress struct {
	out      io.Writer
	terminal bool
	size     int64
	now      func() time.Time

	mu          sync.Mutex
	begin, last time.Time
	sent, shown int64
	ended       bool
}

func newProgress(out io.Writer, size int64, now func() time.Time) *progress {
	file, isFile := out.(*os.File)
	begin := now()
	return &progress{
		out: out, terminal: isFile && term.IsTerminal(int(file.Fd())),
		size: size, now: now, begin: begin, last: begin,
	}
}

// watch counts what is read.
func (p *progress) watch(from io.Reader) io.Reader { return &watched{from, p} }

type watched struct {
	from     io.Reader
	progress *progress
}

// Read reads and counts.
func (w *watched) Read(into []byte) (int, error) {
	n, err := w.from.Read(into)
	w.progress.add(int64(n))
	return n, err
}

func (p *progress) add(n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended || n == 0 {
		return
	}
	p.sent += n
	since := p.now().Sub(p.last)
	switch {
	case p.sent == p.size:
	case p.terminal && since >= redrawEvery:
	case !p.terminal && (since >= lineEvery || p.percent(p.sent)/lineShare > p.percent(p.shown)/lineShare):
	default:
		return
	}
	p.show()
}

func (p *progress) percent(sent int64) int64 { return sent * 100 / p.size }

func (p *progress) show() {
	p.last, p.shown = p.now(), p.sent
	line := fmt.Sprintf("%s of %s, %d %%, %s/s", bytes(p.sent), bytes(p.size), p.percent(p.sent), bytes(p.rate()))
	if p.terminal {
		// Back to the line's beginning, and what was there is erased.
		_, _ = fmt.Fprintf(p.out, "\r%s\x1b[K", line)
		return
	}
	_, _ = fmt.Fprintln(p.out, line)
}

// rate is what was sent in a second, on average.
func (p *progress) rate() int64 {
	seconds := p.now().Sub(p.begin).Seconds()
	if seconds <= 0 {
		return p.sent
	}
	return int64(float64(p.sent) / seconds)
}

// end leaves the last line. The transport may still read: that is not shown.
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sent > 0 && p.sent != p.shown {
		p.show()
	}
	if p.terminal && p.sent > 0 {
		_, _ = fmt.Fprintln(p.out)
	}
	p.ended = true
}

// bytes is a number of bytes as people read it.
func bytes(n int64) string {
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
