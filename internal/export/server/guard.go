// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	stdlog "log"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"

	"github.com/vireo-project/vireo/internal/component/connectionlimit"
	"github.com/vireo-project/vireo/internal/export/content"
)

// problem is an error that is sent to the client.
type problem struct {
	code int
	text string
}

// Error implements error.
func (p *problem) Error() string { return p.text }

// guard returns a handler that serves only requests with the token, at most as many at a time as there are slots, and logs each.
func (s *Server) guard(serve func(http.ResponseWriter, *http.Request) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.authorized(w, r) {
			return
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "only GET and HEAD are served", http.StatusMethodNotAllowed)
			return
		}
		select {
		case s.slots <- struct{}{}:
			defer func() { <-s.slots }()
		default:
			w.Header().Set("Retry-After", "10")
			http.Error(w, "too many downloads at the same time: try again later", http.StatusServiceUnavailable)
			return
		}
		defer connectionlimit.Protect(r.Context())()
		s.serve(w, r, serve)
	})
}

// serve serves a request and logs it, without its query. An error after the start of the response closes the connection, so that the
// client does not regard the partial response as complete.
func (s *Server) serve(w http.ResponseWriter, r *http.Request, serve func(http.ResponseWriter, *http.Request) error) {
	start, out := time.Now(), &response{ResponseWriter: w, control: http.NewResponseController(w)}
	w.Header().Set("X-Content-Type-Options", "nosniff")
	err := serve(out, r)
	if err == nil {
		err = out.short(r)
	}
	log := s.options.Log.WithValues("method", r.Method, "path", r.URL.Path, "status", out.code, "bytes", out.sent, "duration", time.Since(start).String())
	if err == nil && out.failed == nil {
		log.Info("Served a request")
		return
	}
	log.Info("A request failed", "error", errors.Join(err, out.failed).Error())
	var known *problem
	switch {
	case out.code != 0:
		panic(http.ErrAbortHandler)
	case errors.As(err, &known):
		http.Error(w, known.text, known.code)
	default:
		http.Error(w, "the volume cannot be read: the log of the exporter's Pod has the reason", http.StatusInternalServerError)
	}
}

// authorized reports whether a request has the token, which it compares in constant time, and rejects the request otherwise.
func (s *Server) authorized(w http.ResponseWriter, r *http.Request) bool {
	token, err := s.options.Token()
	if err != nil || token == "" {
		s.options.Log.Info("There is no token, nothing is served", "error", errorText(err))
		http.Error(w, "the export has no token", http.StatusInternalServerError)
		return false
	}
	want := sha256.Sum256([]byte(token))
	query := r.URL.Query()
	given := []string{r.Header.Get(content.TokenHeader), query.Get(content.TokenHeader)}
	r.Header.Del(content.TokenHeader)
	r.URL.RawQuery = content.BackupQuery(query).Encode()
	r.RequestURI = ""
	match := 0
	for _, candidate := range given {
		sum := sha256.Sum256([]byte(candidate))
		match |= subtle.ConstantTimeCompare(sum[:], want[:])
	}
	if match != 1 {
		http.Error(w, content.TokenNeeded, http.StatusUnauthorized)
		return false
	}
	return true
}

func errorText(err error) string {
	if err == nil {
		return "it is empty"
	}
	return err.Error()
}

// response is a response that fails if the client accepts no byte for some time.
type response struct {
	http.ResponseWriter
	control *http.ResponseController
	code    int
	sent    int64
	failed  error
}

// Unwrap returns the original for net/http.
func (r *response) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// short returns an error if fewer bytes were written than the response announced.
func (r *response) short(request *http.Request) error {
	announced, err := strconv.ParseInt(r.Header().Get("Content-Length"), 10, 64)
	if err != nil || request.Method == http.MethodHead || r.sent >= announced || r.failed != nil {
		return nil //nolint:nilerr // the length is not announced
	}
	return fmt.Errorf("only %d of %d bytes could be read", r.sent, announced)
}

// WriteHeader stores the code.
func (r *response) WriteHeader(code int) {
	if r.code == 0 {
		r.code = code
	}
	r.ResponseWriter.WriteHeader(code)
}

// Write extends the deadline of the connection with each write.
func (r *response) Write(p []byte) (int, error) {
	if r.code == 0 {
		r.code = http.StatusOK
	}
	_ = r.control.SetWriteDeadline(time.Now().Add(stall))
	n, err := r.ResponseWriter.Write(p)
	r.sent += int64(n)
	if err != nil && r.failed == nil {
		r.failed = err
	}
	return n, err
}

// quietLog logs net/http's errors at a high verbosity: clients without the token cause them.
func quietLog(log logr.Logger) *stdlog.Logger { return stdlog.New(logWriter{log}, "", 0) }

type logWriter struct{ logr.Logger }

// Write logs a line.
func (w logWriter) Write(line []byte) (int, error) {
	w.V(3).Info("A connection was refused", "error", strings.TrimSpace(string(line)))
	return len(line), nil
}
