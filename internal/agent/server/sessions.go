// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"

	"github.com/coder/websocket"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Limits bounds what clients can use of an agent.
type Limits struct {
	// PerVMI, PerNamespace and Streams are the maximum numbers of open streams of a VMI, of a namespace, and in total.
	PerVMI, PerNamespace, Streams int
	// Reserve is how many of the total are reserved for namespaces that have fewer than Few streams.
	Reserve, Few int
	// GuestRequests and GuestRequestsPerNamespace are how many requests to guests run at a time, in total and of one
	// namespace. GuestRequestQueue is how many more of a namespace are queued.
	GuestRequests, GuestRequestsPerNamespace, GuestRequestQueue int
}

// DefaultLimits are far above normal use, and bound the agent's resources: a stream costs two descriptors and
// StreamBytes. No VMI and no namespace can use all of them.
var DefaultLimits = Limits{
	PerVMI: 200, PerNamespace: 400, Streams: 1024, Reserve: 200, Few: 10,
	// A request to a guest that does not respond takes a minute.
	GuestRequests: 32, GuestRequestsPerNamespace: 12, GuestRequestQueue: 32,
}

// retryAfter is the Retry-After of a request above a limit, in seconds.
const retryAfter = 5

// closeError is the reason why the agent closes a stream that client and guest have open.
type closeError struct {
	code   websocket.StatusCode
	reason string
}

// Error returns the reason.
func (e *closeError) Error() string { return e.reason }

// sessions are the open streams.
type sessions struct {
	limits Limits

	mu     sync.Mutex
	closed bool
	perVMI map[types.UID]int
	// perNamespace counts the streams of namespaces that have any.
	perNamespace map[string]int
	all          map[*session]struct{}
	// slots are the exclusive resources that are in use, and by which stream.
	slots map[slotKey]*session
	wg    sync.WaitGroup
}

// slotKey identifies a resource that one stream can use at a time.
type slotKey struct {
	vmi types.UID
	// verb is the stream's verb, with the number of the port if there are several.
	verb string
}

// session is an open stream.
type session struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	vmi    types.UID
	// namespace is the VMI's.
	namespace string
	// slot is the slot that the stream uses, if any.
	slot *slotKey
}

// withDefaults sets the zero fields to those of DefaultLimits.
func (l Limits) withDefaults() Limits {
	return Limits{
		PerVMI: cmp.Or(l.PerVMI, DefaultLimits.PerVMI), PerNamespace: cmp.Or(l.PerNamespace, DefaultLimits.PerNamespace),
		Streams: cmp.Or(l.Streams, DefaultLimits.Streams), Reserve: cmp.Or(l.Reserve, DefaultLimits.Reserve),
		Few: cmp.Or(l.Few, DefaultLimits.Few), GuestRequests: cmp.Or(l.GuestRequests, DefaultLimits.GuestRequests),
		GuestRequestsPerNamespace: cmp.Or(l.GuestRequestsPerNamespace, DefaultLimits.GuestRequestsPerNamespace),
		GuestRequestQueue:         cmp.Or(l.GuestRequestQueue, DefaultLimits.GuestRequestQueue),
	}
}

func newSessions(limits Limits) *sessions {
	return &sessions{limits: limits, perVMI: map[types.UID]int{}, perNamespace: map[string]int{},
		all: map[*session]struct{}{}, slots: map[slotKey]*session{}}
}

// open adds a stream. The context of the session is canceled when the agent closes the stream, with a closeError as the
// cause.
func (s *sessions) open(ctx context.Context, namespace string, vmi types.UID) (*session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, apierrors.NewServiceUnavailable("virt-handler on the node is stopping, try again")
	case len(s.all) >= s.limits.Streams:
		return nil, tooMany(fmt.Sprintf("virt-handler has %d streams open, which is its limit", s.limits.Streams))
	case s.perVMI[vmi] >= s.limits.PerVMI:
		return nil, tooMany(fmt.Sprintf("the instance has %d streams open, which is the limit for one instance",
			s.limits.PerVMI))
	case s.perNamespace[namespace] >= s.limits.PerNamespace:
		return nil, tooMany(fmt.Sprintf("namespace %s has %d streams open on the node, which is the limit for one namespace",
			namespace, s.limits.PerNamespace))
	case len(s.all) >= s.limits.Streams-s.limits.Reserve && s.perNamespace[namespace] >= s.limits.Few:
		return nil, tooMany(fmt.Sprintf(
			"virt-handler has %d streams open, and the rest are reserved for namespaces with fewer than %d; namespace %s has %d",
			len(s.all), s.limits.Few, namespace, s.perNamespace[namespace]))
	}
	opened := &session{vmi: vmi, namespace: namespace}
	opened.ctx, opened.cancel = context.WithCancelCause(ctx)
	s.all[opened] = struct{}{}
	s.perVMI[vmi]++
	s.perNamespace[namespace]++
	s.wg.Add(1)
	return opened, nil
}

func tooMany(message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests,
		Message: message, Details: &metav1.StatusDetails{RetryAfterSeconds: retryAfter},
	}}
}

// close removes a stream.
func (s *sessions) close(closed *session) {
	closed.cancel(nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, closed)
	if s.perVMI[closed.vmi]--; s.perVMI[closed.vmi] == 0 {
		delete(s.perVMI, closed.vmi)
	}
	if s.perNamespace[closed.namespace]--; s.perNamespace[closed.namespace] == 0 {
		delete(s.perNamespace, closed.namespace)
	}
	if closed.slot != nil && s.slots[*closed.slot] == closed {
		delete(s.slots, *closed.slot)
	}
	s.wg.Done()
}

// inUse reports whether a stream uses the slot of a verb.
func (s *sessions) inUse(verb string, vmi types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.slots[slotKey{vmi, verb}] != nil
}

// acquire gives a stream the slot of a verb and reports whether it did. A stream that uses the slot is closed with a
// reason, unless preserve is set: then acquire returns false.
func (s *sessions) acquire(by *session, verb string, preserve bool, reason *closeError) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	slot := slotKey{by.vmi, verb}
	if before := s.slots[slot]; before != nil {
		if preserve {
			return false
		}
		before.cancel(reason)
	}
	by.slot = &slot
	s.slots[slot] = by
	return true
}

// acquireFree gives a stream the first free one of a verb's slots, and returns its number, from 0.
func (s *sessions) acquireFree(by *session, verb string, count int) (int, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range count {
		slot := slotKey{by.vmi, verb + "/" + strconv.Itoa(i)}
		if s.slots[slot] == nil {
			by.slot = &slot
			s.slots[slot] = by
			return i, true
		}
	}
	return 0, false
}

// closeAll closes all streams and rejects new ones. It returns when they are closed or the context is done.
func (s *sessions) closeAll(ctx context.Context, reason *closeError) {
	s.mu.Lock()
	s.closed = true
	for open := range s.all {
		open.cancel(reason)
	}
	s.mu.Unlock()
	closed := make(chan struct{})
	go func() {
		s.wg.Wait()
		close(closed)
	}()
	select {
	case <-closed:
	case <-ctx.Done():
	}
}
