//go:build browser

package dashboard

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBrowserAttachments: the attachments of a batch and of a message are listed, at every width and in both themes,
// and are saved under their names.
func TestBrowserAttachments(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	one := f.attachedBatch(strings.Repeat("x", 500_000), "ann@example.com")
	many := f.attachedBatch(strings.Repeat("x", 500_000), "ann@example.com", "bob@example.com")
	b := f.logIn(f.url)
	b.lookAround("attachments-batch", "/batches/"+many.String()+"#content")
	b.sees(`<Größe> "quoted".html`)
	b.lookAround("attachments-log", "/logs/"+many.Log(1).String())
	b.sees("inline as cid:logo@x")
	b.lookAround("attachments-one", "/batches/"+one.String()+"#content")
	b.sees("logo.png")
	name := eval[string](
		b,
		`fetch(document.querySelector("a[download]").href).then((r) => r.headers.get("Content-Disposition"))`,
	)
	require.True(t, strings.HasPrefix(name, "attachment; filename*=utf-8''%3CGr"), name)
}
