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
	// urgentPause is the pause after every write while urgent mail is sent. It makes writes fewer and larger.
	urgentPause = 4 * time.Millisecond
	// smallPost is the size in bytes up to which posts are written together. One
	// write of many small posts costs as much as a write of one.
	smallPost = 16 << 10
)

// inboxWriter batches a provider's posts into writes to the inbox. A post is written at once if no write is running.
// Posts that arrive during a write are written together after it.
type inboxWriter struct {
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
func (w *inboxWriter) store(p models.Post) error {
	if p.Size() > smallPost {
		return w.write([]models.Post{p})
	}
	done := make(chan error, 1)
	w.mu.Lock()
	w.posts, w.waiting = append(w.posts, p), append(w.waiting, waiting{time.Now(), done})
	if w.writing == 0 || w.writing < writesAtOnce && time.Since(w.began) > slowWrite {
		w.writing++
		go w.run()
	}
	w.mu.Unlock()
	return <-done
}

// run writes until no post is waiting.
func (w *inboxWriter) run() {
	for {
		posts, waiting := w.next()
		if len(posts) == 0 {
			return
		}
		err := context.DeadlineExceeded
		if time.Since(waiting[0].since) < storeTime { // otherwise the store hangs, and the provider may have given up
			err = w.write(posts)
		}
		for _, p := range waiting {
			p.done <- err
		}
		switch {
		case w.urgent():
			time.Sleep(urgentPause)
		case len(posts) > 1:
			time.Sleep(pause)
		}
	}
}

// next returns the posts of the next write. It returns none if the caller is done.
func (w *inboxWriter) next() ([]models.Post, []waiting) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.posts) == 0 {
		w.writing--
		w.posts, w.waiting = nil, nil // posts are large
		return nil, nil
	}
	w.began = time.Now()
	posts, rest := models.CutPosts(w.posts)
	waiting := w.waiting[:len(posts):len(posts)]
	w.posts, w.waiting = rest, w.waiting[len(posts):]
	return posts, waiting
}
