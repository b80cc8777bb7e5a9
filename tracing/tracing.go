// Package tracing follows a batch through the processes: from the request that
// brought it, through the broker, to the provider calls and the events.
//
// A batch's UUID is the id of its trace, so that nothing has to travel with
// messages: whoever works on a batch knows its trace. It is off unless Setup is
// called.
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

// tracer is nil while tracing is off.
var tracer atomic.Pointer[setup]

type setup struct {
	tracer otrace.Tracer
	ratio  float64
}

// Setup sends spans to an OTLP endpoint over HTTP, like
// http://collector:4318, of the given share (0 to 1) of all batches. What it
// returns sends what is left and ends tracing.
func Setup(ctx context.Context, endpoint string, ratio float64, version string) (func(context.Context) error, error) {
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" {
		return nil, fmt.Errorf("traces: %q is no URL of an OTLP endpoint", endpoint)
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

// With hands spans to a processor.
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

// Span is a piece of work. The zero Span does nothing.
type Span struct{ span otrace.Span }

// Start begins a piece of work on a batch, which began at a time (zero: now).
// Attributes come in pairs; none holds an address.
func Start(batch models.ID, name string, at time.Time, pairs ...string) Span {
	s := tracer.Load()
	if s == nil {
		return Span{}
	}
	batch = batch.Batch()
	h := fnv.New64a()
	_, _ = h.Write(batch[:]) // never fails
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

// Add says more about the work.
func (s Span) Add(pairs ...string) {
	if s.span != nil {
		s.span.SetAttributes(attributes(pairs)...)
	}
}

// End ends the work; failed, if not empty, says why it failed.
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
