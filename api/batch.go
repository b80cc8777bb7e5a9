package api

import (
	"context"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"
	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/models"
)

// batchView is how a batch is shown.
type batchView struct {
	ID         models.ID            `json:"id"`
	State      models.BatchState    `json:"state"`
	Subject    string               `json:"subject"`
	From       models.Address       `json:"from"`
	ReplyTo    models.Address       `json:"reply_to,omitzero"`
	Lane       models.Lane          `json:"lane"`
	OnUnknown  models.UnknownPolicy `json:"on_unknown"`
	Providers  []string             `json:"providers,omitempty"`
	Recipients int                  `json:"recipients"`
	Duplicates int                  `json:"duplicates"`
	Counts     counts               `json:"counts"`
	CreatedAt  time.Time            `json:"created_at"`
	Deadline   time.Time            `json:"deadline"`
}

// total sums the chunk summaries of a batch.
func (s *Server) total(ctx context.Context, b *models.Batch) (models.Summary, error) {
	var sum models.Summary
	for cs, err := range s.store.Summaries(ctx, b.User, b.ID, 0) {
		if err != nil {
			return sum, err
		}
		sum.Add(&cs.Summary)
	}
	return b.Total(sum), nil
}

func (s *Server) view(ctx context.Context, b *models.Batch) (batchView, error) {
	sum, err := s.total(ctx, b)
	return batchView{ID: b.ID, State: b.StateOf(sum), Subject: b.Content.Subject, From: b.Content.From, ReplyTo: b.Content.ReplyTo,
		Lane: b.Lane, OnUnknown: b.OnUnknown, Providers: b.Accounts, Recipients: b.Recipients, Duplicates: b.Duplicates,
		Counts: countsOf(&sum), CreatedAt: b.Created(), Deadline: b.Deadline}, err
}

// listBatches is GET /v1/batches: newest first.
func (s *Server) listBatches(c *gin.Context) {
	q, list := query{Context: c}, "batches "+user(c)
	n, before := q.limit(), q.cursor(list)
	if p := q.problem(); p != nil {
		p.write(c)
		return
	}
	batches, err := s.store.Batches(c.Request.Context(), user(c), before, n+1)
	if err != nil {
		s.storeProblem(c, "list batches", err).write(c)
		return
	}
	next := ""
	if len(batches) > n {
		batches = batches[:n]
		next = cursorOf(list, batches[n-1].ID)
	}
	views := make([]batchView, len(batches))
	g, ctx := errgroup.WithContext(c.Request.Context())
	g.SetLimit(8)
	for i := range batches {
		g.Go(func() (err error) {
			views[i], err = s.view(ctx, &batches[i])
			return err
		})
	}
	if err := g.Wait(); err != nil {
		s.storeProblem(c, "sum batches", err).write(c)
		return
	}
	c.JSON(http.StatusOK, gin.H{"batches": views, "next_cursor": next})
}

// own reads a batch of the user; everybody else's is not found.
func (s *Server) own(c *gin.Context, id models.ID) (*models.Batch, *Problem) {
	b, err := s.store.Batch(c.Request.Context(), id)
	if err == nil && b.User != user(c) {
		err = models.ErrNotFound
	}
	if err != nil {
		return nil, s.storeProblem(c, "read batch", err)
	}
	return &b, nil
}

func (s *Server) pathBatch(c *gin.Context) (*models.Batch, *Problem) {
	id, err := models.ParseBatchID(c.Param("id"))
	if err != nil {
		return nil, problem(http.StatusNotFound, "not_found", "There is no such batch, or it is not yours.")
	}
	return s.own(c, id)
}

// getBatch is GET /v1/batches/{id}.
func (s *Server) getBatch(c *gin.Context) {
	b, p := s.pathBatch(c)
	if p != nil {
		p.write(c)
		return
	}
	v, err := s.view(c.Request.Context(), b)
	if err != nil {
		s.storeProblem(c, "sum batch", err).write(c)
		return
	}
	c.JSON(http.StatusOK, v)
}
