package service

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/problem"
)

// query collects the mistakes in the parameters of a read.
type query struct{ problem.Mistakes }

// bad adds a mistake in a parameter. detail is a format for args.
func (q *query) bad(name, detail string, args ...any) {
	q.Wrong(problem.Pointer(name), "invalid_value", detail, args...)
}

// err returns the error that lists the mistakes, or nil if there are none.
func (q *query) err() error {
	return q.In(Fail(Malformed, "invalid_query", "The parameters of the request are not valid: see errors."))
}

// day parses a UTC day. It returns def if text is empty.
func (q *query) day(name, text string, def time.Time) time.Time {
	if text == "" {
		return def
	}
	t, err := time.Parse(time.DateOnly, text)
	if err != nil {
		q.bad(name, "%s must be a UTC day like 2026-01-31.", name)
		return def
	}
	return t
}

// Sizes of pages.
const (
	defaultPage = 50
	maxPage     = 500
)

// Page selects a page of a list. The zero value selects the first page with the default
// size.
type Page struct {
	Limit  int    // 0: the default; negative: not a number
	Cursor string // next cursor of the previous page
}

// limit returns the size of the page.
func (q *query) limit(p Page) int {
	if p.Limit == 0 {
		return defaultPage
	}
	if p.Limit < 0 || p.Limit > maxPage {
		q.bad("limit", "limit must be a number from 1 to %d.", maxPage)
	}
	return p.Limit
}

// A cursor is opaque to clients. It holds a version, the position of the next page, and a
// checksum that binds it to its list.
const (
	cursorVersion = 1
	cursorSum     = 6
)

func cursorOf(list string, id models.ID) string {
	return base64.RawURLEncoding.EncodeToString(cursorBytes(list, id))
}

func cursorBytes(list string, id models.ID) []byte {
	b := append([]byte{cursorVersion}, id[:]...)
	sum := sha256.Sum256(append([]byte(list), b...))
	return append(b, sum[:cursorSum]...)
}

// cursor returns the position in p.Cursor, or the zero ID if there is none. The cursor
// must belong to the list.
func (q *query) cursor(p Page, list string) models.ID {
	if p.Cursor == "" {
		return models.ID{}
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(p.Cursor)
	if err != nil || len(b) != 1+len(models.ID{})+cursorSum || string(b) != string(cursorBytes(list, models.ID(b[1:17]))) {
		q.bad("cursor", "This cursor does not belong to this list.")
		return models.ID{}
	}
	return models.ID(b[1:17])
}

// Lists whose cursors are positions.
const (
	usersCursor = "users"
	keysCursor  = "keys"
)

// position is a place in a list that only grows: a user, and a key of the user.
type position struct{ user, key int }

func (p position) cursor(list string) string {
	var at models.ID
	binary.BigEndian.PutUint64(at[:], uint64(p.user))   //nolint:gosec // never negative
	binary.BigEndian.PutUint64(at[8:], uint64(p.key)+1) //nolint:gosec // never negative; no position is the zero ID
	return cursorOf(list, at)
}

// position returns the position in p.Cursor.
func (q *query) position(p Page, list string) position {
	at := q.cursor(p, list)
	if at.IsZero() {
		return position{}
	}
	return position{
		user: int(binary.BigEndian.Uint64(at[:])),      //nolint:gosec // cursorOf wrote it
		key:  int(binary.BigEndian.Uint64(at[8:])) - 1, //nolint:gosec // cursorOf wrote it
	}
}
