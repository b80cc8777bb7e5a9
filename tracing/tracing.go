// Package tracing records the path of a batch as OpenTelemetry spans: the request that
// created it, the provider calls and the events.
//
// The ID of a batch is the ID of its trace, so messages carry no trace context: every
// process that handles a batch knows its trace. Tracing is off unless Setup is called.
package tracing

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net/url"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
	otrace "go.opentelemetry.io/otel/trace"

	"github.com/safedelivr/safedelivr/models"
)

// tracer holds nil while tracing is off.
var tracer atomic.Pointer[setup]

type setup struct {
	tracer otrace.Tracer
	ratio  float64
}

// Setup sends the spans of a share of all batches, from 0 to 1, to an OTLP endpoint over
// HTTP, like http://collector:4318. The returned function sends the remaining spans and
// turns tracing off.
func Setup(ctx context.Context, endpoint string, ratio float64, version string) (func(context.Context) error, error) {
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" {
		return nil, fmt.Errorf("traces: %q is not the URL of an OTLP endpoint, like http://collector:4318", endpoint)
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = "/v1/traces"
	}
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(u.String()))
	if err != nil {
		return nil, fmt.Errorf("traces: %w", err)
	}
	return With(trace.NewBatchSpanProcessor(exporter), ratio, version), nil
}

// With is Setup for any span processor.
func With(p trace.SpanProcessor, ratio float64, version string) func(context.Context) error {
	provider := trace.NewTracerProvider(
		trace.WithSpanProcessor(p),
		trace.WithSampler(trace.ParentBased(trace.NeverSample())),
		trace.WithResource(
			resource.NewSchemaless(attribute.String("service.name", "safedelivr"), attribute.String("service.version", version)),
		),
	)
	tracer.Store(&setup{provider.Tracer("github.com/safedelivr/safedelivr"), ratio})
	return func(ctx context.Context) error {
		tracer.Store(nil)
		return errors.Join(provider.ForceFlush(ctx), provider.Shutdown(ctx))
	}
}

// Span is a unit of work on a batch. The methods of the zero Span do nothing.
type Span struct{ span otrace.Span }

// Start begins a span of a batch. at is the start of the work; the zero time means now.
// pairs are names and values of attributes. They must not contain addresses.
func Start(batch models.ID, name string, at time.Time, pairs ...string) Span {
	s := tracer.Load()
	if s == nil {
		return Span{}
	}
	batch = batch.Batch()
	h := fnv.New64a()
	_, _ = h.Write(batch[:]) // a hash never fails
	sum := h.Sum64()
	if float64(sum>>11)/(1<<53) >= s.ratio {
		return Span{}
	}
	var root otrace.SpanID
	for i := range root {
		root[i] = byte(sum >> (8 * i)) //nolint:gosec // the lowest byte is meant
	}
	parent := otrace.NewSpanContext(
		otrace.SpanContextConfig{TraceID: otrace.TraceID(batch), SpanID: root, TraceFlags: otrace.FlagsSampled, Remote: true},
	)
	options := []otrace.SpanStartOption{otrace.WithAttributes(attributes(pairs)...)}
	if !at.IsZero() {
		options = append(options, otrace.WithTimestamp(at))
	}
	_, span := s.tracer.Start(otrace.ContextWithRemoteSpanContext(context.Background(), parent), name, options...)
	return Span{span}
}

// Add adds attributes.
func (s Span) Add(pairs ...string) {
	if s.span != nil {
		s.span.SetAttributes(attributes(pairs)...)
	}
}

// End ends the span. If failed is not empty, the work failed for that reason.
func (s Span) End(failed string) {
	if s.span == nil {
		return
	}
	if failed != "" {
		s.span.SetStatus(codes.Error, failed)
	}
	s.span.End()
}

func attributes(pairs []string) []attribute.KeyValue {
	out := make([]attribute.KeyValue, 0, len(pairs)/2)
	for i := 0; i+1 < len(pairs); i += 2 {
		out = append(out, attribute.String("safedelivr."+pairs[i], pairs[i+1]))
	}
	return out
}
