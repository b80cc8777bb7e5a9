package service

import (
	"context"
	"errors"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// LogView is a log as lists show it.
type LogView struct {
	ID          models.ID       `json:"id"`
	Email       string          `json:"email"`
	Name        string          `json:"name,omitempty"`
	State       models.State    `json:"state"`
	Reason      models.Reason   `json:"reason,omitempty"`
	ReasonText  string          `json:"reason_text,omitempty"`
	EndedBy     models.Reason   `json:"ended_by,omitempty"` // no_provider_left or retries_used_up
	Detail      string          `json:"detail,omitempty"`
	Providers   map[string]bool `json:"providers"` // tried providers; true if the provider delivered
	Attempts    int             `json:"attempts"`
	Unconfirmed bool            `json:"unconfirmed,omitempty"`
	MayDouble   bool            `json:"possible_duplicate,omitempty"`
	Copies      int             `json:"copies"`          // known deliveries
	Waits       *models.Wait    `json:"waits,omitempty"` // what it waits for; nil if it has ended
}

// viewLog returns a log as it is shown. wait is what it waits for, or nil.
func viewLog(id models.ID, r *models.Recipient, v *models.View, wait *models.Wait) LogView {
	st := v.Status(id.Recipient())
	out := LogView{
		ID:          id,
		Email:       r.Email,
		Name:        r.Name,
		State:       st.State,
		Reason:      st.Reason,
		EndedBy:     st.EndedBy,
		Detail:      st.Detail,
		Providers:   map[string]bool{},
		Attempts:    st.Attempts,
		Unconfirmed: st.Reason == models.Unconfirmed,
		MayDouble:   st.MayDouble,
		Copies:      st.Copies,
		Waits:       wait,
	}
	for _, t := range v.Tries(id.Recipient()) {
		out.Providers[t.Provider] = out.Providers[t.Provider] || t.Verdict == models.VerdictDelivered
	}
	if out.Reason == "" && wait != nil {
		out.ReasonText = wait.Text
	} else if out.Reason != "" {
		out.ReasonText = out.Reason.Words()
	}
	if out.EndedBy != "" {
		out.ReasonText += "; " + out.EndedBy.Words()
	}
	return out
}

// LogPage is a page of the logs of a batch. Next is empty on the last page.
type LogPage struct {
	Logs []LogView `json:"logs"`
	Next string    `json:"next_cursor"`
}

// Logs returns a page of the logs of a batch in the order of its recipients: those in a
// state, or all if state is empty. A page may be short and still have a next cursor.
func (s *Service) Logs(ctx context.Context, who Caller, batch string, state models.State, p Page) (LogPage, error) {
	b, err := s.readableBatch(ctx, who, batch)
	if err != nil {
		return LogPage{}, err
	}
	var q query
	list := "logs " + b.ID.String() + " " + string(state)
	n, from := q.limit(p), q.cursor(p, list)
	if state != "" && !state.Valid() {
		q.bad("state", "state must be queued, success, failed or cancelled.")
	}
	if err := q.err(); err != nil {
		return LogPage{}, err
	}
	if from.IsZero() {
		from = b.ID.Log(1)
	}
	logs, next, err := s.collectLogs(ctx, b, from, state, n)
	if err != nil {
		return LogPage{}, storeError("list logs", err)
	}
	out := LogPage{Logs: logs}
	if !next.IsZero() {
		out.Next = cursorOf(list, next)
	}
	return out, nil
}

// maxChunksPerPage is the number of chunks that one request reads.
const maxChunksPerPage = 50

// collectLogs returns up to n logs from a log on, and the log after them. It skips chunks
// whose summary has no logs in the state.
func (s *Service) collectLogs(
	ctx context.Context,
	b *models.Batch,
	from models.ID,
	state models.State,
	n int,
) ([]LogView, models.ID, error) {
	logs := make([]LogView, 0, min(n, b.Recipients))
	skip := map[int]bool{}
	if state != "" && b.Chunks > 1 {
		for cs, err := range s.store.Summaries(ctx, b.User, b.ID, from.ChunkNumber()) {
			if err != nil {
				return nil, models.ID{}, err
			}
			skip[cs.Chunk.ChunkNumber()] = countOf(&cs.Summary, state) == 0
		}
	}
	w, err := s.waiting(ctx)
	if err != nil {
		return nil, models.ID{}, err
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
		waits := w.logs(b, view, recipients)
		for r := first; r <= len(recipients); r++ {
			if state != "" && view.Status(r).State != state {
				continue
			}
			if len(logs) == n {
				return logs, chunk.Log(r), nil
			}
			logs = append(logs, viewLog(chunk.Log(r), &recipients[r-1], view, waits[r-1]))
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

// chunk reads a chunk of a batch. The recipients are blank if their retention time is
// over.
func (s *Service) chunk(
	ctx context.Context,
	b *models.Batch,
	id models.ID,
) ([]models.Recipient, *models.View, []models.Fact, error) {
	recipients, err := s.store.Recipients(ctx, id)
	if errors.Is(err, models.ErrNotFound) && b.Redacted {
		recipients, err = make([]models.Recipient, b.ChunkSize(id.ChunkNumber())), nil
	}
	if err != nil {
		return nil, nil, nil, err
	}
	entries, facts, err := s.store.Record(ctx, id)
	if err != nil {
		return nil, nil, nil, err
	}
	return recipients, models.Resolve(len(recipients), entries, facts), facts, nil
}

// LogStory is everything that is known of one recipient.
type LogStory struct {
	LogView
	BatchID   models.ID       `json:"batch_id"`
	Subject   string          `json:"subject"`
	CreatedAt time.Time       `json:"created_at"`
	Timeline  []models.Moment `json:"timeline"`
}

// Log returns the story of one recipient.
func (s *Service) Log(ctx context.Context, who Caller, id string) (LogStory, error) {
	log, err := models.ParseLogID(id)
	if err != nil {
		return LogStory{}, notFound("log")
	}
	c, err := s.Stories(ctx, who, log)
	if err != nil {
		return LogStory{}, err
	}
	return c.Log(log)
}

// Stories holds everything that is known of a chunk's recipients at one moment. It is
// safe for concurrent use.
type Stories struct {
	batch      *models.Batch
	recipients []models.Recipient
	view       *models.View
	waits      []*models.Wait
	facts      []models.Fact
}

// Stories reads the chunk of a log. One read serves all recipients of the chunk.
func (s *Service) Stories(ctx context.Context, who Caller, log models.ID) (*Stories, error) {
	b, err := s.readable(ctx, who, log.Batch())
	if err != nil {
		return nil, err
	}
	if log.Recipient() > b.ChunkSize(log.ChunkNumber()) {
		return nil, notFound("log")
	}
	recipients, view, facts, err := s.chunk(ctx, b, log.ChunkID())
	if err != nil {
		return nil, storeError("read log", err)
	}
	w, err := s.waiting(ctx)
	if err != nil {
		return nil, err
	}
	return &Stories{b, recipients, view, w.logs(b, view, recipients), facts}, nil
}

// Log returns the story of one of the chunk's recipients.
func (c *Stories) Log(log models.ID) (LogStory, error) {
	if n := log.Recipient(); n < 1 || n > len(c.recipients) {
		return LogStory{}, notFound("log")
	}
	return LogStory{
		viewLog(log, &c.recipients[log.Recipient()-1], c.view, c.waits[log.Recipient()-1]),
		c.batch.ID,
		c.batch.Content.Subject,
		c.batch.Created(),
		c.view.Timeline(log, c.facts),
	}, nil
}
