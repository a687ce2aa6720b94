// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package httpserver has what the agent's two servers, for virt-api and for migrations, have in common.
package httpserver

import (
	"context"
	"encoding/json"
	stdlog "log"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// KeepAlive is the interval of TCP keep-alive probes, which detect dead peers.
const KeepAlive = 15 * time.Second

// Listen listens on an address, with KeepAlive.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	config := net.ListenConfig{KeepAlive: KeepAlive}
	return config.Listen(ctx, "tcp", address)
}

// ErrorLog returns a logger for net/http's errors. It logs at a high verbosity, so that unauthenticated clients cannot
// fill the log.
func ErrorLog(ctx context.Context) *stdlog.Logger {
	return stdlog.New(logWriter{log.FromContext(ctx)}, "", 0)
}

type logWriter struct{ logr.Logger }

// Write logs a line.
func (w logWriter) Write(line []byte) (int, error) {
	w.V(3).Info("A connection was refused", "error", strings.TrimSpace(string(line)))
	return len(line), nil
}

// WriteJSON writes a response. It ignores write errors: the client may have disconnected.
func WriteJSON(w http.ResponseWriter, code int, content any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(content)
}
