// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package guestmetrics

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/limits"
)

const (
	// scrapeTimeout is how long a scrape waits for launchers. Prometheus waits 10 seconds by default for all.
	scrapeTimeout = 5 * time.Second
	// minAge is how old statistics have to be to be requested again, and maxAge how old they may be to be served.
	minAge, maxAge = 5 * time.Second, 12 * time.Second
	// Slots is how many launchers are queried at a time, and slotsPerNamespace how many of one namespace. Slots is
	// exported for the test in cmd/virt-handler/agent that adds up the memory that launchers can make an agent use.
	Slots, slotsPerNamespace = 32, 16
	// silentSlots are those of Slots for launchers that were silent, which occupy them longest, and
	// silentSlotsPerNamespace how many of them the launchers of one namespace may have.
	silentSlots, silentSlotsPerNamespace = 8, 4
	// firstPause and maxPause are the delays after a query that failed.
	firstPause, maxPause = 5 * time.Second, 5 * time.Minute
	// slow is how long a query may take before the launcher is treated as silent: others wait for its slot.
	slow = 3 * time.Second
	// dirtyRatePause is the least time between two measurements of a guest's dirty rate.
	dirtyRatePause = 10 * time.Second
)

// reader requests statistics of guests and remembers them for a moment.
type reader struct {
	read  func(ctx context.Context, guest *Guest, dirtyRate bool) (*hypervisor.Stats, error)
	clock clock.PassiveClock
	queue *limits.Queue
	// silent is the queue for launchers that were silent: others do not wait for them.
	silent *limits.Queue

	mu     sync.Mutex
	guests map[types.UID]*state
}

func newReader(o *Options) *reader {
	return &reader{
		read: o.Read, clock: o.Clock, guests: map[types.UID]*state{},
		queue:  limits.NewQueueOf(limits.QueueLimits{Capacity: Slots - silentSlots, PerNamespace: slotsPerNamespace}),
		silent: limits.NewQueueOf(limits.QueueLimits{Capacity: silentSlots, PerNamespace: silentSlotsPerNamespace}),
	}
}

// state is what is known of the guest of one Pod. At most one query of it is in flight.
type state struct {
	// running is closed when the query ends; nil if there is none.
	running chan struct{}
	stats   *hypervisor.Stats
	at      time.Time
	// silent reports whether the last query failed or was slow. Scrapes do not wait for such a launcher.
	silent bool
	pauses wait.Backoff
	// retry is when to query a silent launcher again.
	retry time.Time
	// measured is when the last measurement of the dirty rate was started.
	measured time.Time
}

// query starts the queries that are due, and returns when they have ended, or at the latest when the context is done.
func (r *reader) query(ctx context.Context, guests []*Guest) {
	for _, running := range r.start(guests) {
		select {
		case <-running:
		case <-ctx.Done():
			return
		}
	}
}

// start starts the queries that are due, and returns those to wait for.
func (r *reader) start(guests []*Guest) []<-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, known := r.clock.Now(), make(map[types.UID]bool, len(guests))
	var waitFor []<-chan struct{}
	for _, guest := range guests {
		known[guest.Pod.UID] = true
		s := r.guests[guest.Pod.UID]
		if s == nil {
			s = &state{pauses: limits.ExponentialBackoff(firstPause, maxPause)}
			r.guests[guest.Pod.UID] = s
		}
		if s.running == nil && !now.Before(s.retry) && now.Sub(s.at) >= minAge {
			s.running = make(chan struct{})
			dirtyRate := !guest.Migrating && now.Sub(s.measured) >= dirtyRatePause
			if dirtyRate {
				s.measured = now
			}
			queue := r.queue
			if s.silent {
				queue = r.silent
			}
			go r.run(queue, s, guest, dirtyRate)
		}
		if s.running != nil && !s.silent {
			waitFor = append(waitFor, s.running)
		}
	}
	for uid := range r.guests {
		if !known[uid] {
			delete(r.guests, uid)
		}
	}
	return waitFor
}

// run queries one launcher. It outlives the scrape that started it: a later one may use the result.
func (r *reader) run(queue *limits.Queue, s *state, guest *Guest, dirtyRate bool) {
	var stats *hypervisor.Stats
	var started time.Time
	ctx, cancel := context.WithTimeout(context.Background(), maxAge)
	defer cancel()
	err := queue.Do(ctx, guest.Pod.VMI.Namespace, func() (err error) {
		started = r.clock.Now()
		stats, err = r.read(ctx, guest, dirtyRate)
		return err
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	close(s.running)
	s.running = nil
	now := r.clock.Now()
	if started.IsZero() {
		return // It got no slot, which is not the launcher's fault.
	}
	if err == nil {
		s.stats, s.at = stats, now
	}
	if s.silent = err != nil || now.Sub(started) > slow; s.silent {
		s.retry = now.Add(s.pauses.Step())
		return
	}
	s.pauses = limits.ExponentialBackoff(firstPause, maxPause)
}

// latest returns the statistics of a guest that are not too old, or nil.
func (r *reader) latest(guest *Guest) *hypervisor.Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.guests[guest.Pod.UID]; s != nil && r.clock.Now().Sub(s.at) <= maxAge {
		return s.stats
	}
	return nil
}
