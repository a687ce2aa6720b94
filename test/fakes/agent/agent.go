// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package agent is a node agent for tests of virt-api. It implements the agents' protocol over mutual TLS, returns
// configured responses, and echoes on streams.
package agent

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/coder/websocket"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/component/profiler"
	"github.com/vireo-project/vireo/internal/wire/agentapi"
)

// T is the part of a test that an Agent uses.
type T interface {
	Helper()
	Cleanup(func())
	Fatalf(format string, args ...any)
}

// Call is a request that the agent got.
type Call struct {
	Method, Verb string
	Query        url.Values
	Body         string
}

// Agent is the agent of a node.
type Agent struct {
	// Node is the name of its node.
	Node string
	// Port is its port on 127.0.0.1.
	Port int
	// Authority is the CA of its certificate and of its clients'.
	Authority *Authority
	// Profiles is the response to requests for profiles. Set it before the first request.
	Profiles v1.ProfilerResult

	mu        sync.Mutex
	calls     []Call
	errors    map[string]metav1.Status
	responses map[string]any
	warning   string
	streams   map[string]func(context.Context, *websocket.Conn)
}

// Start runs the agent of a node until the test ends.
func Start(t T, node string) *Agent {
	t.Helper()
	a := &Agent{
		Node: node, Authority: NewAuthority(t), errors: map[string]metav1.Status{}, responses: map[string]any{},
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

// SetError makes the agent return a Status for a verb.
func (a *Agent) SetError(verb string, code int32, message string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.errors[verb] = metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: code,
		Message: message,
	}
}

// SetResponse sets the response to GET requests of a verb: a []byte is the body itself, anything else is encoded as
// JSON.
func (a *Agent) SetResponse(verb string, response any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.responses[verb] = response
}

// SetWarning sets the header Warning of the responses to GET requests.
func (a *Agent) SetWarning(header string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.warning = header
}

// Stream replaces the echo on the streams of a verb. The stream ends when serve returns.
func (a *Agent) Stream(verb string, serve func(context.Context, *websocket.Conn)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.streams[verb] = serve
}

// Calls returns the requests since the last call of Calls.
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
	if slices.Contains(profiler.Paths(), r.URL.Path) {
		_ = json.NewEncoder(w).Encode(a.Profiles)
		return
	}
	parts := strings.SplitN(r.URL.Path, "/", 7)
	if len(parts) != 7 || r.TLS == nil || r.TLS.PeerCertificates[0].Subject.CommonName != agentapi.ClientName {
		http.Error(w, "not for you", http.StatusForbidden)
		return
	}
	verbPath := parts[6]
	verb, _, _ := strings.Cut(verbPath, "/")
	if verbPath == agentapi.Screenshot {
		verb = verbPath
	}
	body, _ := io.ReadAll(r.Body)
	a.mu.Lock()
	a.calls = append(a.calls, Call{r.Method, verbPath, r.URL.Query(), string(body)})
	status, isError := a.errors[verb]
	response, hasResponse := a.responses[verb]
	stream := a.streams[verb]
	if a.warning != "" && r.Method == http.MethodGet {
		w.Header().Set(agentapi.WarningHeader, a.warning)
	}
	a.mu.Unlock()
	switch {
	case isError:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(int(status.Code))
		_ = json.NewEncoder(w).Encode(status)
	case r.Header.Get("Upgrade") != "":
		a.serveStream(w, r, stream)
	case r.Method == http.MethodPut:
		w.WriteHeader(http.StatusAccepted)
	case hasResponse:
		if raw, isRaw := response.([]byte); isRaw {
			_, _ = w.Write(raw)
			return
		}
		_ = json.NewEncoder(w).Encode(response)
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
