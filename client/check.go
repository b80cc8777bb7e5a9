package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// NewCheck says what is recounted.
type NewCheck struct {
	// When the batches were accepted at the earliest. Default: all that are kept.
	Since time.Time `json:"since,omitzero"`
	// ID or name of the only user that is checked. Default: all.
	User   string `json:"user,omitempty"`
	Repair bool   `json:"repair,omitempty" default:"false"` // Correct wrong sums.
}

// Difference is a sum that differs from its recount.
type Difference struct {
	// The kind of thing that differs: chunk, batch, feed, day, or a span.
	What string `json:"what"`
	User string `json:"user"`
	ID   string `json:"id"`
	// Shown and Counted are the sums; nil if Damaged is set.
	Shown   *CheckedCounts `json:"shown,omitempty"`
	Counted *CheckedCounts `json:"counted,omitempty"`
	// Damaged says what cannot be read, or how a feed is wrong.
	Damaged string `json:"damaged,omitempty"`
	// Text says all of it to people.
	Text string `json:"text"`
}

// CheckedCounts are counts, and how many entries and facts they were made from.
type CheckedCounts struct {
	Counts
	MadeFrom int64 `json:"made_from"`
}

// NewReplay says which webhook posts are read again.
type NewReplay struct {
	// When they arrived at the earliest. Default: all that are kept.
	Since time.Time `json:"since,omitzero"`
	Until time.Time `json:"until,omitzero"` // They arrived before this time. Default: now.
}

// Replayed says what a replay has done.
type Replayed struct {
	// Posts were read again.
	Posts int `json:"posts"`
	// Events were parsed differently than before.
	Events int64 `json:"events"`
}

// Step is a line of the answer to long work. One of its fields is set.
type Step[T any] struct {
	Found    *Difference `json:"found,omitempty"`
	Progress *T          `json:"progress,omitempty"`
	Done     *T          `json:"done,omitempty"`
	// Error says why the work broke off. Progress before it says how far it came.
	Error string `json:"error,omitempty"`
}

// RunCheck recounts sums and compares them with the stored ones. It needs the scope operate, and a server with the role
// worker. Each difference and the progress go to report. If the check breaks off, the counts are those up to there.
func (c *Client) RunCheck(
	ctx context.Context, in NewCheck, report func(*Step[Check]), options ...CallOption,
) (Check, error) {
	return steps(ctx, c, route("check"), in, report, options)
}

// RunReplay reads webhook posts again with the parsers of the server. It needs the scope operate, and a server with the
// role worker. The progress goes to report.
func (c *Client) RunReplay(
	ctx context.Context, in NewReplay, report func(*Step[Replayed]), options ...CallOption,
) (Replayed, error) {
	return steps(ctx, c, route("replay"), in, report, options)
}

// steps starts long work and reads the lines of its answer.
func steps[T any](
	ctx context.Context, c *Client, path string, in any, report func(*Step[T]), options []CallOption,
) (last T, err error) {
	read := func(lines *json.Decoder) error {
		for {
			var s Step[T]
			switch err := lines.Decode(&s); {
			case errors.Is(err, io.EOF):
				return fmt.Errorf("POST %s: the answer has no end", path)
			case err != nil:
				return err
			case s.Error != "":
				return errors.New(s.Error)
			case s.Done != nil:
				last = *s.Done
				return nil
			}
			if s.Progress != nil {
				last = *s.Progress
			}
			if s.Progress != nil || s.Found != nil {
				report(&s)
			}
		}
	}
	return last, c.send(ctx, http.MethodPost, path, in, read, options)
}
