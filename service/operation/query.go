package operation

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/problem"
)

// Query collects the mistakes in the parameters of a read.
type Query struct{ problem.Mistakes }

// Bad adds a mistake in a parameter. detail is a format for args.
func (q *Query) Bad(name, detail string, args ...any) {
	q.Wrong(problem.Pointer(name), "invalid_value", detail, args...)
}

// Err returns the error that lists the mistakes, or nil if there are none.
func (q *Query) Err() error {
	return q.In(problem.New(problem.Malformed, "invalid_query",
		"The parameters of the request are not valid: see errors."))
}

// Day parses a UTC day. It returns def if text is empty.
func (q *Query) Day(name, text string, def time.Time) time.Time {
	if text == "" {
		return def
	}
	t, err := time.Parse(time.DateOnly, text)
	if err != nil {
		q.Bad(name, "%s must be a UTC day like 2026-01-31.", name)
		return def
	}
	return t
}

// Sizes of pages.
const (
	defaultPage = 50
	MaxPage     = 500
)

// Limit returns the size of the page.
func (q *Query) Limit(p Page) int {
	if p.Limit == 0 {
		return defaultPage
	}
	if p.Limit < 0 || p.Limit > MaxPage {
		q.Bad("limit", "limit must be a number from 1 to %d.", MaxPage)
	}
	return p.Limit
}

const (
	cursorVersion = 1
	cursorSum     = 6
)

// CursorOf returns the cursor of a position in a list. It is opaque to clients. A checksum binds it to the list.
func CursorOf(list string, position []byte) string {
	b := append([]byte{cursorVersion}, position...)
	sum := sha256.Sum256(append([]byte(list), b...))
	return base64.RawURLEncoding.EncodeToString(append(b, sum[:cursorSum]...))
}

// Cursor returns the position in p.Cursor, which has so many bytes at least, or nil if there is none. The cursor must
// belong to the list.
func (q *Query) Cursor(p Page, list string, least int) []byte {
	if p.Cursor == "" {
		return nil
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(p.Cursor)
	if err == nil && len(b) >= 1+least+cursorSum {
		if position := b[1 : len(b)-cursorSum]; CursorOf(list, position) == p.Cursor {
			return position
		}
	}
	q.Bad("cursor", "This cursor does not belong to this list.")
	return nil
}

// IDCursor returns the cursor of the page of a list that comes after an ID.
func IDCursor(list string, id models.ID) string { return CursorOf(list, id[:]) }

// ID returns the ID in p.Cursor, or the zero ID if there is none. The cursor must belong to the list.
func (q *Query) ID(p Page, list string) (id models.ID) {
	copy(id[:], q.Cursor(p, list, len(id)))
	return id
}

// Position is a place in a list that only grows: an entry, and a part of it.
type Position struct{ Entry, Part int }

// Cursor returns the cursor of the page of a list that begins at the position.
func (p Position) Cursor(list string) string {
	b := binary.BigEndian.AppendUint64(nil, uint64(p.Entry))                //nolint:gosec // never negative
	return CursorOf(list, binary.BigEndian.AppendUint64(b, uint64(p.Part))) //nolint:gosec // never negative
}

// Position returns the position in p.Cursor.
func (q *Query) Position(p Page, list string) (out Position) {
	if b := q.Cursor(p, list, 16); b != nil {
		out.Entry = int(binary.BigEndian.Uint64(b))    //nolint:gosec // Position.Cursor wrote it
		out.Part = int(binary.BigEndian.Uint64(b[8:])) //nolint:gosec // Position.Cursor wrote it
	}
	return out
}
