package api

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/endpoint"
	"github.com/safedelivr/safedelivr/models/feed"
)

// posted stores posts msg_0, msg_1, … to an endpoint, each about a recipient of a batch; those with an odd number
// failed. It returns the batch.
func (f *fixture) posted(id string, n int) models.ID {
	f.Helper()
	b := f.four().ID
	recipients := make([]int, n)
	e, err := endpoint.In(f.store).Get(f.Context(), f.user, id)
	require.NoError(f, err)
	head, err := f.store.FeedHead(f.Context(), f.user) // it has the number 0 if there is none
	require.True(f, err == nil || errors.Is(err, models.ErrNotFound), err)
	state := endpoint.State{Generation: e.Generation}
	for i := range n {
		recipients[i] = i + 1
		a := endpoint.Attempt{At: time.Unix(1_700_000_000, 0).UTC(), Post: "msg_" + string(rune('0'+i)), Updates: 1,
			Status: 200}
		if i%2 == 1 {
			a.Status = 500
		}
		a.Part.From, a.Part.To = feed.Position{Entry: head.Number, Skip: i}, feed.Position{Entry: head.Number, Skip: i + 1}
		state.Attempts = append(state.Attempts, a)
	}
	require.NoError(f, endpoint.PutState(f.Context(), f.store, &e, &state, 0))
	require.NoError(f, f.store.AppendFeed(f.Context(), f.user, models.FeedEntry{
		Number: head.Number + 1, Token: models.NewToken(), At: time.Now().UTC(), Chunks: []models.FeedChunk{{
			Chunk: b, Version: 1, Changes: []models.FeedChange{{
				State: models.Failed, Number: 1, Reason: models.MailboxInvalid, Recipients: models.SetOf(recipients...),
			}},
		}},
	}))
	return b
}

// TestReplayPost: one of the newest posts is asked for again, several before the worker has seen the first, and a
// request that names no such post, or two things, is refused. The endpoint is enabled.
func TestReplayPost(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	v := f.endpoint(`{"url": "https://example.com/x"}`)
	f.posted(v.ID, 4)
	path := "/v1/endpoints/" + v.ID
	replay := func(body string) *reply {
		t.Helper()
		return f.do(http.MethodPost, path+"/replay", "application/json", strings.NewReader(body))
	}
	for _, body := range []string{`{"post": "msg_9"}`, `{"post": "msg_1", "from": "2026-01-01T00:00:00Z"}`} {
		p := replay(body).problem(t)
		require.Equal(t, []string{"/post invalid_value"}, p.pointers())
	}
	f.do(http.MethodPost, path+"/disable", "", nil)
	require.Equal(t, "active", replay(`{"post": "msg_3"}`).object(t)["state"])
	require.Equal(t, http.StatusOK, replay(`{"post": "msg_1"}`).Status)
	e, err := endpoint.In(f.store).Get(t.Context(), f.user, v.ID)
	require.NoError(t, err)
	require.Nil(t, e.Disabled)
	require.Equal(t, 3, e.Generation)
	require.Len(t, e.Again, 2)
	require.Equal(t, []int{3, 1}, []int{e.Again[0].From.Skip, e.Again[1].From.Skip})
	for range 98 {
		require.Equal(t, http.StatusOK, replay(`{"post": "msg_1"}`).Status)
	}
	require.Equal(t, "too_many_commands", replay(`{"post": "msg_1"}`).problem(t).Code)

	state, version, err := endpoint.StateOf(t.Context(), f.store, &e)
	require.NoError(t, err)
	e, err = endpoint.In(f.store).Get(t.Context(), f.user, v.ID)
	require.NoError(t, err)
	state.TakeOver(&e)
	require.Len(t, state.Retries, 2, "each once")
	require.NoError(t, endpoint.PutState(t.Context(), f.store, &e, &state, version))
	require.Equal(t, http.StatusOK, replay(`{"post": "msg_0"}`).Status)
	e, err = endpoint.In(f.store).Get(t.Context(), f.user, v.ID)
	require.NoError(t, err)
	require.Len(t, e.Again, 1, "what was taken over is not asked for again")
}

// TestWhatWasPosted: the body and the header fields of a post are reported as long as its updates are kept. Signatures
// and values that may be secret are left out. The failed part of the newest posts is reported, too.
func TestWhatWasPosted(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	v := f.endpoint(`{"url": "https://example.com/x", "headers": {"authorization": "Bearer of bad news"}}`)
	b := f.posted(v.ID, 4)
	path := "/v1/endpoints/" + v.ID
	require.Contains(t, string(f.get(path).Body), `"failure_rate":0.5,`)
	require.NotContains(t, string(f.get(path+"/attempts").Body), "part")
	e, err := endpoint.In(f.store).Get(t.Context(), f.user, v.ID)
	require.NoError(t, err)
	state, version, err := endpoint.StateOf(t.Context(), f.store, &e)
	require.NoError(t, err)
	state.Failures = 1
	require.NoError(t, endpoint.PutState(t.Context(), f.store, &e, &state, version))
	require.Equal(t, "failing", f.get(path).object(t)["state"])
	require.Equal(t, "it answered 500: the endpoint has an error", f.get(path).object(t)["why"])
	require.Equal(t, 2, strings.Count(string(f.get(path+"/attempts").Body),
		`"why":"it answered 500: the endpoint has an error"`))
	got := f.get(path + "/posts/msg_2").object(t)
	require.Equal(t, map[string]any{
		"Authorization": "(hidden)", "Content-Type": "application/json", "User-Agent": "Safedelivr",
		"Webhook-Id": "msg_2", "Webhook-Timestamp": "1700000000",
	}, got["header"])
	var body struct {
		Type feed.Type
		Data feed.Described
	}
	text, _ := got["body"].(string)
	require.NoError(t, json.Unmarshal([]byte(text), &body))
	require.Equal(t, feed.Failed, body.Type)
	require.Equal(t, b.Log(3), body.Data.Log)
	require.Equal(t, http.StatusNotFound, f.get(path+"/posts/msg_9").Status)
	require.Equal(t, http.StatusNotFound, f.get(path+"/posts/msg_2", "Authorization", "Bearer "+f.foreign).Status)
	f.do(http.MethodPut, path, "application/json", strings.NewReader(`{"url": "https://example.com/x", "events": `+
		`["log.opened"]}`))
	require.Equal(t, "updates_removed", f.get(path+"/posts/msg_2").problem(t).Code)
}
