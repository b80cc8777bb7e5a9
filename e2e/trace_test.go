package e2e

import (
	"compress/gzip"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/lab/simulator"
)

// TestTraced requires that a batch has one trace, whose id is the batch's, from the request through the broker to the
// provider calls and the events, across processes.
func TestTraced(t *testing.T) {
	testkit.OnBackends(t, func(t *testing.T, b testkit.Backend) {
		var mu sync.Mutex
		seen := map[string][]*trace.Span{} // by trace
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			body := io.Reader(req.Body)
			if req.Header.Get("Content-Encoding") == "gzip" {
				z, err := gzip.NewReader(body)
				if err != nil {
					http.Error(w, err.Error(), http.StatusBadRequest)
					return
				}
				body = z
			}
			raw, err := io.ReadAll(body)
			var in collector.ExportTraceServiceRequest
			if err == nil {
				err = proto.Unmarshal(raw, &in)
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			for _, r := range in.GetResourceSpans() {
				for _, s := range r.GetScopeSpans() {
					for _, span := range s.GetSpans() {
						id := hex.EncodeToString(span.GetTraceId())
						seen[id] = append(seen[id], span)
					}
				}
			}
		}))
		t.Cleanup(server.Close)
		r := newRig(t, b, simulator.Options{}, "SAFEDELIVR_TRACES_ENDPOINT="+server.URL)
		roles := [][]string{{"serve"}}
		if b.Real {
			roles = [][]string{{"serve", "--roles", "api,webhooks"}, {"serve", "--roles", "worker"}}
		}
		for i, args := range roles {
			addr := r.addr
			if i > 0 {
				addr = freeAddr(t)
			}
			r.start(addr, nil, args...)
		}
		id := r.post(mail{n: 1500})
		r.done(id)
		names := func() map[string]int {
			mu.Lock()
			defer mu.Unlock()
			out := map[string]int{}
			for _, s := range seen[strings.ReplaceAll(id.String(), "-", "")] {
				out[s.GetName()]++
			}
			return out
		}
		require.Eventually(t, func() bool {
			n := names()
			return n["accept"] == 1 && n["dispatch"] >= 2 && n["provider call"] >= 2 && n["events"] >= 1
		}, testkit.Patience, 50*time.Millisecond, "%v", names())
		mu.Lock()
		defer mu.Unlock()
		for _, spans := range seen {
			for _, s := range spans {
				for _, a := range s.GetAttributes() {
					require.NotContains(t, a.GetValue().GetStringValue(), "@")
				}
			}
		}
	})
}
