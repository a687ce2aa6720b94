// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package metrics

import (
	"bytes"
	"compress/gzip"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// page serves what was gathered in Prometheus' text format. It is encoded once, however many requests there are: no one has to
// authenticate, and encoding takes longer than gathering.
//
// A client may take its time to receive a page. While one sends an old page, the current one is not replaced if it is in use, too: with
// many slow clients there would otherwise be many pages in memory.
type page struct {
	from prometheus.Gatherer

	mu           sync.Mutex
	current, old *version
}

// version is a page with what was gathered at a time.
type version struct {
	families      []*dto.MetricFamily
	plain, zipped []byte
	// users is how many responses send it.
	users int
}

// ServeHTTP implements http.Handler. If some metrics could not be gathered, it serves the others: what a guest or a tenant reports
// must not remove the metrics of others.
func (p *page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	families, err := p.from.Gather()
	if err != nil {
		log.Log.WithName("metrics").V(1).Info("Cannot serve all metrics", "error", err.Error())
		if len(families) == 0 {
			http.Error(w, "no metric could be gathered", http.StatusInternalServerError)
			return
		}
	}
	zip := strings.Contains(r.Header.Get("Accept-Encoding"), "gzip")
	w.Header().Set("Content-Type", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
	w.Header().Set("Vary", "Accept-Encoding")
	if zip {
		w.Header().Set("Content-Encoding", "gzip")
	}
	used, text := p.encoded(families, zip)
	defer p.release(used)
	_, _ = w.Write(text)
}

// encoded returns the page as it is to be sent, and the version of it that the caller releases afterwards.
func (p *page) encoded(families []*dto.MetricFamily, zip bool) (*version, []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current == nil || !slices.Equal(p.current.families, families) {
		p.replace(families)
	}
	used := p.current
	used.users++
	if !zip {
		return used, used.plain
	}
	if used.zipped == nil {
		used.zipped = compress(used.plain)
	}
	return used, used.zipped
}

// replace replaces the current version, unless it and an older one are in use.
func (p *page) replace(families []*dto.MetricFamily) {
	if p.current != nil && p.current.users > 0 {
		if p.old != nil {
			return
		}
		p.old = p.current
		p.old.families = nil
	}
	p.current = &version{families: families, plain: encode(families)}
}

func (p *page) release(used *version) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if used.users--; used.users == 0 && used == p.old {
		p.old = nil
	}
}

func encode(families []*dto.MetricFamily) []byte {
	var out bytes.Buffer
	for _, family := range families {
		start := out.Len()
		if _, err := expfmt.MetricFamilyToText(&out, family); err != nil {
			out.Truncate(start)
		}
	}
	return out.Bytes()
}

func compress(plain []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = w.Write(plain) // writes to a buffer do not fail
	_ = w.Close()
	return out.Bytes()
}
