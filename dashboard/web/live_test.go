package web

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSharedFeeds checks that pages with the same content share one reader.
func TestSharedFeeds(t *testing.T) {
	t.Parallel()
	h := newHub(nil)
	defer h.close()
	reads := 0
	open := func() Source {
		reads++
		return Source{
			Read:   func(context.Context) (any, error) { return 1, nil },
			Render: func(any) (Parts, error) { return Parts{"n": []byte("1")}, nil },
		}
	}
	var leaves []func()
	for range 200 {
		_, leave := h.join("key", open)
		leaves = append(leaves, leave)
	}
	require.Equal(t, 1, reads)
	for _, leave := range leaves {
		leave()
	}
	require.Empty(t, h.feeds)
}

// A user may have a bounded number of live pages, which takes none from others, and all users together.
func TestLivePagesAreBounded(t *testing.T) {
	t.Parallel()
	h := newHub(slog.New(slog.DiscardHandler))
	defer h.close()
	var leave []func()
	enter := func(user string) error {
		l, err := h.enter(user)
		if err == nil {
			leave = append(leave, l)
		}
		return err
	}
	for range livePages {
		require.NoError(t, enter("ann"))
	}
	require.ErrorContains(t, enter("ann"), "You have 50 pages open")
	require.NoError(t, enter("bob"))
	leave[0]()
	leave = leave[1:]
	require.NoError(t, enter("ann"))
	for n := range allLivePages - livePages - 1 {
		require.NoError(t, enter(fmt.Sprint("user ", n)))
	}
	require.ErrorContains(t, enter("eve"), "1000 pages that update by themselves are open")
	for _, l := range leave {
		l()
	}
	require.Empty(t, h.pages)
	require.Zero(t, h.open)
}
