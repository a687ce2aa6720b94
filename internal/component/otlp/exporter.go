// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package otlp exports traces over OTLP. The environment variables of OpenTelemetry configure it; without an endpoint it is off.
package otlp

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/time/rate"
)

const (
	// logInterval is the shortest time between two log lines about failed exports.
	logInterval = time.Minute
	// flushTimeout is how long a process that stops waits for the export of the last traces. A leader keeps its Lease meanwhile.
	flushTimeout = time.Second

	endpoint       = "OTEL_EXPORTER_OTLP_ENDPOINT"
	tracesEndpoint = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"

	protocolGRPC = "grpc"
	scope        = "github.com/vireo-project/vireo/internal/component/otlp"
)

// Exporter exports traces. Its methods do not wait for the collector: spans are queued, and dropped when the queue is full.
type Exporter struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
}

// New returns the exporter that the environment variables configure, or nil if they configure none.
func New(ctx context.Context, service, version string, log logr.Logger) (*Exporter, error) {
	if !enabled(os.Getenv) {
		return nil, nil
	}
	if p := cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL"), protocolGRPC); p != protocolGRPC {
		return nil, fmt.Errorf("cannot export traces by the protocol %q: set OTEL_EXPORTER_OTLP_PROTOCOL to %s", p, protocolGRPC)
	}
	if err := checkEndpoints(os.Getenv); err != nil {
		return nil, err
	}
	// The SDK reports failures only through these. It logs invalid variables as errors, and uses their defaults.
	otel.SetLogger(log)
	otel.SetErrorHandler(&limited{log: log, sometimes: rate.Sometimes{Interval: logInterval}})
	// Variables have precedence over attributes that come before them.
	attributes, err := resource.New(ctx, resource.WithAttributes(semconv.ServiceName(service), semconv.ServiceVersion(version)),
		resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		log.Error(err, "Cannot read some attributes of this process, exporting traces without them")
	}
	// The client connects in the background, and reconnects when the connection is lost.
	client, err := otlptracegrpc.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot export traces: %w", err)
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(client), sdktrace.WithResource(attributes), sdktrace.WithIDGenerator(fromPosition{}))
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
	if disabled, err := strconv.ParseBool(getenv("OTEL_SDK_DISABLED")); err == nil && disabled || getenv("OTEL_TRACES_EXPORTER") == "none" {
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
