package storetest

import (
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

func inboxCases() []testCase {
	return []testCase{
		{"Inbox/PutGet", testInbox},
		{"Inbox/Done", testInboxDone},
		{"Inbox/PendingRanges", testInboxPending},
		{"Inbox/Concurrent", testInboxConcurrent},
		{"Inbox/AllPosts", testInboxPosts},
	}
}

func post(at time.Time, body string) models.Inbox {
	return models.Inbox{ID: models.NewInboxID(at), Provider: "sg-eu",
		Posts: []models.Post{{Body: []byte(body), Replay: "token-" + models.NewUserID()}}}
}

func testInbox(t *testing.T, s models.Store) {
	ctx := t.Context()
	random := make([]byte, 300_000)
	_, err := rand.Read(random)
	require.NoError(t, err)
	posts := []models.Inbox{
		post(now(), `[{"event":"delivered","Zoë":1}]`),
		post(now().Add(-time.Hour), strings.Repeat("compress me ", 5000)),
		post(now().Add(time.Hour), string(random)),
		post(now(), "\x00\xff\r\n"),
		post(now(), "with others"),
	}
	posts[3].Posts[0].Replay = ""
	posts[4].Posts = append(posts[4].Posts, posts[1].Posts[0], models.Post{Body: []byte{}}, posts[3].Posts[0])
	for range 2 {
		for _, p := range posts {
			require.NoError(t, s.PutInbox(ctx, p))
		}
	}
	missing := models.NewInboxID(now())
	got, err := s.Inbox(ctx, posts[2].ID, missing, posts[0].ID, posts[4].ID, posts[3].ID, posts[1].ID)
	require.NoError(t, err)
	require.Equal(t, []models.Inbox{posts[2], posts[0], posts[4], posts[3], posts[1]}, got, "in the order of the IDs")
	got, err = s.Inbox(ctx, missing)
	require.NoError(t, err)
	require.Empty(t, got)
}

func testInboxPosts(t *testing.T, s models.Store) {
	ctx := t.Context()
	at := now().Add(-26 * time.Hour)
	var want []models.ID
	for i := range 60 {
		p := post(at.Add(time.Duration(i)*time.Minute), "x")
		require.NoError(t, s.PutInbox(ctx, p))
		if i%3 == 0 {
			require.NoError(t, s.InboxDone(ctx, p.ID))
		}
		if i >= 10 && i < 50 {
			want = append(want, p.ID)
		}
	}
	var got []models.ID
	for _, p := range collect(t, s.Posts(ctx, at.Add(10*time.Minute), at.Add(50*time.Minute))) {
		require.Equal(t, "sg-eu", p.Provider)
		if slices.Contains(want, p.ID) {
			got = append(got, p.ID)
		}
	}
	require.ElementsMatch(t, want, got, "processed or not")
}

// pendingOf returns the IDs of the pending posts of all shards that are among own.
func pendingOf(t *testing.T, s models.Store, from, to time.Time, own []models.Inbox) []models.ID {
	t.Helper()
	var out []models.ID
	for shard := range s.Shards() {
		for p, err := range s.Pending(t.Context(), shard, from, to) {
			require.NoError(t, err)
			require.Equal(t, shard, p.ID.Shard(s.Shards()))
			at := p.Received()
			require.False(t, at.Before(from) || !at.Before(to), "outside of the range")
			if slices.ContainsFunc(own, func(o models.Inbox) bool { return o.ID == p.ID }) {
				require.Equal(t, "sg-eu", p.Provider)
				out = append(out, p.ID)
			}
		}
	}
	return out
}

func ids(posts []models.Inbox) []models.ID {
	var out []models.ID
	for i := range posts {
		out = append(out, posts[i].ID)
	}
	return out
}

func testInboxDone(t *testing.T, s models.Store) {
	ctx := t.Context()
	var posts []models.Inbox
	for i := range 20 {
		posts = append(posts, post(now().Add(-time.Duration(i)*time.Second), fmt.Sprint("post ", i)))
		require.NoError(t, s.PutInbox(ctx, posts[i]))
	}
	from, to := now().Add(-time.Minute), now().Add(time.Minute)
	require.ElementsMatch(t, ids(posts), pendingOf(t, s, from, to, posts))
	for range 2 {
		require.NoError(t, s.InboxDone(ctx, ids(posts[:12])...))
		require.ElementsMatch(t, ids(posts[12:]), pendingOf(t, s, from, to, posts))
	}
	require.NoError(t, s.PutInbox(ctx, posts[0]), "a late repeat does not bring it back")
	require.ElementsMatch(t, ids(posts[12:]), pendingOf(t, s, from, to, posts))
	got, err := s.Inbox(ctx, ids(posts)...)
	require.NoError(t, err)
	require.Equal(t, posts, got, "posts are removed by age, not because they were processed")
}

func testInboxPending(t *testing.T, s models.Store) {
	base := now().Truncate(time.Hour).Add(-3 * time.Hour)
	var posts []models.Inbox
	for i := range 120 { // across minutes and hours
		p := post(base.Add(time.Duration(i-60)*2*time.Second), "x")
		posts = append(posts, p)
		require.NoError(t, s.PutInbox(t.Context(), p))
	}
	ms := time.Millisecond
	at := func(i int) time.Time { return posts[i].Received() }
	for _, c := range []struct {
		from, to time.Time
		want     []models.Inbox
	}{
		{base.Add(-time.Hour), base.Add(time.Hour), posts},
		{at(10), at(90), posts[10:90]},
		{at(10).Add(ms), at(90).Add(ms), posts[11:91]},
		{at(10).Add(-ms), at(10), nil},
		{at(10), at(10).Add(ms), posts[10:11]},
		{at(10), at(10), nil},
	} {
		require.ElementsMatch(t, ids(c.want), pendingOf(t, s, c.from, c.to, posts), "[%v, %v)", c.from, c.to)
	}
}

func testInboxConcurrent(t *testing.T, s models.Store) {
	ctx := t.Context()
	posts := make([]models.Inbox, 400)
	for i := range posts {
		posts[i] = post(now(), fmt.Sprint("post ", i))
	}
	allNil(t, together(40, func(i int) error {
		for _, p := range posts[i*10 : i*10+10] {
			if err := s.PutInbox(ctx, p); err != nil {
				return err
			}
			if got, err := s.Inbox(ctx, p.ID); err != nil || len(got) != 1 {
				return fmt.Errorf("stored and not seen: %v %w", got, err)
			}
		}
		return s.InboxDone(ctx, posts[i*10].ID, posts[i*10+1].ID)
	}))
	var want []models.Inbox
	for i, p := range posts {
		if i%10 >= 2 {
			want = append(want, p)
		}
	}
	require.ElementsMatch(t, ids(want), pendingOf(t, s, now().Add(-10*time.Minute), now().Add(time.Minute), posts))
}
