// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package server serves the volumes of an export for download. The content of a volume belongs to a tenant and is not
// trusted: files are opened only below the volume's directory, nothing but regular files and directories is opened, and
// what is read or listed is limited.
package server

import (
	"crypto/rand"
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

	"github.com/vireo-project/vireo/internal/exporter/content"
	"github.com/vireo-project/vireo/internal/limits"
)

const (
	// maxRequests is how many requests are served at the same time. Each may read and compress a disk.
	maxRequests = 16
	// stall is how long a client may accept no byte of a response.
	stall = 2 * time.Minute
	// readTimeout bounds how long reading the header, and the body, of a request may take, and maxHeaderBytes the size
	// of the header.
	readTimeout    = 15 * time.Second
	maxHeaderBytes = 16 << 10
	// idle is how long a connection without a request stays open.
	idle = time.Minute
)

// Options configure a Server.
type Options struct {
	// Content returns what is exported now. The manifests may change while volumes are downloaded; the volumes do not.
	Content func() (*content.Content, error)
	// Token returns the token that gives access to the export.
	Token func() (string, error)
	// Mount returns where a volume is. Nil means where the exporter's Pod has it.
	Mount func(content.Volume) string
	// Log is the log. It never contains a token, nor the query of a request, which may contain one.
	Log logr.Logger
}

// Server serves an export.
type Server struct {
	options Options
	// exact contains the handlers of single paths, and below those of all paths with a prefix. A ServeMux is not used,
	// because its redirects to other spellings of a path would contain the query, which may contain the token.
	exact, below map[string]http.Handler
	slots        chan struct{}
	// image is the OCI image, or nil if there is none.
	image *image
	// pull is the backup, or nil if there is none.
	pull *pull
	// version distinguishes the runs of the server in ETags, because a guest may have written to a device in between.
	version string
}

// New returns a server for the volumes that are exported now.
func New(o Options) (*Server, error) {
	if o.Mount == nil {
		o.Mount = content.Volume.Mount
	}
	exported, err := o.Content()
	if err != nil {
		return nil, err
	}
	s := &Server{
		options: o, exact: map[string]http.Handler{}, below: map[string]http.Handler{},
		slots: make(chan struct{}, maxRequests), version: rand.Text(),
	}
	s.exact[content.ReadinessPath] = http.HandlerFunc(s.ready)
	if exported.OCI {
		s.image = newImage()
	}
	s.handle(content.OCIPath, s.serveImage)
	for _, v := range exported.Volumes {
		mount := o.Mount(v)
		if v.Disk {
			disk := disk{mount: mount, block: v.Block, version: s.version}
			s.handle(v.RawPath(), disk.raw)
			s.handle(v.GzipPath(), disk.compressed)
			if s.image != nil {
				s.image.add(v.ClaimName(), disk)
			}
			continue
		}
		files := files{mount: mount, prefix: v.DirectoryPath()}
		s.below[v.DirectoryPath()+"/"] = s.guard(files.browse)
		s.handle(v.DirectoryPath(), files.browse)
		s.handle(v.ArchivePath(), files.archive)
	}
	if b := exported.Backup; b != nil {
		s.pull = newPull(b, s.version, o.Log)
		for _, volume := range b.Volumes {
			s.handle(content.MapPath(volume), s.pull.blocks(volume))
			s.handle(content.DataPath(volume), s.pull.data(volume))
		}
	}
	for _, side := range []string{content.InternalSide, content.ExternalSide} {
		s.handle(side+content.AllPath, s.all(side))
		s.handle(side+content.SecretPath, s.secret)
	}
	return s, nil
}

// handle registers a handler for requests with the token.
func (s *Server) handle(path string, serve func(http.ResponseWriter, *http.Request) error) {
	s.exact[path] = s.guard(serve)
}

// ServeHTTP serves a request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 {
		// net/http reads the rest of a body.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(readTimeout))
		w.Header().Set("Connection", "close")
	}
	if handler := s.handler(r.URL.Path); handler != nil {
		handler.ServeHTTP(w, r)
		return
	}
	http.NotFound(w, r)
}

func (s *Server) handler(path string) http.Handler {
	if handler := s.exact[path]; handler != nil {
		return handler
	}
	for prefix, handler := range s.below {
		if strings.HasPrefix(path, prefix) {
			return handler
		}
	}
	return nil
}

// HTTP returns the server of the export, without an address and certificates. Downloads protect their connections, if
// its listener is one of limits.Connections.
func (s *Server) HTTP() *http.Server {
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true) // as KubeVirt's
	return &http.Server{
		Protocols: protocols,
		Handler:   s, ReadHeaderTimeout: readTimeout, IdleTimeout: idle, MaxHeaderBytes: maxHeaderBytes,
		ConnContext: limits.ConnContext,
		ErrorLog:    quietLog(s.options.Log),
	}
}

// problem is an error that is sent to the client.
type problem struct {
	code int
	text string
}

// Error implements error.
func (p *problem) Error() string { return p.text }

// guard returns a handler that serves only requests with the token, at most as many at a time as there are slots, and
// logs each.
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
		defer limits.Protect(r.Context())()
		s.serve(w, r, serve)
	})
}

// serve serves a request and logs it, without its query. An error after the start of the response closes the
// connection, so that the client does not regard the partial response as complete.
func (s *Server) serve(w http.ResponseWriter, r *http.Request, serve func(http.ResponseWriter, *http.Request) error) {
	start, out := time.Now(), &response{ResponseWriter: w, control: http.NewResponseController(w)}
	w.Header().Set("X-Content-Type-Options", "nosniff")
	err := serve(out, r)
	if err == nil {
		err = out.short(r)
	}
	log := s.options.Log.WithValues("method", r.Method, "path", r.URL.Path, "status", out.code, "bytes", out.sent,
		"duration", time.Since(start).String())
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
		http.Error(w, "the volume cannot be read: the log of the exporter's Pod has the reason",
			http.StatusInternalServerError)
	}
}

// authorized reports whether a request has the token, which it compares in constant time, and rejects the request
// otherwise.
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
