// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package fakeagent is a node agent for tests of virt-api: it speaks the agents' protocol over mutual TLS, answers what it is told
// to, and echoes what it gets on streams.
package fakeagent

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"

	"github.com/coder/websocket"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vireo-project/vireo/internal/agentapi"
)

// T is what of a test an Agent needs.
type T interface {
	Helper()
	Cleanup(func())
	Fatalf(format string, args ...any)
}

// Call is what was asked.
type Call struct {
	Method, Verb string
	Query        url.Values
	Body         string
}

// Agent is the agent of a node.
type Agent struct {
	// Node is its node.
	Node string
	// Port is where it listens on 127.0.0.1.
	Port int
	// Authority signed its certificate and those that it believes.
	Authority *Authority

	mu      sync.Mutex
	calls   []Call
	refuse  map[string]metav1.Status
	answers map[string]any
	streams map[string]func(context.Context, *websocket.Conn)
}

// Start runs the agent of a node until the test ends.
func Start(t T, node string) *Agent {
	t.Helper()
	a := &Agent{
		Node: node, Authority: NewAuthority(t), refuse: map[string]metav1.Status{}, answers: map[string]any{},
		streams: map[string]func(context.Context, *websocket.Conn){},
	}
	server := httptest.NewUnstartedServer(a)
	server.TLS = a.Authority.server(agentapi.ServerName(node))
	server.StartTLS()
	t.Cleanup(server.Close)
	address, err := url.Parse(server.URL)
	if err != nil {
		t.Fatalf("%v", err)
	}
	if a.Port, err = strconv.Atoi(address.Port()); err != nil {
		t.Fatalf("%v", err)
	}
	return a
}

// Refuse makes the agent answer a verb with a Status.
func (a *Agent) Refuse(verb string, code int32, message string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refuse[verb] = metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: code, Message: message,
	}
}

// Accept takes Refuse back.
func (a *Agent) Accept(verb string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.refuse, verb)
}

// Answer makes the agent answer GET of a verb: with bytes as they are, or anything else as JSON.
func (a *Agent) Answer(verb string, with any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answers[verb] = with
}

// Stream replaces the echo on the streams of a verb. The stream ends when serve returns.
func (a *Agent) Stream(verb string, serve func(context.Context, *websocket.Conn)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.streams[verb] = serve
}

// Calls are what was asked of the agent since the last time that Calls was called.
func (a *Agent) Calls() []Call {
	a.mu.Lock()
	defer a.mu.Unlock()
	calls := a.calls
	a.calls = nil
	return calls
}

// ServeHTTP implements http.Handler.
func (a *Agent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// /v1/namespaces/{namespace}/virtualmachineinstances/{name}/{verb…}
	parts := strings.SplitN(r.URL.Path, "/", 7)
	if len(parts) != 7 || r.TLS == nil || r.TLS.PeerCertificates[0].Subject.CommonName != agentapi.ClientName {
		http.Error(w, "not for you", http.StatusForbidden)
		return
	}
	whole := parts[6]
	verb, _, _ := strings.Cut(whole, "/")
	if whole == agentapi.Screenshot {
		verb = whole
	}
	body, _ := io.ReadAll(r.Body)
	a.mu.Lock()
	a.calls = append(a.calls, Call{r.Method, whole, r.URL.Query(), string(body)})
	refusal, refused := a.refuse[verb]
	answer, answers := a.answers[verb]
	stream := a.streams[verb]
	a.mu.Unlock()
	switch {
	case refused:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(int(refusal.Code))
		_ = json.NewEncoder(w).Encode(refusal)
	case r.Header.Get("Upgrade") != "":
		a.serveStream(w, r, stream)
	case r.Method == http.MethodPut:
		w.WriteHeader(http.StatusAccepted)
	case answers:
		if raw, isRaw := answer.([]byte); isRaw {
			_, _ = w.Write(raw)
			return
		}
		_ = json.NewEncoder(w).Encode(answer)
	default:
		http.NotFound(w, r)
	}
}

func (a *Agent) serveStream(w http.ResponseWriter, r *http.Request, serve func(context.Context, *websocket.Conn)) {
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{agentapi.StreamProtocol}})
	if err != nil {
		return
	}
	defer func() { _ = conn.CloseNow() }()
	conn.SetReadLimit(1 << 20)
	if serve == nil {
		serve = Echo
	}
	serve(r.Context(), conn)
}

// Echo sends every message back.
func Echo(ctx context.Context, conn *websocket.Conn) {
	for {
		kind, message, err := conn.Read(ctx)
		if err != nil || conn.Write(ctx, kind, message) != nil {
			return
		}
	}
}
