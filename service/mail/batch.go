package mail

import (
	"cmp"
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/flow"
	"github.com/safedelivr/safedelivr/service/operation"
	"github.com/safedelivr/safedelivr/service/problem"
	"github.com/safedelivr/safedelivr/service/stats"
	"github.com/safedelivr/safedelivr/service/table"
	"github.com/safedelivr/safedelivr/service/walk"
)

// Rejected says which recipients of a request were left out of the batch.
type Rejected struct {
	Count int                `json:"count"`
	First []models.Rejection `json:"first,omitempty"` // up to 100
}

// BatchView is a batch as it is shown.
type BatchView struct {
	ID         models.ID         `json:"id"`
	User       string            `json:"user,omitempty"` // the owner, if it is not the caller
	State      models.BatchState `json:"state"`
	Stopped    bool              `json:"stopped,omitempty"`    // no call begins until the batch is resumed
	StoppedBy  string            `json:"stopped_by,omitempty"` // a user's ID, or "cli:" and a name
	StoppedAt  time.Time         `json:"stopped_at,omitzero"`
	StoppedWhy string            `json:"stopped_why,omitempty"` // the reason that was given
	Cancelled  bool              `json:"cancelled,omitempty"`

	CancelledBy  string    `json:"cancelled_by,omitempty"`
	CancelledAt  time.Time `json:"cancelled_at,omitzero"`
	CancelledWhy string    `json:"cancelled_why,omitempty"`

	Waits            *models.Wait         `json:"waits,omitempty"` // what it waits for; in a list only a command
	Subject          string               `json:"subject"`
	Rendered         string               `json:"rendered_subject,omitempty"` // of a batch with one recipient
	From             models.Address       `json:"from"`
	ReplyTo          []models.Address     `json:"reply_to,omitempty"`
	Tags             []string             `json:"tags,omitempty"`
	Attached         []models.Attachment  `json:"attachments,omitempty"`
	Template         *models.TemplateUse  `json:"template,omitempty"` // what the content was made from
	Category         string               `json:"category,omitempty"`
	Metadata         map[string]string    `json:"metadata,omitempty"`
	Lane             models.Lane          `json:"lane,omitempty"`       // empty if the batch is damaged
	Via              string               `json:"via,omitempty"`        // the dialect or protocol by which it came
	LaneLimit        models.Limit         `json:"lane_limit,omitempty"` // that made it bulk
	OnUnknown        models.UnknownPolicy `json:"on_unknown,omitempty"` // empty if the batch is damaged
	Providers        []string             `json:"providers,omitempty"`
	Recipients       int                  `json:"recipients"`
	Duplicates       int                  `json:"duplicates"`
	*models.Envelope                      // the recipients in to, cc and bcc
	Rejected         *Rejected            `json:"rejected,omitempty"` // the count of those that were left out
	Counts           client.Counts        `json:"counts"`
	CreatedAt        time.Time            `json:"created_at"`
	DeliverAt        time.Time            `json:"deliver_at,omitzero"` // zero: at once
	DueAt            time.Time            `json:"due_at,omitzero"`     // the next time of mail; zero: all have come
	Window           *models.SendWindow   `json:"send_window,omitempty"`
	ExpiresAt        time.Time            `json:"expires_at,omitzero"` // zero if the batch is damaged
	OwnTimes         *client.OwnTimes     `json:"own_times,omitempty"` // nil: all recipients have those of the batch
}

// OwnTimesOf describes the recipients of a batch who have times of their own; nil: there are none.
func OwnTimesOf(b *models.Batch) *client.OwnTimes {
	if len(b.Own) == 0 {
		return nil
	}
	out := &client.OwnTimes{}
	for n := b.OwnFrom(); n < b.Chunks; n++ {
		out.Recipients += b.ChunkSize(n)
	}
	out.First, out.Last = b.Leaves(b.Created())
	return out
}

// BatchPage is a page of batches.
type BatchPage struct {
	Batches []BatchView `json:"batches"`
	PageInfo
}

// Total returns the sum of the summaries of a batch, and the number of a chunk with queued
// recipients, or -1. It prefers a chunk with recipients that were never tried.
func (s *Reader) Total(ctx context.Context, b *models.Batch) (sum models.Summary, queued int, err error) {
	queued = -1
	next, untried := 0, false
	for cs, err := range s.Store.Summaries(ctx, b.User, b.ID, 0) {
		if err != nil {
			return sum, -1, err
		}
		sum.Add(&cs.Summary)
		n := cs.Chunk.ChunkNumber()
		if n > next && !untried { // the chunk before has no summary yet
			queued, untried = next, true
		}
		if next = n + 1; !untried && cs.Summary.Open() > 0 && (queued < 0 || cs.Summary.Untried > 0) {
			queued, untried = n, cs.Summary.Untried > 0
		}
	}
	if next < b.Chunks && !untried {
		queued = next
	}
	return b.Total(sum), queued, nil
}

// view returns a batch as lists show it, and the number of a chunk with queued recipients, or -1.
func (s *Reader) view(ctx context.Context, b *models.Batch) (BatchView, int, error) {
	sum, queued, err := s.Total(ctx, b)
	if err != nil {
		return BatchView{}, -1, err
	}
	rules, err := s.Audit.Rules(ctx)
	if err != nil {
		return BatchView{}, -1, err
	}
	b = rules.Scheduled(b)
	v := BatchView{
		ID:         b.ID,
		State:      b.StateOf(sum, time.Now()),
		Subject:    b.Content.Subject,
		From:       b.Content.From,
		ReplyTo:    b.Content.ReplyTo,
		Tags:       b.Content.Tags,
		Attached:   b.Content.Attachments,
		Template:   b.Template,
		Category:   b.Category,
		Metadata:   b.Metadata,
		Lane:       b.Lane,
		Via:        b.Via,
		LaneLimit:  b.LaneLimit,
		OnUnknown:  b.OnUnknown,
		Providers:  b.Providers,
		Recipients: b.Recipients,
		Duplicates: b.Duplicates,
		Envelope:   b.Envelope,
		Counts:     stats.CountsOf(&sum),
		CreatedAt:  b.Created(),
		DeliverAt:  b.DeliverAt,
		Window:     b.Window,
		ExpiresAt:  b.ExpiresAt,
		OwnTimes:   OwnTimesOf(b),
		Waits:      rules.Batch(b).Waits,
	}
	if b.Rejected > 0 {
		v.Rejected = &Rejected{Count: b.Rejected}
	}
	stop, cancel := rules.Stops(b.ID)
	if v.Stopped = stop != nil; v.Stopped {
		v.StoppedBy, v.StoppedAt, v.StoppedWhy = rules.StoppedBy(b.ID), stop.At, stop.Why
	}
	if v.Cancelled = cancel != nil; v.Cancelled {
		v.CancelledBy, v.CancelledAt, v.CancelledWhy = cancel.By, cancel.At, cancel.Why
	}
	if !v.Cancelled && v.State != models.BatchDone {
		v.DueAt = b.NextDue(time.Now())
	}
	v.Rendered, err = s.rendered(ctx, b)
	return v, queued, err
}

// rendered returns the subject of a batch with one recipient as the recipient gets it, or "" for other batches.
func (s *Reader) rendered(ctx context.Context, b *models.Batch) (string, error) {
	if b.Recipients != 1 || b.Redacted || b.Damaged {
		return "", nil
	}
	if !strings.Contains(b.Content.Subject, "{{") {
		return b.Content.Subject, nil
	}
	rs, err := s.Store.Recipients(ctx, b.ID)
	if errors.Is(err, models.ErrNotFound) || errors.Is(err, models.ErrDamaged) || len(rs) == 0 {
		return "", nil
	}
	return rs[0].Fill(b.Content.Subject, nil), err
}

// readable returns a batch that the caller may read: an own one, or any if the caller is
// an operator. All others are not found.
func (s *Reader) readable(ctx context.Context, who caller.Caller, id models.ID) (*models.Batch, error) {
	b, err := s.Store.Batch(ctx, id)
	if err == nil && b.User != who.User && !who.May(models.ScopeOperate) {
		err = models.ErrNotFound
	}
	if errors.Is(err, models.ErrNotFound) {
		return nil, problem.NotYours("batch")
	}
	if err != nil {
		return nil, problem.FromStore("read batch", err)
	}
	return &b, nil
}

// readableBatch parses the ID of a batch and returns what readable returns for it.
func (s *Reader) readableBatch(ctx context.Context, who caller.Caller, id string) (*models.Batch, error) {
	batch, err := models.ParseBatchID(id)
	if err != nil {
		return nil, problem.NotYours("batch")
	}
	return s.readable(ctx, who, batch)
}

// Controllable returns a batch that the caller may control: an own one, or any if the
// caller is an operator. All others are not found.
func (s *Reader) Controllable(ctx context.Context, who caller.Caller, id models.ID) (*models.Batch, error) {
	b, err := s.readable(ctx, who, id)
	if err == nil && b.User == who.User {
		err = who.Need(models.ScopeSend)
	}
	return b, err
}

// Batch returns one batch with its counts and with what it waits for.
func (s *Reader) Batch(ctx context.Context, who caller.Caller, id string) (BatchView, error) {
	return s.readView(ctx, who, id, true)
}

// ListedBatch returns one batch as lists show it. It reads no chunk, so Waits is set only if
// a command withholds the batch.
func (s *Reader) ListedBatch(ctx context.Context, who caller.Caller, id string) (BatchView, error) {
	return s.readView(ctx, who, id, false)
}

func (s *Reader) readView(ctx context.Context, who caller.Caller, id string, waits bool) (BatchView, error) {
	b, err := s.readableBatch(ctx, who, id)
	if err != nil {
		return BatchView{}, err
	}
	v, queued, err := s.view(ctx, b)
	if err == nil && waits {
		v.Waits, err = s.batchWait(ctx, b, queued)
	}
	if err != nil {
		return BatchView{}, problem.FromStore("sum batch", err)
	}
	if b.User != who.User {
		v.User = b.User
	}
	return v, nil
}

// OpenAttachment returns an attachment of a batch by its number, from 0, and a reader of its bytes.
func (s *Reader) OpenAttachment(
	ctx context.Context, who caller.Caller, batch string, number int,
) (models.Attachment, io.Reader, error) {
	b, err := s.readableBatch(ctx, who, batch)
	if err != nil {
		return models.Attachment{}, nil, err
	}
	if number < 0 || number >= len(b.Content.Attachments) {
		return models.Attachment{}, nil, problem.NotYours("attachment")
	}
	a := b.Content.Attachments[number]
	return a, models.OpenAttachment(ctx, s.Store, b.ID, &a), nil
}

// chunksOf visits the chunks of a batch, but for those to skip.
func chunksOf(b *models.Batch, skip map[int]bool, from models.ID, up bool) walk.Steps {
	return func(yield func(walk.Step, error) bool) {
		k, step := 0, 1
		if !up {
			k, step = b.Chunks-1, -1
		}
		if !from.IsZero() {
			k = from.ChunkNumber()
		}
		for ; k >= 0 && k < b.Chunks; k += step {
			if !skip[k] && !yield(walk.Step{At: b.ID.Chunk(k), Found: true, User: b.User}, nil) {
				return
			}
		}
	}
}

// chunkCost is what reading a chunk counts, in rows of an index.
func chunkCost(b *models.Batch, chunk models.ID) int {
	return 80 + b.ChunkSize(chunk.ChunkNumber())*2/5
}

// RejectedPage is a page of the recipients that were left out of a batch, in the order of the request.
type RejectedPage struct {
	Rejected []models.Rejection `json:"rejected"`
	PageInfo
}

// Rejected returns a page of the recipients that were left out of a batch.
func (s *Reader) Rejected(ctx context.Context, who caller.Caller, id string, p operation.Page) (RejectedPage, error) {
	b, err := s.readableBatch(ctx, who, id)
	if err != nil {
		return RejectedPage{}, err
	}
	var q operation.Query
	list := "rejected " + b.ID.String()
	n, from := q.Limit(p), q.Position(p, list).Entry
	if err := q.Err(); err != nil {
		return RejectedPage{}, err
	}
	total := int64(b.Rejected)
	out := RejectedPage{Rejected: []models.Rejection{}, PageInfo: PageInfo{First: from + 1, Total: &total}}
	for len(out.Rejected) < n && from < b.Rejected {
		rs, err := s.rejections(ctx, b, from/models.RejectionsInPiece)
		if err != nil {
			return RejectedPage{}, err
		}
		rs = rs[min(from%models.RejectionsInPiece, len(rs)):]
		rs = rs[:min(n-len(out.Rejected), len(rs))]
		if len(rs) == 0 {
			break
		}
		out.Rejected = append(out.Rejected, rs...)
		from += len(rs)
	}
	if from < b.Rejected {
		out.Next = operation.Position{Entry: from}.Cursor(list)
	}
	if out.First > 1 {
		out.Prev = operation.Position{Entry: max(out.First-1-n, 0)}.Cursor(list)
	}
	return out, nil
}

// rejections returns a piece of the recipients that were left out of a batch.
func (s *Reader) rejections(ctx context.Context, b *models.Batch, piece int) ([]models.Rejection, error) {
	rs, err := models.Rejections(ctx, s.Store, b.ID, piece)
	if errors.Is(err, models.ErrNotFound) {
		return nil, problem.New(problem.Conflict, "content_removed", "The list was removed with the content of the batch.")
	}
	if err != nil {
		return nil, problem.FromStore("read rejected recipients", err)
	}
	return rs, nil
}

// rejectedColumns are the columns of rejected recipients as CSV.
var rejectedColumns = []string{"index", "row", "column", "pointer", "code", "detail"}

// ExportRejected calls row for the rows of a CSV file of all recipients that were left out of a batch, the names of the
// columns first.
func (s *Reader) ExportRejected(ctx context.Context, who caller.Caller, id string, row func([]string) error) error {
	b, err := s.readableBatch(ctx, who, id)
	if err != nil {
		return err
	}
	for n := 0; n == 0 || n*models.RejectionsInPiece < b.Rejected; n++ {
		var rs []models.Rejection
		if b.Rejected > 0 {
			if rs, err = s.rejections(ctx, b, n); err != nil {
				return err
			}
		}
		if n == 0 {
			if err := row(rejectedColumns); err != nil {
				return err
			}
		}
		for i := range rs {
			line := ""
			if rs[i].Row > 0 {
				line = strconv.Itoa(rs[i].Row)
			}
			if err := row(table.HarmlessRow([]string{
				strconv.Itoa(rs[i].Index), line, rs[i].Column, rs[i].Pointer, rs[i].Code, rs[i].Detail,
			})); err != nil {
				return err
			}
		}
	}
	return nil
}

// Flow returns how a batch was handed over to the providers, and when they were failing.
func (s *Reader) Flow(ctx context.Context, who caller.Caller, id string) (flow.Flow, error) {
	b, err := s.readableBatch(ctx, who, id)
	if err != nil {
		return flow.Flow{}, err
	}
	sample := flow.Sample(b.Chunks)
	records := make([]flow.Record, len(sample))
	for i, n := range sample {
		r := &records[i]
		if r.Entries, r.Outcomes, err = s.Store.Calls(ctx, b.ID.Chunk(n)); err != nil {
			return flow.Flow{}, problem.FromStore("read the calls of a batch", err)
		}
	}
	health, err := s.failedCalls(ctx)
	if err != nil {
		return flow.Flow{}, problem.FromStore("read the times of failed calls", err)
	}
	return flow.Of(b.Chunks, records, health, time.Now()), nil
}

// TemplateUses says how the newest batches of a user use a template.
type TemplateUses struct {
	Batches  int64     // that were made from it
	Last     models.ID // the newest of them; zero: none
	Searched int64     // batches that were looked at
	All      bool      // the user has no others
}

// usesSearched is the number of batches that are searched for uses of a template.
const usesSearched = 100

// TemplateUses returns how the newest batches of the caller use a template.
func (s *Reader) TemplateUses(ctx context.Context, who caller.Caller, name string) (out TemplateUses, err error) {
	batches, err := s.Store.Batches(ctx, who.User, models.ID{}, usesSearched)
	if err != nil {
		return out, problem.FromStore("find uses of a template", err)
	}
	out.Searched, out.All = int64(len(batches)), len(batches) < usesSearched
	for i := range batches {
		if t := batches[i].Template; t != nil && t.Name == name {
			if out.Batches++; out.Last.IsZero() {
				out.Last = batches[i].ID
			}
		}
	}
	return out, nil
}

// MayResume reports whether a caller who may control a batch may resume it. Only an
// operator resumes a batch that an operator stopped.
func MayResume(who caller.Caller, b *BatchView) bool {
	return who.MayRelease(b.StoppedBy, cmp.Or(b.User, who.User))
}

// failedCalls returns when calls failed, by provider, as all workers found it; at most a second old.
func (s *Reader) failedCalls(ctx context.Context) (map[string][]flow.Health, error) {
	return s.failed.Get(time.Second, func() (map[string][]flow.Health, error) {
		reports, err := telemetry.Reports[telemetry.FailedCallsOf](ctx, s.Store, telemetry.FailedCallsReport)
		if err != nil || len(reports) == 0 {
			return nil, err
		}
		workers, err := telemetry.Reports[telemetry.WorkerState](ctx, s.Store, telemetry.WorkerReport)
		if err != nil {
			return nil, err
		}
		out := map[string][]flow.Health{}
		for name, report := range reports {
			state, running := workers[name[:max(0, strings.LastIndexByte(name, '/'))]]
			for provider, calls := range report {
				for _, c := range calls {
					now := running && !c.From.Before(state.Started) // else an earlier start of this worker found it
					out[provider] = append(out[provider], flow.Health{FailedCalls: c, Now: now})
				}
			}
		}
		return out, nil
	})
}

// chunk reads a chunk of a batch. The recipients are blank if their retention time is over.
func (s *Reader) chunk(
	ctx context.Context, b *models.Batch, id models.ID,
) ([]models.Recipient, *models.View, []models.Fact, error) {
	recipients, err := s.Store.Recipients(ctx, id)
	if errors.Is(err, models.ErrNotFound) && b.Redacted {
		recipients, err = make([]models.Recipient, b.ChunkSize(id.ChunkNumber())), nil
	}
	if err != nil {
		return nil, nil, nil, err
	}
	entries, facts, err := s.Store.Record(ctx, id)
	if err != nil {
		return nil, nil, nil, err
	}
	return recipients, models.Resolve(len(recipients), entries, facts), facts, nil
}
