// Package templates keeps the templates of users, and fills them for recipients.
//
// A template has a name and numbered versions, which never change. One of them may be published: batches that name no
// number use that one.
package templates

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/documents"
	"github.com/safedelivr/safedelivr/service/problem"
)

// Kinds of documents.
const (
	headKind    = "template"
	versionKind = "template-version"
	sizeKind    = "template-size" // with the key sizeKey: bytes of all versions of a user
	sizeKey     = "all"
)

// MaxTotal is how many bytes the versions of all templates of a user may have.
const MaxTotal = 1 << 30

const (
	maxVersions = 1000 // of a template
	maxPage     = 500
	defaultPage = 50
	attempts    = 20  // to find a free number
	compiled    = 200 // compiled versions that are cached
)

// head is the stored form of a template: all but the contents.
type head struct {
	ID       string    `json:"id"`
	Name     string    `json:"-"`
	Now      int       `json:"published,omitempty"`
	Archived bool      `json:"archived,omitempty"`
	Created  time.Time `json:"created"`
	Updated  time.Time `json:"updated"`
	Versions []version `json:"versions"`
}

// version is a version in a head.
type version struct {
	Number  int       `json:"n"`
	Created time.Time `json:"at"`
	Digest  string    `json:"digest"` // of its source
}

func (h *head) info() client.TemplateInfo {
	out := client.TemplateInfo{
		ID: h.ID, Name: h.Name, State: client.TemplatePublished, Published: h.Now, Newest: h.newest().Number,
		CreatedAt: h.Created, UpdatedAt: h.Updated,
	}
	switch {
	case h.Archived:
		out.State = client.TemplateArchived
	case h.Now == 0:
		out.State = client.TemplateDraft
	}
	return out
}

func (h *head) newest() version {
	if len(h.Versions) == 0 {
		return version{}
	}
	return h.Versions[len(h.Versions)-1]
}

func (h *head) has(number int) bool {
	return slices.ContainsFunc(h.Versions, func(v version) bool { return v.Number == number })
}

// Library holds the templates of all users.
type Library struct {
	store    models.DocumentStore
	heads    documents.Of[head]
	versions documents.Of[client.TemplateSource]
	sizes    documents.Of[int]
	room     documents.Room
	cache    *lru.Cache[string, *Filler]

	cached   atomic.Int64 // bytes of the sources of the compiled versions in the cache
	previews *turns
}

// maxCached is how many bytes the sources of the compiled versions in the cache have. A compiled version takes many
// times the memory of its source.
const maxCached = 32 << 20

// New returns the templates in a store. It stores a version only if room returns no error.
func New(store models.DocumentStore, room documents.Room) *Library {
	fail := problem.About("template")
	l := &Library{
		store: store, room: room, previews: newTurns(atOnce),
		heads: documents.Of[head]{Store: store, Kind: headKind, Fail: fail,
			Read: func(h *head, name string, _ int) { h.Name = name }},
		versions: documents.Of[client.TemplateSource]{Store: store, Kind: versionKind, Fail: fail},
		sizes:    documents.Of[int]{Store: store, Kind: sizeKind, Fail: fail},
	}
	cache, err := lru.NewWithEvict(compiled, func(_ string, f *Filler) { l.cached.Add(-int64(f.bytes)) })
	if err != nil {
		panic(err) // the size is positive
	}
	l.cache = cache
	return l
}

// Create stores a new template with its first version. If the user has one with this name, and its newest version is
// the same, it changes nothing.
func (l *Library) Create(ctx context.Context, user string, in *client.NewTemplate) (client.Template, error) {
	var f problem.Form
	if in.Name != "" && !validName(in.Name) {
		f.Wrong("/name", "invalid_name", "A name has 1 to 64 characters: letters a to z, digits, _, - or a dot.")
	}
	check(in, &in.TemplateSource, &f)
	if err := f.Err(); err != nil {
		return client.Template{}, err
	}
	return l.add(ctx, user, in.Name, &in.NewTemplateVersion, true)
}

// AddVersion stores a new version of a template. If the newest version is the same, it adds none.
func (l *Library) AddVersion(
	ctx context.Context, user, name string, in *client.NewTemplateVersion,
) (client.Template, error) {
	var f problem.Form
	check(in, &in.TemplateSource, &f)
	if err := f.Err(); err != nil {
		return client.Template{}, err
	}
	return l.add(ctx, user, name, in, false)
}

func (l *Library) add(
	ctx context.Context, user, name string, in *client.NewTemplateVersion, create bool,
) (client.Template, error) {
	digest, raw, err := stored(&in.TemplateSource)
	if err != nil {
		return client.Template{}, err
	}
	var number int
	info, err := l.change(ctx, user, name, create, func(h *head) error {
		last := h.newest()
		switch {
		case last.Digest == digest:
			number = last.Number
		case create && len(h.Versions) > 0:
			return problem.New(problem.Conflict, "template_exists",
				"You have a template %s with other contents. Add a version to it, or choose another name.", problem.Quote(name))
		case len(h.Versions) >= maxVersions:
			return problem.New(problem.Conflict, "too_many_versions",
				"The template has %d versions, which is the most. Create a new one.", maxVersions)
		default:
			if err := l.takeRoom(ctx, user, len(raw)); err != nil {
				return err
			}
			number, err = l.putVersion(ctx, user, name, last.Number+1, raw)
			if err != nil {
				return err
			}
			h.Versions = append(h.Versions, version{number, now(), digest})
		}
		if in.Publish {
			h.Now, h.Archived = number, false
		}
		return nil
	})
	return client.Template{TemplateInfo: info, Version: number, TemplateSource: in.TemplateSource}, err
}

// takeRoom counts the bytes of a version that is about to be stored, also if it is not stored after all.
func (l *Library) takeRoom(ctx context.Context, user string, n int) error {
	if err := l.room(ctx, user); err != nil {
		return err
	}
	_, err := l.sizes.Put(ctx, user, sizeKey, func(total *int, _ int) error {
		if *total += n; *total > MaxTotal {
			return problem.New(problem.Conflict, "too_many_templates", "Your templates have more than 1 GiB together.")
		}
		return nil
	})
	return err
}

// putVersion stores the contents of a version under the first free number from n on. A number is taken by a version of
// a request that was cut off, or that runs at the same time.
func (l *Library) putVersion(ctx context.Context, user, name string, n int, raw []byte) (int, error) {
	for range attempts {
		err := l.store.PutDocument(ctx, user, versionKind, models.Document{Key: versionKey(name, n), Version: 1, Value: raw})
		if err == nil {
			return n, nil
		}
		if !errors.Is(err, models.ErrConflict) {
			return 0, problem.FromStore("put template version", err)
		}
		n++
	}
	return 0, problem.FromStore("put template version", models.ErrConflict)
}

func versionKey(name string, n int) string { return fmt.Sprintf("%s/%08d", name, n) }

func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

// change changes the head of a template by compare-and-set. If do changes nothing, neither does change. create says
// that the template may be new.
func (l *Library) change(
	ctx context.Context, user, name string, create bool, do func(*head) error,
) (client.TemplateInfo, error) {
	if !validName(name) {
		return client.TemplateInfo{}, problem.NotYours("template")
	}
	h, err := l.heads.Put(ctx, user, name, func(h *head, version int) error {
		switch {
		case version == 0 && !create:
			return problem.NotYours("template")
		case version == 0:
			h.ID, h.Created = models.NewUserID(), now()
		}
		before, _ := json.Marshal(h) // a head can always be encoded
		if err := do(h); err != nil {
			return err
		}
		if after, _ := json.Marshal(h); string(before) != string(after) {
			h.Updated = now()
		}
		return nil
	})
	return h.info(), err
}

// head reads a head.
func (l *Library) head(ctx context.Context, user, name string) (head, error) {
	if !validName(name) {
		return head{}, problem.NotYours("template")
	}
	return l.heads.Get(ctx, user, name)
}

// Get returns a version of a template: number, or with 0 the published one, or else the newest.
func (l *Library) Get(ctx context.Context, user, name string, number int) (client.Template, error) {
	h, err := l.head(ctx, user, name)
	if err != nil {
		return client.Template{}, err
	}
	number = cmp.Or(number, h.Now, h.newest().Number)
	if !h.has(number) {
		return client.Template{}, problem.NotYours("version of the template")
	}
	src, err := l.source(ctx, user, name, number)
	return client.Template{TemplateInfo: h.info(), Version: number, TemplateSource: src}, err
}

func (l *Library) source(ctx context.Context, user, name string, number int) (client.TemplateSource, error) {
	return l.versions.Get(ctx, user, versionKey(name, number))
}

// List returns at most limit templates of a user, by name, and the cursor of the next page, which is empty on the last
// one. A limit of 0 is the default.
func (l *Library) List(
	ctx context.Context, user string, limit int, cursor string,
) ([]client.TemplateInfo, string, error) {
	limit, after, err := pageOf(limit, cursor)
	if err != nil {
		return nil, "", err
	}
	heads, err := l.heads.Page(ctx, user, after, limit+1)
	if err != nil {
		return nil, "", err
	}
	next := ""
	if len(heads) > limit {
		heads = heads[:limit]
		next = cursorAfter(heads[limit-1].Name)
	}
	out := make([]client.TemplateInfo, len(heads))
	for i := range heads {
		out[i] = heads[i].info()
	}
	return out, next, nil
}

// Versions returns a page of the versions of a template, newest first.
func (l *Library) Versions(
	ctx context.Context, user, name string, limit int, cursor string,
) (out []client.TemplateVersion, next string, err error) {
	limit, after, err := pageOf(limit, cursor)
	if err != nil {
		return nil, "", err
	}
	h, err := l.head(ctx, user, name)
	if err != nil {
		return nil, "", err
	}
	out = []client.TemplateVersion{}
	for _, v := range slices.Backward(h.Versions) {
		key := versionKey("", v.Number)
		if after != "" && key >= after {
			continue
		}
		if len(out) == limit {
			return out, cursorAfter(versionKey("", out[limit-1].Version)), nil
		}
		out = append(out, client.TemplateVersion{Version: v.Number, CreatedAt: v.Created,
			Published: v.Number == h.Now && !h.Archived})
	}
	return out, "", nil
}

const cursorStart = "after:"

func cursorAfter(key string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(cursorStart + key))
}

func pageOf(limit int, cursor string) (n int, after string, err error) {
	var wrong problem.Mistakes
	if limit < 0 || limit > maxPage {
		wrong.Wrong("/limit", "invalid_value", "limit must be a number from 1 to %d.", maxPage)
	}
	if cursor != "" {
		raw, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
		key, ok := strings.CutPrefix(string(raw), cursorStart)
		if err != nil || !ok {
			wrong.Wrong("/cursor", "invalid_value", "This cursor does not belong to this list.")
		}
		after = key
	}
	return cmp.Or(limit, defaultPage), after, wrong.In(
		problem.New(problem.Malformed, "invalid_query", "The parameters of the request are not valid: see errors."))
}

// Publish makes a version the one that batches use if they name no number. An older number rolls back. It ends Archive.
func (l *Library) Publish(ctx context.Context, user, name string, number int) (client.TemplateInfo, error) {
	return l.change(ctx, user, name, false, func(h *head) error {
		if !h.has(number) {
			var f problem.Form
			f.Wrong("/version", "unknown_version", "The template has no version %d.", number)
			return f.Err()
		}
		h.Now, h.Archived = number, false
		return nil
	})
}

// Archive keeps batches from using a template until a version of it is published.
func (l *Library) Archive(ctx context.Context, user, name string) (client.TemplateInfo, error) {
	return l.change(ctx, user, name, false, func(h *head) error {
		h.Archived = true
		return nil
	})
}

func validName(s string) bool {
	for i := range len(s) {
		c := s[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && !(c >= '0' && c <= '9') && strings.IndexByte("_-.", c) < 0 {
			return false
		}
	}
	return s != "" && len(s) <= 64
}
