package service

import (
	"crypto/sha256"
	"encoding/base64"

	"github.com/safedelivr/safedelivr/models"
)

// Pages hold this many things by default, and at most.
const (
	defaultPage = 50
	maxPage     = 500
)

// Page asks for a part of a list. The zero value is the first page of the
// default size.
type Page struct {
	Limit  int    // 0: the default; negative: what was asked for is no number
	Cursor string // next cursor of the page before
}

// limit checks p.Limit.
func (q *Query) limit(p Page) int {
	if p.Limit == 0 {
		return defaultPage
	}
	if p.Limit < 0 || p.Limit > maxPage {
		q.Bad("limit", "limit is a number from 1 to %d.", maxPage)
	}
	return p.Limit
}

// A cursor is opaque to clients: a version, the place to go on from, and a check
// sum that ties it to its list.
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

// cursor reads p.Cursor, which must belong to the list; zero where none is
// given.
func (q *Query) cursor(p Page, list string) models.ID {
	if p.Cursor == "" {
		return models.ID{}
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(p.Cursor)
	if err != nil || len(b) != 1+len(models.ID{})+cursorSum || string(b) != string(cursorBytes(list, models.ID(b[1:17]))) {
		q.Bad("cursor", "This cursor was not made for this list.")
		return models.ID{}
	}
	return models.ID(b[1:17])
}
