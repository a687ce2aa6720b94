// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package otlpcollector is a collector of traces for tests: a real OTLP server that keeps what it receives.
package otlpcollector

import (
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// Span is a span that was received.
type Span struct {
	Service, Name string
	// Trace, ID and Parent are IDs in hexadecimal. A root has no parent.
	Trace, ID, Parent string
	Start, End        time.Time
	Attributes        map[string]string
	// Error is the description of a status that is an error.
	Error  string
	Failed bool
	// Links are the IDs of the linked traces.
	Links []string
}

// Collector receives traces.
type Collector struct {
	collectorv1.UnimplementedTraceServiceServer
	server  *grpc.Server
	address string
	served  chan error
	// hang, if it is not nil, is closed when requests may finish.
	hang     chan struct{}
	hangOnce sync.Once

	mu       sync.Mutex
	spans    []Span
	requests int
	headers  metadata.MD
}

// Option changes a collector.
type Option func(*Collector)

// Hanging makes a collector that responds to no request before it is closed.
func Hanging() Option { return func(c *Collector) { c.hang = make(chan struct{}) } }

// Start starts a collector on a free port of this computer.
func Start(ctx context.Context, options ...Option) (*Collector, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("cannot listen: %w", err)
	}
	c := &Collector{server: grpc.NewServer(), address: listener.Addr().String(), served: make(chan error, 1)}
	for _, option := range options {
		option(c)
	}
	collectorv1.RegisterTraceServiceServer(c.server, c)
	go func() { c.served <- c.server.Serve(listener) }()
	return c, nil
}

// Endpoint is the value of OTEL_EXPORTER_OTLP_ENDPOINT for this collector.
func (c *Collector) Endpoint() string { return "http://" + c.address }

// Close stops the collector.
func (c *Collector) Close() error {
	if c.hang != nil {
		c.hangOnce.Do(func() { close(c.hang) })
	}
	c.server.Stop()
	return <-c.served
}

// Export implements the service of OTLP.
func (c *Collector) Export(
	ctx context.Context, request *collectorv1.ExportTraceServiceRequest,
) (*collectorv1.ExportTraceServiceResponse, error) {
	c.receive(ctx, request)
	if c.hang != nil {
		<-c.hang
	}
	return &collectorv1.ExportTraceServiceResponse{}, nil
}

func (c *Collector) receive(ctx context.Context, request *collectorv1.ExportTraceServiceRequest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests++
	c.headers, _ = metadata.FromIncomingContext(ctx)
	for _, process := range request.GetResourceSpans() {
		service := values(process.GetResource().GetAttributes())["service.name"]
		for _, scope := range process.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				c.spans = append(c.spans, read(service, s))
			}
		}
	}
}

// Requests is how many requests there were.
func (c *Collector) Requests() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.requests
}

// Header is the last request's header of a name.
func (c *Collector) Header(name string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.headers.Get(name)
}

// Spans returns everything that was received.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.spans)
}

// Tree returns the received spans of a trace as lines, each indented by its depth and in the order of their starts: an
// ended parent is before its children. It fails if a span has a parent that was not received, or if a span was received
// twice.
func Tree(spans []Span) ([]string, error) {
	byID, children := map[string]Span{}, map[string][]Span{}
	for i := range spans {
		if _, twice := byID[spans[i].ID]; twice {
			return nil, fmt.Errorf("span %q was received twice", spans[i].Name)
		}
		byID[spans[i].ID] = spans[i]
		children[spans[i].Parent] = append(children[spans[i].Parent], spans[i])
	}
	var out []string
	var add func(parent, indent string)
	add = func(parent, indent string) {
		of := children[parent]
		slices.SortStableFunc(of, func(a, b Span) int {
			if n := a.Start.Compare(b.Start); n != 0 {
				return n
			}
			return a.End.Compare(b.End)
		})
		for i := range of {
			out = append(out, indent+of[i].Name)
			add(of[i].ID, indent+"  ")
		}
	}
	add("", "")
	if len(out) != len(spans) {
		return out, fmt.Errorf("%d of %d spans have a parent that was not received", len(spans)-len(out), len(spans))
	}
	return out, nil
}

func read(service string, s *tracev1.Span) Span {
	out := Span{
		Service: service, Name: s.GetName(), Attributes: values(s.GetAttributes()),
		Trace: hex.EncodeToString(s.GetTraceId()), ID: hex.EncodeToString(s.GetSpanId()),
		Parent: hex.EncodeToString(s.GetParentSpanId()),
		Start:  nanoseconds(s.GetStartTimeUnixNano()), End: nanoseconds(s.GetEndTimeUnixNano()),
		Error: s.GetStatus().GetMessage(), Failed: s.GetStatus().GetCode() == tracev1.Status_STATUS_CODE_ERROR,
	}
	for _, link := range s.GetLinks() {
		out.Links = append(out.Links, hex.EncodeToString(link.GetTraceId()))
	}
	return out
}

func nanoseconds(n uint64) time.Time { return time.Unix(0, int64(n)).UTC() }

func values(attributes []*commonv1.KeyValue) map[string]string {
	out := make(map[string]string, len(attributes))
	for _, a := range attributes {
		out[a.GetKey()] = a.GetValue().GetStringValue()
	}
	return out
}
