package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/commands"
	"github.com/safedelivr/safedelivr/service/mail"
)

// postCommand gives a command and returns its answer.
func postCommand[T any](f *fixture, path, body string) T {
	f.Helper()
	r := f.do(http.MethodPost, path, "application/json", strings.NewReader(body))
	require.Equal(f, http.StatusOK, r.Status, string(r.Body))
	var v T
	require.NoError(f, json.Unmarshal(r.Body, &v))
	return v
}

// control gives a command about a batch or a log and returns its answer.
func control(f *fixture, path, body string) commands.Result {
	f.Helper()
	return postCommand[commands.Result](f, path, body)
}

// batchPath returns the path of a batch.
func batchPath(id models.ID) string { return "/v1/batches/" + id.String() }

// commands returns the kind and the reason of each command in the command log.
func (f *fixture) commands() []string {
	f.Helper()
	log, err := f.store.Commands(f.Context(), 0, 100)
	require.NoError(f, err)
	out := []string{}
	for _, c := range log {
		out = append(out, strings.TrimSpace(string(c.Kind)+" "+c.Why))
	}
	return out
}

// TestControlBatch: each command changes the batch once and is recorded with its reason.
// Nothing but a stop or a cancellation follows a cancellation.
func TestControlBatch(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.four()
	path := batchPath(b.ID)
	s := control(f, path+"/stop", `{"why": "wrong subject"}`)
	want := commands.Result{
		BatchID:    b.ID,
		Command:    models.StopBatch,
		Changed:    true,
		Recipients: new(4),
		Stopped:    true,
		InFlight:   new(0),
	}
	require.Equal(t, want, s)
	require.True(t, read[mail.BatchView](f, path).Stopped)
	require.Equal(t, models.WaitBatchStopped, read[mail.BatchView](f, path).Waits.Code)
	s = control(f, path+"/stop", ``)
	require.False(t, s.Changed, "already stopped")
	require.True(t, s.Stopped)
	s = control(f, path+"/resume", `{}`)
	require.True(t, s.Changed)
	require.False(t, s.Stopped)
	require.False(t, control(f, path+"/resume", `{}`).Changed)
	s = control(f, path+"/cancel", `{"why": "all wrong"}`)
	require.True(t, s.Cancelled)
	require.Equal(t, new(4), s.Recipients)
	require.False(t, control(f, path+"/cancel", `{}`).Changed)
	require.True(t, read[mail.BatchView](f, path).Cancelled)
	for _, verb := range []string{"resume", "retry", "release"} {
		r := f.do(http.MethodPost, path+"/"+verb, "", nil)
		require.Equal(t, http.StatusConflict, r.Status)
		require.Equal(t, "batch_cancelled", r.problem(t).Code)
	}
	r := f.do(http.MethodPost, "/v1/logs/"+b.ID.Log(1).String()+"/release", "", nil)
	require.Equal(t, "batch_cancelled", r.problem(t).Code)
	require.Equal(t, "batch_cancelled", f.refused(path+"/retry?dry_run=true", ``).Code)
	require.Equal(t, []string{
		"batch.stop wrong subject",
		"batch.resume",
		"batch.cancel all wrong",
	}, f.commands())
	log, err := f.store.Commands(t.Context(), 0, 1)
	require.NoError(t, err)
	require.Equal(t, f.user, log[0].By)
}

// end appends the next entry to the ledger of a batch: an ending of recipients.
func (f *fixture) end(b *models.Batch, reason models.Reason, recipients ...int) {
	f.Helper()
	f.appendEntry(b, models.Entry{Kind: models.Ending, Recipients: models.SetOf(recipients...), Reason: reason})
}

// appendEntry appends the next entry to the ledger of a batch.
func (f *fixture) appendEntry(b *models.Batch, e models.Entry) {
	f.Helper()
	ledger, err := f.store.Ledger(f.Context(), b.ID)
	require.NoError(f, err)
	e.Number, e.Token, e.At = len(ledger)+1, models.NewToken(), time.Now()
	require.NoError(f, f.store.Append(f.Context(), b.ID, e))
}

// TestNothingToSendAgain: a retry or a release that reaches no recipient writes nothing. If
// many are given at once, one is recorded.
func TestNothingToSendAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.four()
	path := batchPath(b.ID)
	scheduled := len(f.store.tried)
	for _, verb := range []string{"retry", "release"} {
		s := control(f, path+"/"+verb, `{}`)
		require.False(t, s.Changed, verb)
		require.Equal(t, new(0), s.Recipients)
		require.NotEmpty(t, s.Warning)
	}
	require.Empty(t, f.commands())
	require.Len(t, f.store.tried, scheduled)

	f.end(b, models.OutcomeUnknown, 1, 2)
	f.end(b, models.RetriesUsedUp, 3)
	changed := make([]bool, 4)
	var wg sync.WaitGroup
	for i := range changed {
		wg.Go(func() {
			changed[i] = control(f, path+"/release", `{}`).Changed
		})
	}
	wg.Wait()
	require.Len(t, slices.DeleteFunc(changed, func(c bool) bool { return !c }), 1)
	require.Equal(t, []string{"batch.release"}, f.commands())
	log, err := f.store.Commands(t.Context(), 0, 1)
	require.NoError(t, err)
	require.Equal(t, []int{0}, log[0].Chunks, "chunks without such mail get no entry")
	s := control(f, path+"/retry", `{}`)
	require.True(t, s.Changed, "other mail")
	require.Equal(t, new(1), s.Recipients)

	f.appendEntry(b, models.Entry{
		Kind:       models.Release,
		Recipients: models.SetOf(1, 2),
		Command:    2,
		MayDouble:  true,
	})
	require.False(t, control(f, path+"/release", `{}`).Changed, "queued")
	f.end(b, models.OutcomeUnknown, 1)
	s = control(f, path+"/release", `{}`)
	require.True(t, s.Changed, "held again")
	require.Equal(t, new(1), s.Recipients)
}

// TestDryRun: a dry run of a command says what it would do and writes nothing.
func TestDryRun(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.four()
	f.end(b, models.OutcomeUnknown, 1, 2)
	f.end(b, models.RetriesUsedUp, 3)
	path := batchPath(b.ID)
	scheduled := len(f.store.tried)
	for verb, want := range map[string]int{"stop": 1, "resume": 0, "cancel": 1, "retry": 1, "release": 2} {
		s := control(f, path+"/"+verb+"?dry_run=true", `{"why": "a test"}`)
		require.True(t, s.DryRun, verb)
		require.Equal(t, new(want), s.Recipients, verb)
		require.Equal(t, want > 0, s.Changed, verb)
		require.False(t, s.Stopped || s.Cancelled, verb)
	}
	log := "/v1/logs/" + b.ID.Log(1).String() + "/release?dry_run=true"
	require.Equal(t, new(1), control(f, log, ``).Recipients)
	require.Equal(t, "not_releasable", f.refused("/v1/logs/"+b.ID.Log(4).String()+"/release?dry_run=true", ``).Code)
	sum := models.Summary{Version: 1, Accepted: 4, Failed: 3, Reasons: map[models.Reason]int64{models.OutcomeUnknown: 2}}
	require.NoError(t, f.store.PutSummaries(t.Context(), models.ChunkSummary{User: b.User, Chunk: b.ID, Summary: sum}))
	day := fmt.Sprintf(`{"from": %q, "to": %q}`, time.Now().Add(-time.Hour).Format(time.RFC3339),
		time.Now().Add(time.Hour).Format(time.RFC3339))
	released := postCommand[client.ReleaseResult](f, "/v1/release?dry_run=true", day)
	require.Equal(t, []any{true, 1, 2}, []any{released.DryRun, released.Batches, released.Recipients})
	require.Empty(t, f.commands())
	require.Len(t, f.store.tried, scheduled)

	for query, want := range map[string]string{
		"dry_run=1":                 "/dry_run invalid_value",
		"dry_run=true&dry_run=true": "/dry_run repeated",
		"dry-run=true":              "/dry-run unknown_field",
	} {
		p := f.refused(path+"/stop?"+query, ``)
		require.Equal(t, "invalid_query", p.Code)
		require.Equal(t, []string{want}, p.pointers())
	}
	require.Equal(t, "invalid_query", f.refused("/v1/users/ann/pause?dry_run=true", ``).Code)
	require.Empty(t, f.commands())
	require.Equal(t, new(2), control(f, path+"/release?dry_run=false", ``).Recipients)
}

// TestTooManyCommands: a loop of stops and resumptions ends with 429. A stop is never refused.
func TestTooManyCommands(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b, other := f.four(), f.four()
	path := batchPath(b.ID)
	for range 10 {
		require.True(t, control(f, path+"/stop", ``).Changed)
		require.True(t, control(f, path+"/resume", ``).Changed)
	}
	for _, verb := range []string{"resume", "retry", "release", "stop?dry_run=true"} {
		require.True(t, control(f, path+"/stop", ``).Stopped)
		f.tooMany(path + "/" + verb)
	}
	require.True(t, control(f, path+"/cancel", ``).Changed)
	require.False(t, control(f, batchPath(other.ID)+"/resume", ``).Changed, "another batch")

	for range 10 {
		require.True(t, postCommand[client.ControlResult](f, "/v1/users/ann/pause", ``).Changed)
		require.True(t, postCommand[client.ControlResult](f, "/v1/users/ann/resume", ``).Changed)
	}
	f.tooMany("/v1/users/ann/resume")
}

// tooMany gives a command until it is one too many: one more is allowed every six seconds.
func (f *fixture) tooMany(path string) {
	f.Helper()
	for range 10 {
		before := f.commands()
		r := f.do(http.MethodPost, path, "", nil)
		if r.Status != http.StatusTooManyRequests {
			continue
		}
		require.Equal(f, "too_many_commands", r.problem(f.TB).Code)
		seconds, err := strconv.Atoi(r.Header.Get("Retry-After"))
		require.NoError(f, err)
		require.True(f, 1 <= seconds && seconds <= 6, "%d", seconds)
		require.Equal(f, before, f.commands(), "nothing is written")
		return
	}
	f.Fatal("never refused: " + path)
}

// TestNoReleaseWithoutContent: a batch whose content was removed cannot be sent again.
func TestNoReleaseWithoutContent(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.four()
	f.story(b)
	require.NoError(t, f.store.Redact(t.Context(), b.ID))
	for _, path := range []string{
		batchPath(b.ID) + "/retry",
		batchPath(b.ID) + "/release",
		"/v1/logs/" + b.ID.Log(3).String() + "/release",
	} {
		r := f.do(http.MethodPost, path, "", nil)
		require.Equal(t, http.StatusConflict, r.Status)
		require.Equal(t, "content_removed", r.problem(t).Code)
	}
	require.Empty(t, f.commands())
	require.True(t, control(f, batchPath(b.ID)+"/stop", ``).Stopped)
}

// TestAgendaBeforeCommand: a command that needs the agenda is not given if the agenda cannot
// be written.
func TestAgendaBeforeCommand(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.four()
	f.store.failing("Schedule", func(int) error { return models.ErrUnavailable })
	path := batchPath(b.ID)
	require.Equal(t, http.StatusServiceUnavailable, f.do(http.MethodPost, path+"/cancel", "", nil).Status)
	require.Empty(t, f.commands())
	require.True(t, control(f, path+"/stop", ``).Changed, "a stop does not need the agenda")
}

// TestInFlight: a stop counts the recipients of attempts without an outcome whose call may
// be running.
func TestInFlight(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.four()
	now := time.Now()
	attempt := func(n int, set models.Set, ends time.Time) {
		t.Helper()
		require.NoError(t, f.store.Append(t.Context(), b.ID, models.Entry{
			Number:     n,
			Token:      models.NewToken(),
			Kind:       models.Attempt,
			At:         now,
			Recipients: set,
			Provider:   "sg",
			StartBy:    now,
			CallEnds:   ends,
		}))
	}
	attempt(1, models.SetOf(1), now.Add(time.Hour))
	attempt(2, models.SetOf(2, 3), now.Add(time.Hour))
	attempt(3, models.SetOf(4), now.Add(-time.Minute))
	outcome := &models.Outcome{
		Attempt: 1,
		At:      now,
		Parts:   []models.Part{{Class: models.Accepted, Recipients: models.SetOf(1)}},
	}
	fact := models.Fact{Key: models.OutcomeKey(1), Outcome: outcome}
	require.NoError(t, f.store.PutFacts(t.Context(), models.ChunkFact{Chunk: b.ID, Fact: fact}))
	s := control(f, batchPath(b.ID)+"/stop", ``)
	require.Equal(t, new(2), s.InFlight)
	require.NotEmpty(t, s.Warning)
}

// TestInFlightAfterRelease: calls after a release count as in flight, even if the stored
// summary is older than the release and has no queued logs.
func TestInFlightAfterRelease(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.four()
	now := time.Now()
	entry := models.Entry{
		Number:     1,
		Token:      models.NewToken(),
		Kind:       models.Ending,
		At:         now,
		Recipients: models.SetOf(1, 2, 3, 4),
		Reason:     models.OutcomeUnknown,
	}
	require.NoError(t, f.store.Append(t.Context(), b.ID, entry))
	sum := models.Summary{
		Version:  1,
		Accepted: 4,
		Failed:   4,
		Reasons:  map[models.Reason]int64{models.OutcomeUnknown: 4},
	}
	require.NoError(t, f.store.PutSummaries(t.Context(), models.ChunkSummary{User: b.User, Chunk: b.ID, Summary: sum}))
	require.Equal(t, new(0), control(f, batchPath(b.ID)+"/release", ``).InFlight)
	entry = models.Entry{
		Number:     2,
		Token:      models.NewToken(),
		Kind:       models.Release,
		At:         now,
		Recipients: entry.Recipients,
		MayDouble:  true,
		Command:    1,
	}
	require.NoError(t, f.store.Append(t.Context(), b.ID, entry))
	entry = models.Entry{
		Number:     3,
		Token:      models.NewToken(),
		Kind:       models.Attempt,
		At:         now,
		Recipients: entry.Recipients,
		Provider:   "sg",
		StartBy:    now,
		CallEnds:   now.Add(time.Hour),
	}
	require.NoError(t, f.store.Append(t.Context(), b.ID, entry))
	require.Equal(t, new(4), control(f, batchPath(b.ID)+"/stop", ``).InFlight)
}

// TestOnlyOperatorEndsOperatorStop: the owner of a batch cannot resume it if an operator
// stopped it, or confirmed the owner's stop. An operator can, and the owner may still cancel.
func TestOnlyOperatorEndsOperatorStop(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	op := f.operator()
	g := *f
	g.secret = f.foreign
	b := g.four()
	path := batchPath(b.ID)
	require.True(t, control(&g, path+"/stop", ``).Changed)
	require.Equal(t, f.other, read[mail.BatchView](&g, path).StoppedBy)
	require.True(t, control(&g, path+"/resume", ``).Changed, "the owner's own stop")
	require.True(t, control(&g, path+"/stop", ``).Changed)
	require.True(t, control(op, path+"/stop", `{"why": "spam"}`).Changed, "an operator confirms it")
	require.False(t, control(op, path+"/stop", ``).Changed)
	require.False(t, control(&g, path+"/stop", ``).Changed, "a repeat does not make it the owner's stop again")
	require.Equal(t, f.user, read[mail.BatchView](&g, path).StoppedBy)
	for range 2 {
		r := g.do(http.MethodPost, path+"/resume", "", nil)
		require.Equal(t, http.StatusForbidden, r.Status)
		require.Equal(t, "stopped_by_operator", r.problem(t).Code)
	}
	require.True(t, read[mail.BatchView](&g, path).Stopped)
	require.True(t, control(op, path+"/resume", ``).Changed)

	own := f.four() // the operator's
	require.NoError(t, f.store.AppendCommand(t.Context(), models.Command{
		Number: len(f.commands()) + 1,
		Token:  models.NewToken(),
		At:     time.Now(),
		By:     "cli:zoe",
		Kind:   models.StopBatch,
		Batch:  own.ID,
	}))
	path = batchPath(own.ID) + "/resume"
	p := f.do(http.MethodPost, path, "", nil).problem(t)
	require.Equal(t, "stopped_by_operator", p.Code, "the key does not have the scope operate")
	require.True(t, control(op, path, ``).Changed, "an operator who owns it")

	require.True(t, control(op, batchPath(b.ID)+"/stop", ``).Changed)
	require.True(t, control(&g, batchPath(b.ID)+"/cancel", ``).Cancelled, "the owner may cancel")
	require.Equal(t, "batch_cancelled", g.do(http.MethodPost, batchPath(b.ID)+"/resume", "", nil).problem(t).Code)
}
