package mail

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/mail"
)

// TestDidWords checks that an unknown number of calls is not shown as none.
func TestDidWords(t *testing.T) {
	t.Parallel()
	require.NotContains(t, didWords("stop", "0", "", ""), "started")
	require.Contains(t, didWords("stop", "2", "", ""), "Calls with 2 messages had already started")
	require.Contains(t, didWords("cancel", uncounted, "", ""), "could not be counted")
	require.NotContains(t, didWords("retry", uncounted, "", ""), "counted")
	require.Empty(t, didWords("nothing", "2", "", ""))
	require.Contains(t, didWords("stop", "0", "5", ""), "5 messages wait.")
	require.Contains(t, didWords("cancel", "0", "1", ""), "1 message is cancelled.")
	require.Contains(t, didWords("release", "0", "1", ""), "1 held message is queued again.")
	require.Contains(t, didWords("retry", "0", "0", ""), "Nothing changed")
}

type noUsers struct{ web.Store }

// User implements web.Store.
func (noUsers) User(context.Context, string) (models.User, error) {
	return models.User{}, models.ErrNotFound
}

// TestBatchIsShown: the page of a batch shows each of its fields.
func TestBatchIsShown(t *testing.T) {
	t.Parallel()
	frame := &web.Frame{Config: web.Config{Providers: web.NewProviders(nil), Store: noUsers{}}}
	page := func(b *mail.BatchView) string {
		view := (&Pages{web: frame}).batchOf(t.Context(), service.Caller{}, b, nil)
		view.Of = b.User
		parts, err := views.Parts("batch", web.Page{Data: view}, "content")
		require.NoError(t, err)
		return string(parts["content"])
	}
	testkit.Shown(t, page, nil, func(b *mail.BatchView) { b.Lane = models.Urgent },
		func(b *mail.BatchView) { b.Cancelled, b.OnUnknown = false, models.Resend },
		func(b *mail.BatchView) { b.Cancelled, b.Stopped = false, false })
}
