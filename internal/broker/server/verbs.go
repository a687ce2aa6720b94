// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package server serves verbs of package brokerapi on a unix socket, to virt-handler and to no other user beside its
// own. The programs of virt-broker's Pod share it:
//
//   - Of the program's own user, which is that of the other programs, it accepts probes and what one program requests
//     from another.
//   - It refuses requests with verbs or arguments that the program does not know.
//   - The size of a request, its time and the number of requests in flight are limited, the latter for each Pod and in
//     all.
//   - Each request is logged. A client determines neither the number of lines nor their length.
package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/vireo-project/vireo/internal/broker/pods"
	"github.com/vireo-project/vireo/internal/wire/brokerapi"
)

// Output is what a task returns: a result and a descriptor, both of which may be nil, and what ends the request in
// flight.
type Output struct {
	// Result is the result, and File the descriptor.
	Result any
	File   *os.File

	releases []func()
}

// Close closes the descriptor and ends the request in flight.
func (o Output) Close() {
	if o.File != nil {
		_ = o.File.Close()
	}
	for _, release := range o.releases {
		release()
	}
}

// Task is what a request wants, with arguments that were checked.
type Task struct {
	// Limit limits how many such tasks run.
	Limit *Limiter
	// Wait waits for an event, without a time limit. It may be nil.
	Wait func(context.Context) error
	// Run does the task.
	Run func(context.Context) (Output, error)
	// Watch is set instead of the fields above for a verb that watches. It returns what to send, and a channel that is
	// closed when that has changed.
	Watch func() (Output, <-chan struct{})
}

// Verb checks the arguments of a request about a Pod and returns its task.
type Verb func(pod string, arguments json.RawMessage) (Task, error)

// Verbs are the verbs of a program.
type Verbs map[brokerapi.Verb]Verb

// None is the type of the arguments of a verb that has none.
type None struct{}

// With returns a verb with arguments of a type, which is None for a verb without.
func With[A any](prepare func(pod string, a A) (Task, error)) Verb {
	return func(pod string, arguments json.RawMessage) (Task, error) {
		var a A
		if _, without := any(a).(None); without != (len(arguments) == 0) {
			return Task{}, brokerapi.Invalid("the request has no arguments, or the verb has none")
		} else if without {
			return prepare(pod, a)
		}
		if err := brokerapi.Decode(arguments, &a); err != nil {
			return Task{}, err
		}
		return prepare(pod, a)
	}
}

// Task checks a request and returns its task.
func (s *Server) Task(r *brokerapi.Request) (Task, error) {
	does, known := s.Verbs[r.Verb]
	switch {
	case !known:
		return Task{}, brokerapi.Invalid("%s has no verb %.64q: it may be older than virt-handler", s.Program, r.Verb)
	case r.Verb.OfNode() && r.Pod != "":
		return Task{}, brokerapi.Invalid("%s is about no Pod", r.Verb)
	case r.Verb.OfNode():
		return does("", r.Arguments)
	}
	if err := pods.CheckUID(r.Pod); err != nil {
		return Task{}, err
	}
	return does(r.Pod, r.Arguments)
}

// ping does nothing.
func (s *Server) ping(string, None) (Task, error) {
	return Task{Limit: s.pings, Run: func(context.Context) (Output, error) { return Output{}, nil }}, nil
}

// watchProgram responds once.
func (s *Server) watchProgram(string, None) (Task, error) {
	return Task{Watch: func() (Output, <-chan struct{}) { return Output{}, nil }}, nil
}

// OfLibvirtd returns a task that needs the directory in /proc of the Pod's libvirtd.
func OfLibvirtd(
	p *pods.Pods, limit *Limiter, pod string, do func(ctx context.Context, libvirtd *os.File) (Output, error),
) Task {
	return Task{Limit: limit, Run: func(ctx context.Context) (Output, error) {
		libvirtd, err := p.Libvirtd(pod)
		if err != nil {
			return Output{}, err
		}
		defer func() { _ = libvirtd.Close() }()
		return do(ctx, libvirtd)
	}}
}

const (
	// callTimeout bounds a request of one program to another, which calls the kubelet for it. Many at once wait for a
	// slot, and may not get it in time.
	callTimeout = 10 * time.Second
	// maxResponse limits the response, in bytes: the numbers of all CPUs of a node are shorter.
	maxResponse = 64 << 10
)

// Call sends a request to a program, whose socket is below a directory, and decodes the result unless that is nil.
func Call(ctx context.Context, program brokerapi.Program, dir string, request *brokerapi.Request, result any) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	response, err := call(ctx, program.Socket(dir), request)
	if err != nil {
		// The error is the program's, not one about a file of a Pod.
		return &brokerapi.Error{Code: brokerapi.CodeUnreachable, Message: fmt.Sprintf(
			"%s of this node does not respond: see the container of that name in the Pod of virt-broker: %v", program, err)}
	}
	if response.Error != nil {
		return response.Error
	}
	if result == nil {
		return nil
	}
	return json.Unmarshal(response.Result, result)
}

func call(ctx context.Context, socket string, request *brokerapi.Request) (*brokerapi.Response, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	deadline, _ := ctx.Deadline()
	if err := errors.Join(conn.SetDeadline(deadline), brokerapi.WriteRequest(conn, request)); err != nil {
		return nil, err
	}
	return brokerapi.ReadResponse(io.LimitReader(conn, maxResponse))
}

// The limits keep the memory of the process below that of its container, whatever a client does.
const (
	// inAll is how many requests of a kind are in flight. A request that hangs takes a thread.
	inAll = 768
	// reserved of them are only for Pods without any other request, so that Pods with many requests leave room for the
	// others. No kubelet supports more than 500 Pods.
	reserved = 512
	// maxConnections is how many connections are open. Each takes about 24 KiB.
	maxConnections = 2048
	// largeRequests is how many large requests are in flight or waiting. Their bodies use memory.
	largeRequests = 16
)

// Limiter limits the requests of one kind that are in flight, for each Pod and in all.
type Limiter struct {
	// inAll and reserved are the limits for all Pods, perPod is that for one Pod, and waiting how many more requests of
	// a Pod wait for their turn. Others are rejected.
	inAll, reserved, perPod, waiting int
	// busy is the message for a rejected request.
	busy string

	mu    sync.Mutex
	total int
	pods  map[string]*load
	// freed signals those that wait for a slot.
	freed *sync.Cond
}

// load is how many requests of a Pod are in flight and wait.
type load struct{ running, waiting int }

// NewLimiter returns a Limiter. Of a Pod, perPod requests are in flight, and waiting more wait for their turn; busy is
// the message for others.
func NewLimiter(perPod, waiting int, busy string) *Limiter {
	l := &Limiter{inAll: inAll, reserved: reserved, perPod: perPod, waiting: waiting, busy: busy, pods: map[string]*load{}}
	l.freed = sync.NewCond(&l.mu)
	return l
}

// InAll changes how many requests of all Pods are in flight, of which none are reserved.
func (l *Limiter) InAll(number int) *Limiter {
	l.inAll, l.reserved = number, 0
	return l
}

// acquire returns when a request of a Pod may run, and the function that ends it.
func (l *Limiter) acquire(ctx context.Context, pod string) (release func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	stop := context.AfterFunc(ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.freed.Broadcast()
	})
	defer stop()
	of := l.pods[pod]
	if of == nil {
		of = &load{}
		l.pods[pod] = of
	}
	for !l.admits(of) || ctx.Err() != nil {
		if of.waiting >= l.waiting || ctx.Err() != nil {
			l.forget(pod, of)
			return nil, &brokerapi.Error{Code: brokerapi.CodeBusy, Message: l.busy}
		}
		of.waiting++
		l.freed.Wait()
		of.waiting--
	}
	of.running++
	l.total++
	return sync.OnceFunc(func() { l.release(pod, of) }), nil
}

// admits reports whether another request of a Pod may run.
func (l *Limiter) admits(of *load) bool {
	limit := l.inAll
	if of.running > 0 {
		limit -= l.reserved
	}
	return of.running < l.perPod && l.total < limit
}

func (l *Limiter) release(pod string, of *load) {
	l.mu.Lock()
	defer l.mu.Unlock()
	of.running--
	l.total--
	l.forget(pod, of)
	l.freed.Broadcast()
}

// forget removes the load of a Pod without requests.
func (l *Limiter) forget(pod string, of *load) {
	if of.running == 0 && of.waiting == 0 && l.pods[pod] == of {
		delete(l.pods, pod)
	}
}
