// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"sync"
	"time"
)

// deadlines are the deadlines of a connection's calls. They are paused while the agent itself delays the responses: a launcher is
// not silent because others use up the memory for large responses.
type deadlines struct {
	mu      sync.Mutex
	paused  bool
	pending map[*deadline]struct{}
}

// deadline is the deadline of one call.
type deadline struct {
	// left is the time that was left at since, when the timer was last started.
	left  time.Duration
	since time.Time
	timer *time.Timer
}

// start calls expired after a time, unless stop is called before.
func (d *deadlines) start(limit time.Duration, expired func()) (stop func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pending == nil {
		d.pending = map[*deadline]struct{}{}
	}
	call := &deadline{left: limit, since: time.Now(), timer: time.AfterFunc(limit, expired)}
	if d.paused {
		call.timer.Stop()
	}
	d.pending[call] = struct{}{}
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		call.timer.Stop()
		delete(d.pending, call)
	}
}

// pause pauses all deadlines until resume is called.
func (d *deadlines) pause() (resume func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.paused = true
	for call := range d.pending {
		// One that has expired already stays so.
		if call.timer.Stop() {
			call.left -= time.Since(call.since)
		} else {
			delete(d.pending, call)
		}
	}
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.paused = false
		for call := range d.pending {
			call.since = time.Now()
			call.timer.Reset(call.left)
		}
	}
}
