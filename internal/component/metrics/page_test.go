// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package metrics

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// What was gathered once is encoded once, and compressed once, however many requests there are and however many of them are canceled.
func TestPageIsEncodedOnce(t *testing.T) {
	gauge := prometheus.NewGauge(prometheus.GaugeOpts{Name: "kubevirt_good", Help: "h"})
	registry := prometheus.NewRegistry()
	registry.MustRegister(gauge)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	p := &page{from: prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return families, nil })}
	get := func(ctx context.Context, encoding string) *bytes.Buffer {
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, Path, nil)
		r.Header.Set("Accept-Encoding", encoding)
		p.ServeHTTP(w, r)
		return w.Body
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	get(t.Context(), "gzip")
	plain, zipped := &p.plain[0], &p.zipped[0]
	var wait sync.WaitGroup
	for i := range 100 {
		wait.Go(func() { get([]context.Context{t.Context(), canceled}[i%2], []string{"", "gzip"}[i/50]) })
	}
	wait.Wait()
	if &p.plain[0] != plain || &p.zipped[0] != zipped {
		t.Error("encoded more than once")
	}

	reader, err := gzip.NewReader(get(t.Context(), "gzip, deflate"))
	if err != nil {
		t.Fatal(err)
	}
	unzipped, err := io.ReadAll(reader)
	if err != nil || string(unzipped) != string(p.plain) || !strings.Contains(string(unzipped), "\nkubevirt_good 0\n") {
		t.Errorf("%q (%v)", unzipped, err)
	}

	gauge.Set(2)
	if families, err = registry.Gather(); err != nil {
		t.Fatal(err)
	}
	if body := get(t.Context(), "").String(); !strings.Contains(body, "\nkubevirt_good 2\n") {
		t.Errorf("served what was gathered before: %q", body)
	}
}
