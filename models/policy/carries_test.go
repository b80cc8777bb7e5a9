package policy

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
)

// TestProviderThatCannotCarry: a provider that cannot carry a message is no option for it, also after another one
// refused it. If none can, the mail fails and says why.
func TestProviderThatCannotCarry(t *testing.T) {
	t.Parallel()
	p := New(Config{MaxRetries: 10, Delays: []time.Duration{time.Second}}, []models.Provider{
		{Name: "a", Carries: models.Capabilities{Attachments: true, Size: 1000}},
		{Name: "b", Carries: models.Capabilities{Attachments: true, Size: 1000, Base64: true}},
		{Name: "c"},
	})
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	plan := func(size int64, entries []models.Entry, facts []models.Fact) Step {
		b := &models.Batch{Content: models.Content{From: models.Address{Email: "a@b.c"}}}
		if size > 0 {
			b.Content.Attachments = []models.Attachment{{Filename: "f", Size: size}}
		}
		steps := p.Plan(models.Resolve(1, entries, facts), b, &Commands{Rules: control.NewFollower(nil).Rules()}, at)
		require.Len(t, steps, 1)
		return steps[0]
	}
	names := func(st Step) (out []string) {
		for _, o := range st.Options {
			out = append(out, o.Provider)
		}
		return out
	}
	require.Equal(t, []string{"a", "b", "c"}, names(plan(0, nil, nil)))
	require.Equal(t, []string{"a", "b"}, names(plan(600, nil, nil)))
	require.Equal(t, []string{"a"}, names(plan(900, nil, nil)))
	refused := []models.Fact{{Key: models.OutcomeKey(1), Outcome: &models.Outcome{Attempt: 1, At: at, Parts: []models.Part{
		{Class: models.RejectedHereClass, Recipients: models.SetOf(1)}}}}}
	first := []models.Entry{
		{Number: 1, Kind: models.Attempt, At: at, Recipients: models.SetOf(1), Provider: "a", CallEnds: at},
	}
	require.Equal(t, []string{"b"}, names(plan(600, first, refused)))
	different := &models.Batch{OwnHeaders: models.DifferentNames}
	headers := func(carries models.Capabilities) string {
		return New(Config{}, []models.Provider{{Name: "a", Carries: carries}}).refuses("a", different)
	}
	require.Equal(t, "it takes no header fields of recipients", headers(models.Capabilities{HeaderNames: true}))
	require.Equal(t, "the mails to all recipients have header fields of the same names there",
		headers(models.Capabilities{Headers: true}))
	require.Empty(t, headers(models.Capabilities{Headers: true, HeaderNames: true}))
	different.OwnHeaders = models.SameNames
	require.Empty(t, headers(models.Capabilities{Headers: true}))
	different.Content = models.Content{Subject: "{{name}}", From: models.Address{Email: "josé@b.example"}}
	require.Equal(t, "it takes no addresses with characters beyond ASCII",
		headers(models.Capabilities{Headers: true, Variables: true}))
	require.Equal(t, "it takes no variables of recipients", headers(models.Capabilities{Headers: true, UTF8: true}))
	several := &models.Batch{Content: models.Content{ReplyTo: make([]models.Address, 2)}}
	carries := models.Capabilities{OneReply: true}
	require.Equal(t, "it takes one reply-to address", carries.Refuses(several))
	several.Content.ReplyTo = several.Content.ReplyTo[:1]
	require.Empty(t, carries.Refuses(several))
	st := plan(1001, nil, nil)
	require.Equal(t, End, st.Do)
	require.Equal(t, models.RejectedHere, st.Reason)
	require.Equal(
		t,
		"a: the message has 1001 bytes there: it takes 1000; b: the message has 1336 bytes there: it takes 1000; "+
			"c: it takes no attachments",
		st.Detail,
	)
}
