// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package broker

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/vireo-project/vireo/internal/broker/podprocess"
	"github.com/vireo-project/vireo/internal/broker/pods"
	"github.com/vireo-project/vireo/internal/brokerapi"
)

// answer is the outcome of a task: a result and a descriptor, both of which may be nil, and what ends the request in flight.
type answer struct {
	result   any
	file     *os.File
	releases []func()
}

func (a answer) close() {
	if a.file != nil {
		_ = a.file.Close()
	}
	for _, release := range a.releases {
		release()
	}
}

// task is what a request wants, with arguments that were checked.
type task struct {
	// limit limits how many such tasks run.
	limit *limiter
	// wait waits for an event, without a time limit. It may be nil.
	wait func(context.Context) error
	// run does the task.
	run func(context.Context) (answer, error)
	// watch is set instead of the functions above for a verb that watches. It returns what to send, and a channel that is closed when that
	// has changed.
	watch func() (answer, <-chan struct{})
}

// verb checks the arguments of a request about a Pod and returns its task.
type verb func(s *Server, pod string, arguments json.RawMessage) (task, error)

// with returns a verb with arguments of a type, which is none for a verb without.
func with[A any](prepare func(s *Server, pod string, a A) (task, error)) verb {
	return func(s *Server, pod string, arguments json.RawMessage) (task, error) {
		var a A
		if _, without := any(a).(none); without != (len(arguments) == 0) {
			return task{}, brokerapi.Invalid("the request has no arguments, or the verb has none")
		} else if without {
			return prepare(s, pod, a)
		}
		if err := brokerapi.Decode(arguments, &a); err != nil {
			return task{}, err
		}
		return prepare(s, pod, a)
	}
}

// none is the type of the arguments of a verb that has none.
type none struct{}

var verbs = map[brokerapi.Verb]verb{
	brokerapi.Ping:          with((*Server).ping),
	brokerapi.OpenSocket:    with((*Server).openSocket),
	brokerapi.WatchGuest:    with((*Server).watchGuest),
	brokerapi.ReadVolume:    with((*Server).readVolume),
	brokerapi.OpenFile:      with((*Server).openFile),
	brokerapi.SyncState:     with((*Server).syncState),
	brokerapi.GiveHostDir:   with((*Server).giveHostDir),
	brokerapi.OwnDevices:    with((*Server).ownDevices),
	brokerapi.Inspect:       with((*Server).inspect),
	brokerapi.CPUs:          with((*Server).cpus),
	brokerapi.SetRealtime:   with((*Server).setRealtime),
	brokerapi.NetworkState:  with((*Server).networkState),
	brokerapi.ChangeNetwork: with((*Server).changeNetwork),
	brokerapi.OpenRouter:    with((*Server).openRouter),
	brokerapi.AttachVolume:  with((*Server).attachVolume),
	brokerapi.DetachVolume:  with((*Server).detachVolume),
	brokerapi.WatchDevices:  with((*Server).watchDevices),
	brokerapi.CPUPolicy:     with((*Server).cpuPolicy),
}

// task checks a request and returns its task.
func (s *Server) task(r *brokerapi.Request) (task, error) {
	does, known := verbs[r.Verb]
	switch {
	case !known:
		return task{}, brokerapi.Invalid("virt-broker has no verb %.64q: it may be older than virt-handler", r.Verb)
	case r.Verb.OfNode() && r.Pod != "":
		return task{}, brokerapi.Invalid("%s is about no Pod", r.Verb)
	case r.Verb.OfNode():
		return does(s, "", r.Arguments)
	}
	if err := pods.CheckUID(r.Pod); err != nil {
		return task{}, err
	}
	return does(s, r.Pod, r.Arguments)
}

// ofLibvirtd returns a task that needs the directory in /proc of the Pod's libvirtd.
func (s *Server) ofLibvirtd(limit *limiter, pod string, do func(ctx context.Context, libvirtd *os.File) (answer, error)) task {
	return task{limit: limit, run: func(ctx context.Context) (answer, error) {
		libvirtd, err := s.pods.Libvirtd(pod)
		if err != nil {
			return answer{}, err
		}
		defer func() { _ = libvirtd.Close() }()
		return do(ctx, libvirtd)
	}}
}

// inRoot returns a task that needs the root directory of the Pod's libvirtd.
func (s *Server) inRoot(limit *limiter, pod string, do func(root *podprocess.Root) (answer, error)) task {
	return s.ofLibvirtd(limit, pod, func(_ context.Context, libvirtd *os.File) (answer, error) {
		root, err := podprocess.OpenRoot(libvirtd)
		if err != nil {
			return answer{}, fmt.Errorf("open the root directory of launcher Pod %s: %w", pod, err)
		}
		defer func() { _ = root.Close() }()
		return do(root)
	})
}

// ping does nothing.
func (s *Server) ping(string, none) (task, error) {
	return task{limit: s.quick, run: func(context.Context) (answer, error) { return answer{}, nil }}, nil
}
