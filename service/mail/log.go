package mail

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/clientid"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/operation"
	"github.com/safedelivr/safedelivr/service/problem"
	"github.com/safedelivr/safedelivr/service/walk"
)

// LogView is a log as lists show it.
type LogView struct {
	ID          models.ID       `json:"id"`
	Email       string          `json:"email"`
	Name        string          `json:"name,omitempty"`
	Role        models.Role     `json:"role,omitempty"` // in one mail to several
	Subject     string          `json:"subject"`        // as the recipient gets it
	State       models.State    `json:"state"`
	Reason      models.Reason   `json:"reason,omitempty"`
	ReasonText  string          `json:"reason_text,omitempty"`
	EndedBy     models.Reason   `json:"ended_by,omitempty"` // no_provider_left or retries_used_up
	Detail      string          `json:"detail,omitempty"`
	Providers   map[string]bool `json:"providers"` // tried providers; true if the provider delivered
	Route       []string        `json:"route"`     // the same, in the order in which they were tried
	Attempts    int             `json:"attempts"`
	Unconfirmed bool            `json:"unconfirmed,omitempty"`
	MayDouble   bool            `json:"possible_duplicate,omitempty"`
	Copies      int             `json:"copies"`              // known deliveries
	DeliverAt   time.Time       `json:"deliver_at,omitzero"` // zero: at once
	Waits       *models.Wait    `json:"waits,omitempty"`     // what it waits for; nil if it has ended

	Metadata  map[string]string `json:"metadata,omitempty"`   // of the recipient
	MessageID string            `json:"message_id,omitempty"` // the sender's own, if it gave one

	RFCMessageID string `json:"rfc_message_id,omitempty"` // the Message-ID that the sender gave, if it did
}

// viewLog returns a log of a batch as pages show it, from the recipients of its chunk and the times of the chunk. wait
// is what it waits for, or nil.
func viewLog(b *models.Batch, id models.ID, rs []models.Recipient, v *models.View, wait *models.Wait) LogView {
	n := id.Recipient()
	r, st := &rs[n-1], v.Status(n)
	out := LogView{
		ID:          id,
		Email:       r.Email,
		Name:        r.Name,
		Role:        b.RoleOf(n),
		Subject:     b.Values(n, rs).Fill(b.Content.Subject, nil),
		State:       st.State,
		Reason:      st.Reason,
		EndedBy:     st.EndedBy,
		Detail:      st.Detail,
		Providers:   map[string]bool{},
		Route:       []string{},
		Attempts:    st.Attempts,
		Unconfirmed: st.Reason == models.Unconfirmed,
		MayDouble:   st.MayDouble,
		Copies:      st.Copies,
		DeliverAt:   b.DeliverAt,
		Waits:       wait,
		Metadata:    r.Metadata,
		MessageID:   r.ClientID,

		RFCMessageID: b.Content.MessageID(b.Values(n, rs)),
	}
	for _, t := range v.Tries(id.Recipient()) {
		out.Providers[t.Provider] = out.Providers[t.Provider] || t.Verdict == models.VerdictDelivered
		if n := len(out.Route); n == 0 || out.Route[n-1] != t.Provider {
			out.Route = append(out.Route, t.Provider)
		}
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

// LogPage is a page of the logs of a batch.
type LogPage struct {
	Logs []LogView `json:"logs"`
	PageInfo
}

// Logs returns a page of the logs of a batch that a filter selects, in the order of its recipients.
func (s *Reader) Logs(
	ctx context.Context, who caller.Caller, batch string, f LogFilter, p operation.Page,
) (LogPage, error) {
	b, err := s.readableBatch(ctx, who, batch)
	if err != nil {
		return LogPage{}, err
	}
	var q operation.Query
	f.Tag = "" // all of them have those of the batch
	f.check(&q)
	l := listing[LogView]{name: "logs " + b.ID.String() + " " + f.key(), up: true}
	l.ID = func(v *LogView) models.ID { return v.ID }
	n, at := q.Limit(p), placeOf(&q, p, l.name)
	if err := q.Err(); err != nil {
		return LogPage{}, err
	}
	w, err := s.Waiting(ctx)
	if err != nil {
		return LogPage{}, err
	}
	skip, total, err := s.skipped(ctx, b, &f)
	if err != nil {
		return LogPage{}, problem.FromStore("list logs", err)
	}
	l.Steps = func(from models.ID, up bool) walk.Steps { return chunksOf(b, skip, from, up) }
	l.Load = func(ctx context.Context, st walk.Step) ([]LogView, int, error) {
		found, err := s.matching(ctx, w, b, st.At, &f)
		return found, chunkCost(b, st.At), err
	}
	var out LogPage
	if out.Logs, out.PageInfo, err = l.page(ctx, n, at); err != nil {
		return LogPage{}, problem.FromStore("list logs", err)
	}
	if err := l.count(ctx, s.counts, &out.PageInfo, out.First+len(out.Logs)-1, total); err != nil {
		return LogPage{}, problem.FromStore("count logs", err)
	}
	if out.Logs == nil {
		out.Logs = []LogView{}
	}
	return out, nil
}

// skipped returns the chunks of a batch that have no log that a filter selects, by their summaries, and how many logs
// it selects, if the summaries tell.
func (s *Reader) skipped(ctx context.Context, b *models.Batch, f *LogFilter) (map[int]bool, *int64, error) {
	skip, sum := map[int]bool{}, models.Summary{}
	if !f.empty() {
		for cs, err := range s.Store.Summaries(ctx, b.User, b.ID, 0) {
			if err != nil {
				return nil, nil, err
			}
			skip[cs.Chunk.ChunkNumber()] = !f.mayMatch(&cs.Summary)
			sum.Add(&cs.Summary)
		}
	}
	sum = b.Total(sum)
	if n, known := f.count(&sum); known {
		return skip, &n, nil
	}
	return skip, nil, nil
}

// matching returns the logs of a chunk that a filter selects. A chunk whose content was removed has no address.
func (s *Reader) matching(
	ctx context.Context, w *Waits, b *models.Batch, chunk models.ID, f *LogFilter,
) ([]LogView, error) {
	if f.byAddress() {
		if b.Redacted {
			return nil, nil
		}
		recipients, err := s.Store.Recipients(ctx, chunk)
		if errors.Is(err, models.ErrNotFound) {
			return nil, nil
		}
		if err != nil || !slices.ContainsFunc(recipients, f.matchesAddress) {
			return nil, err
		}
	}
	recipients, view, _, err := s.chunk(ctx, b, chunk)
	if err != nil {
		return nil, err
	}
	b = w.rules.Scheduled(b.OfChunk(chunk.ChunkNumber()))
	var logs []LogView
	var waits []*models.Wait
	for r := 1; r <= len(recipients); r++ {
		if f.matchesAddress(recipients[r-1]) && f.matches(view, r) {
			if waits == nil {
				waits = w.logs(b, view, recipients)
			}
			logs = append(logs, viewLog(b, chunk.Log(r), recipients, view, waits[r-1]))
		}
	}
	return logs, nil
}

// LogStory is everything that is known of one recipient.
type LogStory struct {
	LogView
	BatchID   models.ID `json:"batch_id"`
	User      string    `json:"user,omitempty"` // the owner, if it is not the caller
	CreatedAt time.Time `json:"created_at"`

	Window    *models.SendWindow `json:"send_window,omitempty"` // nil: it may be sent at any time
	ExpiresAt time.Time          `json:"expires_at"`

	Timeline []models.Moment  `json:"timeline"`
	LeftOut  []client.LeftOut `json:"left_out,omitempty"` // of the message, by the providers that were tried
}

// Log returns the story of one recipient.
func (s *Reader) Log(ctx context.Context, who caller.Caller, id string) (LogStory, error) {
	log, err := models.ParseLogID(id)
	if err != nil {
		return LogStory{}, problem.NotYours("log")
	}
	c, err := s.Stories(ctx, who, log)
	if err != nil {
		return LogStory{}, err
	}
	return c.Log(log)
}

// Stories holds everything that is known of a chunk's recipients at one moment. It is safe for concurrent use.
type Stories struct {
	batch      *models.Batch
	recipients []models.Recipient
	view       *models.View
	waits      []*models.Wait
	releases   []models.Command
	facts      []models.Fact
	user       string // the owner, if it is not the caller
	providers  []models.Provider
	refused    []client.LeftOut // the providers that cannot carry the message
}

// Stories reads the chunk of a log. One read serves all recipients of the chunk.
func (s *Reader) Stories(ctx context.Context, who caller.Caller, log models.ID) (*Stories, error) {
	b, err := s.readable(ctx, who, log.Batch())
	if err != nil {
		return nil, err
	}
	if log.Recipient() > b.ChunkSize(log.ChunkNumber()) {
		return nil, problem.NotYours("log")
	}
	recipients, view, facts, err := s.chunk(ctx, b, log.ChunkID())
	if err != nil {
		return nil, problem.FromStore("read log", err)
	}
	w, err := s.Waiting(ctx)
	if err != nil {
		return nil, err
	}
	b = w.rules.Scheduled(b.OfChunk(log.ChunkNumber()))
	out := &Stories{
		batch:      b,
		recipients: recipients,
		view:       view,
		waits:      w.logs(b, view, recipients),
		releases:   w.rules.Batch(b).Releases,
		facts:      facts,
	}
	if b.User != who.User {
		out.user = b.User
	}
	out.providers = s.Providers
	for i := range s.Providers {
		p := &s.Providers[i]
		if why := p.Refuses(b); why != "" &&
			(len(b.Providers) == 0 || slices.Contains(b.Providers, p.Name)) {
			out.refused = append(out.refused, client.LeftOut{Provider: p.Name,
				Text: "the whole message, because it cannot carry it: " + why})
		}
	}
	return out, nil
}

// Log returns the story of one of the chunk's recipients.
func (c *Stories) Log(log models.ID) (LogStory, error) {
	if n := log.Recipient(); n < 1 || n > len(c.recipients) {
		return LogStory{}, problem.NotYours("log")
	}
	story := LogStory{
		LogView:   viewLog(c.batch, log, c.recipients, c.view, c.waits[log.Recipient()-1]),
		BatchID:   c.batch.ID,
		User:      c.user,
		CreatedAt: c.batch.Created(),
		Window:    c.batch.Window,
		ExpiresAt: c.batch.ExpiresAt,
		Timeline:  c.view.Timeline(log, c.facts),
	}
	nameReleases(story.Timeline, c.releases)
	story.LeftOut = slices.Clone(c.refused)
	for i := range c.providers {
		p := &c.providers[i]
		if _, tried := story.Providers[p.Name]; !tried {
			continue
		}
		if text := p.Carries.LeftOut(&c.batch.Content, c.recipients[log.Recipient()-1].Name); text != "" {
			story.LeftOut = append(story.LeftOut, client.LeftOut{Provider: p.Name, Text: text})
		}
	}
	return story, nil
}

// MessageView is a message that its sender gave an id.
type MessageView struct {
	ID      string           `json:"id"`
	Log     LogStory         `json:"log"`     // as it is now
	History []MessageVersion `json:"history"` // all versions that are kept, oldest first
}

// MessageVersion is a version of a message.
type MessageVersion struct {
	Log    models.ID     `json:"log"`
	Batch  models.ID     `json:"batch"`
	At     time.Time     `json:"at"` // when it was accepted
	State  models.State  `json:"state"`
	Reason models.Reason `json:"reason,omitempty"`
	Detail string        `json:"detail,omitempty"`
}

// Message returns the message with an id of the caller.
func (s *Reader) Message(ctx context.Context, who caller.Caller, id string) (out MessageView, err error) {
	there, err := clientid.Read(ctx, s.Store, who.User, []string{id})
	if err != nil {
		return out, problem.FromStore("read message", err)
	}
	out.ID = id
	for _, v := range there[id].Versions {
		c, err := s.Stories(ctx, who, v.Log)
		if problem.IsNotFound(err) {
			continue // it was never stored, or is not kept any more
		}
		if err == nil {
			out.Log, err = c.Log(v.Log)
		}
		if err != nil {
			return out, err
		}
		l := &out.Log
		out.History = append(out.History, MessageVersion{v.Log, l.BatchID, l.CreatedAt, l.State, l.Reason, l.Detail})
	}
	if len(out.History) == 0 {
		return out, problem.NotYours("message")
	}
	return out, nil
}

// MaxSelected is the number of logs or batches that one request sends again.
const MaxSelected = 500

// nameReleases sets who gave the command of each release in a timeline.
func nameReleases(timeline []models.Moment, releases []models.Command) {
	for i := range timeline {
		m := &timeline[i]
		at := slices.IndexFunc(releases, func(c models.Command) bool { return c.Number == m.Command })
		if m.What == string(models.Release) && at >= 0 {
			m.By = releases[at].By
		}
	}
}

// Mail is the message to one recipient, with its placeholders filled in.
type Mail struct {
	From                models.Address
	To, CC, BCC         []models.Address // BCC is the recipient, if the others do not see it
	ReplyTo             []models.Address
	Headers             []models.Header
	Subject, Text, HTML string
	Removed             bool // the content was removed by retention
	Attachments         []models.Attachment
	Requests            []MailRequest // without the attachments
}

// MailRequest is the request to a provider with this message and no other.
type MailRequest struct {
	Provider string
	models.Request
	Refused string // why the provider's adapter makes none, or ""
}

// Mail returns the message to the recipient of a log.
func (s *Reader) Mail(ctx context.Context, who caller.Caller, id string) (Mail, error) {
	log, err := models.ParseLogID(id)
	if err != nil {
		return Mail{}, problem.NotYours("log")
	}
	c, err := s.Stories(ctx, who, log)
	if err != nil {
		return Mail{}, err
	}
	return c.mail(log, s)
}

func (c *Stories) mail(log models.ID, s *Reader) (Mail, error) {
	n := log.Recipient()
	if n > len(c.recipients) {
		return Mail{}, problem.NotYours("log")
	}
	r, content := c.batch.Values(n, c.recipients), c.batch.Content
	m := Mail{
		From:    content.From,
		ReplyTo: content.ReplyTo,
		To:      []models.Address{{Email: r.Email, Name: r.Name}},
		Subject: r.Fill(content.Subject, nil),
		Text:    r.Fill(content.Text, nil),
		HTML:    r.Fill(content.HTML, models.EscapeHTML),
		Removed: c.batch.Redacted || r.Erased() || c.recipients[n-1].Erased(),

		Attachments: content.Attachments,
	}
	content.Attachments = nil // requests are shown without them
	for _, h := range content.HeadersOf(r) {
		m.Headers = append(m.Headers, models.Header{Name: h.Name, Value: r.Fill(h.Value, nil)})
	}
	if m.Removed {
		return m, nil
	}
	if c.batch.Envelope != nil {
		m.To, m.CC, m.BCC = c.batch.Shared(n, c.recipients)
	}
	attempts := map[string]int{}
	c.view.EachTry(n, func(t *models.Try) { attempts[t.Provider] = t.Attempt })
	allowed := c.batch.Providers
	for i := range s.Providers {
		if len(c.batch.Providers) == 0 {
			allowed = append(allowed, s.Providers[i].Name)
		}
	}
	for _, name := range allowed {
		composer := s.Composers[name]
		if composer == nil {
			continue
		}
		who, together := c.callOf(n, attempts[name])
		call := models.Call{
			Batch:      c.batch.ID,
			Attempt:    cmp.Or(attempts[name], c.view.NextNumber()),
			Content:    &content,
			Recipients: c.batch.CallRecipients(log.ChunkID(), who, c.recipients, together),
		}
		if !slices.ContainsFunc(s.Providers, func(p models.Provider) bool { return p.Name == name && p.Carries.MessageID }) {
			call.MoveMessageIDs()
		}
		request, refused := composer.Compose(&call)
		shown := MailRequest{Provider: name, Request: request}
		if len(refused) > 0 {
			shown.Refused = refused[0].Text
		}
		m.Requests = append(m.Requests, shown)
	}
	return m, nil
}

// callOf returns the recipients of the mail to recipient n in an attempt, and whether it is one mail to all of them;
// attempt 0: in the next one.
func (c *Stories) callOf(n, attempt int) (who models.Set, together bool) {
	gone := models.ErasedRecipients(c.recipients)
	switch entry := c.view.Entry(attempt); {
	case entry.Together:
		return entry.Recipients.Minus(gone), true
	case c.batch.Envelope != nil && attempt == 0 && !c.view.Taken():
		return models.SetTo(len(c.recipients)).Minus(gone), true
	}
	return models.SetOf(n), false
}
