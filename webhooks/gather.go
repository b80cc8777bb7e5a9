package webhooks

import (
	"context"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

const (
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

// gather writes the posts of an account into the inbox, small ones together.
type gather struct {
	write func(posts []models.Post) error
	small models.Gather[models.Post, struct{}]
}

func newGather(write func(posts []models.Post) error) *gather {
	return &gather{write, models.Gather[models.Post, struct{}]{
		Do: func(posts []models.Post) ([]struct{}, error) { return make([]struct{}, len(posts)), write(posts) },
		Cut: func(line []models.Post) int {
			entry, _ := models.CutPosts(line)
			return len(entry)
		},
		Rest: rest,
	}}
}

// store returns nil when the post is stored.
func (g *gather) store(p models.Post) error {
	if p.Size() > smallPost {
		return g.write([]models.Post{p})
	}
	ctx, cancel := context.WithTimeout(context.Background(), storeTime) // when the store hangs, providers may be gone
	defer cancel()
	_, err := g.small.Ask(ctx, p)
	return err
}

// rest is the pause after n posts were written.
func rest(n int) time.Duration {
	switch {
	case models.UrgentLately():
		return againLater
	case n > 1:
		return again
	}
	return 0
}
