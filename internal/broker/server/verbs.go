// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"context"
	"encoding/json"
	"os"

	"github.com/vireo-project/vireo/internal/broker/pods"
	"github.com/vireo-project/vireo/internal/brokerapi"
)

// Answer is the outcome of a task: a result and a descriptor, both of which may be nil, and what ends the request in flight.
type Answer struct {
	// Result is the result, and File the descriptor.
	Result any
	File   *os.File

	releases []func()
}

// Close closes the descriptor and ends the request in flight.
func (a Answer) Close() {
	if a.File != nil {
		_ = a.File.Close()
	}
	for _, release := range a.releases {
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
	Run func(context.Context) (Answer, error)
	// Watch is set instead of the fields above for a verb that watches. It returns what to send, and a channel that is closed when that
	// has changed.
	Watch func() (Answer, <-chan struct{})
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
	return Task{Limit: s.pings, Run: func(context.Context) (Answer, error) { return Answer{}, nil }}, nil
}

// watchProgram responds once.
func (s *Server) watchProgram(string, None) (Task, error) {
	return Task{Watch: func() (Answer, <-chan struct{}) { return Answer{}, nil }}, nil
}

// OfLibvirtd returns a task that needs the directory in /proc of the Pod's libvirtd.
func OfLibvirtd(p *pods.Pods, limit *Limiter, pod string, do func(ctx context.Context, libvirtd *os.File) (Answer, error)) Task {
	return Task{Limit: limit, Run: func(ctx context.Context) (Answer, error) {
		libvirtd, err := p.Libvirtd(pod)
		if err != nil {
			return Answer{}, err
		}
		defer func() { _ = libvirtd.Close() }()
		return do(ctx, libvirtd)
	}}
}
