package shape_test

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/feed"
	"github.com/safedelivr/safedelivr/models/shape"
	"github.com/safedelivr/safedelivr/store/memory"
)

var at = time.Date(2026, 1, 31, 12, 0, 5, 123456000, time.UTC)

// described returns updates of a mail to Ann, each with the next number. Her address is on the suppression list for
// listed, if that is not empty.
func described(t *testing.T, listed models.SuppressionReason, updates ...feed.Update) []feed.Described {
	t.Helper()
	s, user := memory.Open(t), models.NewUserID()
	id, err := models.ParseBatchID("01937b5a-8c4e-7a31-9f00-1b2c00000000")
	require.NoError(t, err)
	b := models.Batch{
		ID: id, User: user, Recipients: 2, Chunks: 1, Lane: models.Urgent, OnUnknown: models.Hold, Category: "group-12",
		ExpiresAt: at.Add(time.Hour), Metadata: map[string]string{"run": "7", "event": "launch"},
		Content: models.Content{
			From: models.Address{Email: "shop@news.example.com", Name: "Größe & Co"}, Subject: "Hi {{name}}", Text: "t",
			Tags: []string{"welcome", "größe/2"},
			Headers: []models.Header{
				{Name: "X-Order", Value: "№ {{name}}"}, {Name: models.MessageIDField, Value: "<m7@app.example.com>"},
			},
		},
	}
	to := []models.Recipient{{Email: "bob@example.com"}, {
		Email: "ann@example.com", Name: "Ann", Vars: map[string]string{"name": "Ann"},
		Metadata: map[string]string{"customer": "17"},
	}}
	require.NoError(t, s.PutBatch(t.Context(), b, models.Chunk{ID: id, Recipients: to}))
	if listed != "" {
		for _, reason := range []models.SuppressionReason{models.SoftBounce, listed} {
			e := models.NewSuppression("Ann@example.com", reason, models.FromEvent, at)
			require.NoError(t, s.PutSuppressions(t.Context(), user, e))
		}
	}
	for i := range updates {
		updates[i].Log, updates[i].Number, updates[i].At, updates[i].Provider = id.Log(2), i+1, at, "sg"
	}
	d := feed.NewDescriber(s)
	out, err := d.Describe(t.Context(), user, updates)
	require.NoError(t, err)
	require.NoError(t, d.AddListed(t.Context(), user, out))
	return out
}

// TestShapes compares the events of each shape with golden files. UPDATE_GOLDEN=1 writes them.
func TestShapes(t *testing.T) {
	t.Parallel()
	failed := func(r models.Reason) feed.Update { return feed.Update{State: models.Failed, Reason: r} }
	all := described(t, "",
		feed.Update{State: models.Success},
		feed.Update{Event: models.Deferred, Reason: models.Greylisted},
		feed.Update{Event: models.Bounced, Reason: models.MailboxFull},
		feed.Update{Event: models.Bounced, Reason: models.MailboxInvalid},
		feed.Update{Event: models.Opened}, feed.Update{Event: models.Clicked},
		feed.Update{Event: models.Complained}, feed.Update{Event: models.Unsubscribed},
		feed.Update{State: models.Queued}, feed.Update{State: models.Cancelled},
		failed(models.MailboxInvalid), failed(models.BounceUnknown), failed(models.MailboxFull),
		failed(models.DeliveryTimeout), failed(models.PolicyContent), failed(models.SuppressedBounce),
		failed(models.SuppressedComplaint), failed(models.SuppressedUnsubscribe), failed(models.Expired),
		failed(models.OutcomeUnknown))
	for _, reason := range []models.SuppressionReason{models.HardBounce, models.Complaint, models.Manual} {
		all = append(all, described(t, reason, failed(models.Suppressed))...)
	}
	for _, name := range []shape.Name{shape.Mailgun, shape.SendGrid, shape.Postmark, shape.Resend} {
		var have bytes.Buffer
		for i := range all {
			d := &all[i]
			if !name.Has(d.Type(), d.Reason) {
				have.WriteString("no event for " + string(d.Type()) + " " + string(d.Reason) + "\n")
				continue
			}
			lines := json.NewEncoder(&have)
			lines.SetEscapeHTML(false)
			require.NoError(t, lines.Encode(name.Event(d)))
		}
		path := "testdata/" + string(name) + ".txt"
		if os.Getenv("UPDATE_GOLDEN") != "" {
			require.NoError(t, os.WriteFile(path, have.Bytes(), 0o600))
		}
		want, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, string(want), have.String(), "%s (UPDATE_GOLDEN=1 writes it)", path)
	}
}

// TestWordlessUpdates: a shape has an event for the updates of its service and for no others, whatever the reason.
func TestWordlessUpdates(t *testing.T) {
	t.Parallel()
	common := []feed.Type{feed.Delivered, feed.Failed, feed.Deferred, feed.Opened, feed.Clicked, feed.Complained}
	for name, want := range map[shape.Name][]feed.Type{
		shape.Standard: append(append([]feed.Type(nil), feed.Types...), feed.NoticeTypes...),
		shape.Mailgun:  append([]feed.Type{feed.Bounced, feed.Unsubscribed}, common...),
		shape.SendGrid: append([]feed.Type{feed.Unsubscribed}, common...),
		shape.Postmark: append([]feed.Type{feed.Unsubscribed}, common...),
		shape.Resend:   common,
	} {
		has := map[feed.Type]bool{}
		for _, list := range [][]feed.Type{feed.Types, feed.NoticeTypes} {
			for _, kind := range list {
				if name.Has(kind, "") {
					has[kind] = true
				}
			}
		}
		of := map[feed.Type]bool{}
		for _, kind := range want {
			of[kind] = true
		}
		require.Equal(t, of, has, name)
		for _, reason := range models.Reasons() {
			unclear := reason == models.OutcomeUnknown || reason == models.NoFinalEvent
			clear := name == shape.Standard || name == shape.Mailgun || !unclear
			require.Equal(t, clear, name.Has(feed.Failed, reason), "%s %s", name, reason)
		}
	}
}

// TestFailuresHaveKinds: each failure has the type and the code of a bounce of Postmark, and a word of Resend.
func TestFailuresHaveKinds(t *testing.T) {
	t.Parallel()
	for _, reason := range models.Reasons() {
		if !shape.Postmark.Has(feed.Failed, reason) {
			continue
		}
		d := described(t, "", feed.Update{State: models.Failed, Reason: reason})
		var bounce struct {
			Type, Name   string
			TypeCode, ID int64
		}
		read(t, shape.Postmark.Event(&d[0]), &bounce)
		require.NotEmpty(t, bounce.Type, reason)
		require.NotEmpty(t, bounce.Name, reason)
		require.Positive(t, bounce.TypeCode, reason)
		require.Less(t, bounce.ID, int64(1)<<53)
		var event struct {
			Type string
			Data struct{ Bounce, Suppressed, Failed map[string]string }
		}
		read(t, shape.Resend.Event(&d[0]), &event)
		said := map[string]map[string]string{
			"email.bounced": event.Data.Bounce, "email.suppressed": event.Data.Suppressed, "email.failed": event.Data.Failed,
		}
		require.NotEmpty(t, said[event.Type], reason)
	}
}

// TestMessageIDsOfSendGrid: each mail has its own ID, also in another chunk. All begin with that of the batch.
func TestMessageIDsOfSendGrid(t *testing.T) {
	t.Parallel()
	id := models.NewBatchID(at)
	seen := map[string]bool{}
	for _, log := range []models.ID{id.Log(1), id.Log(2), id.Chunk(1).Log(1)} {
		var event struct {
			ID string `json:"sg_message_id"`
		}
		read(t, shape.SendGrid.Event(&feed.Described{Batch: id, Log: log, State: models.Success, At: at}), &event)
		require.Equal(t, strings.ReplaceAll(id.String(), "-", ""), strings.Split(event.ID, ".")[0])
		require.False(t, seen[event.ID], event.ID)
		seen[event.ID] = true
	}
}

// TestLargeHeaders: of many header fields only the Message-ID is in an event, and an event has no other ones.
func TestLargeHeaders(t *testing.T) {
	t.Parallel()
	s, user := memory.Open(t), models.NewUserID()
	for _, size := range []int{100, 20_000} {
		id := models.NewBatchID(at)
		b := models.Batch{ID: id, User: user, Recipients: 1, Chunks: 1, Lane: models.Bulk, OnUnknown: models.Hold,
			ExpiresAt: at.Add(time.Hour), Content: models.Content{Subject: "s", Text: "t", Headers: []models.Header{
				{Name: "X-A", Value: string(bytes.Repeat([]byte("a"), size))}, {Name: "Message-Id", Value: "<m@x.test>"},
			}}}
		require.NoError(t, s.PutBatch(t.Context(), b, models.Chunk{
			ID: id, Recipients: []models.Recipient{{Email: "a@x.test"}},
		}))
		d, err := feed.NewDescriber(s).Describe(t.Context(), user, []feed.Update{{Log: id.Log(1), State: models.Success}})
		require.NoError(t, err)
		require.Equal(t, "<m@x.test>", d[0].RFCMessageID)
		names := map[int][]string{100: {"X-A", "Message-Id"}, 20_000: {"Message-Id"}}
		var have []string
		for _, h := range d[0].Headers() {
			have = append(have, h.Name)
		}
		require.Equal(t, names[size], have)
	}
}

// read reads an event as its receiver does.
func read(t *testing.T, event, into any) {
	t.Helper()
	raw, err := json.Marshal(event)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, into))
}
