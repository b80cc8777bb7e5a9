package models

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// counter is where numbers are doubled: it holds everything until it is told to
// let one go.
type counter struct {
	Gather[int, int]

	t     *testing.T
	mu    sync.Mutex
	begun [][]int
	let   chan error
	asked sync.WaitGroup
}

func newCounter(t *testing.T) *counter {
	c := &counter{t: t, let: make(chan error)}
	c.Do = func(asked []int) ([]int, error) {
		c.mu.Lock()
		c.begun = append(c.begun, slices.Clone(asked))
		c.mu.Unlock()
		err := <-c.let
		outs := make([]int, len(asked))
		for i := range asked {
			outs[i] = 2 * asked[i]
		}
		return outs, err
	}
	return c
}

// ask asks, and returns where the answer will stand.
func (c *counter) ask(ctx context.Context, in int) *answered[int] {
	var a answered[int]
	c.asked.Go(func() { a.out, a.err = c.Ask(ctx, in) })
	synctest.Wait()
	return &a
}

func (c *counter) all() [][]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.begun)
}

// TestGather: who comes first waits for nobody; who comes meanwhile is done
// together, in order; each has its own answer, or what became of it.
func TestGather(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCounter(t)
		var answers []*answered[int]
		for i := range 5 {
			answers = append(answers, c.ask(t.Context(), i))
		}
		require.Equal(t, [][]int{{0}}, c.all())
		c.let <- nil
		synctest.Wait()
		require.Equal(t, [][]int{{0}, {1, 2, 3, 4}}, c.all())
		answers = append(answers, c.ask(t.Context(), 5))
		require.Len(t, c.all(), 2)
		time.Sleep(slowGather + 1)
		answers = append(answers, c.ask(t.Context(), 6))
		require.Equal(t, []int{5, 6}, c.all()[2], "the one before takes long")
		away := errors.New("away")
		c.let <- away
		c.let <- away
		c.asked.Wait()
		require.Equal(t, answered[int]{}, *answers[0])
		for i, a := range answers[1:] {
			require.Equal(t, answered[int]{err: away}, *a, i+1)
		}
		last := c.ask(t.Context(), 21)
		c.let <- nil
		c.asked.Wait()
		require.Equal(t, answered[int]{out: 42}, *last)
		synctest.Wait()
		require.Zero(t, c.runs)
	})
}

// TestGatherMuch: when more waits than is done together, it is done at the same
// time, so often at most.
func TestGatherMuch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCounter(t)
		c.Cut = func(line []int) int { return min(len(line), 2) }
		for i := range 20 {
			c.ask(t.Context(), i)
		}
		require.Equal(t, [][]int{{0}, {1, 2}, {3, 4}, {5, 6}}, c.all())
		for range 11 {
			c.let <- nil
		}
		c.asked.Wait()
		synctest.Wait()
		require.Len(t, c.all(), 11)
		require.Zero(t, c.runs)
	})
}

// TestGatherGivenUp: whoever gives up in line is not done, and knows; of what is
// under way nobody knows what becomes.
func TestGatherGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCounter(t)
		ctx, giveUp := context.WithCancel(t.Context())
		underWay := c.ask(ctx, 0)
		inLine := c.ask(ctx, 1)
		patient := c.ask(t.Context(), 2)
		giveUp()
		synctest.Wait()
		require.ErrorIs(t, underWay.err, ErrOutcomeUnknown)
		require.ErrorIs(t, inLine.err, ErrUnavailable)
		require.ErrorIs(t, inLine.err, context.Canceled)
		c.let <- nil
		c.let <- nil
		c.asked.Wait()
		require.Equal(t, answered[int]{out: 4}, *patient)
		require.Equal(t, [][]int{{0}, {2}}, c.all())
		synctest.Wait()
	})
}
