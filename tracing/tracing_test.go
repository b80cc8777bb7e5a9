package tracing_test

import (
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/tracing"
)

// Tests do not run in parallel, because they share the tracer of the process.

// TestBatchIsOneTrace: all spans of a batch belong to the trace with its ID. A batch is
// sampled with all of its spans or none.
func TestBatchIsOneTrace(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	end := tracing.With(recorder, 0.5, "test")
	batches := map[string]int{}
	for range 200 {
		b := models.NewBatchID(time.Now())
		batches[strings.ReplaceAll(b.String(), "-", "")] = 0
		tracing.Start(b, "accept", time.Time{}, "lane", "bulk").End("")
		span := tracing.Start(b.Chunk(7), "provider call", time.Now().Add(-time.Second))
		span.Add("answer.accepted", "10")
		span.End("unavailable")
	}
	require.NoError(t, end(t.Context()))
	for _, s := range recorder.Ended() {
		id := s.SpanContext().TraceID()
		require.Contains(t, batches, hex.EncodeToString(id[:]))
		batches[hex.EncodeToString(id[:])]++
		require.True(t, s.Parent().IsRemote())
		if s.Name() == "provider call" {
			require.GreaterOrEqual(t, s.EndTime().Sub(s.StartTime()), time.Second)
			require.Equal(t, "unavailable", s.Status().Description)
		}
	}
	traced := 0
	for id, n := range batches {
		require.Contains(t, []int{0, 2}, n, "trace %s must have all spans or none", id)
		traced += n / 2
	}
	require.InDelta(t, 100, traced, 50)
	tracing.Start(models.NewBatchID(time.Now()), "off", time.Time{}).End("")
	require.Len(t, recorder.Ended(), 2*traced)
}

// TestSetupSendsSpans: Setup sends spans to /v1/traces of the endpoint.
func TestSetupSendsSpans(t *testing.T) {
	var mu sync.Mutex
	var paths []string
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		paths = append(paths, r.Method+" "+r.URL.Path)
	}))
	defer collector.Close()
	end, err := tracing.Setup(t.Context(), collector.URL, 1, "test")
	require.NoError(t, err)
	tracing.Start(models.NewBatchID(time.Now()), "accept", time.Time{}).End("")
	require.NoError(t, end(t.Context()))
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, []string{"POST /v1/traces"}, paths)
	_, err = tracing.Setup(t.Context(), "collector", 1, "test")
	require.ErrorContains(t, err, "not the URL")
}
