// Package erase removes an address from everything that is stored.
package erase

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/clientid"
)

// Store is the part of models.Store that an erasure needs.
type Store interface {
	models.DocumentStore
	Users(ctx context.Context) ([]models.User, error)
	Batch(ctx context.Context, id models.ID) (models.Batch, error)
	Batches(ctx context.Context, user string, before models.ID, limit int) ([]models.Batch, error)
	Recipients(ctx context.Context, chunk models.ID) ([]models.Recipient, error)
	Erase(ctx context.Context, chunk models.ID, address string) (models.Set, error)
	PutAddressIndex(ctx context.Context, user string, p models.AddressIndex) error
	Posts(ctx context.Context, from, to time.Time) iter.Seq2[models.Inbox, error]
	Inbox(ctx context.Context, ids ...models.ID) ([]models.Inbox, error)
	EraseInbox(ctx context.Context, id models.ID, address string) (bool, error)
}

const (
	budget     = 2 * time.Second // default of Erasure.Budget
	batchPage  = 50
	postPage   = 50
	postWindow = 10 * time.Minute
)

// Erasure configures an erasure.
type Erasure struct {
	Store     Store
	Address   string
	InboxKeep time.Duration // how long posts are kept
	Budget    time.Duration // how long a part takes, so that no request takes long; default 2 seconds
	// Erased is called for each chunk whose recipients have lost the address.
	Erased func(b *models.Batch, chunk models.ID)
}

// Part is what a part of an erasure has done.
type Part struct {
	Done       bool
	Next       string // where the next part begins; empty: the erasure is done
	Batches    int    // read
	Recipients int    // that have lost the address
	Posts      int    // that named the address
	Unreadable int    // batches that are damaged: the address may be in them
}

// position is where an erasure goes on. First it reads the batches of each user, in the order of their IDs, from the
// newest to the oldest. Then it reads the posts from the newest to the oldest.
type position struct {
	posts bool
	user  string
	batch models.ID // the next batch is before this one; zero: the newest
	chunk int       // > 0: the next chunk of batch itself
	until time.Time // the posts that arrived before this come next; zero: the newest
}

func (p *position) String() string {
	if p.posts {
		return fmt.Sprintf("posts/%d", p.until.Unix())
	}
	batch := ""
	if !p.batch.IsZero() {
		batch = p.batch.String()
	}
	return fmt.Sprintf("batches/%s/%s/%d", p.user, batch, p.chunk)
}

// parse returns the position that String has returned as text. An empty text is the
// beginning. Errors: models.ErrInvalid.
func parse(text string) (p position, err error) {
	if text == "" {
		return p, nil
	}
	parts := strings.Split(text, "/")
	switch {
	case parts[0] == "posts" && len(parts) == 2:
		var at int64
		if at, err = strconv.ParseInt(parts[1], 10, 64); err == nil && at > 0 {
			return position{posts: true, until: time.Unix(at, 0).UTC()}, nil
		}
	case parts[0] == "batches" && len(parts) == 4:
		p.user = parts[1]
		if parts[2] != "" {
			err = p.batch.UnmarshalText([]byte(parts[2]))
		}
		if err == nil {
			p.chunk, err = strconv.Atoi(parts[3])
		}
		if err == nil && p.chunk >= 0 && p.chunk < models.MaxChunks {
			return p, nil
		}
	}
	return position{}, fmt.Errorf("%w: position of an erasure", models.ErrInvalid)
}

// run is a part that is being done.
type run struct {
	*Erasure
	at    position
	ends  time.Time
	out   Part
	steps int
}

// spent reports whether the part has done something and used its time up.
func (r *run) spent(ctx context.Context) bool {
	return r.steps > 0 && (time.Now().After(r.ends) || ctx.Err() != nil)
}

// Part does the part of the erasure that begins at a position: that of Part.Next, or an empty text for the beginning. A
// part may be done again. Errors: models.ErrInvalid (it is no position).
func (e *Erasure) Part(ctx context.Context, from string) (Part, error) {
	at, err := parse(from)
	if err != nil {
		return Part{}, err
	}
	r := &run{Erasure: e, at: at, ends: time.Now().Add(cmp.Or(e.Budget, budget))}
	if !at.posts {
		more, err := r.users(ctx)
		if err != nil || more {
			r.out.Next = r.at.String()
			return r.out, err
		}
		r.at = position{posts: true, until: time.Now().Add(time.Hour).Truncate(postWindow)}
	}
	if more, err := r.posts(ctx); err != nil || more {
		r.out.Next = r.at.String()
		return r.out, err
	}
	r.out.Done = true
	return r.out, nil
}

// users erases the address from the batches of all users. It reports whether some are left.
func (r *run) users(ctx context.Context) (more bool, err error) {
	users, err := r.Store.Users(ctx)
	if err != nil {
		return false, err
	}
	slices.SortFunc(users, func(a, b models.User) int { return strings.Compare(a.ID, b.ID) })
	for i := range users {
		switch strings.Compare(users[i].ID, r.at.user) {
		case -1:
			continue
		case 1:
			r.at = position{user: users[i].ID}
		}
		if more, err := r.batches(ctx); err != nil || more {
			return more, err
		}
	}
	return false, nil
}

// batches erases the address from the batches of the user of the position.
func (r *run) batches(ctx context.Context) (more bool, err error) {
	if r.at.chunk > 0 {
		b, err := r.Store.Batch(ctx, r.at.batch)
		if err == nil {
			more, err = r.chunks(ctx, &b)
		}
		if err != nil && !errors.Is(err, models.ErrNotFound) || more {
			return more, err
		}
	}
	for {
		page, err := r.Store.Batches(ctx, r.at.user, r.at.batch, batchPage)
		if err != nil {
			return false, err
		}
		for i := range page {
			if r.spent(ctx) {
				return true, nil
			}
			r.at.batch, r.at.chunk = page[i].ID, 0
			if page[i].Damaged {
				r.out.Unreadable++
				continue
			}
			more, err := r.chunks(ctx, &page[i])
			if errors.Is(err, models.ErrDamaged) {
				r.out.Unreadable++
				continue
			}
			if err != nil || more {
				return more, err
			}
		}
		if len(page) < batchPage {
			return false, nil
		}
	}
}

// chunks erases the address from the chunks of a batch, from that of the position on.
func (r *run) chunks(ctx context.Context, b *models.Batch) (more bool, err error) {
	for n := r.at.chunk; n < b.Chunks; n++ {
		if n > 0 && r.spent(ctx) {
			r.at.chunk = n
			return true, nil
		}
		if err := r.erase(ctx, b, b.ID.Chunk(n)); err != nil {
			return false, err
		}
		r.steps++
	}
	r.at.chunk = 0
	r.out.Batches++
	return false, nil
}

// erase erases the address from a chunk. The address index loses it first, because only the
// recipients tell that it has to.
func (r *run) erase(ctx context.Context, b *models.Batch, chunk models.ID) error {
	rs, err := r.Store.Recipients(ctx, chunk)
	if err != nil && !errors.Is(err, models.ErrNotFound) {
		return err
	}
	old := slices.DeleteFunc(slices.Clone(rs), func(to models.Recipient) bool {
		return !strings.EqualFold(to.Email, r.Address)
	})
	if err := clientid.Remember(ctx, r.Store, chunk, old); err != nil {
		return err
	}
	found := models.EraseRecipients(rs, r.Address)
	if !found.Empty() {
		if err := r.Store.PutAddressIndex(ctx, b.User, models.NewAddressIndex(chunk, rs)); err != nil {
			return err
		}
	}
	if _, err := r.Store.Erase(ctx, chunk, r.Address); err != nil {
		return err
	}
	if !found.Empty() {
		r.out.Recipients += found.Len()
		r.Erased(b, chunk)
	}
	return nil
}

// posts erases the address from the posts of the inbox.
func (r *run) posts(ctx context.Context) (more bool, err error) {
	oldest := time.Now().Add(-r.InboxKeep - 24*time.Hour)
	for ; r.at.until.After(oldest); r.at.until = r.at.until.Add(-postWindow) {
		if r.spent(ctx) {
			return true, nil
		}
		var ids []models.ID
		for in, err := range r.Store.Posts(ctx, r.at.until.Add(-postWindow), r.at.until) {
			if err != nil {
				return false, err
			}
			if ids = append(ids, in.ID); len(ids) == postPage {
				if err := r.erasePosts(ctx, ids); err != nil {
					return false, err
				}
				ids = ids[:0]
			}
		}
		if err := r.erasePosts(ctx, ids); err != nil {
			return false, err
		}
		r.steps++
	}
	return false, nil
}

// erasePosts erases the address from some posts.
func (r *run) erasePosts(ctx context.Context, ids []models.ID) error {
	if len(ids) == 0 {
		return nil
	}
	found, err := r.Store.Inbox(ctx, ids...)
	if err != nil {
		return err
	}
	for i := range found {
		if !found[i].Erase(r.Address) {
			continue
		}
		changed, err := r.Store.EraseInbox(ctx, found[i].ID, r.Address)
		if err != nil {
			return err
		}
		if changed {
			r.out.Posts++
		}
	}
	return nil
}
