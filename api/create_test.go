package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"mime/multipart"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// TestCreateJSON: a JSON request is stored, whether the recipients come first or last.
func TestCreateJSON(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	head := `"from": "Shop <shop@example.com>",
		"reply_to": "\"Lee, Ann\" <help@bücher.example>",
		"subject": " Hi {{name}} ",
		"text": "T {{ code }}",
		"html": "<b>{{code}}</b> {{email}} {{{{not closed",
		"providers": ["mg", "sg"],
		"lane": "bulk",
		"on_unknown": "resend",
		"allow_duplicates": null`
	to := `"to": [
		{"email": "Ann <ann@example.com>", "vars": {"code": "a\nb"}},
		{"email": "bob@EXAMPLE.com", "name": "Bob \u00eb", "vars": {"code": 12.50, "paid": true}},
		{"email": "ANN@example.com", "name": null, "vars": {"code": "again"}}
	]`
	for name, body := range map[string]string{
		"to before html": "{" + to + "," + head + "}",
		"to after html":  "{" + head + "," + to + "}\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := f.with(t)
			a, b, rs := f.accepted(f.post(body))
			require.Equal(t, models.Content{From: models.Address{Email: "shop@example.com", Name: "Shop"},
				ReplyTo: []models.Address{{
					Email: "help@xn--bcher-kva.example",
					Name:  "Lee, Ann",
				}}, Subject: "Hi {{name}}", Text: "T {{ code }}",
				HTML: "<b>{{code}}</b> {{email}} {{{{not closed"}, b.Content)
			require.Equal(t, []models.Recipient{{Email: "ann@example.com", Name: "Ann", Vars: map[string]string{"code": "a\nb"}},
				{Email: "bob@example.com", Name: "Bob ë", Vars: map[string]string{"code": "12.50", "paid": "true"}}}, rs)
			require.Equal(t, accepted{ID: a.ID, State: models.BatchQueued, Recipients: 2, Duplicates: 1, Lane: models.Bulk}, a)
			require.Equal(t, []string{"mg", "sg"}, b.Providers)
			require.Equal(t, models.Resend, b.OnUnknown)
			require.Equal(t, f.user, b.User)
			require.Equal(t, 7*24*time.Hour, b.ExpiresAt.Sub(b.Created()).Round(time.Second))
		})
	}
}

// TestCreateOptions: everything that a message may have besides sender, subject and bodies is
// stored, and returned with the batch and the log.
func TestCreateOptions(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, b, rs := f.accepted(f.post(batchOf(t, `{
		"reply_to": ["help@example.com", "Ann <ann@example.com>"],
		"headers": {"List-Id": "<news.example.com>", "X-Order": "№ {{order}}"},
		"tags": ["welcome", "v2.1"], "category": "newsletter",
		"metadata": {"campaign": "autumn", "run": 7, "final": true},
		"track_opens": true, "track_clicks": false,
		"to": [{"email": "ann@example.com", "vars": {"order": "A-1"}, "metadata": {"customer": 17}}]
	}`)))
	require.Equal(
		t,
		[]models.Address{{Email: "help@example.com"}, {Email: "ann@example.com", Name: "Ann"}},
		b.Content.ReplyTo,
	)
	require.Equal(
		t,
		[]models.Header{{Name: "List-Id", Value: "<news.example.com>"}, {Name: "X-Order", Value: "№ {{order}}"}},
		b.Content.Headers,
	)
	require.Equal(t, []string{"welcome", "v2.1"}, b.Content.Tags)
	require.True(t, b.Content.TrackOpens)
	require.False(t, b.Content.TrackClicks)
	require.Equal(t, "newsletter", b.Category)
	require.Equal(t, map[string]string{"campaign": "autumn", "run": "7", "final": "true"}, b.Metadata)
	require.Equal(t, map[string]string{"customer": "17"}, rs[0].Metadata)

	view := f.get(batchPath(b.ID)).object(t)
	require.Equal(t, []any{"welcome", "v2.1"}, view["tags"])
	require.Equal(t, "newsletter", view["category"])
	require.Equal(t, map[string]any{"campaign": "autumn", "run": "7", "final": "true"}, view["metadata"])
	log := f.get("/v1/logs/" + b.ID.Log(1).String()).object(t)
	require.Equal(t, map[string]any{"customer": "17"}, log["metadata"])

	_, b, _ = f.accepted(f.do(http.MethodPost, "/v1/batches", "application/x-www-form-urlencoded", strings.NewReader(
		"from=a@b.de&to=c@d.de&subject=s&text=t&tags=one,+two&category=receipt&track_clicks=true")))
	require.Equal(t, []string{"one", "two"}, b.Content.Tags)
	require.Equal(t, "receipt", b.Category)
	require.True(t, b.Content.TrackClicks)

	_, b, _ = f.accepted(f.post(batchOf(t, `{"reply_to": "", "tags": [], "headers": {}, "metadata": {}, "cc": []}`)))
	require.Empty(t, b.Content.ReplyTo)

	form := []string{"from", "a@b.de", "subject", "s", "text", "t", "headers", ` {"List-Id": "<a.b.de>"} `, "metadata",
		`{"run": 7}`}
	_, b, _ = f.accepted(f.form("", "a.csv", "email\nc@d.de\n", form...))
	require.Equal(t, []models.Header{{Name: "List-Id", Value: "<a.b.de>"}}, b.Content.Headers)
	require.Equal(t, map[string]string{"run": "7"}, b.Metadata)
	form[7], form[9] = `{"From": "x"}`, "run=7"
	p := f.form("", "a.csv", "email\nc@d.de\n", form...).problem(t)
	require.Equal(t, []string{"/metadata wrong_type", "/headers/From reserved_header"}, p.pointers())
}

// TestExpiresAt: a request may set when it expires. A repeat gets the same answer, even after
// that.
func TestExpiresAt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, inBubble)
		at := time.Now().Add(time.Second).In(time.FixedZone("", 3600))
		key, body := "once", batchOf(t, `{"expires_at": "`+at.Format(time.RFC3339Nano)+`"}`)
		first := f.repeat(key, body)
		_, b, _ := f.accepted(first)
		require.Equal(t, at.UTC(), b.ExpiresAt)
		time.Sleep(time.Until(at))
		require.Equal(t, http.StatusUnprocessableEntity, f.post(body).Status)
		second := f.repeat(key, body)
		require.Equal(t, http.StatusAccepted, second.Status)
		require.JSONEq(t, string(first.Body), string(second.Body))

		form := "from=a@b.de&to=c@d.de&subject=s&text=t&expires_at=" +
			url.QueryEscape(time.Now().Add(time.Hour).Format(time.RFC3339))
		_, b, _ = f.accepted(
			f.do(http.MethodPost, "/v1/batches", "application/x-www-form-urlencoded", strings.NewReader(form)))
		require.WithinDuration(t, time.Now().Add(time.Hour), b.ExpiresAt, time.Minute)
	})
}

// TestCreateForm: a URL-encoded and a multipart form are stored alike.
func TestCreateForm(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	fields := [][2]string{
		{"to", `ann@example.com, "Lee, Bob" <bob@example.com>, eve@example.com (a, comment)`},
		{"from", "shop@example.com"},
		{"subject", "Größe & more + 100%"},
		{"body", "<p>a=b&c</p>\r\n"},
		{"reply_to", "help@example.com"},
		{"to", "<dan@example.com>,, ANN@example.com"},
		{"lane", ""},
		{"providers", " sg , mg"},
		{"allow_duplicates", "true"},
	}
	check := func(t *testing.T, r *reply) {
		t.Helper()
		a, b, rs := f.with(t).accepted(r)
		require.Equal(
			t,
			models.Content{
				From:    models.Address{Email: "shop@example.com"},
				ReplyTo: []models.Address{{Email: "help@example.com"}},
				Subject: "Größe & more + 100%",
				HTML:    "<p>a=b&c</p>\r\n",
			},
			b.Content,
		)
		require.Equal(
			t,
			[]models.Recipient{
				{Email: "ann@example.com"},
				{Email: "bob@example.com", Name: "Lee, Bob"},
				{Email: "eve@example.com", Name: "a, comment"},
				{Email: "dan@example.com"},
				{Email: "ANN@example.com"},
			},
			rs,
		)
		require.Equal(t, accepted{ID: a.ID, State: models.BatchQueued, Recipients: 5, Lane: models.Urgent}, a)
		require.Equal(t, []string{"sg", "mg"}, b.Providers)
		require.Equal(t, models.Hold, b.OnUnknown)
	}
	t.Run("urlencoded", func(t *testing.T) {
		t.Parallel()
		var pairs []string
		for _, kv := range fields {
			pairs = append(pairs, kv[0]+"="+url.QueryEscape(kv[1]))
		}
		body := "&" + strings.Join(pairs, "&") + "&"
		kind := "application/x-www-form-urlencoded; charset=UTF-8"
		check(t, f.with(t).do(http.MethodPost, "/v1/batches", kind, strings.NewReader(body)))
	})
	t.Run("multipart", func(t *testing.T) {
		t.Parallel()
		var b bytes.Buffer
		w := multipart.NewWriter(&b)
		for _, kv := range fields {
			require.NoError(t, w.WriteField(kv[0], kv[1]))
		}
		require.NoError(t, w.Close())
		b.WriteString("\r\nan ignored epilogue")
		check(t, f.with(t).do(http.MethodPost, "/v1/batches", w.FormDataContentType(), &b))
	})
}

// with returns the fixture for a subtest.
func (f *fixture) with(t testing.TB) *fixture {
	g := *f
	g.TB = t
	return &g
}

// batchOf returns a small valid request with some members replaced.
func batchOf(t testing.TB, change string) string {
	t.Helper()
	m := map[string]json.RawMessage{
		"from":    json.RawMessage(`"shop@example.com"`),
		"subject": json.RawMessage(`"Hello"`),
		"text":    json.RawMessage(`"Hello"`),
		"to":      json.RawMessage(`["ann@example.com"]`),
	}
	require.NoError(t, json.Unmarshal([]byte(change), &m))
	b, err := json.Marshal(m)
	require.NoError(t, err)
	return string(b)
}

// TestDefaultLane: small batches are urgent unless the request says otherwise.
func TestDefaultLane(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(s *setup) { s.service.UrgentUpTo = 2 })
	for name, c := range map[string]struct {
		change string
		want   models.Lane
	}{
		"UrgentUpTo recipients": {`{"to": ["a@x.de", "b@x.de"]}`, models.Urgent},
		"one more":              {`{"to": ["a@x.de", "b@x.de", "c@x.de"]}`, models.Bulk},
		"dropped duplicates":    {`{"to": ["a@x.de", "b@x.de", "A@x.de"]}`, models.Urgent},
		"kept duplicates":       {`{"to": ["a@x.de", "b@x.de", "A@x.de"], "allow_duplicates": true}`, models.Bulk},
		"bulk requested":        {`{"lane": "bulk"}`, models.Bulk},
		"urgent requested":      {`{"to": ["a@x.de", "b@x.de", "c@x.de"], "lane": "urgent"}`, models.Urgent},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := f.with(t)
			a, b, _ := f.accepted(f.post(batchOf(t, c.change)))
			require.Equal(t, c.want, a.Lane)
			require.Equal(t, c.want, b.Lane)
		})
	}
}

// TestUrgentMailIsNoted: the scheduler learns of urgent mail, and not of bulk mail.
func TestUrgentMailIsNoted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, inBubble)
		sched := f.deps.Config.Priority
		f.accepted(f.post(batchOf(t, `{"lane": "bulk"}`)))
		require.False(t, sched.UrgentLately())
		f.accepted(f.post(batchOf(t, `{"lane": "urgent"}`)))
		require.True(t, sched.UrgentLately())
		time.Sleep(time.Second)
		require.False(t, sched.UrgentLately())
	})
}

// TestDuplicates: repeated addresses are dropped unless the request keeps them.
func TestDuplicates(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const to = `"to": [
		"ann@example.com",
		"Bob <bob@bücher.example>",
		{"email": "ANN@Example.com"},
		"bob@xn--bcher-kva.example",
		"ann@example.com"
	]`
	a, _, rs := f.accepted(f.post(batchOf(t, `{`+to+`}`)))
	require.Equal(t, 3, a.Duplicates)
	require.Equal(
		t,
		[]models.Recipient{{Email: "ann@example.com"}, {Email: "bob@xn--bcher-kva.example", Name: "Bob"}},
		rs,
		"the first of equal addresses is kept",
	)
	a, _, rs = f.accepted(f.post(batchOf(t, `{`+to+`, "allow_duplicates": true}`)))
	require.Zero(t, a.Duplicates)
	require.Len(t, rs, 5)
}

// TestOrderOfWrites: the agenda entry is written first and the batch last.
func TestOrderOfWrites(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ids := make([]string, 2500)
	for i := range ids {
		ids[i] = `"r` + string(rune('a'+i%26)) + models.NewUserID() + `@example.com"`
	}
	a, b, _ := f.accepted(f.post(batchOf(t, `{"to": [`+strings.Join(ids, ",")+`]}`)))
	require.Equal(t, []string{"Schedule", "PutChunk", "PutChunk", "PutBatch"}, f.store.writes())
	require.Equal(t, 3, b.Chunks)
	require.Empty(t, b.Sizes)

	var due []models.AgendaEntry
	for shard := range f.store.Shards() {
		for e, err := range f.store.Agenda(t.Context(), shard, b.Created(), b.Created().Add(time.Hour)) {
			require.NoError(t, err)
			due = append(due, e)
		}
	}
	want := models.AgendaEntry{
		Due:    b.Created().Add(time.Minute),
		Kind:   models.LookAtBatch,
		ID:     a.ID,
		User:   f.user,
		Chunks: 3,
		Lane:   models.Bulk,
	}
	require.Equal(t, []models.AgendaEntry{want}, due)
}

// TestAnswerWaitsForWrite: a request is not answered before its batch is written.
func TestAnswerWaitsForWrite(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	reached, release := make(chan struct{}), make(chan struct{})
	f.store.before("PutBatch", func() { close(reached); <-release })
	answer := make(chan *reply, 1)
	go func() { answer <- f.post(batchOf(t, `{}`)) }()
	<-reached
	select {
	case r := <-answer:
		t.Fatalf("answered %d before the write", r.Status)
	default:
	}
	require.Empty(t, read[batchList](f, "/v1/batches").Batches)
	close(release)
	a, _, _ := f.accepted(<-answer)
	require.Equal(t, a.ID, read[batchList](f, "/v1/batches").Batches[0].ID)
}

// TestChunksOfLargeRecipients: a chunk has at most 1 MiB, and the batch stores the sizes of
// its chunks.
func TestChunksOfLargeRecipients(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var to []string
	value := strings.Repeat("v", 50_000)
	for i := range 45 {
		to = append(
			to,
			`{"email": "r`+string(rune('a'+i%26))+string(rune('a'+i/26))+`@example.com", "vars": {"a": "`+value+`"}}`,
		)
	}
	_, b, rs := f.accepted(f.post(batchOf(t, `{"to": [`+strings.Join(to, ",")+`]}`)))
	require.Equal(t, []int{20, 20, 5}, b.Sizes)
	require.Equal(t, 3, b.Chunks)
	for _, r := range rs {
		require.Equal(t, value, r.Vars["a"])
	}
}

// TestSchedule: a batch says when it is to be sent, as a time with an offset or as one of its time zone, and in which
// hours. Both come back with it.
func TestSchedule(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	year := time.Now().AddDate(0, 6, 0).Year()
	a, b, _ := f.accepted(f.post(batchOf(t, fmt.Sprintf(`{
		"deliver_at": "%d-07-01T09:00", "time_zone": "Europe/Vienna",
		"send_window": {"from": "09:00", "to": "17:30", "weekdays": ["monday", "friday"], "strict": true}
	}`, year))))
	at := time.Date(year, 7, 1, 7, 0, 0, 0, time.UTC)
	require.Equal(t, at, b.DeliverAt)
	require.Equal(t, at.Add(7*24*time.Hour), b.ExpiresAt)
	require.Equal(t, &models.SendWindow{From: 9 * 60, To: 17*60 + 30, Days: []models.Weekday{1, 5}, Zone: "Europe/Vienna",
		Strict: true}, b.Window)
	view := f.get(batchPath(a.ID)).object(t)
	require.Equal(t, at.Format(time.RFC3339), view["deliver_at"])
	require.Equal(t, map[string]any{"from": "09:00", "to": "17:30", "weekdays": []any{"monday", "friday"},
		"time_zone": "Europe/Vienna", "strict": true}, view["send_window"])
	require.Equal(t, "schedule", view["waits"].(map[string]any)["code"])
	require.Equal(t, models.BatchScheduled, a.State)
	require.Len(t, f.get("/v1/batches?state=scheduled").object(t)["batches"], 1)
	require.Empty(t, f.get("/v1/batches?state=queued").object(t)["batches"])

	form := url.Values{"from": {"a@b.de"}, "to": {"c@d.de"}, "subject": {"s"}, "text": {"t"},
		"deliver_at":  {at.Format(time.RFC3339)},
		"send_window": {`{"from": "22:00", "to": "24:00", "time_zone": "Australia/Lord_Howe"}`}}
	_, b, _ = f.accepted(
		f.do(http.MethodPost, "/v1/batches", "application/x-www-form-urlencoded", strings.NewReader(form.Encode())))
	require.Equal(t, at, b.DeliverAt)
	require.Equal(t, &models.SendWindow{From: 22 * 60, To: 24 * 60, Zone: "Australia/Lord_Howe"}, b.Window)
}

// TestInvalidSchedule: each mistake in a time is reported with the place where it is.
func TestInvalidSchedule(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	day := func(n int) string { return time.Now().AddDate(0, 0, n).UTC().Format(time.RFC3339) }
	nine := `"send_window": {"from": "09:00", "to": "17:00", "time_zone": "Europe/Vienna"`
	for body, want := range map[string]string{
		`{"deliver_at": "` + day(-1) + `"}`:                                     "/deliver_at invalid_value",
		`{"deliver_at": "` + day(366) + `"}`:                                    "/deliver_at invalid_value",
		`{"deliver_at": "2099-01-31T12:00"}`:                                    "/deliver_at invalid_value",
		`{"deliver_at": "tomorrow"}`:                                            "/deliver_at invalid_value",
		`{"deliver_at": 5}`:                                                     "/deliver_at wrong_type",
		`{"time_zone": "Europe/Wien"}`:                                          "/time_zone invalid_value",
		`{"time_zone": "../../etc/passwd"}`:                                     "/time_zone invalid_value",
		`{"deliver_at": "` + day(9) + `", "expires_at": "` + day(8) + `"}`:      "/expires_at invalid_value",
		`{"deliver_at": "` + day(9) + `", "expires_at": "` + day(40) + `"}`:     "/expires_at invalid_value",
		`{"send_window": "9-17"}`:                                               "/send_window wrong_type",
		`{"send_window": {"from": "09:00", "to": "17:00"}}`:                     "/send_window/time_zone required",
		`{"send_window": {"to": "17:00", "time_zone": "UTC"}}`:                  "/send_window/from invalid_value",
		`{"send_window": {"from": "9:00", "to": "17:00", "time_zone": "UTC"}}`:  "/send_window/from invalid_value",
		`{"send_window": {"from": "09:00", "to": "09:00", "time_zone": "UTC"}}`: "/send_window/to invalid_value",
		`{` + nine + `, "weekdays": ["mon"]}}`:                                  "/send_window/weekdays invalid_value",
		`{` + nine + `, "weekdays": "monday"}}`:                                 "/send_window/weekdays wrong_type",
		`{` + nine + `, "to": "18:00"}}`:                                        "/send_window/to repeated",
		`{` + nine + `, "hours": 3}}`:                                           "/send_window/hours unknown_field",
	} {
		p := f.post(batchOf(t, body)).problem(t)
		require.Equal(t, []string{want}, p.pointers(), body)
	}
}
