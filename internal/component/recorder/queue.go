// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package recorder

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
)

// pending is an event in the queue.
type pending struct {
	recorded *corev1.Event
	// result is the event or patch to send, nil before the first attempt.
	result *record.EventCorrelateResult
}

// queue contains the events of each namespace, in the order in which they were recorded. Its capacity is shared: when
// it is full, the newest event of the namespace with the most events is dropped, so that a noisy namespace does not
// displace the events of others.
type queue struct {
	capacity int

	mu     sync.Mutex
	length int
	// byNamespace contains only namespaces with events.
	byNamespace map[string][]*pending
}

func newQueue(capacity int) *queue {
	return &queue{capacity: capacity, byNamespace: map[string][]*pending{}}
}

// push adds an event. It reports whether the event is the only one of its namespace, and returns the event that was
// dropped because the queue is full: another one, or the new one itself.
func (q *queue) push(event *corev1.Event) (first bool, dropped *corev1.Event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	namespace := event.InvolvedObject.Namespace
	if q.length >= q.capacity {
		longest := q.longest()
		// The only event of a namespace is kept, because it may be in flight.
		if last := len(q.byNamespace[longest]) - 1; last < 1 || last < len(q.byNamespace[namespace]) {
			return false, event
		}
		dropped = q.dropNewest(longest)
	}
	q.byNamespace[namespace] = append(q.byNamespace[namespace], &pending{recorded: event})
	q.length++
	return len(q.byNamespace[namespace]) == 1, dropped
}

func (q *queue) longest() (namespace string) {
	for candidate, events := range q.byNamespace {
		if len(events) > len(q.byNamespace[namespace]) {
			namespace = candidate
		}
	}
	return namespace
}

func (q *queue) dropNewest(namespace string) *corev1.Event {
	events := q.byNamespace[namespace]
	last := len(events) - 1
	newest := events[last].recorded
	events[last] = nil
	q.byNamespace[namespace] = events[:last]
	q.length--
	return newest
}

// head returns the oldest event of a namespace, which must have one.
func (q *queue) head(namespace string) *pending {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.byNamespace[namespace][0]
}

// pop removes the oldest event of a namespace, and reports whether there are more.
func (q *queue) pop(namespace string) (more bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.length--
	events := q.byNamespace[namespace]
	if len(events) == 1 {
		delete(q.byNamespace, namespace)
		return false
	}
	events[0] = nil
	q.byNamespace[namespace] = events[1:]
	return true
}

// size returns the number of events.
func (q *queue) size() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.length
}
