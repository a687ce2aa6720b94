// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package server serves the volumes of an export for download. The content of a volume belongs to a tenant and is not trusted: files are
// opened only below the volume's directory, nothing but regular files and directories is opened, and what is read or listed is limited.
package server

import (
	"crypto/rand"
	"net/http"
	"strings"
	"time"

	"github.com/go-logr/logr"

	"github.com/vireo-project/vireo/internal/component/connectionlimit"
	"github.com/vireo-project/vireo/internal/export/content"
)

const (
	// maxRequests is how many requests are served at the same time. Each may read and compress a disk.
	maxRequests = 16
	// stall is how long a client may accept no byte of a response.
	stall = 2 * time.Minute
	// readTimeout bounds how long reading the header, and the body, of a request may take, and maxHeaderBytes the size of the header.
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
	// exact contains the handlers of single paths, and below those of all paths with a prefix. A ServeMux is not used, because its
	// redirects to other spellings of a path would contain the query, which may contain the token.
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
		options: o, exact: map[string]http.Handler{}, below: map[string]http.Handler{}, slots: make(chan struct{}, maxRequests), version: rand.Text(),
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

// HTTP returns the server of the export, without an address and certificates. Downloads protect their connections, if its listener is one
// of connectionlimit.
func (s *Server) HTTP() *http.Server {
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true) // as KubeVirt's
	return &http.Server{
		Protocols: protocols,
		Handler:   s, ReadHeaderTimeout: readTimeout, IdleTimeout: idle, MaxHeaderBytes: maxHeaderBytes, ConnContext: connectionlimit.Context,
		ErrorLog: quietLog(s.options.Log),
	}
}
