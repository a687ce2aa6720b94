// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package broker

import (
	"context"
	"encoding/json"
	"os"

	"github.com/vireo-project/vireo/internal/broker/pods"
	"github.com/vireo-project/vireo/internal/brokerapi"
)

// answer is the outcome of a task: a result and a descriptor, both of which may be nil, and what ends the request in flight.
type answer struct {
	result  any
	file    *os.File
	release func()
}

func (a answer) close() {
	if a.file != nil {
		_ = a.file.Close()
	}
	if a.release != nil {
		a.release()
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

var verbs = map[brokerapi.Verb]verb{
	brokerapi.Ping:           (*Server).ping,
	brokerapi.OpenSocket:     (*Server).openSocket,
	brokerapi.WatchGuest:     (*Server).watchGuest,
	brokerapi.ReadVolume:     (*Server).readVolume,
	brokerapi.OpenFile:       (*Server).openFile,
	brokerapi.SyncState:      (*Server).syncState,
	brokerapi.GiveHostDir:    (*Server).giveHostDir,
	brokerapi.OwnDevices:     (*Server).ownDevices,
	brokerapi.Inspect:        (*Server).inspect,
	brokerapi.CPUs:           (*Server).cpus,
	brokerapi.SetRealtime:    (*Server).setRealtime,
	brokerapi.ConnectNetwork: (*Server).connectNetwork,
	brokerapi.ForwardPorts:   (*Server).forwardPorts,
	brokerapi.OpenRouter:     (*Server).openRouter,
	brokerapi.WatchDevices:   (*Server).watchDevices,
	brokerapi.CPUPolicy:      (*Server).cpuPolicy,
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

// decode decodes the arguments of a verb.
func decode(arguments json.RawMessage, into any) error {
	if len(arguments) == 0 {
		return brokerapi.Invalid("the request has no arguments")
	}
	return brokerapi.Decode(arguments, into)
}

// none checks that a verb has no arguments.
func none(arguments json.RawMessage) error {
	if len(arguments) > 0 {
		return brokerapi.Invalid("this verb has no arguments")
	}
	return nil
}

func encode(result any) (json.RawMessage, error) { return json.Marshal(result) }

// ping does nothing.
func (s *Server) ping(_ string, arguments json.RawMessage) (task, error) {
	return task{limit: s.quick, run: func(context.Context) (answer, error) { return answer{}, nil }}, none(arguments)
}
