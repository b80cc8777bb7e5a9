package api

import (
	"context"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/models"
)

// createBatch is POST /v1/batches: read and check everything, store it, answer
// 202, announce it.
func (s *Server) createBatch(c *gin.Context) {
	in := newIntake(&s.cfg, s.known)
	defer in.spool.close()
	p := s.read(c, in)
	var b models.Batch
	if p == nil {
		b = in.batch()
		p = in.taken(in.placeholders(&b.Content))
	}
	if p == nil {
		p = in.problem()
	}
	if p != nil {
		s.answer(c, p)
		return
	}
	now := time.Now()
	b.ID, b.User, b.Deadline = models.NewBatchID(now), user(c), now.Add(s.cfg.Deadline).UTC().Truncate(time.Millisecond)
	if err := s.accept(c.Request.Context(), &b, in.spool); err != nil {
		s.answer(c, in.refused(&b, err))
		return
	}
	s.announce[b.Lane].add(&b)
	s.log.Info("batch accepted", "batch_id", b.ID.String(), "user_id", b.User, "recipients", b.Recipients, "lane", string(b.Lane))
	c.Header("Location", "/v1/batches/"+b.ID.String())
	c.JSON(http.StatusAccepted, gin.H{
		"id": b.ID.String(), "state": models.BatchQueued, "recipients": b.Recipients, "duplicates": b.Duplicates, "lane": b.Lane,
		"created_at": b.Created(), "deadline": b.Deadline,
	})
}

// read fills the intake from whatever form the request has.
func (s *Server) read(c *gin.Context, in *intake) *Problem {
	if c.Request.ContentLength > s.cfg.MaxBody {
		return bodyTooLarge(s.cfg.MaxBody)
	}
	body := http.MaxBytesReader(c.Writer, c.Request.Body, s.cfg.MaxBody)
	c.Request.Body = body
	kind, _, err := mime.ParseMediaType(c.GetHeader("Content-Type"))
	if err != nil {
		kind = ""
	}
	if e := c.GetHeader("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		return problem(http.StatusUnsupportedMediaType, "wrong_encoding", "Send the body as it is, without Content-Encoding.")
	}
	switch kind {
	case "application/json":
		return in.readJSON(body)
	case "application/x-www-form-urlencoded":
		return in.readForm(body)
	case "multipart/form-data":
		return in.readMultipart(c.Request)
	}
	return problem(http.StatusUnsupportedMediaType, "wrong_type",
		"Send application/json, application/x-www-form-urlencoded or multipart/form-data.")
}

// accept stores a batch: the agenda entry first, so that whatever follows is
// found again, then all chunks but the first, then the batch itself with its
// first chunk. Until that last write nothing exists; the client going away
// before it ends the request, after it does not matter.
func (s *Server) accept(ctx context.Context, b *models.Batch, sp *spool) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.IntakeTime)
	defer cancel()
	entry := models.AgendaEntry{Due: b.Created().Add(s.cfg.Recheck), Kind: models.LookAtBatch, ID: b.ID, User: b.User, Chunks: b.Chunks}
	if err := s.store.Schedule(ctx, entry); err != nil {
		return err
	}
	first, err := s.putChunks(ctx, b, sp)
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.commit(context.WithoutCancel(ctx), b, first)
}

// errAcceptanceUnknown: the deciding write was sent, and nobody can say whether
// it took.
var errAcceptanceUnknown = errors.New("acceptance unknown")

// commit makes the deciding write. Once its outcome is unknown only a definite
// answer of a later try settles it: an unavailable store says nothing of the
// first one.
func (s *Server) commit(ctx context.Context, b *models.Batch, first models.Chunk) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.SettleTime)
	defer cancel()
	unknown := false
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		err := s.store.PutBatch(ctx, *b, first)
		switch {
		case err == nil, errors.Is(err, models.ErrNotFound):
			return err
		case errors.Is(err, models.ErrOutcomeUnknown):
			unknown = true
		case !unknown && (errors.Is(err, models.ErrUnavailable) || errors.Is(err, models.ErrInvalid) || errors.Is(err, models.ErrClosed)):
			return err
		default:
			unknown = true // also an error that says nothing, like a deadline's
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", errAcceptanceUnknown, err)
		case <-time.After(wait):
		}
	}
}

// putChunks stores all chunks but the first, a few at a time, and returns that.
func (s *Server) putChunks(ctx context.Context, b *models.Batch, sp *spool) (models.Chunk, error) {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	var first models.Chunk
	n := 0
	sizes := sp.cut().sizes
	current := make([]models.Recipient, 0, sizes[0])
	err := sp.each(func(_ int, r models.Recipient) error {
		current = append(current, r)
		if len(current) < sizes[n] {
			return nil
		}
		chunk := models.Chunk{ID: b.ID.Chunk(n), Recipients: current}
		if n == 0 {
			first = chunk
		} else {
			g.Go(func() error { return s.store.PutChunk(ctx, chunk) })
		}
		if n++; n < len(sizes) {
			current = make([]models.Recipient, 0, sizes[n])
		}
		return ctx.Err()
	})
	if werr := g.Wait(); werr != nil {
		err = werr
	}
	return first, err
}

// refused is the answer to a batch that could not be stored.
func (in *intake) refused(b *models.Batch, err error) *Problem {
	var p *Problem
	switch {
	case errors.Is(err, errAcceptanceUnknown):
		p = problem(http.StatusServiceUnavailable, "acceptance_unknown",
			"The store did not say whether the batch was kept. Ask for it under its id before sending it again.").after(30)
		p.BatchID = b.ID.String()
	case errors.Is(err, errSpool):
		return in.taken(err)
	case errors.Is(err, models.ErrNotFound):
		p = problem(http.StatusServiceUnavailable, "intake_too_slow", "Storing took so long that the batch was cleared away. Nothing will be sent; repeat the request.").after(30)
	default:
		p = problem(http.StatusServiceUnavailable, "store_unavailable", "The store cannot be reached. Nothing will be sent; repeat the request.").after(5)
	}
	p.cause = fmt.Errorf("batch %s: %w", b.ID, err)
	return p
}

// answer writes a problem and logs its cause, if it is ours.
func (s *Server) answer(c *gin.Context, p *Problem) {
	if p.cause != nil && c.Request.Context().Err() == nil {
		s.log.Error("batch not accepted", "code", p.Code, "err", p.cause, "request_id", requestID(c))
	}
	p.write(c)
}
