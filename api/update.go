package api

import (
	"context"
	"encoding/json"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/feed"
	"github.com/safedelivr/safedelivr/service/problem"
	"github.com/safedelivr/safedelivr/service/updates"
)

// ndjson is the media type of one JSON value in each line.
const ndjson = "application/x-ndjson"

// maxLines is the maximum number of updates in an answer that is NDJSON.
const maxLines = 100_000

// listUpdates is GET /v1/updates.
func (s *Server) listUpdates(c *gin.Context) {
	s.readFeed(c, caller(c).User, func(p *updates.Page) any { return p })
}

// listNotices is GET /v1/notices.
func (s *Server) listNotices(c *gin.Context) {
	s.readFeed(c, feed.Installation, func(p *updates.Page) any {
		return struct {
			Notices []feed.Described `json:"notices"`
			updates.Position
		}{p.Updates, p.Position}
	})
}

// readFeed answers with a page of a feed, as shape makes it, or with lines.
func (s *Server) readFeed(c *gin.Context, owner string, shape func(p *updates.Page) any) {
	q, err := s.updatesQuery(c)
	if err != nil {
		s.fail(c, err)
		return
	}
	c.Header("Cache-Control", "no-store")
	if accepts(c, ndjson) {
		s.streamUpdates(c, owner, q)
		return
	}
	p, err := s.svc.Updates.Read(c.Request.Context(), owner, q)
	answer(s, c, shape(&p), err)
}

// countUpdates is GET /v1/updates/counts.
func (s *Server) countUpdates(c *gin.Context) {
	q, err := s.updatesQuery(c)
	if err != nil {
		s.fail(c, err)
		return
	}
	c.Header("Cache-Control", "no-store")
	v, err := s.svc.Updates.Count(c.Request.Context(), caller(c).User, q)
	answer(s, c, v, err)
}

// updatesQuery returns the query of a request about updates.
func (s *Server) updatesQuery(c *gin.Context) (updates.Query, error) {
	var wrong problem.Mistakes
	q := updates.Query{
		Cursor: c.Query("cursor"),
		From:   moment(c, "from", &wrong),
		To:     moment(c, "to", &wrong),
		Batch:  c.Query("batch"),
		Tag:    c.Query("tag"),
		State:  models.State(c.Query("state")),
		Limit:  page(c).Limit,
		By:     caller(c).User,
		Waits:  func() func(context.Context) error { return s.idle(c) },
	}
	if text := c.Query("events"); text != "" {
		for t := range strings.SplitSeq(text, ",") {
			q.Events = append(q.Events, feed.Type(t))
		}
	}
	if text := c.Query("wait"); text != "" {
		var err error
		if q.Wait, err = time.ParseDuration(text); err != nil {
			wrong.Wrong(problem.Pointer("wait"), "invalid_value", "wait must be a time like 30s.")
		}
	}
	return q, wrong.In(invalidQuery())
}

// accepts reports whether the client asks for a media type by its name.
func accepts(c *gin.Context, want string) bool {
	for part := range strings.SplitSeq(c.GetHeader("Accept"), ",") {
		if kind, _, err := mime.ParseMediaType(part); err == nil && kind == want {
			return true
		}
	}
	return false
}

// streamUpdates answers with a line for each update, and a last line that says where they end.
// If the feed cannot be read, the connection is closed before the last line.
func (s *Server) streamUpdates(c *gin.Context, owner string, q updates.Query) {
	left := q.Limit
	if left == 0 || left > maxLines {
		left = maxLines
	}
	enc := json.NewEncoder(c.Writer)
	enc.SetEscapeHTML(false)
	for begun := false; ; begun = true {
		if left > 0 {
			q.Limit = min(left, updates.MaxLimit)
		}
		p, err := s.svc.Updates.Read(c.Request.Context(), owner, q)
		switch {
		case err != nil && !begun:
			s.fail(c, err)
			return
		case err != nil:
			panic(http.ErrAbortHandler) // the client must not take a part for the whole
		case !begun:
			c.Header("Content-Type", ndjson)
		}
		for i := range p.Updates {
			if err := enc.Encode(&p.Updates[i]); err != nil {
				return // the client is gone
			}
		}
		q.Cursor, q.Wait = p.Next, 0
		if left -= len(p.Updates); left <= 0 || !p.More {
			_ = enc.Encode(p.Position) // the client may be gone
			return
		}
	}
}
