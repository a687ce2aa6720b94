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
type page struct {
	from prometheus.Gatherer

	mu            sync.Mutex
	families      []*dto.MetricFamily
	plain, zipped []byte
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
	_, _ = w.Write(p.encoded(families, zip))
}

func (p *page) encoded(families []*dto.MetricFamily, zip bool) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.plain == nil || !slices.Equal(p.families, families) {
		p.families, p.plain, p.zipped = families, encode(families), nil
	}
	if !zip {
		return p.plain
	}
	if p.zipped == nil {
		p.zipped = compress(p.plain)
	}
	return p.zipped
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
