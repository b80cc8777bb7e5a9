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

// blockingStore records the writes of an inboxWriter. Each write blocks until results has its
// result.
type blockingStore struct {
	mu      sync.Mutex
	wrote   [][]string
	results chan error // one value for each write
}

func (d *blockingStore) write(posts []models.Post) error {
	bodies := make([]string, len(posts))
	for i := range posts {
		bodies[i] = string(posts[i].Body)
	}
	d.mu.Lock()
	d.wrote = append(d.wrote, bodies)
	d.mu.Unlock()
	return <-d.results
}

func (d *blockingStore) all() [][]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.wrote)
}

// TestPostsAreWrittenTogether checks that a post is written at once if no write is running. Posts during a write share
// the next one in order. Each gets the result of its own write.
func TestPostsAreWrittenTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &blockingStore{results: make(chan error)}
		g := &inboxWriter{write: d.write, urgent: noUrgentMail}
		var answers [8]error
		var all sync.WaitGroup
		post := func(i int) {
			all.Go(func() { answers[i] = g.store(models.Post{Body: fmt.Append(nil, i)}) })
			synctest.Wait()
		}
		for i := range 5 {
			post(i)
		}
		require.Equal(t, [][]string{{"0"}}, d.all(), "the first post is written at once")
		d.results <- nil
		synctest.Wait()
		require.Equal(t, []string{"1", "2", "3", "4"}, d.all()[1])
		post(5)
		require.Len(t, d.all(), 2)
		time.Sleep(slowWrite + 1)
		post(6)
		require.Equal(t, []string{"5", "6"}, d.all()[2], "the previous write is slow")
		post(7)
		require.Len(t, d.all(), 3)
		away := errors.New("unavailable")
		d.results <- away
		d.results <- away
		synctest.Wait()
		require.Len(t, d.all(), 3, "an answered client may post again and join the write")
		time.Sleep(pause + 1)
		synctest.Wait()
		require.Equal(t, []string{"7"}, d.all()[3])
		d.results <- nil
		all.Wait()
		var failed []int
		for i := range answers {
			if answers[i] != nil {
				require.ErrorIs(t, answers[i], away)
				failed = append(failed, i)
			}
		}
		require.Equal(t, []int{1, 2, 3, 4, 5, 6}, failed, "a post that was not stored gets the error")
		time.Sleep(pause + 1)
		synctest.Wait()
		g.mu.Lock()
		defer g.mu.Unlock()
		require.Zero(t, g.writing)
	})
}

// TestLargePostIsWrittenAlone checks that a large post is written by itself, even
// while small ones wait.
func TestLargePostIsWrittenAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &blockingStore{results: make(chan error)}
		g := &inboxWriter{write: d.write, urgent: noUrgentMail}
		var all sync.WaitGroup
		large := strings.Repeat("x", smallPost+1)
		for _, body := range []string{"a", "b", "c", large} {
			all.Go(func() { require.NoError(t, g.store(models.Post{Body: []byte(body)})) })
			synctest.Wait()
		}
		require.Equal(t, [][]string{{"a"}, {large}}, d.all())
		for range 3 {
			d.results <- nil
		}
		all.Wait()
		require.Equal(t, []string{"b", "c"}, d.all()[2])
		time.Sleep(pause + 1)
	})
}

// TestHangingStoreFailsWaitingPosts checks that a post that has waited as long as a
// write may take fails, and starts no further write.
func TestHangingStoreFailsWaitingPosts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var writes atomic.Int64
		g := &inboxWriter{urgent: noUrgentMail, write: func([]models.Post) error {
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

// TestUrgentMailSpacesWrites checks that writes pause while urgent mail is sent, so
// that posts of a few milliseconds are written together.
func TestUrgentMailSpacesWrites(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sched := priority.New()
		d := &blockingStore{results: make(chan error, 3)}
		for range 3 {
			d.results <- nil
		}
		g := &inboxWriter{write: d.write, urgent: sched.UrgentLately}
		var all sync.WaitGroup
		post := func(body string) {
			all.Go(func() { require.NoError(t, g.store(models.Post{Body: []byte(body)})) })
			synctest.Wait()
		}
		sched.NoteUrgent()
		post("a")
		post("b")
		time.Sleep(urgentPause / 2)
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

// noUrgentMail reports that no urgent mail passes.
func noUrgentMail() bool { return false }
