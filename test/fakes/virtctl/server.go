// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package virtctl provides a cluster for tests of virtctl: an HTTPS server with HTTP/2, discovery, objects in memory,
// and the subresources that a test serves.
package virtctl

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/coder/websocket"
	"github.com/onsi/gomega/gbytes"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/yaml"

	"github.com/vireo-project/vireo/internal/virtctl/cli"
	"github.com/vireo-project/vireo/internal/virtctl/subresources"
)

const (
	// Namespace is that of the kubeconfig's context.
	Namespace = "tenant"
	// Token is the bearer token of the kubeconfig's user.
	Token = "a-token-of-a-test"
	// Prefix is the path of the API, as with management proxies.
	Prefix = "/clusters/one"
)

// Request is a recorded request.
type Request struct {
	Method, Path, Query string
	Body                []byte
}

// Server is the cluster.
type Server struct {
	*httptest.Server
	t          testing.TB
	mux        *http.ServeMux
	kubeconfig string
	store      store
	mu         sync.Mutex
	requests   []Request
}

// NewServer starts a cluster, which stops with the test.
func NewServer(t testing.TB) *Server {
	t.Helper()
	s := &Server{t: t, mux: http.NewServeMux()}
	s.store.serve(s.mux)
	s.Server = httptest.NewUnstartedServer(http.StripPrefix(Prefix, http.HandlerFunc(s.authenticated)))
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	s.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	s.writeKubeconfig()
	return s
}

func (s *Server) writeKubeconfig() {
	s.t.Helper()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	content, err := yaml.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "test",
		"clusters": []any{map[string]any{"name": "test", "cluster": map[string]any{"server": s.URL + Prefix, "certificate-authority-data": ca}}},
		"users":    []any{map[string]any{"name": "test", "user": map[string]any{"token": Token}}},
		"contexts": []any{map[string]any{"name": "test", "context": map[string]any{"cluster": "test", "user": "test", "namespace": Namespace}}},
	})
	if err == nil {
		err = os.WriteFile(s.kubeconfig, content, 0o600)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *Server) authenticated(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") != "Bearer "+Token {
		Refuse(w, http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "Unauthorized")
		return
	}
	s.mux.ServeHTTP(w, r)
}

// Subresource serves a path of subresources.kubevirt.io/v1, such as
// "/namespaces/{namespace}/virtualmachines/{name}/start".
func (s *Server) Subresource(method, path string, handler http.HandlerFunc) {
	s.mux.HandleFunc(method+" /apis/"+subresources.Group+"/v1"+path, handler)
}

// Handle serves any path of the API server, such as "/api/v1/namespaces/{namespace}/pods/{name}/attach".
func (s *Server) Handle(path string, handler http.HandlerFunc) { s.mux.HandleFunc(path, handler) }

// Record serves a path with a code and a body, and records its requests.
func (s *Server) Record(method, path string, code int, response string) {
	s.Subresource(method, path, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		s.requests = append(s.requests, Request{Method: r.Method, Path: r.URL.Path, Query: r.URL.RawQuery, Body: body})
		s.mu.Unlock()
		if json.Valid([]byte(response)) {
			w.Header().Set("Content-Type", "application/json")
		}
		w.WriteHeader(code)
		_, _ = io.WriteString(w, response)
	})
}

// Requests returns the recorded requests.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Stream serves a websocket, and closes it with the error of serve as CloseWith does.
func (s *Server) Stream(path string, serve func(context.Context, *websocket.Conn, *http.Request) error) {
	s.Subresource(http.MethodGet, path, func(w http.ResponseWriter, r *http.Request) {
		socket, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{subresources.Protocol}})
		if err != nil {
			return
		}
		if socket.Subprotocol() != subresources.Protocol {
			_ = socket.Close(websocket.StatusProtocolError, "no subprotocol")
			return
		}
		CloseWith(socket, serve(r.Context(), socket, r))
	})
}

// Refuse responds with a Status.
func Refuse(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	respond(w, code, metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
		Code: int32(code), Reason: reason, Message: message,
	})
}

// Result is the result of a run of virtctl.
type Result struct {
	Code        int
	Out, ErrOut string
}

// Execute is virtctl.Execute, which this package cannot import.
type Execute func(ctx context.Context, c *cli.CLI, arguments []string) int

// Run runs virtctl against the cluster, with no input.
func (s *Server) Run(execute Execute, arguments ...string) Result {
	s.t.Helper()
	return s.RunWith(s.t.Context(), execute, nil, arguments...)
}

// RunWith runs virtctl with a context and an input.
func (s *Server) RunWith(ctx context.Context, execute Execute, in io.Reader, arguments ...string) Result {
	s.t.Helper()
	out, errOut := gbytes.NewBuffer(), gbytes.NewBuffer()
	if in == nil {
		in = bytes.NewReader(nil)
	}
	code := s.RunStreams(ctx, execute, genericiooptions.IOStreams{In: in, Out: out, ErrOut: errOut}, arguments...)
	return Result{Code: code, Out: string(out.Contents()), ErrOut: string(errOut.Contents())}
}

// RunStreams runs virtctl with the streams of the test.
func (s *Server) RunStreams(
	ctx context.Context, execute Execute, streams genericiooptions.IOStreams, arguments ...string,
) int {
	s.t.Helper()
	return execute(ctx, cli.New("virtctl", streams), append(s.Flags(), arguments...))
}

// Flags returns the flags by which virtctl uses the cluster.
func (s *Server) Flags() []string {
	return []string{"--kubeconfig", s.kubeconfig, "--cache-dir", filepath.Join(filepath.Dir(s.kubeconfig), "cache")}
}

// Kubeconfig returns the cluster's kubeconfig file.
func (s *Server) Kubeconfig() string { return s.kubeconfig }
