// Package drafts keeps messages that users have begun to write.
//
// A user has an index of drafts, and a document for each: a list reads only the index, whose
// size is bounded.
package drafts

import (
	"cmp"
	"context"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/documents"
	"github.com/safedelivr/safedelivr/service/problem"
)

// Limits of the drafts of a user.
const (
	MaxDrafts = 50
	MaxSize   = 1 << 20  // bytes of a draft
	MaxTotal  = 10 << 20 // bytes of all drafts
)

const (
	maxTitle = 200   // bytes of a title in the index
	indexKey = "all" // key of the index
)

// Fields with recipients, one in a line, which an erasure changes.
var addressFields = []string{"to", "cc", "bcc", "test"}

// Draft is a message that is being written: the fields of a form.
type Draft struct {
	ID string `json:"-"`
	// Version counts the changes of the draft.
	Version int `json:"-"`
	// Editor names the page that saved it. A page may replace what it saved itself.
	Editor string            `json:"editor"`
	Saved  time.Time         `json:"saved"`
	Fields map[string]string `json:"fields"`
}

// Info is an entry of the list of drafts.
type Info struct {
	ID    string    `json:"id"`
	Title string    `json:"title,omitempty"` // the subject, or the name of the template
	Size  int       `json:"size"`            // bytes
	Saved time.Time `json:"saved"`
}

// Library holds the drafts of all users.
type Library struct {
	drafts  documents.Of[Draft]
	indexes documents.Of[[]Info]
}

// New returns the drafts in a store. It stores one only if room returns no error.
func New(store models.DocumentStore, room documents.Room) *Library {
	return &Library{
		documents.Of[Draft]{Store: store, Kind: "draft", Room: room, Fail: problem.About("draft"),
			Read: func(d *Draft, id string, version int) { d.ID, d.Version = id, version }},
		documents.Of[[]Info]{Store: store, Kind: "draft-index", Fail: problem.About("drafts")},
	}
}

// List returns the drafts of a user, the one that was saved last first.
func (l *Library) List(ctx context.Context, user string) ([]Info, error) {
	list, err := l.index(ctx, user)
	slices.SortFunc(list, func(a, b Info) int { return cmp.Or(b.Saved.Compare(a.Saved), strings.Compare(a.ID, b.ID)) })
	return list, err
}

// Get returns a draft. Its error is a problem: NotFound if there is none.
func (l *Library) Get(ctx context.Context, user, id string) (Draft, error) {
	return l.drafts.Get(ctx, user, id)
}

// Save stores a draft and returns it with its new version and the time. Version is the one that
// its editor began with, or 0 for a new draft, whose ID is chosen by NewID. Save refuses to
// replace what another editor has saved since (draft_changed).
func (l *Library) Save(ctx context.Context, user string, d Draft) (Draft, error) {
	if err := l.drafts.Room(ctx, user); err != nil {
		return d, err
	}
	d.Saved = time.Now().UTC().Truncate(time.Millisecond)
	raw, err := json.Marshal(d)
	if err != nil {
		return d, problem.New(problem.Internal, "internal", "The draft cannot be stored.").Because(err)
	}
	if len(raw) > MaxSize {
		return d, problem.New(problem.TooLarge, "draft_too_large",
			"A draft has at most 1 MiB. Remove recipients, or upload them as a file when you send.")
	}
	if !validID.MatchString(d.ID) {
		return d, problem.NotYours("draft")
	}
	return l.drafts.Put(ctx, user, d.ID, func(there *Draft, version int) error {
		switch {
		case version == 0 && d.Version > 0:
			return problem.NotYours("draft")
		case version != d.Version && there.Editor != d.Editor:
			return problem.New(problem.Conflict, "draft_changed", "This draft was changed on another page.")
		}
		*there = d
		// The index has the draft first, so that no draft is stored that no list has.
		return l.note(ctx, user, d, len(raw))
	})
}

// NewID returns the ID of a new draft.
func NewID() string { return models.NewUserID() }

var validID = regexp.MustCompile(`^[0-9a-f]{16}$`)

// note writes a draft into the index.
func (l *Library) note(ctx context.Context, user string, d Draft, size int) error {
	title := d.Fields["subject"]
	if title == "" {
		title = d.Fields["template"]
	}
	if len(title) > maxTitle {
		title = strings.ToValidUTF8(title[:maxTitle], "")
	}
	info := Info{ID: d.ID, Title: title, Size: size, Saved: d.Saved}
	return l.change(ctx, user, func(list []Info) ([]Info, error) {
		total := size
		for i := range list {
			if list[i].ID != d.ID {
				total += list[i].Size
			}
		}
		at := slices.IndexFunc(list, func(i Info) bool { return i.ID == d.ID })
		switch {
		case at < 0 && d.Version > 0:
			return nil, problem.NotYours("draft") // it was deleted meanwhile
		case at < 0 && len(list) >= MaxDrafts:
			return nil, problem.New(problem.Conflict, "too_many_drafts",
				"You have %d drafts, which is the most. Delete one first.", MaxDrafts)
		case total > MaxTotal:
			return nil, problem.New(problem.Conflict, "too_many_drafts",
				"Your drafts have more than 10 MiB together. Delete one first.")
		case at < 0:
			return append(list, info), nil
		}
		list[at] = info
		return list, nil
	})
}

// Delete removes a draft. If there is none, it does nothing.
func (l *Library) Delete(ctx context.Context, user, id string) error {
	if err := l.drafts.Remove(ctx, user, id); err != nil {
		return err
	}
	return l.change(ctx, user, func(list []Info) ([]Info, error) {
		return slices.DeleteFunc(list, func(i Info) bool { return i.ID == id }), nil
	})
}

// Erase removes the lines with an address from the recipients of a user's drafts.
func (l *Library) Erase(ctx context.Context, user, address string) error {
	list, err := l.index(ctx, user)
	if err != nil {
		return err
	}
	for i := range list {
		if err := l.eraseFrom(ctx, user, list[i].ID, strings.ToLower(address)); err != nil {
			return err
		}
	}
	return nil
}

func (l *Library) eraseFrom(ctx context.Context, user, id, address string) error {
	_, err := l.drafts.Put(ctx, user, id, func(d *Draft, _ int) error {
		for _, field := range addressFields {
			lines := strings.Split(d.Fields[field], "\n")
			kept := slices.DeleteFunc(slices.Clone(lines), func(line string) bool {
				return strings.Contains(strings.ToLower(line), address)
			})
			if len(kept) < len(lines) {
				d.Fields[field] = strings.Join(kept, "\n")
				d.Editor = "" // an open page does not write the address back
			}
		}
		return nil
	})
	return err
}

// index reads the index of a user.
func (l *Library) index(ctx context.Context, user string) ([]Info, error) {
	list, err := l.indexes.Get(ctx, user, indexKey)
	if problem.IsNotFound(err) {
		return nil, nil
	}
	return list, err
}

// change changes the index of a user by compare-and-set.
func (l *Library) change(ctx context.Context, user string, do func([]Info) ([]Info, error)) error {
	_, err := l.indexes.Put(ctx, user, indexKey, func(list *[]Info, _ int) (err error) {
		*list, err = do(*list)
		return err
	})
	return err
}
