package intake

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/problem"
)

// TestUnsubscribe: bulk mail with a category has a link and the header fields of RFC 8058 by
// default, urgent mail and mail without a category only on request, and none without a page.
func TestUnsubscribe(t *testing.T) {
	t.Parallel()
	const page = "https://mail.example.com/unsubscribe/"
	for name, c := range map[string]struct {
		url, lane, category string
		flag                *bool
		header              string
		on                  bool
		wrong               string
	}{
		"bulk with a category": {url: page, lane: "bulk", category: "news", on: true},
		"bulk without":         {url: page, lane: "bulk"},
		"urgent":               {url: page, lane: "urgent", category: "news"},
		"refused":              {url: page, lane: "bulk", category: "news", flag: new(false)},
		"asked for":            {url: page, lane: "urgent", flag: new(true), on: true},
		"no page":              {lane: "bulk", category: "news"},
		"no page, asked for":   {lane: "bulk", category: "news", flag: new(true), wrong: "SAFEDELIVR_PUBLIC_URL"},
		"own header":           {url: page, lane: "bulk", category: "news", header: "list-unsubscribe", on: true},
	} {
		cfg := &Config{
			MaxRecipients: 10, MaxContent: 1 << 20, UrgentUpTo: 1, SpoolDir: t.TempDir(), UnsubscribeURL: c.url,
		}
		b := New(t.Context(), cfg)
		t.Cleanup(b.Close)
		b.Batch = Batch{
			From: "a@b.example", Subject: "s", Text: "t", Lane: c.lane, Category: c.category, Unsubscribe: c.flag,
		}
		if c.on {
			b.Batch.HTML = `<a href="{{unsubscribe_url}}">no more</a>`
		}
		if c.header != "" {
			b.Batch.Headers = []models.Header{{Name: c.header, Value: "<mailto:x@b.example>"}}
		}
		require.NoError(t, b.Read(Of(Recipient{Email: "c@d.example"})))
		batch, err := b.Check()
		if c.wrong != "" {
			var e *problem.Error
			require.ErrorAs(t, err, &e, name)
			require.Contains(t, e.Fields[0].Detail, c.wrong, name)
			continue
		}
		require.NoError(t, err, name)
		require.Equal(t, c.on, batch.Unsubscribe != nil, name)
		var want []models.Header
		if c.on && c.header == "" {
			want = []models.Header{
				{Name: "List-Unsubscribe", Value: "<{{unsubscribe_url}}>"},
				{Name: "List-Unsubscribe-Post", Value: "List-Unsubscribe=One-Click"},
			}
		} else if c.header != "" {
			want = []models.Header{{Name: c.header, Value: "<mailto:x@b.example>"}}
		}
		require.Equal(t, want, batch.Content.Headers, name)
	}
}
