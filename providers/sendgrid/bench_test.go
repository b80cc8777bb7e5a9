package sendgrid

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/safedelivr/safedelivr/models"
)

func benchmarkSend(b *testing.B, c *models.Call) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("X-Message-Id", "x")
		w.WriteHeader(http.StatusAccepted)
	}))
	defer server.Close()
	p := adapter(b, server.URL)
	defer p.Close()
	b.ReportAllocs()
	for b.Loop() {
		if parts := p.Send(b.Context(), c); parts[0].Class != models.Accepted {
			b.Fatal(parts)
		}
	}
}
