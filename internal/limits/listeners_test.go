// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package limits_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

// protection says how a listener is protected from clients that send nothing or too much: text of a file that limits
// its connections, that demands a certificate of its clients in the handshake, or that lets only some clients reach it.
type protection struct{ file, text string }

const (
	limit       = `limits.Connections(`
	certificate = `tls.RequireAndVerifyClientCert`
	socket      = `"unix"`
	bridge      = `unix.BindToDevice(`
)

// listeners are the calls of components that listen, by file and function, and how each is protected. Add a new one
// with its protection: every Pod of the cluster can connect to a component, unless a network policy forbids it.
var listeners = map[string][]protection{
	"internal/component/metrics/server.go listen":    {{"internal/component/metrics/server.go", limit}},
	"internal/component/health/health.go WithProbes": {{"internal/component/health/health.go", limit}},
	"internal/webhook/server/server.go Start":        {{"internal/webhook/server/server.go", limit}},
	// virt-api's frontend wraps the listener that the API server library makes.
	"internal/apiserver/server/options.go serve": {{"internal/apiserver/server/frontend.go", limit}},
	// Both servers of an agent have the listener of this function.
	"internal/agent/httpserver/httpserver.go Listen": {
		{"internal/agent/server/server.go", certificate}, {"internal/certificate/tls.go", certificate},
		{"cmd/virt-handler/agent/backends.go", "certificate.MigrationServer("},
	},
	// The exporter's ports for clients and for the agent.
	"cmd/virt-exportserver/main.go listen": {
		{"cmd/virt-exportserver/main.go", limit}, {"internal/exporter/server/agent.go", limit}, {"internal/exporter/server/agent.go", certificate},
	},
	"cmd/virt-exportproxy/exportproxy/exportproxy.go serve": {{"cmd/virt-exportproxy/exportproxy/exportproxy.go", limit}},
	// Sockets in directories that no Pod of a tenant can open.
	"internal/agent/hypervisor/rpc/relay.go newRelay": {{"internal/agent/hypervisor/rpc/relay.go", socket}},
	"internal/broker/server/server.go Listen":         {{"internal/broker/server/server.go", socket}},
	"internal/broker/device/plugin.go serve":          {{"internal/broker/device/plugin.go", socket}},
	// In a launcher Pod, for its own guest.
	"internal/launcher/dhcp/listen.go listen4": {{"internal/launcher/dhcp/listen.go", bridge}},
	"internal/launcher/dhcp/listen.go listen6": {{"internal/launcher/dhcp/listen.go", bridge}},
	"internal/launcher/tail/tail.go listen":    {{"internal/launcher/tail/tail.go", "unix.SockaddrUnix{"}},
}

// listens matches the functions that make a listener, also inside libraries.
var listens = regexp.MustCompile(`^(Listen|ListenPacket|ListenTCP|ListenUDP|ListenUnix|ListenAndServe|ListenAndServeTLS|NewSecureServingOptions)$`)

// unlimited are servers of controller-runtime that have no limit of connections, and that a manager starts unless it is
// configured otherwise.
var unlimited = regexp.MustCompile(`\b(webhook\.DefaultServer|HealthProbeBindAddress:|PprofBindAddress:|metricsserver\.Options\{BindAddress: [^"]|metricsserver\.Options\{BindAddress: "[^0])`)

// Every listener of every component has a limit of connections, or demands a certificate.
func TestEveryListenerIsProtected(t *testing.T) {
	found := map[string]bool{}
	for _, dir := range []string{"cmd", "internal"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			// virtctl runs on the user's computer.
			if strings.HasPrefix(file, "internal/virtctl/") || strings.HasPrefix(file, "cmd/virtctl/") {
				return nil
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if server := unlimited.Find(text); server != nil {
				t.Errorf("%s: %s is a server without a limit of connections", file, server)
			}
			for _, function := range listening(t, path) {
				found[file+" "+function] = true
			}
			return managed(t, file, string(text))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for where := range found {
		if len(listeners[where]) == 0 {
			t.Errorf("%s listens: limit its connections, or demand a client certificate, and add it to listeners", where)
		}
	}
	for where, protections := range listeners {
		if !found[where] {
			t.Errorf("%s does not listen: remove it from listeners", where)
		}
		for _, p := range protections {
			text, err := os.ReadFile(filepath.Join(root, p.file))
			if err != nil || !strings.Contains(string(text), p.text) {
				t.Errorf("%s: %s has no %s (%v)", where, p.file, p.text, err)
			}
		}
	}
}

// managed checks that a manager starts no server of its own: that of metrics by default, and that of webhooks if one is
// registered.
func managed(t *testing.T, file, text string) error {
	t.Helper()
	if !strings.Contains(text, "ctrl.NewManager(") {
		return nil
	}
	if !strings.Contains(text, `metricsserver.Options{BindAddress: "0"}`) {
		t.Errorf("%s: the manager serves metrics itself", file)
	}
	if strings.Contains(text, "WebhookServer:") != strings.Contains(text, "webhookserver.New(") {
		t.Errorf("%s: the manager's server of webhooks has no limit of connections", file)
	}
	return nil
}

// listening returns the names of the functions of a file that listen.
func listening(t *testing.T, path string) []string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, declaration := range parsed.Decls {
		function, ok := declaration.(*ast.FuncDecl)
		if !ok {
			continue
		}
		ast.Inspect(function, func(node ast.Node) bool {
			call, ok := node.(*ast.CallExpr)
			if !ok {
				return true
			}
			called, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || !listens.MatchString(called.Sel.Name) || isOurs(called) || slices.Contains(names, function.Name.Name) {
				return true
			}
			names = append(names, function.Name.Name)
			return true
		})
	}
	return names
}

// isOurs reports whether a function is one of this repository, which has an entry of its own.
func isOurs(called *ast.SelectorExpr) bool {
	of, ok := called.X.(*ast.Ident)
	return ok && (of.Name == "httpserver" || of.Name == "server")
}
