package webhooks

import (
	"context"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

const (
	// slowWrite is how long posts wait for the write before theirs; then another
	// begins beside it, of writesAtOnce at most.
	slowWrite    = 100 * time.Millisecond
	writesAtOnce = 4
	// again is how long those whose posts were written together have to post once
	// more, so that not every other write holds the one post that came too late.
	again = 500 * time.Microsecond
	// againLater is the pause after every write while urgent mail comes: so they are
	// fewer, and larger.
	againLater = 4 * time.Millisecond
	// smallPost is the size in bytes up to which posts wait for each other: a
	// write costs the same for one of them and for many.
	smallPost = 16 << 10
)

// gather writes the posts of a provider into the inbox: at once when nothing is
// being written, and those that come meanwhile, and just after, together.
type gather struct {
	write  func(posts []models.Post) error
	urgent func() bool // whether urgent mail passes

	mu      sync.Mutex
	posts   []models.Post
	waiting []waiting // for each of posts
	writing int
	began   time.Time // of the newest write
}

type waiting struct {
	since time.Time
	done  chan<- error
}

// store returns nil when the post is stored.
func (g *gather) store(p models.Post) error {
	if p.Size() > smallPost {
		return g.write([]models.Post{p})
	}
	done := make(chan error, 1)
	g.mu.Lock()
	g.posts, g.waiting = append(g.posts, p), append(g.waiting, waiting{time.Now(), done})
	if g.writing == 0 || g.writing < writesAtOnce && time.Since(g.began) > slowWrite {
		g.writing++
		go g.run()
	}
	g.mu.Unlock()
	return <-done
}

// run writes until nothing waits.
func (g *gather) run() {
	for {
		posts, waiting := g.next()
		if len(posts) == 0 {
			return
		}
		err := context.DeadlineExceeded
		if time.Since(waiting[0].since) < storeTime { // else the store hangs, and providers may be gone
			err = g.write(posts)
		}
		for _, w := range waiting {
			w.done <- err
		}
		switch {
		case g.urgent():
			time.Sleep(againLater)
		case len(posts) > 1:
			time.Sleep(again)
		}
	}
}

// next takes what is written together; nothing: who asks is done.
func (g *gather) next() ([]models.Post, []waiting) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.posts) == 0 {
		g.writing--
		g.posts, g.waiting = nil, nil // posts are large
		return nil, nil
	}
	g.began = time.Now()
	posts, rest := models.CutPosts(g.posts)
	waiting := g.waiting[:len(posts):len(posts)]
	g.posts, g.waiting = rest, g.waiting[len(posts):]
	return posts, waiting
}
