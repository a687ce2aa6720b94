// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package otlp exports traces over OTLP. The environment variables of OpenTelemetry configure it; without an endpoint
// it is off.
package otlp

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/time/rate"

	"github.com/vireo-project/vireo/internal/component/printable"
)

const (
	// logInterval is the shortest time between two log lines about failed exports.
	logInterval = time.Minute
	// flushTimeout is how long a process that stops waits for the export of the last traces. A leader keeps its Lease
	// meanwhile.
	flushTimeout = time.Second

	endpoint       = "OTEL_EXPORTER_OTLP_ENDPOINT"
	tracesEndpoint = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"

	protocolGRPC = "grpc"
	scope        = "github.com/vireo-project/vireo/internal/component/otlp"
)

// Exporter exports traces. Its methods do not wait for the collector: spans are queued, and dropped when the queue is
// full.
type Exporter struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
}

// New returns the exporter that the environment variables configure, or nil if they configure none.
func New(ctx context.Context, service, version string, log logr.Logger) (*Exporter, error) {
	if !enabled(os.Getenv) {
		return nil, nil
	}
	if p := cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL"),
		protocolGRPC); p != protocolGRPC {
		return nil, fmt.Errorf("cannot export traces by the protocol %q: set OTEL_EXPORTER_OTLP_PROTOCOL to %s", p,
			protocolGRPC)
	}
	if err := checkEndpoints(os.Getenv); err != nil {
		return nil, err
	}
	// The SDK reports failures only through these. It logs invalid variables as errors, and uses their defaults.
	otel.SetLogger(log)
	otel.SetErrorHandler(&limited{log: log, sometimes: rate.Sometimes{Interval: logInterval}})
	// Variables have precedence over attributes that come before them.
	attributes, err := resource.New(ctx,
		resource.WithAttributes(semconv.ServiceName(service), semconv.ServiceVersion(version)),
		resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		log.Error(err, "Cannot read some attributes of this process, exporting traces without them")
	}
	// The client connects in the background, and reconnects when the connection is lost.
	client, err := otlptracegrpc.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot export traces: %w", err)
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(client), sdktrace.WithResource(attributes),
		sdktrace.WithIDGenerator(fromPosition{}))
	return &Exporter{provider: provider, tracer: provider.Tracer(scope)}, nil
}

// checkEndpoints returns an error for an endpoint without a scheme, as in "host:4317": the SDK would use another host.
func checkEndpoints(getenv func(string) string) error {
	for _, name := range []string{tracesEndpoint, endpoint} {
		value := getenv(name)
		if value == "" {
			continue
		}
		u, err := url.Parse(value)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return fmt.Errorf("cannot export traces to %q: set %s to an address such as http://host:4317", value, name)
		}
	}
	return nil
}

// enabled reports whether there is an endpoint, and no variable that turns traces off.
func enabled(getenv func(string) string) bool {
	if disabled, err := strconv.ParseBool(getenv("OTEL_SDK_DISABLED")); err == nil && disabled ||
		getenv("OTEL_TRACES_EXPORTER") == "none" {
		return false
	}
	return getenv(tracesEndpoint) != "" || getenv(endpoint) != ""
}

// Export queues a trace. The key identifies what is traced; traces of the same key have the same IDs.
func (e *Exporter) Export(ctx context.Context, key string, root *Span) {
	record(trace.ContextWithSpanContext(ctx, trace.SpanContext{}), e.tracer, position{key: key}, root)
}

// Close exports what is queued, and stops. It takes at most a second; what is not exported by then is lost.
func (e *Exporter) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	return e.provider.Shutdown(ctx)
}

// limited logs failed exports at a limited rate.
type limited struct {
	log       logr.Logger
	sometimes rate.Sometimes
}

// Handle implements ErrorHandler of OpenTelemetry.
func (l *limited) Handle(err error) {
	l.sometimes.Do(func() { l.log.Error(err, "Cannot export traces") })
}

// maxText is the length to which texts in traces are cut. Tenants and guests can cause any text in a failure.
const maxText = 256

// Span is a step of what is traced, with its own steps as children. A span without a parent is a trace.
type Span struct {
	Name       string
	Start, End time.Time
	Attributes []attribute.KeyValue
	// Failure is why the step failed; empty if it has not.
	Failure string
	// Links are the keys of other traces.
	Links    []string
	Children []Span
}

// Text returns an attribute with a text, cut to a limit.
func Text(key, value string) attribute.KeyValue {
	return attribute.String(key, printable.Text(value, maxText))
}

// position identifies a span: the trace's key, and the names of the span and of its ancestors except for the root. IDs
// are hashes of it, so the IDs of a trace are the same in each process and known before it is exported.
type position struct{ key, path string }

type positionKey struct{}

func (p position) traceID() trace.TraceID {
	// The ID is not the UID itself: samplers decide by the ID, and not all bits of a UID are random.
	sum := sha256.Sum256([]byte("trace\x00" + p.key))
	return trace.TraceID(sum[:16])
}

func (p position) spanID() trace.SpanID {
	sum := sha256.Sum256([]byte("span\x00" + p.key + "\x00" + p.path))
	return trace.SpanID(sum[:8])
}

// fromPosition generates the SDK's IDs from the position in the context.
type fromPosition struct{}

// NewIDs implements IDGenerator of the SDK.
func (fromPosition) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	p, _ := ctx.Value(positionKey{}).(position)
	return p.traceID(), p.spanID()
}

// NewSpanID implements IDGenerator of the SDK.
func (fromPosition) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	p, _ := ctx.Value(positionKey{}).(position)
	return p.spanID()
}

// record records a span and its children. Siblings need different names.
func record(ctx context.Context, tracer trace.Tracer, at position, s *Span) {
	links := make([]trace.Link, 0, len(s.Links))
	for _, key := range s.Links {
		other := position{key: key}
		links = append(links, trace.Link{SpanContext: trace.NewSpanContext(trace.SpanContextConfig{
			TraceID: other.traceID(), SpanID: other.spanID(), TraceFlags: trace.FlagsSampled, Remote: true,
		})})
	}
	ctx, span := tracer.Start(context.WithValue(ctx, positionKey{}, at), printable.Text(s.Name, maxText),
		trace.WithTimestamp(s.Start), trace.WithAttributes(s.Attributes...), trace.WithLinks(links...))
	for i := range s.Children {
		child := &s.Children[i]
		record(ctx, tracer, position{key: at.key, path: at.path + "/" + child.Name}, child)
	}
	if s.Failure != "" {
		span.SetStatus(codes.Error, printable.Text(s.Failure, maxText))
	}
	span.End(trace.WithTimestamp(s.End))
}
