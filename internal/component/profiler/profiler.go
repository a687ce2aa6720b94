// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package profiler takes profiles of its process for the cluster profiler, and serves them to virt-api on KubeVirt's
// paths.
package profiler

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"runtime/pprof"
	"sync"
	"time"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
)

// Paths of the requests. KubeVirt's.
const (
	StartPath = "/start-profiler"
	StopPath  = "/stop-profiler"
	DumpPath  = "/dump-profiler"
)

const (
	// maxDuration ends a CPU profile that no client stops.
	maxDuration = time.Hour
	// maxProfiles bounds the profiles of a response, in bytes.
	maxProfiles = 11 << 20
	// MaxResponse bounds a response to DumpPath, which has the profiles in base64.
	MaxResponse = 16 << 20
)

// cpuProfile is the name of the CPU profile.
const cpuProfile = "cpu.pprof"

// lookups are the names of the other profiles, and Go's names of them.
var lookups = map[string]string{
	"goroutine.pprof": "goroutine", "heap.pprof": "heap", "allocs.pprof": "allocs",
	"threadcreate.pprof": "threadcreate", "block.pprof": "block", "mutex.pprof": "mutex",
}

// errDisabled is the error while the configuration permits no profiles.
var errDisabled = errors.New("the cluster profiler is not enabled")

// Profiler takes profiles of its process. A process has only one.
type Profiler struct {
	mu      sync.Mutex
	enabled bool
	// cpu is the CPU profile that was started last. It has content when it has been stopped.
	cpu     *bounded
	running bool
	// limit stops a CPU profile.
	limit *time.Timer
}

// New returns the profiler of this process, which follows the configuration.
func New(store *clusterconfig.Store) *Profiler {
	p := &Profiler{}
	store.Subscribe(func(c clusterconfig.Config) { p.Enable(c.ClusterProfiler) })
	return p
}

// Enable permits or forbids profiles. Forbidding them ends and discards a CPU profile that is being taken.
func (p *Profiler) Enable(enabled bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.enabled = enabled
	if !enabled {
		p.stop()
		p.cpu = nil
	}
}

// Start starts a CPU profile. An earlier one is discarded.
func (p *Profiler) Start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.enabled {
		return errDisabled
	}
	p.stop()
	cpu := &bounded{left: maxProfiles}
	p.cpu = nil
	if err := pprof.StartCPUProfile(cpu); err != nil {
		return fmt.Errorf("could not start internal profiling: %w", err)
	}
	p.cpu, p.running = cpu, true
	p.limit = time.AfterFunc(maxDuration, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.cpu == cpu {
			p.stop()
		}
	})
	return nil
}

// Stop stops the CPU profile and keeps it. It does nothing if none is being taken.
func (p *Profiler) Stop() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.enabled {
		return errDisabled
	}
	p.stop()
	return nil
}

func (p *Profiler) stop() {
	if !p.running {
		return
	}
	pprof.StopCPUProfile()
	p.limit.Stop()
	p.running = false
}

// Dump returns the current profiles, and the CPU profile if one was taken.
func (p *Profiler) Dump() (*v1.ProfilerResult, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.enabled {
		return nil, errDisabled
	}
	result, left := map[string][]byte{}, maxProfiles
	if p.cpu != nil && !p.running {
		if p.cpu.cut {
			return nil, fmt.Errorf("the CPU profile has more than %d bytes", maxProfiles)
		}
		result[cpuProfile] = p.cpu.Bytes()
		left -= p.cpu.Len()
	}
	runtime.GC() // heap and allocs show the state of the last garbage collection
	for name, lookup := range lookups {
		content := &bounded{left: left}
		if err := pprof.Lookup(lookup).WriteTo(content, 0); err != nil {
			return nil, fmt.Errorf("could not dump internal profiling: %s: %w", lookup, err)
		}
		if content.cut {
			return nil, fmt.Errorf("the profiles have more than %d bytes", maxProfiles)
		}
		result[name], left = content.Bytes(), content.left
	}
	return &v1.ProfilerResult{PprofData: result}, nil
}

// Handler serves the paths. Its caller admits only virt-api.
func (p *Profiler) Handler() http.Handler {
	mux := http.NewServeMux()
	for path, do := range map[string]func() error{StartPath: p.Start, StopPath: p.Stop} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) { respond(w, nil, do()) })
	}
	mux.HandleFunc("GET "+DumpPath, func(w http.ResponseWriter, _ *http.Request) {
		result, err := p.Dump()
		respond(w, result, err)
	})
	return mux
}

// Paths returns the paths that Handler serves.
func Paths() []string { return []string{StartPath, StopPath, DumpPath} }

// Register serves the paths of Paths by a handler. Nil registers nothing.
func Register(mux *http.ServeMux, handler http.Handler) {
	if handler == nil {
		return
	}
	for _, path := range Paths() {
		mux.Handle(path, handler)
	}
}

// OnlyAPI serves only requests on connections that verify accepts. It is for servers whose handshakes verify no client
// certificate, so that anyone can connect to them. A request without a certificate is rejected without calling verify.
func OnlyAPI(verify func(*tls.ConnectionState) error, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 || verify(r.TLS) != nil {
			http.Error(w, "profiles are only for virt-api", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func respond(w http.ResponseWriter, result *v1.ProfilerResult, err error) {
	switch {
	case errors.Is(err, errDisabled):
		http.Error(w, err.Error(), http.StatusForbidden)
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	case result != nil:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(result) // an error means that the client is gone
	}
}

// bounded is a buffer that drops what exceeds its limit. The writers of profiles ignore or misreport errors.
type bounded struct {
	bytes.Buffer
	left int
	cut  bool
}

var _ io.Writer = (*bounded)(nil)

// Write implements io.Writer.
func (b *bounded) Write(content []byte) (int, error) {
	if b.cut = b.cut || len(content) > b.left; b.cut {
		return len(content), nil
	}
	b.left -= len(content)
	return b.Buffer.Write(content)
}
