// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package httpserver is what the agent's two servers, that of guests' verbs and that of migrations, have in common.
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

// KeepAlive finds peers that are gone without a word.
const KeepAlive = 15 * time.Second

// Listen opens an address for connections that are watched by KeepAlive.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	config := net.ListenConfig{KeepAlive: KeepAlive}
	return config.Listen(ctx, "tcp", address)
}

// ErrorLog takes what net/http logs, which is about connections of strangers: they must not be able to fill the log.
func ErrorLog(ctx context.Context) *stdlog.Logger {
	return stdlog.New(strangers{log.FromContext(ctx)}, "", 0)
}

type strangers struct{ logr.Logger }

// Write logs a line.
func (s strangers) Write(line []byte) (int, error) {
	s.V(3).Info("A connection was refused", "error", strings.TrimSpace(string(line)))
	return len(line), nil
}

// WriteJSON answers. The client may be gone by now, which is nobody's problem.
func WriteJSON(w http.ResponseWriter, code int, content any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(content)
}
