// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package otlp

import (
	"context"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"

	"github.com/vireo-project/vireo/test/otlpcollector"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func at(seconds int) time.Time { return noon.Add(time.Duration(seconds) * time.Second) }

// collect starts a collector to which traces are exported.
func collect(t *testing.T, options ...otlpcollector.Option) *otlpcollector.Collector {
	t.Helper()
	collector, err := otlpcollector.Start(t.Context(), options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := collector.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.Endpoint())
	return collector
}

func exporter(t *testing.T, log logr.Logger) *Exporter {
	t.Helper()
	e, err := New(t.Context(), "virt-controller", "v1", log)
	if err != nil {
		t.Fatal(err)
	}
	if e == nil {
		t.Fatal("tracing is off")
	}
	return e
}

func TestExport(t *testing.T) {
	collector := collect(t)
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=secret")
	root := &Span{
		Name: "start", Start: at(0), End: at(9), Failure: "why\x00" + strings.Repeat("x", 1000), Links: []string{"other"},
		Attributes: []attribute.KeyValue{semconv.K8SNamespaceName("ns"), Text("name", strings.Repeat("ä\n", 1000))},
		Children: []Span{
			{Name: "Pending", Start: at(0), End: at(1)},
			{Name: "Scheduling", Start: at(1), End: at(9), Children: []Span{{Name: "Pending", Start: at(2), End: at(3)}}},
		},
	}
	// Two processes: the IDs depend on what is traced only.
	for _, key := range []string{"uid", "other", "uid"} {
		e := exporter(t, logr.Discard())
		e.Export(t.Context(), key, root)
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
	spans := collector.Spans()
	if len(spans) != 12 {
		t.Fatalf("%d spans", len(spans))
	}
	if diff := cmp.Diff(spans[:4], spans[8:]); diff != "" {
		t.Error("the traces of two processes differ:", diff)
	}
	tree, err := otlpcollector.Tree(spans[:8])
	if err != nil {
		t.Error(err)
	}
	one := []string{"start", "  Pending", "  Scheduling", "    Pending"}
	if diff := cmp.Diff(append(one, one...), tree); diff != "" {
		t.Error(diff)
	}
	got := spans[3] // A span is exported when it ends, so the outermost one is the last.
	want := otlpcollector.Span{
		Service: "virt-controller", Name: "start", Trace: got.Trace, ID: got.ID, Start: at(0), End: at(9),
		Attributes: map[string]string{"k8s.namespace.name": "ns", "name": strings.Repeat("ä", maxText)},
		Failed:     true, Error: "why" + strings.Repeat("x", maxText-3), Links: []string{spans[7].Trace},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got.Trace == spans[7].Trace {
		t.Error("different traces have the same ID")
	}
	if diff := cmp.Diff([]string{"secret"}, collector.Header("authorization")); diff != "" {
		t.Error(diff)
	}
}

func TestOff(t *testing.T) {
	for name, tc := range map[string]struct {
		environment map[string]string
		on, fails   bool
	}{
		"no variables":          {},
		"no endpoint":           {environment: map[string]string{"OTEL_EXPORTER_OTLP_HEADERS": "a=b"}},
		"endpoint":              {environment: map[string]string{endpoint: "http://127.0.0.1:1"}, on: true},
		"endpoint of traces":    {environment: map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1"}, on: true},
		"disabled":              {environment: map[string]string{endpoint: "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"}},
		"other signals":         {environment: map[string]string{endpoint: "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none"}},
		"no scheme":             {environment: map[string]string{endpoint: "collector:4317"}, fails: true},
		"an address":            {environment: map[string]string{endpoint: "10.0.0.1:4317"}, fails: true},
		"gRPC":                  {environment: map[string]string{endpoint: "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, on: true},
		"HTTP":                  {environment: map[string]string{endpoint: "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, fails: true},
		"gRPC for traces only":  {environment: map[string]string{endpoint: "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"}, on: true},
		"an invalid setting":    {environment: map[string]string{endpoint: "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_TIMEOUT": "soon"}, on: true},
		"an invalid attribute":  {environment: map[string]string{endpoint: "http://127.0.0.1:1", "OTEL_RESOURCE_ATTRIBUTES": "x"}, on: true},
		"an unreadable CA file": {environment: map[string]string{endpoint: "https://127.0.0.1:1", "OTEL_EXPORTER_OTLP_CERTIFICATE": "/does/not/exist"}, on: true},
	} {
		t.Run(name, func(t *testing.T) {
			for key, value := range tc.environment {
				t.Setenv(key, value)
			}
			e, err := New(t.Context(), "virt-controller", "v1", logr.Discard())
			if (err != nil) != tc.fails {
				t.Fatal(err)
			}
			if on := e != nil; on != tc.on {
				t.Fatalf("on: %t, want %t", on, tc.on)
			}
			if e != nil {
				if err := e.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func TestSampling(t *testing.T) {
	collector := collect(t)
	t.Setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
	t.Setenv("OTEL_TRACES_SAMPLER_ARG", "0.25")
	e := exporter(t, logr.Discard())
	const all = 1000
	for i := range all {
		e.Export(t.Context(), string(rune(i)), &Span{Name: "start", Start: at(0), End: at(1)})
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	// The IDs are fixed, and so is the result.
	if share := float64(len(collector.Spans())) / all; math.Abs(share-0.25) > 0.05 {
		t.Errorf("%.2f of the traces were exported", share)
	}
}

// A collector that does not respond delays neither what is traced nor the shutdown of the process.
func TestHangingCollector(t *testing.T) {
	collector := collect(t, otlpcollector.Hanging())
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
	e := exporter(t, logr.Discard())
	trace := &Span{Name: "start", Start: at(0), End: at(1)}
	e.Export(t.Context(), "first", trace)
	for deadline := time.Now().Add(time.Minute); collector.Requests() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nothing was exported")
		}
	}
	// Many more than the queue has room for. A request takes 10 s until it times out.
	from := time.Now()
	for range 20_000 {
		e.Export(t.Context(), "next", trace)
	}
	if d := time.Since(from); d > 5*time.Second {
		t.Errorf("the export of traces took %s", d)
	}
	from = time.Now()
	if err := e.Close(); err == nil {
		t.Error("the traces were exported")
	}
	if d := time.Since(from); d > flushTimeout+3*time.Second {
		t.Errorf("the process stopped after %s", d)
	}
}

func TestFailuresAreLoggedOnceAMinute(t *testing.T) {
	var lines atomic.Int32
	log := funcr.New(func(_, line string) {
		if strings.Contains(line, "Cannot export traces") {
			lines.Add(1)
		}
	}, funcr.Options{})
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
	t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "50")
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
	e := exporter(t, log)
	flush := func() {
		e.Export(t.Context(), "uid", &Span{Name: "start", Start: at(0), End: at(1)})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_ = e.provider.ForceFlush(ctx)
	}
	for deadline := time.Now().Add(time.Minute); lines.Load() == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a failed export was not logged")
		}
		flush()
	}
	for range 5 {
		flush()
		time.Sleep(100 * time.Millisecond)
	}
	if n := lines.Load(); n != 1 {
		t.Errorf("%d lines", n)
	}
}
