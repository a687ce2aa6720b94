// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/vireo-project/vireo/internal/exporter/content"
	"github.com/vireo-project/vireo/internal/wire/nbd"
)

// Limits of the number of blocks in a response. The default is KubeVirt's. A response with fewer blocks than requested
// contains where the next request has to begin.
const (
	defaultPage = 512
	maxPage     = 16 << 10
)

// pull serves the volumes of a backup, which it reads from the guest's QEMU.
type pull struct {
	volumes  []string
	changes  string
	version  string
	sessions *sessions

	mu    sync.Mutex
	sizes map[string]uint64
	// read is what clients have got, by volume.
	read map[string]*coverage
}

func newPull(b *content.Backup, version string, log logr.Logger) *pull {
	contexts := []string{nbd.AllocationContext}
	if b.Changes != "" {
		contexts = append(contexts, b.Changes)
	}
	p := &pull{
		volumes: b.Volumes, changes: b.Changes, version: version, sessions: newSessions(log, contexts),
		sizes: map[string]uint64{}, read: map[string]*coverage{},
	}
	shared := &budget{limit: maxRanges}
	for _, volume := range b.Volumes {
		p.read[volume] = &coverage{budget: shared}
	}
	return p
}

// report returns what clients have got.
func (p *pull) report() content.Report {
	p.mu.Lock()
	defer p.mu.Unlock()
	var unread []string
	forgot := false
	for _, volume := range p.volumes {
		size, known := p.sizes[volume]
		if all, some := p.read[volume].complete(size); !known || !all {
			unread, forgot = append(unread, volume), forgot || some
		}
	}
	report := content.NewReport(len(p.volumes), unread)
	report.Forgot = forgot
	return report
}

// size returns the size of a volume, which does not change during the backup.
func (p *pull) size(ctx context.Context, volume string) (size uint64, err error) {
	p.mu.Lock()
	size, known := p.sizes[volume]
	p.mu.Unlock()
	if known {
		return size, nil
	}
	if err := p.sessions.with(ctx, volume, func(c *nbd.Client) error { size = c.Size(); return nil }); err != nil {
		return 0, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sizes[volume] = size
	return size, nil
}

// section returns the range of a volume that a request is for. Without a length, it ends with the volume.
func (p *pull) section(w http.ResponseWriter, r *http.Request, volume string) (s span, err error) {
	query := r.URL.Query()
	offset, err := number(query, "offset", 0)
	if err != nil {
		return s, err
	}
	length, err := number(query, "length", 0)
	if err != nil {
		return s, err
	}
	size, err := p.size(r.Context(), volume)
	if err != nil {
		return s, err
	}
	if offset >= size {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes */%d", size))
		return s, &problem{http.StatusRequestedRangeNotSatisfiable,
			fmt.Sprintf("the offset %d is behind the end: the volume has %d bytes", offset, size)}
	}
	if length == 0 || length > size-offset {
		length = size - offset
	}
	return span{offset, offset + length}, nil
}

// number returns a parameter of a request.
func number(query url.Values, name string, missing uint64) (uint64, error) {
	text := query.Get(name)
	if text == "" {
		return missing, nil
	}
	value, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, &problem{http.StatusBadRequest, fmt.Sprintf("%s has to be a number of at least 0", name)}
	}
	return value, nil
}

// blocks serves the list of a volume's blocks.
func (p *pull) blocks(volume string) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		count, err := number(r.URL.Query(), "page_size", defaultPage)
		if err == nil && count == 0 {
			err = &problem{http.StatusBadRequest, "page_size has to be a number of at least 1"}
		}
		if err != nil {
			return err
		}
		section, err := p.section(w, r, volume)
		if err != nil {
			return err
		}
		l := &listing{at: section.start, end: section.end, limit: int(min(count, maxPage)), changes: p.changes}
		if err := p.list(r.Context(), volume, l); err != nil {
			return err
		}
		raw, err := json.Marshal(l.page)
		if err != nil {
			return fmt.Errorf("write the list of blocks: %w", err)
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(raw)))
		if _, err := w.Write(raw); err == nil && delivered(w, r) {
			p.read[volume].add(l.skippable(p.changes != "")...)
		}
		return nil // the response has the error of a write
	}
}

// data serves the data of a volume.
func (p *pull) data(volume string) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		section, err := p.section(w, r, volume)
		if err != nil {
			return err
		}
		d := &diskReader{pull: p, ctx: r.Context(), volume: volume, start: section.start, size: section.end - section.start}
		w.Header().Set("Etag", fmt.Sprintf(`"%s-%d-%d"`, p.version, section.start, section.end))
		w.Header().Set("Content-Type", "application/octet-stream")
		http.ServeContent(w, r, "", time.Time{}, d)
		if d.failed == nil && delivered(w, r) {
			p.read[volume].add(d.sent...)
		}
		return d.failed
	}
}

// delivered reports whether a response was sent to its end. What was sent of another does not count: a part of it may
// not have arrived.
func delivered(w http.ResponseWriter, r *http.Request) bool {
	out, ok := w.(*response)
	return ok && r.Method == http.MethodGet && out.failed == nil && out.short(r) == nil && out.control.Flush() == nil
}

// diskReader reads a range of a volume. It remembers what was read.
type diskReader struct {
	pull   *pull
	ctx    context.Context
	volume string
	// start and size are the range, and at is the offset in it.
	start, size, at uint64
	// buffer has bytes of the volume, those from the offset from on.
	buffer []byte
	from   uint64
	// sent are the ranges of the volume that were read, and failed is the error of a read.
	sent   []span
	failed error
}

// Seek implements io.Seeker.
func (d *diskReader) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += int64(d.at)
	case io.SeekEnd:
		offset += int64(d.size)
	}
	if offset < 0 {
		return 0, fmt.Errorf("the offset %d is negative", offset)
	}
	d.at = uint64(offset)
	return offset, nil
}

// Read implements io.Reader.
func (d *diskReader) Read(p []byte) (int, error) {
	if d.at >= d.size {
		return 0, io.EOF
	}
	at := d.start + d.at
	if at < d.from || at >= d.from+uint64(len(d.buffer)) {
		if d.failed = d.fill(at); d.failed != nil {
			return 0, d.failed
		}
	}
	n := copy(p[:min(uint64(len(p)), d.size-d.at)], d.buffer[at-d.from:])
	d.at += uint64(n)
	if last := len(d.sent) - 1; last >= 0 && d.sent[last].end == at {
		d.sent[last].end = d.start + d.at
	} else {
		d.sent = append(d.sent, span{at, d.start + d.at})
	}
	return n, nil
}

// fill fills the buffer with whole blocks around an offset.
func (d *diskReader) fill(at uint64) error {
	return d.pull.sessions.with(d.ctx, d.volume, func(c *nbd.Client) error {
		size := uint64(c.BlockSize())
		from, end := at/size*size, (d.start+d.size+size-1)/size*size
		if cap(d.buffer) == 0 {
			d.buffer = make([]byte, c.MaxRead())
		}
		length := min(uint64(cap(d.buffer)), uint64(c.MaxRead()), end-from)
		d.buffer, d.from = d.buffer[:length], from
		return c.Read(d.buffer, from)
	})
}
