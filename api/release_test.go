package api

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
)

// TestReleaseLog: only a failed log can be released, and only once.
func TestReleaseLog(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.four()
	f.story(b) // 1 was delivered, 2 bounced, 3 used up its retries, 4 is queued
	path := func(n int) string { return "/v1/logs/" + b.ID.Log(n).String() + "/release" }
	for _, n := range []int{1, 2} {
		r := f.do(http.MethodPost, path(n), "", nil)
		require.Equal(t, "not_releasable", r.problem(t).Code)
	}
	s := control(f, path(3), `{"why": "asked for"}`)
	require.True(t, s.Changed)
	require.Equal(t, b.ID.Log(3), s.LogID)
	require.False(t, control(f, path(3), `{"why": "asked for again"}`).Changed, "the release is pending")
	r := f.do(http.MethodPost, path(4), "", nil)
	require.Equal(t, http.StatusConflict, r.Status, "queued, and never released")
	require.Equal(t, "not_releasable", r.problem(t).Code)
	f.appendEntry(b, models.Entry{Kind: models.Release, Recipients: models.SetOf(3), Command: 1, MayDouble: true})
	require.False(t, control(f, path(3), ``).Changed, "queued, because it was released")
	log, err := f.store.Commands(t.Context(), 0, 10)
	require.NoError(t, err)
	require.Len(t, log, 1)
	require.Equal(t, b.ID.Log(3), log[0].Log)
	require.Equal(t, "not_found", f.do(http.MethodPost, path(5), "", nil).problem(t).Code)
}

// TestReleaseRange: a release by time reaches batches of the range that have held mail: the
// caller's, or those of all users if the caller is an operator.
func TestReleaseRange(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	hold := func(b *models.Batch) {
		t.Helper()
		sum := models.Summary{
			Version:   1,
			Accepted:  4,
			Failed:    4,
			Reasons:   map[models.Reason]int64{models.OutcomeUnknown: 1, models.Expired: 3},
			Providers: map[string]models.ProviderCounts{"sg": {Tried: 1}},
		}
		require.NoError(t, f.store.PutSummaries(t.Context(), models.ChunkSummary{User: b.User, Chunk: b.ID, Summary: sum}))
		f.appendEntry(b, models.Entry{Kind: models.Attempt, Recipients: models.SetOf(1), Provider: "sg"})
		f.end(b, models.OutcomeUnknown, 1)
	}
	held := f.four()
	f.four()
	hold(held)
	g := *f
	g.secret = f.foreign
	foreign := g.four()
	hold(foreign)
	body := func(provider string, from, to time.Duration) string {
		now := time.Now()
		return fmt.Sprintf(`{"provider": %q, "from": %q, "to": %q}`,
			provider, now.Add(from).Format(time.RFC3339), now.Add(to).Format(time.RFC3339))
	}
	release := func(f *fixture, body string) int {
		v := postCommand[client.ReleaseResult](f, "/v1/release", body)
		require.Equal(t, v.Batches, v.Recipients)
		return v.Batches
	}
	refused := func(body string) problemDetails {
		return f.do(http.MethodPost, "/v1/release", "application/json", strings.NewReader(body)).problem(t)
	}
	require.Zero(t, release(f, body("mg", -time.Hour, time.Hour)), "no held mail at mg")
	require.Zero(t, release(f, body("sg", -2*time.Hour, -time.Hour)), "before the batches")
	require.Equal(t, 1, release(f, body("sg", -time.Hour, time.Hour)))
	require.Zero(t, release(f, body("sg", -time.Hour, time.Hour)), "the release is pending")
	require.Equal(t, 1, release(f.operator(), body("", -time.Hour, time.Hour)), "the other user's")
	p := refused(`{"provider": "x", "fro": 1}`)
	require.Equal(t, []string{"/fro unknown_field"}, p.pointers())
	p = refused(`{"provider": "x"}`)
	require.Equal(t, []string{"/provider unknown_provider", "/from required", "/to required"}, p.pointers())
	p = refused(`{"provider": 1, "from": "yesterday", "to": 5}`)
	require.Equal(t, []string{"/provider wrong_type", "/from invalid_value", "/to wrong_type"}, p.pointers())
	require.Equal(t, "provider must be a string.", p.Errors[0].Detail)
}

// TestReleaseOncePerRequest: if the answer to a release was lost, a repeat of the request does
// not release the mail again, because it may have been held since.
func TestReleaseOncePerRequest(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.four()
	f.end(b, models.RetriesUsedUp, 1)
	f.end(b, models.OutcomeUnknown, 2, 3)
	for i, path := range []string{batchPath(b.ID) + "/retry", batchPath(b.ID) + "/release"} {
		f.store.failing("PutAnswer", func(int) error { return models.ErrUnavailable })
		post := func() *reply { return f.do(http.MethodPost, path, "application/json", nil, "Idempotency-Key", path) }
		require.Equal(t, http.StatusOK, post().Status)
		f.store.failing("PutAnswer", func(int) error { return nil })
		second := post()
		require.Equal(t, http.StatusOK, second.Status, string(second.Body))
		require.Contains(t, string(second.Body), `"changed":true`)
		require.Contains(t, string(second.Body), fmt.Sprintf(`"recipients":%d`, i+1))
		require.Equal(t, "true", post().Header.Get("Idempotency-Replayed"))
		require.Len(t, f.commands(), i+1, path)
	}
	f.appendEntry(b, models.Entry{Kind: models.Release, Recipients: models.SetOf(2, 3), Command: 2, MayDouble: true})
	f.end(b, models.OutcomeUnknown, 2)
	require.True(t, control(f, batchPath(b.ID)+"/release", ``).Changed)
	require.Len(t, f.commands(), 3, "a new request")
}
