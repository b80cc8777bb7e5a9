package dashboard

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/stats"
)

// TestStatisticsPage shows mail by tag and by the sender's domain, with its rates, and says what is wrong with a range.
func TestStatisticsPage(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	require.Contains(t, b.get("/statistics").text, "No mail of these days has one.")

	in := f.service.NewIntake(t.Context(), service.Caller{User: "local"})
	defer in.Close()
	in.Batch = intake.Batch{From: "shop@example.com", Subject: "s", Text: "t", Tags: []string{"march", "vip"}}
	require.NoError(t, in.Read(intake.Of(service.Recipient{Email: "ann@example.org"},
		service.Recipient{Email: "bob@example.org"}, service.Recipient{Email: "eve@example.org"})))
	a, _, err := f.service.Accept(t.Context(), service.Caller{User: "local"}, in, service.Repeat{})
	require.NoError(t, err)
	at := time.Now()
	entry := models.Entry{Kind: models.Attempt, Number: 1, Provider: "sg", Recipients: models.SetTo(3)}
	entry.Token, entry.At = models.NewToken(), at
	require.NoError(t, f.store.Append(t.Context(), a.ID, entry))
	for r, kind := range map[int]models.EventKind{1: models.Delivered, 2: models.Opened, 3: models.Bounced} {
		e := models.Event{ID: string(kind), Attempt: 1, Provider: "sg", Recipient: r, Kind: kind, At: at}
		if kind == models.Bounced {
			e.Reason = models.MailboxInvalid
		}
		fact := models.Fact{Key: models.EventsKey(models.NewBatchID(at)), Events: []models.Event{e}}
		require.NoError(t, f.store.PutFacts(t.Context(), models.ChunkFact{Chunk: a.ID, Fact: fact}))
	}
	f.summed(a.ID)

	page := b.get("/statistics").text
	require.Regexp(t, `<a href="/statistics\?by=tag&amp;from=[^"]+&amp;name=vip&amp;to=[^"]+">vip</a>`, page)
	require.Contains(t, page, `<span data-share>66.7 %</span>`, "delivered")
	require.Contains(t, page, `<span data-share>33.3 %</span>`, "bounced")
	require.Contains(t, page, `<span data-share>50 %</span>`, "opened")
	page = b.get("/statistics?by=sender").text
	require.Contains(t, page, `>example.com</a>`)
	require.NotContains(t, page, "march")

	page = b.get("/statistics?by=tag&name=vip").text
	require.Contains(t, page, `<h1 class="break">vip</h1>`)
	require.Contains(t, page, `<a class="button" href="/logs?tag=vip&amp;from=`)
	require.Contains(t, page, `<th scope="row">sg</th><td class="n"><a href="/logs?tag=vip&amp;from=`)
	require.Contains(t, page, `<span data-share>66.7 %</span>`)
	require.Contains(t, b.get("/batches?tag=vip").text, a.ID.String())
	require.NotContains(t, b.get("/batches?tag=other").text, a.ID.String())
	require.Contains(t, b.get("/batches/"+a.ID.String()).text, `<a href="/batches?tag=vip">vip</a>`)
	page = b.get("/statistics?by=tag&name=other").text
	require.Contains(t, page, `<h1 class="break">other</h1>`)
	require.NotContains(t, page, `<th scope="row">sg</th>`, "no mail has this tag")

	bad := b.get("/statistics?from=2020-01-02&to=2020-01-01")
	require.Equal(t, http.StatusBadRequest, bad.StatusCode)
	require.Contains(t, bad.text, "From must not be after to")
}

// TestStatisticsByProvider: each provider has the counts of the mail that ended there, those of its events, and what it
// left to another one, and a page with its days.
func TestStatisticsByProvider(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	id := f.batchOf("local", nil, service.Recipient{Email: "ann@example.org"}, service.Recipient{Email: "bob@example.org"},
		service.Recipient{Email: "eve@example.org"})
	at := time.Now()
	for n, e := range []models.Entry{{Provider: "sg", Recipients: models.SetTo(3)},
		{Provider: "mg", Recipients: models.SetOf(3)}} {
		e.Kind, e.Number, e.Token, e.At = models.Attempt, n+1, models.NewToken(), at
		require.NoError(t, f.store.Append(t.Context(), id, e))
	}
	for i, e := range []models.Event{
		{Provider: "sg", Attempt: 1, Recipient: 1, Kind: models.Delivered},
		{Provider: "sg", Attempt: 1, Recipient: 1, Kind: models.Complained},
		{Provider: "sg", Attempt: 1, Recipient: 2, Kind: models.Bounced, Reason: models.MailboxInvalid},
		{Provider: "sg", Attempt: 1, Recipient: 3, Kind: models.Blocked, Reason: models.PolicyReputation},
		{Provider: "mg", Attempt: 2, Recipient: 3, Kind: models.Opened},
	} {
		e.ID, e.At = strconv.Itoa(i), at
		fact := models.Fact{Key: models.EventsKey(models.NewBatchID(at)), Events: []models.Event{e}}
		require.NoError(t, f.store.PutFacts(t.Context(), models.ChunkFact{Chunk: id, Fact: fact}))
	}
	f.summed(id)

	page := b.get("/statistics?by=provider").text
	require.Equal(t, []string{"sg 2 50 % 1 50 % 0 100 % 0 % 0 % 0 % 1", "mg 1 100 % 0 0 % 0 0 % 0 % 100 % 0 % 0"},
		tableRows(t, page, "Mail by provider"))
	require.Regexp(t, `<a href="/statistics\?by=provider&amp;from=[^"]+&amp;name=sg&amp;to=[^"]+">sg</a>`, page)
	page = b.get("/statistics?by=provider&name=sg").text
	require.Contains(t, page, `<h1 class="break">sg</h1>`)
	require.Contains(t, page, "Mail that went on to another provider counts there")
	require.Contains(t, page, `data-chart`)
	require.Equal(
		t,
		[]string{"sg 3 33.3 % 0 2 0 0"},
		tableRows(t, page, "Mail tried at each provider"),
		"of all that was tried",
	)
	require.Regexp(t, `<a href="/logs\?from=[^"]+&amp;provider=sg&amp;to=[^"]+">3</a>`, page)
	stats, err := f.service.Stats.Of(
		t.Context(),
		service.Caller{User: "local"},
		stats.Query{By: "provider", Name: "mg"},
	)
	require.NoError(t, err)
	require.Equal(t, []int64{1, 1, 1}, []int64{stats.Totals.Accepted, stats.Totals.Delivered, stats.Totals.Events.Opened})
}

// tableRows returns the text of the rows of the table in a region.
func tableRows(t *testing.T, page, region string) (out []string) {
	t.Helper()
	_, table, ok := strings.Cut(page, `aria-label="`+region+`"`)
	require.True(t, ok, page)
	_, table, _ = strings.Cut(table, "<tbody>")
	table, _, _ = strings.Cut(table, "</tbody>")
	for row := range strings.SplitSeq(strings.TrimSpace(table), "</tr>") {
		if text := textOf(strings.ReplaceAll(row, "</td>", " </td>")); text != "" {
			out = append(out, text)
		}
	}
	return out
}
