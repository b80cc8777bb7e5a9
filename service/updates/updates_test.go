package updates

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/feed"
	"github.com/safedelivr/safedelivr/service/problem"
	"github.com/safedelivr/safedelivr/store/memory"
)

// TestCursor: a cursor is a position, which only its user can read.
func TestCursor(t *testing.T) {
	t.Parallel()
	for _, want := range []feed.Position{
		{},
		feed.Begin,
		{Entry: 1 << 40, Skip: 999_999, Complete: time.Date(2026, 1, 31, 12, 0, 0, 123_000, time.UTC)},
	} {
		cursor := encode("ann", want)
		got, ok := decode("ann", cursor)
		require.True(t, ok)
		require.Equal(t, want, got)
		_, ok = decode("bob", cursor)
		require.False(t, ok, "of another user")
		for i := range cursor {
			other := "A"
			if cursor[i] == 'A' {
				other = "B"
			}
			_, ok = decode("ann", cursor[:i]+other+cursor[i+1:])
			require.False(t, ok, "byte %d was changed", i)
		}
		for _, damaged := range []string{cursor[1:], cursor + "A", cursor + "=", strings.ToLower(cursor) + "!"} {
			_, ok = decode("ann", damaged)
			require.False(t, ok, damaged)
		}
	}
}

// TestMistakesInQueries: each parameter that is wrong is named, and nothing is read.
func TestMistakesInQueries(t *testing.T) {
	t.Parallel()
	r := New(memory.Open(t))
	t.Cleanup(r.Close)
	now := time.Now()
	for name, c := range map[string]struct {
		user  string
		query Query
		want  string
	}{
		"nothing":                     {"ann", Query{}, ""},
		"all":                         {"ann", Query{Limit: MaxLimit, State: models.Failed, Tag: "a", From: now, To: now}, ""},
		"longest wait":                {"ann", Query{Wait: MaxWait, Limit: -1}, "/limit"},
		"limit":                       {"ann", Query{Limit: MaxLimit + 1}, "/limit"},
		"cursor":                      {"ann", Query{Cursor: encode("bob", feed.Begin)}, "/cursor"},
		"wait":                        {"ann", Query{Wait: MaxWait + 1}, "/wait"},
		"negative wait":               {"ann", Query{Wait: -1}, "/wait"},
		"to before from":              {"ann", Query{From: now, To: now.Add(-1)}, "/to"},
		"state that is none":          {"ann", Query{State: "lost"}, "/state"},
		"sent":                        {"ann", Query{State: models.Sent}, "/state"},
		"event":                       {"ann", Query{Events: []feed.Type{feed.Opened, "log.lost"}}, "/events"},
		"event of the installation":   {"ann", Query{Events: []feed.Type{feed.FailoverEnded}}, "/events"},
		"batch":                       {"ann", Query{Batch: "7"}, "/batch"},
		"tag of the installation":     {feed.Installation, Query{Tag: "a"}, "/tag"},
		"state of the installation":   {feed.Installation, Query{State: models.Failed}, "/state"},
		"notices of the installation": {feed.Installation, Query{Events: []feed.Type{feed.FailoverEnded}}, ""},
	} {
		_, err := r.Read(t.Context(), c.user, c.query)
		if c.want == "" {
			require.NoError(t, err, name)
			continue
		}
		var e *problem.Error
		require.ErrorAs(t, err, &e, name)
		require.Equal(t, "invalid_query", e.Code, name)
		require.Len(t, e.Fields, 1, name)
		require.Equal(t, c.want, e.Fields[0].Pointer, name)
	}
}

// TestReadsThatWaitAreBounded: a user has a quarter of the reads that may wait, and all users together have all of
// them.
func TestReadsThatWaitAreBounded(t *testing.T) {
	t.Parallel()
	r := New(memory.Open(t))
	t.Cleanup(r.Close)
	var leave []func()
	enter := func(user string) error {
		l, err := r.enter(user)
		if err == nil {
			leave = append(leave, l)
		}
		return err
	}
	for _, user := range []string{"ann", "bob", "cat", "dan"} {
		require.Len(t, leave, r.all)
		for range maxOfUser {
			require.NoError(t, enter(user))
		}
		require.Error(t, enter(user))
	}
	require.Error(t, enter("eve"), "all are taken")
	leave[0]()
	leave = leave[1:]
	require.NoError(t, enter("eve"))
	require.Error(t, enter("ann"))
	for _, l := range leave {
		l()
	}
	require.Empty(t, r.waiting)
	require.Zero(t, r.all)
}

// TestWaitEnds: a read without updates ends after its wait, and at once when the process stops.
func TestWaitEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := New(memory.Open(t))
		began := time.Now()
		p, err := r.Read(t.Context(), "ann", Query{Wait: 10 * time.Second})
		require.NoError(t, err)
		require.Empty(t, p.Updates)
		require.Equal(t, 10*time.Second, time.Since(began))

		time.AfterFunc(time.Second, r.Close)
		began = time.Now()
		_, err = r.Read(t.Context(), "ann", Query{Wait: time.Minute})
		require.NoError(t, err)
		require.Equal(t, time.Second, time.Since(began))
	})
}
