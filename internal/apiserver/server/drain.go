// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"context"
	"net/http"
	"sync"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

const (
	// StreamDrain is how long streams may stay open after shutdown has started. The Deployment's terminationGracePeriodSeconds is
	// longer. The agents wait as long for migrations.
	StreamDrain = 300 * time.Second
	// closeTimeout bounds the wait for the streams that the server ends. Each side has some seconds to respond to its close frame.
	closeTimeout = 15 * time.Second
)

// drain lets streams end before the server stops.
type drain struct {
	clock clock.WithDelayedExecution
	// cut is closed when streams must end.
	cut  chan struct{}
	once sync.Once

	mu   sync.Mutex
	open int
	// changed receives a value after open has become zero.
	changed chan struct{}
}

func newDrain(c clock.WithDelayedExecution) *drain {
	return &drain{clock: c, cut: make(chan struct{}), changed: make(chan struct{}, 1)}
}

// count wraps a handler of streams: the drain waits until its calls return.
func (d *drain) count(serve func(http.ResponseWriter, *http.Request) error) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		d.add(1)
		defer d.add(-1)
		return serve(w, r)
	}
}

func (d *drain) add(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.open += n; d.open > 0 {
		return
	}
	select {
	case d.changed <- struct{}{}:
	default:
	}
}

func (d *drain) streams() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.open
}

// limit ends the streams StreamDrain after the context has ended. cancel releases its resources if the context has not ended.
func (d *drain) limit(ctx context.Context) (cancel func() bool) {
	return context.AfterFunc(ctx, func() {
		select {
		case <-d.cut:
			return
		default:
		}
		if n := d.streams(); n > 0 {
			log.FromContext(ctx).Info("Waiting for streams before the end", "streams", n)
		}
		d.clock.AfterFunc(StreamDrain, d.end)
	})
}

// end ends the streams.
func (d *drain) end() { d.once.Do(func() { close(d.cut) }) }

// wait returns when no stream is open; the server must not accept new ones any more. If the server failed instead of being stopped,
// wait ends the streams at once.
func (d *drain) wait(ctx context.Context) {
	if ctx.Err() == nil {
		d.end()
	}
	cut := d.cut
	var late <-chan time.Time
	for {
		n := d.streams()
		if n == 0 {
			return
		}
		select {
		case <-d.changed:
		case <-cut:
			log.FromContext(ctx).Info("Cutting streams", "streams", n)
			cut, late = nil, time.After(closeTimeout)
		case <-late:
			return
		}
	}
}
