package providers_test

import (
	"bytes"
	"context"
	"io"
	"mime"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/providertest"
	"github.com/safedelivr/safedelivr/models/settings"
	"github.com/safedelivr/safedelivr/providers"
)

// TestCompose: Compose returns the request that Send makes, makes no request, and has no key in
// it.
func TestCompose(t *testing.T) {
	t.Parallel()
	for _, kind := range apis() {
		t.Run(kind.Name, func(t *testing.T) {
			t.Parallel()
			var sent []models.Request
			api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				sent = append(sent, models.Request{Method: r.Method, URL: "http://" + r.Host + r.URL.Path,
					ContentType: r.Header.Get("Content-Type"), Body: body})
				w.WriteHeader(http.StatusServiceUnavailable)
			}))
			defer api.Close()
			adapter, err := providers.New(providers.Settings{Name: "a", Kind: kind.Name, APIKey: "secret-key",
				Pair: settings.Pair{SecretKey: "s"}, Domain: "mg.example.com", BaseURL: api.URL, Timeout: time.Minute,
				Events: models.EventsNone, Amazon: amazon("secret-key")})
			if err != nil {
				t.Fatal(err)
			}
			defer adapter.Close()
			call := providertest.SampleCall(3)
			composer, ok := adapter.(models.Composer)
			if !ok {
				t.Fatal("it cannot show what it sends")
			}
			got, refused := composer.Compose(call)
			if refused != nil || len(sent) > 0 {
				t.Fatalf("refused: %v; %d requests", refused, len(sent))
			}
			adapter.Send(context.Background(), call)
			if len(sent) != 1 {
				t.Fatalf("%d requests", len(sent))
			}
			want := sent[0]
			sameBoundary(&got)
			sameBoundary(&want)
			if got.Method != want.Method || got.URL != want.URL || got.ContentType != want.ContentType {
				t.Fatalf(
					"got %s %s %s, want %s %s %s",
					got.Method,
					got.URL,
					got.ContentType,
					want.Method,
					want.URL,
					want.ContentType,
				)
			}
			if !bytes.Equal(got.Body, want.Body) {
				t.Fatalf("got\n%s\nwant\n%s", got.Body, want.Body)
			}
			if bytes.Contains(got.Body, []byte("secret-key")) || strings.Contains(got.URL, "secret-key") {
				t.Fatal("it has the key")
			}
			call.Content.From.Email = "müller@example.com" // neither takes it
			if _, refused := composer.Compose(call); len(refused) == 0 {
				t.Fatal("a call that cannot be made was composed")
			}
		})
	}
}

// sameBoundary replaces the boundary of a multipart body, which is random, and sorts the parts,
// whose order may be random.
func sameBoundary(r *models.Request) {
	if _, params, err := mime.ParseMediaType(r.ContentType); err == nil && params["boundary"] != "" {
		r.ContentType = strings.ReplaceAll(r.ContentType, params["boundary"], "B")
		parts := strings.Split(string(r.Body), "--"+params["boundary"])
		slices.Sort(parts)
		r.Body = []byte(strings.Join(parts, "--B"))
	}
}
