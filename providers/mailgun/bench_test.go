package mailgun

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/providertest"
)

// BenchmarkSend1000 measures a whole call to a server in the same process.
func BenchmarkSend1000(b *testing.B) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, acceptance)
	}))
	defer server.Close()
	p := adapter(b, server.URL)
	defer p.Close()
	c := providertest.SampleCall(1000)
	b.ReportAllocs()
	for b.Loop() {
		if got := p.Send(b.Context(), c); got[0].Class != models.Accepted {
			b.Fatal(got)
		}
	}
}

func BenchmarkCompose1000(b *testing.B) {
	c := providertest.SampleCall(1000)
	b.ReportAllocs()
	for b.Loop() {
		if _, refused := compose(c); refused != nil {
			b.Fatal(refused)
		}
	}
}
