// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package recorder

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
)

// pending is an event that is to be sent.
type pending struct {
	recorded *corev1.Event
	// result is what is sent for it, nil before the first try.
	result *record.EventCorrelateResult
}

// queue has the events of each namespace in the order in which they were recorded. It is bounded as a whole: when it is full, the
// namespace with the most events loses its newest, so that one that causes many displaces nobody else's.
type queue struct {
	capacity int

	mu     sync.Mutex
	length int
	of     map[string][]*pending
}

func newQueue(capacity int) *queue {
	return &queue{capacity: capacity, of: map[string][]*pending{}}
}

// push adds an event. It returns whether the event is the only one of its namespace, and the event that was dropped for it, which
// may be itself.
func (q *queue) push(event *corev1.Event) (first bool, dropped *corev1.Event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	namespace := event.InvolvedObject.Namespace
	if q.length >= q.capacity {
		longest := q.longest()
		// The only event of a namespace stays: it may be on its way.
		if last := len(q.of[longest]) - 1; last < 1 || last < len(q.of[namespace]) {
			return false, event
		}
		dropped = q.dropNewest(longest)
	}
	q.of[namespace] = append(q.of[namespace], &pending{recorded: event})
	q.length++
	return len(q.of[namespace]) == 1, dropped
}

func (q *queue) longest() (namespace string) {
	for candidate, events := range q.of {
		if len(events) > len(q.of[namespace]) {
			namespace = candidate
		}
	}
	return namespace
}

func (q *queue) dropNewest(namespace string) *corev1.Event {
	events := q.of[namespace]
	last := len(events) - 1
	newest := events[last].recorded
	events[last] = nil
	q.of[namespace] = events[:last]
	q.length--
	return newest
}

// head returns the oldest event of a namespace that has any.
func (q *queue) head(namespace string) *pending {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.of[namespace][0]
}

// pop removes the oldest event of a namespace, and returns whether there is another.
func (q *queue) pop(namespace string) (more bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.length--
	events := q.of[namespace]
	if len(events) == 1 {
		delete(q.of, namespace)
		return false
	}
	events[0] = nil
	q.of[namespace] = events[1:]
	return true
}

// size returns how many events wait.
func (q *queue) size() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.length
}
