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

// Limits bound what clients can take of an agent.
type Limits struct {
	// PerVMI is how many streams an instance may have at a time, PerNamespace how many those of a namespace may have, and Streams how
	// many all of them may have.
	PerVMI, PerNamespace, Streams int
	// Reserve is how many of the last streams are for namespaces that have fewer than Few.
	Reserve, Few int
	// Questions is how many answers of guests and images of screens are collected at a time, and QuestionsPerNamespace how many of them
	// are about guests of one namespace. QuestionsWaiting is how many more of a namespace wait for their turn.
	Questions, QuestionsPerNamespace, QuestionsWaiting int
}

// DefaultLimits are far above what people use and bound what the agent spends: a stream costs two descriptors and
// StreamBytes. No instance and no namespace can take all of them.
var DefaultLimits = Limits{
	PerVMI: 200, PerNamespace: 400, Streams: 1024, Reserve: 200, Few: 10,
	// A guest that does not answer keeps a question for a minute.
	Questions: 32, QuestionsPerNamespace: 12, QuestionsWaiting: 32,
}

// retryAfter is when a client that was one too many may try again, in seconds.
const retryAfter = 5

// ending is why a stream ends before its two sides want it to.
type ending struct {
	code   websocket.StatusCode
	reason string
}

// Error is the reason.
func (e *ending) Error() string { return e.reason }

// sessions are the streams that are open.
type sessions struct {
	limits Limits

	mu     sync.Mutex
	ended  bool
	perVMI map[types.UID]int
	// perNamespace counts the streams of namespaces that have any.
	perNamespace map[string]int
	all          map[*session]struct{}
	// holders have what only one can have.
	holders map[place]*session
	wait    sync.WaitGroup
}

// place is what only one stream can have.
type place struct {
	vmi types.UID
	// verb is the stream's, with a number if there are several of what it opens.
	verb string
}

// session is a stream.
type session struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	vmi    types.UID
	// namespace is that of the instance.
	namespace string
	place     *place
}

// withDefaults takes what is not set from DefaultLimits.
func (l Limits) withDefaults() Limits {
	return Limits{
		PerVMI: cmp.Or(l.PerVMI, DefaultLimits.PerVMI), PerNamespace: cmp.Or(l.PerNamespace, DefaultLimits.PerNamespace),
		Streams: cmp.Or(l.Streams, DefaultLimits.Streams), Reserve: cmp.Or(l.Reserve, DefaultLimits.Reserve),
		Few: cmp.Or(l.Few, DefaultLimits.Few), Questions: cmp.Or(l.Questions, DefaultLimits.Questions),
		QuestionsPerNamespace: cmp.Or(l.QuestionsPerNamespace, DefaultLimits.QuestionsPerNamespace),
		QuestionsWaiting:      cmp.Or(l.QuestionsWaiting, DefaultLimits.QuestionsWaiting),
	}
}

func newSessions(limits Limits) *sessions {
	return &sessions{limits: limits, perVMI: map[types.UID]int{}, perNamespace: map[string]int{}, all: map[*session]struct{}{}, holders: map[place]*session{}}
}

// open counts a stream in. Its context ends when it must, with an ending as the cause.
func (s *sessions) open(ctx context.Context, namespace string, vmi types.UID) (*session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ended:
		return nil, apierrors.NewServiceUnavailable("virt-handler on the node is stopping, try again")
	case len(s.all) >= s.limits.Streams:
		return nil, tooMany(fmt.Sprintf("virt-handler has %d streams open, which is its limit", s.limits.Streams))
	case s.perVMI[vmi] >= s.limits.PerVMI:
		return nil, tooMany(fmt.Sprintf("the instance has %d streams open, which is the limit for one instance", s.limits.PerVMI))
	case s.perNamespace[namespace] >= s.limits.PerNamespace:
		return nil, tooMany(fmt.Sprintf("namespace %s has %d streams open on the node, which is the limit for one namespace", namespace, s.limits.PerNamespace))
	case len(s.all) >= s.limits.Streams-s.limits.Reserve && s.perNamespace[namespace] >= s.limits.Few:
		return nil, tooMany(fmt.Sprintf("virt-handler has %d streams open, and the rest are reserved for namespaces with fewer than %d; namespace %s has %d",
			len(s.all), s.limits.Few, namespace, s.perNamespace[namespace]))
	}
	opened := &session{vmi: vmi, namespace: namespace}
	opened.ctx, opened.cancel = context.WithCancelCause(ctx)
	s.all[opened] = struct{}{}
	s.perVMI[vmi]++
	s.perNamespace[namespace]++
	s.wait.Add(1)
	return opened, nil
}

func tooMany(message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests, Message: message,
		Details: &metav1.StatusDetails{RetryAfterSeconds: retryAfter},
	}}
}

// close counts a stream out.
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
	if closed.place != nil && s.holders[*closed.place] == closed {
		delete(s.holders, *closed.place)
	}
	s.wait.Done()
}

// held says that a stream has what only one can have.
func (s *sessions) held(verb string, vmi types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.holders[place{vmi, verb}] != nil
}

// take gives a stream what only one can have. Who had it is told why it ends, or keeps it if it is to be preserved: then
// nothing was given.
func (s *sessions) take(taker *session, verb string, preserve bool, why *ending) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	wanted := place{taker.vmi, verb}
	if before := s.holders[wanted]; before != nil {
		if preserve {
			return false
		}
		before.cancel(why)
	}
	taker.place = &wanted
	s.holders[wanted] = taker
	return true
}

// takeFree gives a stream the first of several things that nobody has, and says which; they are counted from 0.
func (s *sessions) takeFree(taker *session, verb string, count int) (int, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range count {
		wanted := place{taker.vmi, verb + "/" + strconv.Itoa(i)}
		if s.holders[wanted] == nil {
			taker.place = &wanted
			s.holders[wanted] = taker
			return i, true
		}
	}
	return 0, false
}

// end ends all streams and lets no more in. It returns when they are gone, or the context is.
func (s *sessions) end(ctx context.Context, why *ending) {
	s.mu.Lock()
	s.ended = true
	for open := range s.all {
		open.cancel(why)
	}
	s.mu.Unlock()
	gone := make(chan struct{})
	go func() {
		s.wait.Wait()
		close(gone)
	}()
	select {
	case <-gone:
	case <-ctx.Done():
	}
}
