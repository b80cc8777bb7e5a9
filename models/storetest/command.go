package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
)

func commandCases() []testCase {
	return []testCase{
		{"Command/RaceAndOrder", testCommands},
	}
}

// command returns a command with every field set.
func command(number int) models.Command {
	id := models.NewBatchID(now())
	return models.Command{
		Number:   number,
		Token:    models.NewToken(),
		At:       time.Now().UTC().Round(0),
		By:       "cli:zoë",
		Why:      "because “so”",
		Kind:     models.ReleaseBatch,
		Batch:    id,
		Log:      id.Log(7),
		Chunks:   []int{0, 7, 1 << 19},
		User:     "u",
		Provider: "sg",
		Senders:  []string{"a@example.com", "@example.org"},
		Block: &models.Block{
			ID:       "b",
			Provider: "sg",
			User:     "u",
			Sender:   "@example.com",
			Domain:   "example.net",
			Fail:     true,
		},
		Before:  now(),
		Subject: "s",
	}
}

// testCommands uses the whole command log: a store has one.
func testCommands(t *testing.T, s models.Store) {
	ctx := t.Context()
	commands, err := s.Commands(ctx, 0, 10)
	require.NoError(t, err)
	require.Empty(t, commands)
	require.ErrorIs(t, s.AppendCommand(ctx, command(0)), models.ErrInvalid)
	require.ErrorIs(t, s.AppendCommand(ctx, command(2)), models.ErrInvalid, "a gap")

	first := command(1)
	require.NoError(t, s.AppendCommand(ctx, first))
	require.NoError(t, s.AppendCommand(ctx, first), "the same token again")
	var lost *models.CommandConflictError
	require.ErrorAs(t, s.AppendCommand(ctx, command(1)), &lost)
	require.Equal(t, first, lost.Winner)
	require.ErrorIs(t, s.AppendCommand(ctx, command(3)), models.ErrInvalid, "a gap")

	// Many append at once, each by following the log. Nothing is lost, and every
	// follower sees the same.
	const writers, each = 8, 10
	allNil(t, together(writers, func(w int) error {
		j := control.NewFollower(s)
		for n := range each {
			c := models.Command{By: "w", Kind: models.PauseUser, User: fmt.Sprint(w, "/", n)}
			if done, err := j.Append(ctx, &c, nil); err != nil || !done {
				return fmt.Errorf("append: %v %w", done, err)
			}
		}
		return nil
	}))
	all, err := s.Commands(ctx, 0, 1000)
	require.NoError(t, err)
	require.Len(t, all, 1+writers*each)
	require.Equal(t, first, all[0])
	users := map[string]bool{}
	for i, c := range all {
		require.Equal(t, i+1, c.Number)
		users[c.User] = true
	}
	require.Len(t, users, 1+writers*each)
	var paged []models.Command
	for {
		page, err := s.Commands(ctx, len(paged), 7)
		require.NoError(t, err)
		if len(page) == 0 {
			break
		}
		paged = append(paged, page...)
	}
	require.Equal(t, all, paged)

	j := control.NewFollower(s)
	require.NoError(t, j.Sync(ctx))
	require.True(t, j.Rules().Paused("3/4"))
	again := models.Command{Kind: models.PauseUser, User: "3/4"}
	done, err := j.Append(ctx, &again, func(r *control.Rules) bool { return !r.Paused("3/4") })
	require.NoError(t, err)
	require.False(t, done, "a command whose rule is in effect already is not appended")
	testDropCommands(t, s, len(all))
}
