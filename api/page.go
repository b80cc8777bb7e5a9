package api

import (
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/safedelivr/safedelivr/models"
)

// Pages hold this many things by default, and at most.
const (
	defaultPage = 50
	maxPage     = 500
)

// query reads the parameters of a request and gathers all mistakes in them.
type query struct {
	*gin.Context
	mistakes
}

func (q *query) bad(name, detail string, args ...any) {
	q.wrong(pointer(name), "invalid_value", detail, args...)
}

// problem is the answer to everything that was found wrong.
func (q *query) problem() *Problem {
	return q.list(http.StatusBadRequest, "invalid_query", "The parameters of the request are not valid: see errors.")
}

// limit reads ?limit.
func (q *query) limit() int {
	text := q.Query("limit")
	if text == "" {
		return defaultPage
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maxPage {
		q.bad("limit", "limit is a number from 1 to %d.", maxPage)
	}
	return n
}

// day reads a day in UTC; def where it is not given.
func (q *query) day(name string, def time.Time) time.Time {
	text := q.Query(name)
	if text == "" {
		return def
	}
	t, err := time.Parse(time.DateOnly, text)
	if err != nil {
		q.bad(name, "%s is a day in UTC, like 2026-01-31.", name)
		return def
	}
	return t
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

// cursor reads ?cursor of a list; zero where it is not given.
func (q *query) cursor(list string) models.ID {
	text := q.Query("cursor")
	if text == "" {
		return models.ID{}
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(b) != 1+len(models.ID{})+cursorSum || string(b) != string(cursorBytes(list, models.ID(b[1:17]))) {
		q.bad("cursor", "This cursor was not made for this list.")
		return models.ID{}
	}
	return models.ID(b[1:17])
}
