package webhooks

import (
	"context"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

const (
	// slowWrite is how long posts wait for the running write. After that another
	// write starts beside it; at most writesAtOnce run together.
	slowWrite    = 100 * time.Millisecond
	writesAtOnce = 4
	// pause is the time between writes of several posts. Clients that were just
	// answered post again within it and join the next write.
	pause = 500 * time.Microsecond
	// urgentPause is the pause after every write while urgent mail is sent. It makes
	// writes fewer and larger.
	urgentPause = 4 * time.Millisecond
	// smallPost is the size in bytes up to which posts are written together. One
	// write of many small posts costs as much as a write of one.
	smallPost = 16 << 10
)

// gather batches a provider's posts into writes to the inbox. A post is written at
// once if no write is running. Posts that arrive during a write are written together
// after it.
type gather struct {
	write  func(posts []models.Post) error
	urgent func() bool // whether urgent mail passes

	mu      sync.Mutex
	posts   []models.Post
	waiting []waiting // for each of posts
	writing int
	began   time.Time // start of the newest write
}

type waiting struct {
	since time.Time
	done  chan<- error
}

// store returns once the post is stored, or with the error of its write.
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

// run writes until no post is waiting.
func (g *gather) run() {
	for {
		posts, waiting := g.next()
		if len(posts) == 0 {
			return
		}
		err := context.DeadlineExceeded
		if time.Since(waiting[0].since) < storeTime { // otherwise the store hangs, and the provider may have given up
			err = g.write(posts)
		}
		for _, w := range waiting {
			w.done <- err
		}
		switch {
		case g.urgent():
			time.Sleep(urgentPause)
		case len(posts) > 1:
			time.Sleep(pause)
		}
	}
}

// next returns the posts of the next write. It returns none if the caller is done.
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
