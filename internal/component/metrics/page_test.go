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
	plain, zipped := &p.current.plain[0], &p.current.zipped[0]
	var wait sync.WaitGroup
	for i := range 100 {
		wait.Go(func() { get([]context.Context{t.Context(), canceled}[i%2], []string{"", "gzip"}[i/50]) })
	}
	wait.Wait()
	if &p.current.plain[0] != plain || &p.current.zipped[0] != zipped {
		t.Error("encoded more than once")
	}

	reader, err := gzip.NewReader(get(t.Context(), "gzip, deflate"))
	if err != nil {
		t.Fatal(err)
	}
	unzipped, err := io.ReadAll(reader)
	if err != nil || string(unzipped) != string(p.current.plain) || !strings.Contains(string(unzipped), "\nkubevirt_good 0\n") {
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

// slowClient is a client that takes the header of a page, and its body when it continues.
type slowClient struct {
	httptest.ResponseRecorder
	started, proceed chan struct{}
}

func (s *slowClient) Write(text []byte) (int, error) {
	close(s.started)
	<-s.proceed
	return s.ResponseRecorder.Write(text)
}

// Clients that receive pages slowly keep two of them in memory, and not each that was current meanwhile.
func TestSlowClientsKeepTwoPages(t *testing.T) {
	value := 0.0
	p := &page{from: prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		gauge := prometheus.NewGauge(prometheus.GaugeOpts{Name: "kubevirt_good", Help: "h"})
		registry := prometheus.NewRegistry()
		registry.MustRegister(gauge)
		value++
		gauge.Set(value)
		return registry.Gather()
	})}
	var clients []*slowClient
	var wait sync.WaitGroup
	for range 10 {
		client := &slowClient{*httptest.NewRecorder(), make(chan struct{}), make(chan struct{})}
		clients = append(clients, client)
		wait.Go(func() { p.ServeHTTP(client, httptest.NewRequest(http.MethodGet, Path, nil)) })
		<-client.started
	}
	for _, client := range clients {
		close(client.proceed)
	}
	wait.Wait()
	for i, client := range clients {
		want := "\nkubevirt_good 2\n"
		if i == 0 {
			want = "\nkubevirt_good 1\n"
		}
		if body := client.Body.String(); !strings.Contains(body, want) {
			t.Errorf("client %d got %q", i, body)
		}
	}
	// As soon as they are gone, the page is replaced again.
	w := httptest.NewRecorder()
	p.ServeHTTP(w, httptest.NewRequest(http.MethodGet, Path, nil))
	if body := w.Body.String(); !strings.Contains(body, "\nkubevirt_good 11\n") || p.old != nil {
		t.Errorf("got %q", body)
	}
}
