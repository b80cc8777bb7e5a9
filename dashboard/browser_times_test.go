//go:build browser

package dashboard

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/intake"
)

// TestBrowserChangeTime changes the time of a scheduled batch in the dialog of its page, and looks at it.
func TestBrowserChangeTime(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	at := time.Now().UTC().AddDate(0, 0, 3).Truncate(time.Second)
	id := f.batchOf("local", map[string]string{"deliver_at": at.Format(time.RFC3339)},
		service.Recipient{Email: "ann@example.com"}, service.Recipient{Email: "bob@example.com"})
	b := f.logIn(f.url)
	b.open("/batches/" + id.String())
	b.press("Change time")
	b.sees("Nothing is sent before the new time.")
	b.fill("time_zone", "Europe/Vienna")
	b.answer()
	b.sees("The time is changed.")
	b.lookAround("times", "/batches/"+id.String()+"/reschedule")
	for i, subject := range []string{"Your invoice for March", "Spring sale", "Last call"} {
		due := at.AddDate(0, []int{2, 1, 0}[i], 1).Format(time.RFC3339)
		f.batchOf("local", map[string]string{"deliver_at": due, "subject": subject},
			service.Recipient{Email: "eve@example.com"})
	}
	b.open("/batches?state=scheduled")
	b.sees("Your invoice for March")
	titles := eval[string](b, `[...document.querySelectorAll(".batch-row .title")].map(e => e.textContent).join(", ")`)
	require.Regexp(t, `^.+, Last call, Spring sale, Your invoice for March$`, titles, "next first")
	b.lookAround("scheduled", "/batches?state=scheduled")
	require.Empty(t, b.complaints())
}

// TestBrowserOwnTimes looks at the pages of a batch and of a recipient with a time of its own, which say when it
// leaves.
func TestBrowserOwnTimes(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	at := time.Now().UTC().AddDate(0, 0, 3).Truncate(time.Second)
	own := intake.Times{DeliverAt: at.AddDate(0, 0, 1).Format(time.RFC3339)}
	id := f.batchOf("local", map[string]string{"deliver_at": at.Format(time.RFC3339)},
		service.Recipient{Email: "ann@example.com"}, service.Recipient{Email: "bob@example.com", Times: own})
	b := f.logIn(f.url)
	b.open("/batches/" + id.String() + "#content")
	b.sees("1 of the recipients")
	b.open("/logs/" + id.Chunk(1).Log(1).String())
	b.sees("Sent at")
	b.lookAround("own-times", "/logs/"+id.Chunk(1).Log(1).String())
	require.Empty(t, b.complaints())
}
