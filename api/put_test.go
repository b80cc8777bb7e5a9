package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/changes"
	"github.com/safedelivr/safedelivr/service/mail"
)

// put sends records and returns the answer.
func (f *fixture) put(query string, records ...string) *reply {
	f.Helper()
	return f.do(http.MethodPut, "/v1/messages"+query, "application/json",
		strings.NewReader("["+strings.Join(records, ",")+"]"))
}

// changed sends records and returns the results.
func (f *fixture) changed(records ...string) []changes.Result {
	f.Helper()
	return putResults(f, f.put("", records...))
}

func putResults(t testing.TB, r *reply) []changes.Result {
	t.Helper()
	require.Equal(t, http.StatusOK, r.Status, string(r.Body))
	var v struct{ Results []changes.Result }
	require.NoError(t, json.Unmarshal(r.Body, &v))
	return v.Results
}

// words returns the id, the status and the code of each result.
func resultWords(rs []changes.Result) (out []string) {
	for _, r := range rs {
		out = append(out, strings.TrimSpace(fmt.Sprint(r.ID, " ", r.Status, " ", r.Code)))
	}
	return out
}

// record is a record about a message to an address.
func record(action, id, subject, to string, more ...string) string {
	return fmt.Sprintf(`{"id": %q, "action": %q, "from": "shop@example.com", "subject": %q, "text": "t", "to": %q%s}`,
		id, action, subject, to, strings.Join(more, ""))
}

// present returns the state of the message with an id.
func (f *fixture) present(id string) (mail.MessageView, string) {
	f.Helper()
	v := read[mail.MessageView](f, "/v1/messages/"+id)
	return v, fmt.Sprint(v.Log.Subject, " ", v.Log.State)
}

// sendable returns subject and address of each mail that is queued.
func (f *fixture) sendable() map[string]int {
	f.Helper()
	return f.mailsWith(func(s models.State) bool { return s == models.Queued })
}

// mails returns subject and address of each stored mail.
func (f *fixture) mails() map[string]int {
	f.Helper()
	return f.mailsWith(func(models.State) bool { return true })
}

func (f *fixture) mailsWith(state func(models.State) bool) map[string]int {
	f.Helper()
	out := map[string]int{}
	all, err := f.store.Batches(f.Context(), f.user, models.ID{}, 5000)
	require.NoError(f, err)
	for _, b := range all {
		for n := range b.Chunks {
			rs, err := f.store.Store.Recipients(f.Context(), b.ID.Chunk(n))
			require.NoError(f, err)
			entries, facts, err := f.store.Store.Record(f.Context(), b.ID.Chunk(n))
			require.NoError(f, err)
			v := models.Resolve(len(rs), entries, facts)
			for i := range rs {
				if state(v.Status(i + 1).State) {
					out[rs[i].Fill(b.Content.Subject, nil)+" "+rs[i].Email]++
				}
			}
		}
	}
	return out
}

// attempt appends an attempt for a log, as a worker does before it calls a provider.
func (f *fixture) attempt(log models.ID) models.Entry {
	f.Helper()
	entries, err := f.store.Store.Ledger(f.Context(), log.ChunkID())
	require.NoError(f, err)
	e := models.Entry{
		Number:     len(entries) + 1,
		Token:      models.NewToken(),
		Kind:       models.Attempt,
		At:         time.Now(),
		Recipients: models.SetOf(log.Recipient()),
		Provider:   "sg",
	}
	require.NoError(f, f.store.Store.Append(f.Context(), log.ChunkID(), e))
	return e
}

// answered stores the answer to an attempt.
func (f *fixture) answered(log models.ID, e models.Entry, p models.Part) {
	f.Helper()
	p.Recipients = e.Recipients
	require.NoError(f, f.store.Store.PutFacts(f.Context(), models.ChunkFact{Chunk: log.ChunkID(), Fact: models.Fact{
		Key:     models.OutcomeKey(e.Number),
		Outcome: &models.Outcome{Attempt: e.Number, At: time.Now(), Parts: []models.Part{p}},
	}}))
}

// TestPutMessages: records create, change and cancel messages, and a repeat of them changes nothing.
func TestPutMessages(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	first := []string{
		record("new", "a", "Hi {{n}}", "ann@example.com", `, "vars": {"n": 1}, "metadata": {"k": "v"}`),
		record("update", "b/c", "Hi {{n}}", "bob@example.com", `, "vars": {"n": 2}`),
		record("new", "c", "Other", "lou@example.com"),
		record("cancel", "d", "", ""),
	}
	rs := f.changed(first...)
	require.Equal(t, []string{"a accepted", "b/c accepted", "c accepted", "d rejected not_found"}, resultWords(rs))
	require.Equal(t, rs[0].Log.ChunkID(), rs[1].Log.ChunkID(), "equal content is one chunk")
	require.NotEqual(t, rs[0].Log.Batch(), rs[2].Log.Batch())
	want := map[string]int{"Hi 1 ann@example.com": 1, "Hi 2 bob@example.com": 1, "Other lou@example.com": 1}
	require.Equal(t, want, f.sendable())
	again := f.changed(first...)
	require.Equal(t, []string{"a unchanged", "b/c unchanged", "c unchanged", "d rejected not_found"}, resultWords(again))
	require.Equal(t, rs[0].Log, again[0].Log)
	require.Equal(t, want, f.sendable())

	second := []string{
		record("new", "a", "Hi {{n}}", "ann@example.com", `,  "metadata": {"k": "v"}, "vars": {"n": 1}`),
		record("new", "b/c", "New {{n}}", "bob@example.com", `, "vars": {"n": 2}`),
		record("update", "c", "Changed", "lou@example.com"),
	}
	rs = f.changed(second...)
	require.Equal(t, []string{"a unchanged", "b/c rejected already_exists", "c updated"}, resultWords(rs))
	want = map[string]int{"Hi 1 ann@example.com": 1, "Hi 2 bob@example.com": 1, "Changed lou@example.com": 1}
	require.Equal(t, want, f.sendable())
	require.Equal(
		t,
		[]string{"a unchanged", "b/c rejected already_exists", "c unchanged"},
		resultWords(f.changed(second...)),
	)
	require.Equal(t, want, f.sendable())
	v, now := f.present("c")
	require.Equal(t, "Changed queued", now)
	require.Equal(t, "c", v.Log.MessageID)
	require.Equal(t, rs[2].Log, v.Log.ID)
	require.Len(t, v.History, 2)
	require.Equal(t, models.Cancelled, v.History[0].State)
	require.Equal(t, models.Replaced, v.History[0].Detail)

	require.Equal(t, []string{"b/c cancelled"}, resultWords(f.changed(`{"id": "b/c", "action": "cancel"}`)))
	require.Equal(t, []string{"b/c unchanged"}, resultWords(f.changed(`{"id": "b/c", "action": "cancel"}`)))
	require.Equal(t, []string{"b/c unchanged"}, resultWords(f.changed(first[1])), "the same record again revives nothing")
	_, now = f.present("b%2Fc")
	require.Equal(t, "Hi 2 cancelled", now)
	require.Equal(t, []string{"b/c updated"}, resultWords(f.changed(record("update", "b/c", "Back", "bob@example.com"))))
	require.Equal(t, map[string]int{"Hi 1 ann@example.com": 1, "Back bob@example.com": 1, "Changed lou@example.com": 1},
		f.sendable())

	require.Equal(t, http.StatusNotFound, f.get("/v1/messages/d").Status)
	require.Equal(t, http.StatusNotFound, f.get("/v1/messages/a", "Authorization", "Bearer "+f.foreign).Status)
	lines := f.do(http.MethodPut, "/v1/messages", ndjson, strings.NewReader(first[0]+"\n"+first[2]+"\n"))
	require.Equal(t, []string{"a unchanged", "c rejected already_exists"}, resultWords(putResults(t, lines)))
}

// TestPutMessagesTooLate: a message that a provider has, had or may have is neither changed nor cancelled. One that a
// provider has refused is.
func TestPutMessagesTooLate(t *testing.T) {
	t.Parallel()
	for want, happens := range map[string]func(f *fixture, log models.ID){
		"rejected in_flight": func(f *fixture, log models.ID) { f.attempt(log) },
		"rejected already_delivered": func(f *fixture, log models.ID) {
			f.answered(log, f.attempt(log), models.Part{Class: models.Accepted, Final: true})
		},
		"rejected already_failed": func(f *fixture, log models.ID) {
			f.answered(log, f.attempt(log), models.Part{Class: models.RejectedRecipient})
		},
		"rejected expired": func(f *fixture, log models.ID) {
			require.NoError(f, f.store.Store.Append(f.Context(), log.ChunkID(), models.Entry{Number: 1, Token: models.NewToken(),
				Kind: models.Ending, At: time.Now(), Recipients: models.SetOf(1), Reason: models.Expired}))
		},
		"": func(f *fixture, log models.ID) {
			f.answered(log, f.attempt(log), models.Part{Class: models.Throttled})
		},
	} {
		for action, done := range map[string]string{"update": "updated", "cancel": "cancelled"} {
			f := newFixture(t)
			log := f.changed(record("new", "a", "One", "ann@example.com"))[0].Log
			happens(f, log)
			wanted := "a " + want
			if want == "" {
				wanted = "a " + done
			}
			for range 2 {
				rs := f.changed(record(action, "a", "Two", "ann@example.com"))
				require.Equal(t, []string{wanted}, resultWords(rs), action)
				if want != "" {
					require.Equal(t, log, rs[0].Log)
				}
				wanted = strings.Replace(strings.Replace(wanted, "updated", "unchanged", 1), "cancelled", "unchanged", 1)
			}
			two := f.sendable()["Two ann@example.com"]
			require.Equal(t, want == "" && action == "update", two == 1)
		}
	}
}

// TestPutBadRecords: each record with a mistake is rejected with its place, and the others are carried out. In strict
// mode nothing is.
func TestPutBadRecords(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.changed(record("new", "old", "Old", "old@example.com"))
	records := []string{
		record("new", "good", "Hi", "ann@example.com"),
		record("new", "to", "Hi", "ann"),
		record("new", "subject", "a\nb", "ann@example.com"),
		record("send", "action", "Hi", "ann@example.com"),
		record("new", "good", "Hi", "bob@example.com"),
		record("new", "expired", "Hi", "ann@example.com", `, "expires_at": "2020-01-01T00:00:00Z"`),
		record("new", "var", "Hi {{n}}", "ann@example.com"),
		`{"id": "template", "action": "new", "template": "none", "to": "ann@example.com"}`,
		record("new", "unknown", "Hi", "ann@example.com", `, "color": "red"`),
		record("new", "files", "Hi", "ann@example.com", `, "attachments": []`),
		record("new", "copies", "Hi", "ann@example.com", `, "cc": ["bob@example.com"]`),
		`{"id": "", "action": "new"}`, `{"action": "new"}`, `7`,
		record("update", "old", "Bad {{n}}", "old@example.com"),
		record("new", "fine", "Hi {{n}}", "lou@example.com", `, "vars": {"n": 1}`),
	}
	want := []string{
		"good /  accepted", "to /to invalid_address rejected", "subject /subject invalid_header rejected",
		"action /action invalid_action rejected", "good /id repeated rejected", "expired /expires_at expired rejected",
		"var /vars/n unknown_placeholder rejected", "template /template invalid_template rejected",
		"unknown /color unknown_field rejected", "files /attachments unknown_field rejected",
		"copies /cc unknown_field rejected", " /id invalid_value rejected",
		" /id required rejected", "  wrong_type rejected", "old /subject unknown_placeholder rejected", "fine /  accepted",
	}
	said := func(rs []changes.Result) (out []string) {
		for _, r := range rs {
			if r.Pointer == "" && r.Code == "" {
				r.Pointer = "/"
			}
			out = append(out, fmt.Sprint(r.ID, " ", r.Pointer, " ", r.Code, " ", r.Status))
		}
		return out
	}
	strict := said(putResults(t, f.put("?mode=strict", records...)))
	for i, w := range want {
		w = strings.Replace(w, "/  accepted", " other_rejected rejected", 1)
		require.Equal(t, w, strict[i])
	}
	require.Equal(t, map[string]int{"Old old@example.com": 1}, f.sendable())
	require.Equal(t, want, said(f.changed(records...)))
	require.Equal(
		t,
		map[string]int{"Old old@example.com": 1, "Hi ann@example.com": 1, "Hi 1 lou@example.com": 1},
		f.sendable(),
	)
	rs := putResults(t, f.put("?mode=strict", records[0], record("update", "old", "New", "old@example.com")))
	require.Equal(t, []string{"good unchanged", "old updated"}, resultWords(rs))

	for body, code := range map[string]string{`{}`: "invalid_request", `[{"id": "x"}`: "bad_json", `[] 7`: "bad_json"} {
		r := f.do(http.MethodPut, "/v1/messages", "application/json", strings.NewReader(body))
		require.Equal(t, code, func() string { p := r.problem(t); return p.Code }(), body)
	}
	r := f.do(http.MethodPut, "/v1/messages", "text/csv", strings.NewReader("id"))
	require.Equal(t, http.StatusUnsupportedMediaType, r.Status)
	require.Equal(t, http.StatusBadRequest, f.put("?mode=lax").Status)
	require.Equal(
		t,
		http.StatusRequestEntityTooLarge,
		f.put("", strings.Split(strings.Repeat("7,", maxRecords)+"7", ",")...).Status,
	)
	require.Empty(t, f.changed())
}

// TestPutWithSmallLimits: a batch has no more recipients than allowed, and a message that is too large is rejected
// alone.
func TestPutWithSmallLimits(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(s *setup) { s.service.Recipients, s.service.Content = 2, 1000 })
	large := record("new", "large", "Hi", "ann@example.com", `, "html": "`+strings.Repeat("x", 2000)+`"`)
	rs := f.changed(append(version("new", "Hi", "a", "b", "c"), large)...)
	require.Equal(
		t,
		[]string{"a accepted", "b accepted", "c accepted", "large rejected content_too_large"},
		resultWords(rs),
	)
	require.Equal(t, rs[0].Log.Batch(), rs[1].Log.Batch())
	require.NotEqual(t, rs[0].Log.Batch(), rs[2].Log.Batch())
	testkit.WithinHour()
	limits := models.Limits{models.RecipientsPerDay: 4}
	require.NoError(t, limitUser(f, limits))
	rs = f.changed(append(version("new", "Hi", "d", "e"), version("new", "Ho", "f", "g", "h")...)...)
	require.Equal(t, []string{"d accepted", "e accepted", "f accepted", "g accepted", "h rejected limit_reached"},
		resultWords(rs))
	r := f.put("?mode=strict", version("new", "Hi", "h", "i")...)
	require.Equal(t, http.StatusTooManyRequests, r.Status, string(r.Body))
	require.Len(t, f.sendable(), 7)
}

// limitUser sets limits of the fixture's user.
func limitUser(f *fixture, limits models.Limits) error {
	svc := f.serve(Config{})
	op := service.Caller{User: f.user, By: "cli:op", Operator: true}
	_, err := svc.Limits.SetLimits(f.Context(), op, f.user, "", limits, "")
	return err
}

// TestPutManyShareChunks: messages of one template with equal options are few batches of full chunks.
func TestPutManyShareChunks(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.template(letter)
	n := testkit.Mails(3_000, 12_000)
	var body strings.Builder
	for i := range n {
		fmt.Fprintf(&body, `{"id": "m-%d", "template": "welcome", "to": "u%d@example.com", "name": "U %d"}`+"\n", i, i, i)
	}
	send := func() []changes.Result {
		return putResults(t, f.do(http.MethodPut, "/v1/messages", ndjson, strings.NewReader(body.String())))
	}
	rs := send()
	chunks := map[models.ID]int{}
	for i, r := range rs {
		require.Equal(t, fmt.Sprint("m-", i, " accepted"), resultWords(rs[i : i+1])[0])
		chunks[r.Log.ChunkID()]++
	}
	require.Len(t, chunks, n/1000)
	v := read[mail.LogStory](f, "/v1/logs/"+rs[n-766].Log.String())
	require.Equal(t, fmt.Sprintf("m-%[1]d u%[1]d@example.com Hi U %[1]d", n-766), v.MessageID+" "+v.Email+" "+v.Subject)
	batches := f.store.count("PutBatch")
	require.Equal(t, 1+n/10_001, batches)
	for i, r := range send() {
		require.Equal(t, changes.Result{ID: rs[i].ID, Status: changes.Unchanged, Log: rs[i].Log}, r)
	}
	require.Equal(t, batches, f.store.count("PutBatch"))
}

// TestPutOfManyContents checks that a request may have more contents than are carried out together.
func TestPutOfManyContents(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	records := make([]string, 1100)
	for i := range records {
		records[i] = record("new", fmt.Sprint("m", i), fmt.Sprint("s", i), fmt.Sprintf("r%d@example.com", i))
	}
	for i, r := range f.changed(records...) {
		require.Equal(t, fmt.Sprint("m", i), r.ID)
		require.Equal(t, changes.Accepted, r.Status)
	}
	_, now := f.present("m1099")
	require.Contains(t, now, "s1099 ")
	records[7] = record("update", "m7", "", "nobody")
	for i, r := range putResults(f, f.put("?mode=strict", records...)) {
		require.Equal(t, changes.Rejected, r.Status, i)
	}
}

// TestMessagesAreCounted: batches of messages are among those that were accepted.
func TestMessagesAreCounted(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	svc := f.serve(Config{})
	f.changed(`{"id": "a", "from": "a@b.de", "to": "c@d.de", "subject": "s", "text": "t"}`)
	var all int64
	for _, tally := range svc.Tallies() {
		all += tally.Recipients
	}
	require.EqualValues(t, 1, all)
}
