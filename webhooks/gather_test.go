package webhooks

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/priority"
	"github.com/safedelivr/safedelivr/models"
)

// desk stands where a gather writes: it holds every write until it is told to
// let one go.
type desk struct {
	mu    sync.Mutex
	wrote [][]string
	let   chan error // one value for each write
}

func (d *desk) write(posts []models.Post) error {
	bodies := make([]string, len(posts))
	for i := range posts {
		bodies[i] = string(posts[i].Body)
	}
	d.mu.Lock()
	d.wrote = append(d.wrote, bodies)
	d.mu.Unlock()
	return <-d.let
}

func (d *desk) all() [][]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.wrote)
}

// TestTogether: a post is written at once when nothing is; those that come while
// writes are under way are written together, in order, by one write; each is
// answered with what became of its own.
func TestTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &desk{let: make(chan error)}
		g := &gather{write: d.write, urgent: calm}
		var answers [8]error
		var all sync.WaitGroup
		post := func(i int) {
			all.Go(func() { answers[i] = g.store(models.Post{Body: fmt.Append(nil, i)}) })
			synctest.Wait()
		}
		for i := range 5 {
			post(i)
		}
		require.Equal(t, [][]string{{"0"}}, d.all(), "nobody waits for company")
		d.let <- nil
		synctest.Wait()
		require.Equal(t, []string{"1", "2", "3", "4"}, d.all()[1])
		post(5)
		require.Len(t, d.all(), 2)
		time.Sleep(slowWrite + 1)
		post(6)
		require.Equal(t, []string{"5", "6"}, d.all()[2], "the write before takes long")
		post(7)
		require.Len(t, d.all(), 3)
		away := errors.New("away")
		d.let <- away
		d.let <- away
		synctest.Wait()
		require.Len(t, d.all(), 3, "who was answered may post again and come along")
		time.Sleep(again + 1)
		synctest.Wait()
		require.Equal(t, []string{"7"}, d.all()[3])
		d.let <- nil
		all.Wait()
		var failed []int
		for i := range answers {
			if answers[i] != nil {
				require.ErrorIs(t, answers[i], away)
				failed = append(failed, i)
			}
		}
		require.Equal(t, []int{1, 2, 3, 4, 5, 6}, failed, "what was not stored is not answered as if it were")
		time.Sleep(again + 1)
		synctest.Wait()
		g.mu.Lock()
		defer g.mu.Unlock()
		require.Zero(t, g.writing)
	})
}

// TestLargePostsWaitForNobody: a large post is written by itself, also while
// small ones wait.
func TestLargePostsWaitForNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &desk{let: make(chan error)}
		g := &gather{write: d.write, urgent: calm}
		var all sync.WaitGroup
		large := strings.Repeat("x", smallPost+1)
		for _, body := range []string{"a", "b", "c", large} {
			all.Go(func() { require.NoError(t, g.store(models.Post{Body: []byte(body)})) })
			synctest.Wait()
		}
		require.Equal(t, [][]string{{"a"}, {large}}, d.all())
		for range 3 {
			d.let <- nil
		}
		all.Wait()
		require.Equal(t, []string{"b", "c"}, d.all()[2])
		time.Sleep(again + 1)
	})
}

// TestStoreHangs: who has waited for its turn as long as a write may take is
// answered, and does not make others wait for one more.
func TestStoreHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var writes atomic.Int64
		g := &gather{urgent: calm, write: func([]models.Post) error {
			writes.Add(1)
			time.Sleep(storeTime)
			return models.ErrUnavailable
		}}
		began := time.Now()
		var all sync.WaitGroup
		for range 1000 {
			all.Go(func() { require.Error(t, g.store(models.Post{Body: []byte("[]")})) })
		}
		all.Wait()
		require.LessOrEqual(t, time.Since(began), 2*storeTime)
		require.Less(t, writes.Load(), int64(10))
		time.Sleep(time.Second) // pauses between writes end
	})
}

// TestUrgentMailComes: meanwhile a post does not begin a write of its own just
// after another: those of a few milliseconds are written together.
func TestUrgentMailComes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sched := priority.New()
		d := &desk{let: make(chan error, 3)}
		for range 3 {
			d.let <- nil
		}
		g := &gather{write: d.write, urgent: sched.UrgentLately}
		var all sync.WaitGroup
		post := func(body string) {
			all.Go(func() { require.NoError(t, g.store(models.Post{Body: []byte(body)})) })
			synctest.Wait()
		}
		sched.NoteUrgent()
		post("a")
		post("b")
		time.Sleep(againLater / 2)
		post("c")
		require.Equal(t, [][]string{{"a"}}, d.all())
		all.Wait()
		require.Equal(t, [][]string{{"a"}, {"b", "c"}}, d.all())
		time.Sleep(2 * time.Second)
		post("d")
		all.Wait()
		require.Equal(t, []string{"d"}, d.all()[2])
		synctest.Wait()
	})
}

// calm says that no urgent mail passes.
func calm() bool { return false }
