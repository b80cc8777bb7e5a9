package api

import (
	"context"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/safedelivr/safedelivr/models"
)

// logView is how a log is shown in a list.
type logView struct {
	ID          models.ID       `json:"id"`
	Email       string          `json:"email"`
	Name        string          `json:"name,omitempty"`
	State       models.State    `json:"state"`
	Reason      models.Reason   `json:"reason,omitempty"`
	ReasonText  string          `json:"reason_text,omitempty"`
	Detail      string          `json:"detail,omitempty"`
	Providers   map[string]bool `json:"providers"` // tried, and whether that one delivered
	Attempts    int             `json:"attempts"`
	Unconfirmed bool            `json:"unconfirmed,omitempty"`
	MayDouble   bool            `json:"possible_duplicate,omitempty"`
	Copies      int             `json:"copies"` // known to be delivered
}

func viewLog(id models.ID, r *models.Recipient, v *models.View) logView {
	st := v.Status(id.Recipient())
	out := logView{ID: id, Email: r.Email, Name: r.Name, State: st.State, Reason: st.Reason, Detail: st.Detail, Providers: map[string]bool{},
		Attempts: st.Attempts, Unconfirmed: st.Reason == models.Unconfirmed, MayDouble: st.MayDouble, Copies: st.Copies}
	for _, t := range v.Tries(id.Recipient()) {
		out.Providers[t.Account] = out.Providers[t.Account] || t.Verdict == models.WasDelivered
	}
	if out.Reason == "" && st.State == models.Queued {
		out.ReasonText = queuedWords(st)
	} else if out.Reason != "" {
		out.ReasonText = out.Reason.Words()
	}
	return out
}

// queuedWords tells what a queued log waits for.
func queuedWords(st *models.Status) string {
	switch {
	case st.Attempts == 0:
		return "waiting to be handed to a provider"
	case st.Last.Verdict == models.Taken && st.Last.Deferred:
		return st.Last.Account + " has it and goes on trying to deliver"
	case st.Last.Verdict == models.Taken:
		return st.Last.Account + " has it; no final event yet"
	case st.Unsettled():
		return "it is not known yet whether " + st.Last.Account + " took it"
	}
	return "waiting for another attempt after " + st.Last.Account + ": " + st.Last.Reason.Words()
}

// listLogs is GET /v1/batches/{id}/logs: in order of the recipients, by state.
func (s *Server) listLogs(c *gin.Context) {
	b, p := s.pathBatch(c)
	if p != nil {
		p.write(c)
		return
	}
	state := models.State(c.Query("state"))
	q, list := query{Context: c}, "logs "+b.ID.String()+" "+string(state)
	n, from := q.limit(), q.cursor(list)
	if state != "" && !state.Valid() {
		q.bad("state", "state is queued, success, failed or cancelled.")
	}
	if p := q.problem(); p != nil {
		p.write(c)
		return
	}
	if from.IsZero() {
		from = b.ID.Log(1)
	}
	logs, next, err := s.collectLogs(c.Request.Context(), b, from, state, n)
	if err != nil {
		s.storeProblem(c, "list logs", err).write(c)
		return
	}
	cursor := ""
	if !next.IsZero() {
		cursor = cursorOf(list, next)
	}
	c.JSON(http.StatusOK, gin.H{"logs": logs, "next_cursor": cursor})
}

// maxChunksPerPage bounds the work of one request: a page may be short, and
// still have a next cursor.
const maxChunksPerPage = 50

// collectLogs walks the chunks from a log on. Chunks whose summary counts none
// of the state are passed over.
func (s *Server) collectLogs(ctx context.Context, b *models.Batch, from models.ID, state models.State, n int) ([]logView, models.ID, error) {
	logs := make([]logView, 0, min(n, b.Recipients))
	skip := map[int]bool{}
	if state != "" && b.Chunks > 1 {
		for cs, err := range s.store.Summaries(ctx, b.User, b.ID, from.ChunkNumber()) {
			if err != nil {
				return nil, models.ID{}, err
			}
			skip[cs.Chunk.ChunkNumber()] = countOf(&cs.Summary, state) == 0
		}
	}
	read := 0
	first := max(1, from.Recipient())
	for k := from.ChunkNumber(); k < b.Chunks; k++ {
		chunk := b.ID.Chunk(k)
		if skip[k] {
			first = 1
			continue
		}
		if read == maxChunksPerPage {
			return logs, chunk.Log(1), nil
		}
		read++
		recipients, view, _, err := s.chunk(ctx, b, chunk)
		if err != nil {
			return nil, models.ID{}, err
		}
		for r := first; r <= len(recipients); r++ {
			if state != "" && view.Status(r).State != state {
				continue
			}
			if len(logs) == n {
				return logs, chunk.Log(r), nil
			}
			logs = append(logs, viewLog(chunk.Log(r), &recipients[r-1], view))
		}
		first = 1
	}
	return logs, models.ID{}, nil
}

func countOf(s *models.Summary, state models.State) int64 {
	switch state {
	case models.Queued:
		return s.Queued
	case models.Success:
		return s.Success
	case models.Failed:
		return s.Failed
	case models.Cancelled:
		return s.Cancelled
	}
	return 0
}

func (s *Server) chunk(ctx context.Context, b *models.Batch, id models.ID) ([]models.Recipient, *models.View, []models.Fact, error) {
	recipients, err := s.store.Recipients(ctx, id)
	if err != nil {
		return nil, nil, nil, err
	}
	entries, facts, err := s.store.Record(ctx, id)
	if err != nil {
		return nil, nil, nil, err
	}
	return recipients, models.Resolve(len(recipients), entries, facts), facts, nil
}

// getLog is GET /v1/logs/{id}: the whole story of one recipient.
func (s *Server) getLog(c *gin.Context) {
	id, err := models.ParseLogID(c.Param("id"))
	if err != nil {
		problem(http.StatusNotFound, "not_found", "There is no such log, or it is not yours.").write(c)
		return
	}
	b, p := s.own(c, id.Batch())
	if p != nil {
		p.write(c)
		return
	}
	if id.Recipient() > b.ChunkSize(id.ChunkNumber()) {
		problem(http.StatusNotFound, "not_found", "There is no such log, or it is not yours.").write(c)
		return
	}
	recipients, view, facts, err := s.chunk(c.Request.Context(), b, id.ChunkID())
	if err != nil {
		s.storeProblem(c, "read log", err).write(c)
		return
	}
	if id.Recipient() > len(recipients) {
		s.storeProblem(c, "read log", models.ErrNotFound).write(c)
		return
	}
	c.JSON(http.StatusOK, struct {
		logView
		BatchID   models.ID       `json:"batch_id"`
		Subject   string          `json:"subject"`
		CreatedAt time.Time       `json:"created_at"`
		Timeline  []models.Moment `json:"timeline"`
	}{viewLog(id, &recipients[id.Recipient()-1], view), b.ID, b.Content.Subject, b.Created(), view.Timeline(id, facts)})
}
