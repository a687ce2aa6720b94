// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package otlp

import (
	"context"
	"crypto/sha256"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/vireo-project/vireo/internal/component/printable"
)

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

// position identifies a span: the trace's key, and the names of the span and of its ancestors except for the root. IDs are hashes of it,
// so the IDs of a trace are the same in each process and known before it is exported.
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
