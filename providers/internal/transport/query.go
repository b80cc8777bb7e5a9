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

// Query sends a query and returns the body of its answer 200. While the provider answers
// 429, it waits as long as the provider asks and sends the query again, a few times.
//
// Errors: models.ErrNoLookup for 401, 403, 404 and 405, models.ErrInvalid for 400 and 410.
func (c *Client) Query(ctx context.Context, q Query) ([]byte, error) {
	for try := 1; ; try++ {
		a, err := c.query(ctx, q)
		if err != nil {
			return nil, err
		}
		switch a.Status {
		case http.StatusOK:
			if a.Cut {
				return nil, fmt.Errorf("the answer broke off or is longer than %d MB", maxQueryAnswer>>20)
			}
			return a.Body, nil
		case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed:
			return nil, fmt.Errorf("%w: it answered %d", models.ErrNoLookup, a.Status)
		case http.StatusBadRequest, http.StatusGone:
			return nil, fmt.Errorf("%w: the API answered %d", models.ErrInvalid, a.Status)
		case http.StatusTooManyRequests:
			if try < queryTries {
				break
			}
			fallthrough
		default:
			return nil, fmt.Errorf("the API answered %d", a.Status)
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
		return Answer{}, fmt.Errorf("no answer: %s", words(err))
	}
	_ = resp.Body.Close() // it was read
	return x.Answer, nil
}
