// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/vireo-project/vireo/test/rights"
)

// Names of the processes that send requests.
const (
	controllerName = "virt-controller"
	agentsName     = "agents"
	schedulerName  = "kube-scheduler"
	managerName    = "kube-controller-manager"
	kwokName       = "kwok"
	benchmarkName  = "benchmark"
	apiServerName  = "kube-apiserver"
	etcdName       = "etcd"
)

// request is a kind of request.
type request struct {
	component, verb, resource string
}

// changes reports whether the request is a write. Those of Leases and Nodes do not count, because they are heartbeats.
func (r request) changes() bool {
	return r.resource != "leases" && r.resource != "nodes" &&
		(r.verb == "create" || r.verb == "update" || r.verb == "patch" || strings.HasPrefix(r.verb, "delete"))
}

// isOurs reports whether a process of Vireo sent the request.
func (r request) isOurs() bool { return r.component == controllerName || r.component == agentsName }

// auditEvent is the part of an audit.k8s.io/v1 Event that is counted.
type auditEvent struct {
	Stage            string `json:"stage"`
	Verb             string `json:"verb"`
	UserAgent        string `json:"userAgent"`
	User             user   `json:"user"`
	ImpersonatedUser user   `json:"impersonatedUser"`
	ObjectRef        struct {
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
	} `json:"objectRef"`
}

type user struct {
	Username string `json:"username"`
}

// request returns what the event is about, and false if the request is logged in another stage too.
func (e *auditEvent) request() (request, bool) {
	// A watch is logged when it starts and when it ends.
	if e.Stage != "ResponseComplete" && (e.Verb != "watch" || e.Stage != "ResponseStarted") ||
		e.Verb == "watch" && e.Stage == "ResponseComplete" {
		return request{}, false
	}
	resource := e.ObjectRef.Resource
	if e.ObjectRef.Subresource != "" {
		resource += "/" + e.ObjectRef.Subresource
	}
	return request{component: e.component(), verb: e.Verb, resource: resource}, true
}

func (e *auditEvent) component() string {
	switch {
	case e.User.Username == rights.Controller.User():
		return controllerName
	case e.ImpersonatedUser.Username == rights.Handler.User():
		return agentsName
	}
	program, _, _ := strings.Cut(e.UserAgent, "/")
	switch program {
	case schedulerName, managerName, kwokName:
		return program
	}
	return benchmarkName
}

// auditLog counts the requests in the API server's audit log while it is written.
type auditLog struct {
	file string

	mu     sync.Mutex
	counts map[request]int
	// changed is when the last write of one of our processes was counted.
	changed time.Time
}

// follow reads the log until the context ends.
func (a *auditLog) follow(ctx context.Context) error {
	file, err := os.Open(a.file)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	lines, partial := bufio.NewReaderSize(file, 1<<20), []byte(nil)
	for {
		line, err := lines.ReadBytes('\n')
		partial = append(partial, line...)
		switch {
		case err == nil:
			a.add(partial)
			partial = partial[:0]
		case !errors.Is(err, io.EOF):
			return err
		default:
			// The API server appends to the file, which no event reports reliably.
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(100 * time.Millisecond):
			}
		}
	}
}

func (a *auditLog) add(line []byte) {
	var event auditEvent
	if json.Unmarshal(line, &event) != nil {
		return
	}
	r, ok := event.request()
	if !ok {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.counts[r]++
	if r.changes() && r.isOurs() {
		a.changed = time.Now()
	}
}

// snapshot returns the counts so far.
func (a *auditLog) snapshot() map[request]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.counts)
}

// quietSince returns the time of our last write.
func (a *auditLog) quietSince() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.changed
}
