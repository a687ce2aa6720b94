// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package proxy

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/vireo-project/vireo/internal/exporter/content"
)

// speedLimits are how slow a download may be. Otherwise a client or an exporter could keep a slot for any time.
type speedLimits struct {
	// stall is how long a client may accept no byte, and an exporter send none.
	stall time.Duration
	// grace is how long a download may take before the averages are checked.
	grace time.Duration
	// client is how many bytes per second a client must accept on average, not counting the time in which it waits for
	// the exporter.
	client int64
	// exporter is how many bytes per second must be sent on average. An exporter that compresses an empty disk reads a
	// thousand bytes for each that it sends.
	exporter int64
	// image is the same for an OCI image, in which a block of 128 KiB of an empty disk takes 4 bytes.
	image int64
	// check is the interval at which the export is read again, and absence how long it may be not ready: its Pod may
	// become ready again.
	check, absence time.Duration
}

// defaultLimits are the limits of a proxy.
var defaultLimits = speedLimits{
	stall: 2 * time.Minute, grace: 5 * time.Minute, client: 64 << 10, exporter: 1 << 10, image: 32,
	check: 10 * time.Second, absence: 2 * time.Minute,
}

// of returns the limits for a path of an exporter.
func (l speedLimits) of(path string) speedLimits {
	if path == content.OCIPath {
		l.exporter = l.image
	}
	return l
}

var (
	errSlowClient   = errors.New("the client accepts too few bytes per second")
	errSlowExporter = errors.New("the exporter sends too few bytes per second")
	errGone         = errors.New("the export does not exist any more")
	errNotReady     = errors.New("the export is not ready any more")
)

// promptConn is a connection that fails if a read gets no byte for some time.
type promptConn struct {
	net.Conn
	stall time.Duration
}

// Read extends the deadline of the connection with each read.
func (c promptConn) Read(p []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(c.stall)); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

// response is a response that is given up if the client accepts no byte for some time. It remembers its status and
// size.
type response struct {
	http.ResponseWriter
	stall time.Duration
	code  int
	sent  int64
}

// Unwrap gives net/http the original.
func (r *response) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// WriteHeader remembers the code.
func (r *response) WriteHeader(code int) {
	r.code = code
	r.ResponseWriter.WriteHeader(code)
}

// Write extends the deadline of the connection with each write.
func (r *response) Write(p []byte) (int, error) {
	_ = http.NewResponseController(r.ResponseWriter).SetWriteDeadline(time.Now().Add(r.stall))
	n, err := r.ResponseWriter.Write(p)
	r.sent += int64(n)
	return n, err
}

// transfer writes the body of a response, and fails if the download is too slow or its export is gone.
type transfer struct {
	out    *response
	speeds speedLimits
	// export returns nil, errNotReady or errGone.
	export func() error

	start, checked, ready time.Time
	// accepting is how long the client has taken to accept what was sent.
	accepting time.Duration
}

func newTransfer(out *response, speeds speedLimits, export func() error) *transfer {
	now := time.Now()
	return &transfer{out: out, speeds: speeds, export: export, start: now, checked: now, ready: now}
}

// Write implements io.Writer.
func (t *transfer) Write(p []byte) (int, error) {
	now := time.Now()
	if err := t.verify(now); err != nil {
		return 0, err
	}
	n, err := t.out.Write(p)
	t.accepting += time.Since(now)
	return n, err
}

// verify returns why the download ends now, or nil.
func (t *transfer) verify(now time.Time) error {
	switch {
	case t.tooSlow(t.accepting, t.speeds.client):
		return errSlowClient
	case t.tooSlow(now.Sub(t.start), t.speeds.exporter):
		return errSlowExporter
	case now.Sub(t.checked) < t.speeds.check:
		return nil
	}
	t.checked = now
	err := t.export()
	switch {
	case err == nil:
		t.ready = now
	case errors.Is(err, errNotReady) && now.Sub(t.ready) <= t.speeds.absence:
		return nil
	}
	return err
}

func (t *transfer) tooSlow(took time.Duration, least int64) bool {
	return took > t.speeds.grace && float64(t.out.sent) < float64(least)*took.Seconds()
}

// queues contain a queue for each export, in which requests wait for one of its slots. Anyone can take a slot, for a
// moment. If further requests were refused, a few clients with a wrong token could keep out those with the right one.
type queues struct {
	// each is how many slots an export has.
	each int

	mu sync.Mutex
	of map[key]*queue
}

// key is the key of an export.
type key struct{ namespace, name string }

type queue struct {
	// slots contains an element for each slot that is taken. Requests that wait get one in the order of their arrival.
	slots chan struct{}
	// requests is how many requests wait or have a slot. The mutex of the queues guards it.
	requests int
}

func newQueues(each int) *queues { return &queues{each: each, of: map[key]*queue{}} }

// acquire takes a slot of an export, or returns false when the context ends. The caller calls release if it returns
// true.
func (q *queues) acquire(ctx context.Context, of key) bool {
	select {
	case q.add(of).slots <- struct{}{}:
		return true
	case <-ctx.Done():
		q.mu.Lock()
		defer q.mu.Unlock()
		q.remove(of)
		return false
	}
}

// release returns a slot.
func (q *queues) release(of key) {
	q.mu.Lock()
	defer q.mu.Unlock()
	<-q.of[of].slots // does not wait: the caller has one
	q.remove(of)
}

// add adds a request, which waits for a slot.
func (q *queues) add(of key) *queue {
	q.mu.Lock()
	defer q.mu.Unlock()
	one := q.of[of]
	if one == nil {
		one = &queue{slots: make(chan struct{}, q.each)}
		q.of[of] = one
	}
	one.requests++
	return one
}

// remove removes a request. The caller holds the mutex.
func (q *queues) remove(of key) {
	if q.of[of].requests--; q.of[of].requests == 0 {
		delete(q.of, of)
	}
}
