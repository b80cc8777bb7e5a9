package transport

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
)

// The bounds of a query. A thousand summaries of messages with long subjects take about
// 2 MB.
const (
	maxQueryAnswer = 8 << 20
	queryTries     = 5
	queryPause     = 5 * time.Second // after 429 without a time
	maxQueryPause  = 2 * time.Minute
)

// A Query is a request that reads data of a provider. Sending it again does no harm.
type Query struct {
	Method, URL string
	Body        []byte // JSON; nil: none
	Header      http.Header
	Timeout     time.Duration // of one request
}

// A RefusedError is an answer to a query that has no data.
type RefusedError struct {
	Status int
	Body   []byte
}

// Error implements error.
func (e *RefusedError) Error() string { return fmt.Sprintf("answered %d", e.Status) }

// Unwrap returns models.ErrNoLookup for 401, 403, 404 and 405, and models.ErrInvalid for 400 and 410.
func (e *RefusedError) Unwrap() error {
	switch e.Status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed:
		return models.ErrNoLookup
	case http.StatusBadRequest, http.StatusGone:
		return models.ErrInvalid
	}
	return nil
}

// Query sends a query and returns the body of its answer 200 or 204. While the provider answers
// 429, it waits as long as the provider asks and sends the query again, a few times.
//
// Errors: *RefusedError.
func (c *Client) Query(ctx context.Context, q Query) ([]byte, error) {
	for try := 1; ; try++ {
		a, err := c.query(ctx, q)
		if err != nil {
			return nil, err
		}
		switch {
		case a.Status == http.StatusOK && a.Cut:
			return nil, fmt.Errorf("answered more than %d MB, or broke off", maxQueryAnswer>>20)
		case a.Status == http.StatusOK || a.Status == http.StatusNoContent:
			return a.Body, nil
		case a.Status != http.StatusTooManyRequests || try >= queryTries:
			return nil, &RefusedError{a.Status, a.Body}
		}
		pause := queryPause
		if at := parse.RetryAt(a.Header, time.Now()); !at.IsZero() {
			pause = min(time.Until(at), maxQueryPause)
		}
		models.Pause(ctx, pause)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
}

// query sends a query once.
func (c *Client) query(ctx context.Context, q Query) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, q.Timeout)
	defer cancel()
	ctx, x := Record(ctx, time.Time{})
	x.limit = maxQueryAnswer
	req, err := http.NewRequestWithContext(ctx, q.Method, q.URL, bytes.NewReader(q.Body))
	if err != nil {
		return Answer{}, err
	}
	for name, values := range q.Header {
		req.Header[name] = values
	}
	req.Header.Set("Accept", "application/json")
	if q.Body == nil {
		req.Body, req.ContentLength = nil, 0
	} else {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.HTTP.Do(req)
	if err != nil {
		return Answer{}, fmt.Errorf("cannot be reached: %s", words(err))
	}
	_ = resp.Body.Close() // it was read
	return x.Answer, nil
}
