package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/lab/simulated"
	"github.com/safedelivr/safedelivr/lab/simulator"
)

// TestReportsByMail: a mail server accepts mails, and later reports by mail that it could not deliver them. A mail that
// another provider can deliver goes there, and the others end. A report that arrives twice counts once, and a forged one
// does not count.
func TestReportsByMail(t *testing.T) {
	testkit.OnBackends(t, func(t *testing.T, b testkit.Backend) {
		pair, err := simulated.NewPair(simulator.SMTP, simulator.SendGrid)
		require.NoError(t, err)
		sent, read := t.TempDir(), t.TempDir() // what the server writes, and the mailbox
		for _, dir := range []string{sent, read} {
			for _, name := range []string{"tmp", "new", "cur"} {
				require.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o700))
			}
		}
		pair[0].Maildir = sent
		r := newRigOf(t, b, pair, simulator.Options{},
			"SAFEDELIVR_PROVIDERS_SMTP_WEBHOOK_KEY=a-secret-of-more-than-twenty-characters",
			"SAFEDELIVR_PROVIDERS_SMTP_BOUNCE_ADDRESS=bounces@demo.test",
			"SAFEDELIVR_PROVIDERS_SMTP_BOUNCE_MAILDIR="+read)
		r.serveHere()
		locals := []string{"user", "async-smtp", "expire-smtp", "complain-smtp", "defer-then-deliver-smtp"}
		id := r.post(mail{n: len(locals), providers: []string{"smtp", "sg"}, address: func(i int) string {
			return fmt.Sprintf("%s+%d@demo.test", locals[i], i)
		}})
		r.done(id)
		for _, l := range r.logs(id, "") {
			require.True(t, l.State == client.Delivered && l.Unconfirmed, "%+v", l)
		}

		files, err := filepath.Glob(filepath.Join(sent, "new", "*"))
		require.NoError(t, err)
		require.Len(t, files, 4)
		for i, f := range files {
			raw, err := os.ReadFile(f)
			require.NoError(t, err)
			forged := strings.ReplaceAll(string(raw), "bounces+", "bounces+a")
			for n, text := range []string{string(raw), string(raw), forged} {
				at := filepath.Join(read, "new", fmt.Sprintf("%d.%d.host", i, n))
				require.NoError(t, os.WriteFile(at, []byte(text), 0o600))
			}
		}
		want := map[string]string{
			"user":                    "delivered unconfirmed by smtp:",
			"async-smtp":              "failed mailbox_invalid by smtp: bounced",
			"expire-smtp":             "delivered by smtp,sg: bounced processed delivered",
			"complain-smtp":           "delivered implied by smtp: complained",
			"defer-then-deliver-smtp": "delivered unconfirmed by smtp: deferred",
		}
		var got map[string]string
		require.Eventually(t, func() bool {
			got = map[string]string{}
			for _, l := range r.logs(id, "") {
				whole, err := r.client.Log(context.Background(), l.ID)
				require.NoError(t, err)
				name, _, _ := strings.Cut(l.Email, "+")
				got[name] = described(&whole)
			}
			return fmt.Sprint(got) == fmt.Sprint(want)
		}, testkit.Patience, 100*time.Millisecond, "%v\n%v", want, &got)
		require.Eventually(t, func() bool {
			left, err := os.ReadDir(filepath.Join(read, "new"))
			require.NoError(t, err)
			return len(left) == 0
		}, testkit.Patience, 20*time.Millisecond)
		left, err := os.ReadDir(filepath.Join(read, "cur"))
		require.NoError(t, err)
		require.Len(t, left, len(files), "the forged ones are marked as read")
		r.statsAgree(id)
		require.Len(t, r.logs(id, client.Failed), 1)
		all, _ := r.copies()
		for _, l := range r.logs(id, "") {
			require.Equal(t, 1+strings.Count(l.Email, "expire"), all[l.ID], "%+v", l)
		}
		require.Contains(t, r.command("provider", "check", "smtp"), "mailbox")
	})
}

// described returns the state of a log, and the kinds of its events in order.
func described(l *client.Log) string {
	text := string(l.State)
	if l.Reason != "" {
		text += " " + l.Reason
	}
	text += " by " + strings.Join(l.Route, ",") + ":"
	for _, m := range l.Timeline {
		if m.Event != "" {
			text += " " + m.Event
		}
	}
	return text
}
