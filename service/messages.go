package service

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/changes"
	"github.com/safedelivr/safedelivr/service/intake"
)

// Message is one of the messages of a request.
type Message struct {
	*intake.Builder
	Key string // the same for messages with the same content and options
}

// MessageResult tells what became of a message.
type MessageResult struct {
	Index   int           `json:"index"`
	Status  MessageStatus `json:"status"`
	Batch   models.ID     `json:"batch,omitzero"`
	Log     models.ID     `json:"log,omitzero"` // if the message has one recipient
	Pointer string        `json:"pointer,omitempty"`
	Code    string        `json:"code,omitempty"`
	Detail  string        `json:"detail,omitempty"`
}

// MessageStatus tells whether a message was accepted.
type MessageStatus string

// The states of messages of a request.
const (
	MessageAccepted MessageStatus = "accepted"
	MessageRejected MessageStatus = "rejected"
)

// MessageResults is the answer to a request with several messages.
type MessageResults struct {
	Accepted int             `json:"accepted"`
	Rejected int             `json:"rejected"`
	Results  []MessageResult `json:"results"`
}

// message is a Message that was checked.
type message struct {
	index int
	key   string
	checked
	to []string // addresses in lower case
}

// messagesAtOnce is how many batches of a request are stored at the same time.
const messagesAtOnce = 8

// AcceptMessages accepts several messages, as Accept does. Messages with the same content and options become one batch.
// All are checked before any is stored. A message with a mistake refuses all of them, or is rejected if the request is
// permissive and another message is accepted. After an error a part of the messages may be sent: a repeat of the
// request sends the others. So the request must have a key.
func (s *Service) AcceptMessages(
	ctx context.Context, who Caller, ms []Message, permissive bool, r Repeat,
) (out MessageResults, replayed bool, err error) {
	if r.Key == "" {
		return out, false, Fail(Malformed, "idempotency_key_required",
			"A request with messages needs an Idempotency-Key, so that a repeat can finish it if it is cut off.")
	}
	if err := s.checkDisk(ctx, who.User); err != nil {
		return out, false, err
	}
	all, err := s.checkMessages(ctx, who, ms)
	if err != nil {
		return out, false, err
	}
	if wrong := refusal(all, permissive); wrong != nil {
		if begun, err := s.guard.Begun(ctx, who.User, r); err != nil || !begun {
			return out, false, cmp.Or(err, wrong)
		}
	}
	accept := func(ctx context.Context, c models.Claim, older bool) (MessageResults, error) {
		if err := s.allowMessages(ctx, who, all, c.At); err != nil {
			return MessageResults{}, err
		}
		if wrong := refusal(all, permissive); wrong != nil && !older {
			return MessageResults{}, wrong
		}
		return s.acceptGroups(ctx, who, all, permissive, c.At, r)
	}
	out, replayed, err = once(ctx, s, who, r, accept)
	for i := range out.Results {
		if e := fieldOf(all[i].wrong); ofRecipient(e) {
			out.Results[i].Detail = e.Detail
		}
	}
	return out, replayed, err
}

// ofRecipient reports whether a mistake is one of a recipient. The detail may name the address, so it is not kept with
// the answer for repeats of the request, which an erasure does not reach.
func ofRecipient(f FieldError) bool { return strings.HasPrefix(f.Pointer, "/to/") }

// checkMessages checks each message for itself.
func (s *Service) checkMessages(ctx context.Context, who Caller, ms []Message) ([]*message, error) {
	all := make([]*message, len(ms))
	for i, in := range ms {
		if err := s.useTemplate(ctx, who, in.Builder); err != nil {
			return nil, err
		}
		m := &message{index: i, key: in.Key, checked: checked{in: in.Builder}}
		m.batch, m.wrong = in.Check()
		if err := cmp.Or(ctx.Err(), failure(m.wrong)); err != nil {
			return nil, err
		}
		if err := in.Each(func(_ int, r models.Recipient) error {
			m.to = append(m.to, strings.ToLower(r.Email))
			return nil
		}); err != nil {
			return nil, err
		}
		all[i] = m
	}
	return all, nil
}

// allowMessages checks what the messages ask for.
func (s *Service) allowMessages(ctx context.Context, who Caller, all []*message, at time.Time) error {
	for _, m := range all {
		if m.at = at; m.wrong == nil {
			m.wrong = s.allowed(ctx, who, m.in, &m.batch, at)
		}
		if err := failure(m.wrong); err != nil {
			return err
		}
	}
	return nil
}

// failure returns err if it says nothing about the request.
func failure(err error) error {
	var e *Error
	if err == nil || errors.As(err, &e) && e.Kind != Internal && e.Kind != Unavailable {
		return nil
	}
	return err
}

// refusal returns the error that lists the mistakes of all messages if none can be accepted.
func refusal(all []*message, permissive bool) error {
	var list Mistakes
	wrong := 0
	for _, m := range all {
		var e *Error
		if m.wrong == nil || !errors.As(m.wrong, &e) {
			continue
		}
		wrong++
		here := "/messages/" + strconv.Itoa(m.index)
		for _, f := range e.Fields {
			list.Wrong(here+f.Pointer, f.Code, "%s", f.Detail)
		}
		if list.Skip(max(e.Total-len(e.Fields), 0)); len(e.Fields) == 0 {
			list.Wrong(here, e.Code, "%s", e.Detail)
		}
	}
	if wrong == 0 || permissive && wrong < len(all) {
		return nil
	}
	return list.In(Fail(Invalid, "invalid_request", "The messages were not accepted and nothing was stored: see errors."))
}

// fieldOf returns the first mistake of an error.
func fieldOf(err error) FieldError {
	var e *Error
	switch {
	case !errors.As(err, &e):
		return FieldError{}
	case len(e.Fields) == 0:
		return FieldError{Code: e.Code, Detail: e.Detail}
	}
	return e.Fields[0]
}

// reject returns the result of a message that was not accepted.
func (m *message) reject(why error) MessageResult {
	f := fieldOf(cmp.Or(m.wrong, why))
	out := MessageResult{
		Index:   m.index,
		Status:  MessageRejected,
		Pointer: "/messages/" + strconv.Itoa(m.index) + f.Pointer,
		Code:    f.Code,
	}
	if !ofRecipient(f) {
		out.Detail = f.Detail
	}
	return out
}

// groupsOf returns the messages that become one batch each.
func groupsOf(all []*message) (groups [][]*message) {
	at := map[string]int{}
	for _, m := range all {
		i, ok := at[m.key]
		if !ok {
			i = len(groups)
			at[m.key] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], m)
	}
	return groups
}

// acceptGroups accepts the messages, some batches at a time.
func (s *Service) acceptGroups(
	ctx context.Context, who Caller, all []*message, permissive bool, at time.Time, r Repeat,
) (MessageResults, error) {
	out := MessageResults{Results: make([]MessageResult, len(all))}
	var mu sync.Mutex
	var refused error
	var g errgroup.Group
	g.SetLimit(messagesAtOnce)
	for _, group := range groupsOf(all) {
		g.Go(func() error {
			err := s.acceptGroup(ctx, who, group, at, r, out.Results)
			var e *Error
			if !permissive || failure(err) != nil || errors.As(err, &e) && e.Code == "attempt_abandoned" || err == nil {
				return err
			}
			for _, m := range group {
				out.Results[m.index] = m.reject(err)
			}
			mu.Lock()
			defer mu.Unlock()
			refused = cmp.Or(refused, err)
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return MessageResults{}, err
	}
	for i := range out.Results {
		if out.Results[i].Status == MessageAccepted {
			out.Accepted++
		}
	}
	if out.Rejected = len(all) - out.Accepted; out.Accepted == 0 {
		return MessageResults{}, cmp.Or(refusal(all, permissive), refused)
	}
	return out, nil
}

// acceptGroup accepts the messages of a batch. What an earlier attempt has stored stays as it is.
func (s *Service) acceptGroup(
	ctx context.Context, who Caller, group []*message, at time.Time, r Repeat, results []MessageResult,
) error {
	p := group[0].checked
	var others []*intake.Builder
	found := false
	for _, m := range group {
		switch {
		case m.wrong != nil:
		case !found:
			p, found = m.checked, true
		default:
			others = append(others, m.in)
		}
	}
	if err := p.in.Join(&p.batch, others); err != nil {
		return err
	}
	a, _, stored, err := s.acceptOnce(ctx, who, p, Repeat{
		Key:   r.Key,
		Route: r.Route + " " + group[0].key,
		Hash:  r.Hash,
	})
	if err != nil {
		return err
	}
	logs, err := s.logsByAddress(ctx, p.in, a.ID, stored)
	if err != nil {
		return err
	}
	for _, m := range group {
		own, there := logs.take(m.to)
		if m.wrong != nil && stored || !there {
			results[m.index] = m.reject(Fail(Conflict, "attempt_differs",
				"An earlier attempt of this request was accepted without this message. Send it with another key."))
			continue
		}
		results[m.index] = MessageResult{Index: m.index, Status: MessageAccepted, Batch: a.ID, Log: own}
	}
	return nil
}

// addressLogs maps addresses to logs of a batch. It is nil if the addresses were removed.
type addressLogs map[string][]models.ID

// take returns the log of a message if it has one recipient, and whether all of its recipients have one.
func (l addressLogs) take(to []string) (log models.ID, there bool) {
	if l == nil {
		return log, true
	}
	for _, email := range to {
		ids := l[email]
		if len(ids) == 0 {
			return models.ID{}, false
		}
		if log = ids[0]; len(ids) > 1 { // duplicates are allowed
			l[email] = ids[1:]
		}
	}
	if len(to) != 1 {
		log = models.ID{}
	}
	return log, len(to) > 0
}

// logsByAddress returns the logs of a batch: of the builder if it was stored by this call.
func (s *Service) logsByAddress(
	ctx context.Context, in *intake.Builder, batch models.ID, stored bool,
) (addressLogs, error) {
	logs := addressLogs{}
	add := func(n int, rs []models.Recipient) error {
		for i := range rs {
			email := strings.ToLower(rs[i].Email)
			logs[email] = append(logs[email], batch.Chunk(n).Log(i+1))
		}
		return nil
	}
	if stored {
		return logs, in.Chunks(add)
	}
	b, err := s.store.Batch(ctx, batch)
	for n := 0; err == nil && n < b.Chunks; n++ {
		var rs []models.Recipient
		if rs, err = s.store.Recipients(ctx, batch.Chunk(n)); err == nil {
			err = add(n, rs)
		}
	}
	if errors.Is(err, models.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, storeError("read recipients", err)
	}
	return logs, nil
}

// PutMessages carries out records about messages: read decodes a record, and fill fills a builder with the content of
// the first of some records and the recipients of all. After an error a part of them may be carried out. A repeat of
// the request does the rest and changes nothing else.
func (s *Service) PutMessages(
	ctx context.Context, who Caller, rs *intake.Records, r RecordReader,
) ([]changes.Result, error) {
	if err := s.checkDisk(ctx, who.User); err != nil && !r.DryRun {
		return nil, err
	}
	sender := &messageSender{s, who, time.Now(), s}
	if r.DryRun {
		sender.quotas = s.newTrial()
	}
	c := changes.Changes{
		Store:  s.store,
		Sender: sender,
		User:   who.User,
		Strict: r.Strict,
		DryRun: r.DryRun,
		Wait:   s.cfg.MessageWait,
		Read:   r.Read,

		MaxRecipients: s.cfg.MaxRecipients,
		Begin: func(rs []*changes.Record) (*intake.Builder, error) {
			b := s.NewIntake(ctx, who)
			b.Permit()
			b.AllowDuplicates = true // messages with different ids are different messages
			err := r.Fill(b, rs)
			if err != nil {
				b.Close()
			}
			return b, err
		},
	}
	out, err := c.Do(ctx, rs)
	var e *Error
	if errors.As(err, &e) && e.Code == "store_unavailable" {
		e.Detail = "The store cannot be reached. A part of the records may be carried out; repeat the request to do the rest."
	}
	return out, err
}

// RecordReader reads the records of a request.
type RecordReader struct {
	Strict bool // change nothing if a record is rejected
	DryRun bool // change nothing, and say what would become of each
	Read   func(raw []byte) *changes.Record
	Fill   func(b *intake.Builder, rs []*changes.Record) error
}

// messageSender implements changes.Sender for a request.
type messageSender struct {
	svc    *Service
	who    Caller
	at     time.Time // of the request
	quotas quotas
}

// Check implements changes.Sender.
func (m *messageSender) Check(ctx context.Context, in *intake.Builder) (models.Batch, error) {
	if err := m.svc.useTemplate(ctx, m.who, in); err != nil {
		return models.Batch{}, err
	}
	b, err := in.Check()
	if err = cmp.Or(ctx.Err(), err); err == nil {
		err = m.svc.allowed(ctx, m.who, in, &b, m.at)
	}
	b.PassUnsubscribes = m.who.passesUnsubscribes(&b)
	return b, err
}

// Take implements changes.Sender.
func (m *messageSender) Take(
	ctx context.Context, recipients, batches int, bytes int64,
) (giveBack func(), err error) {
	return takeQuota(ctx, m.quotas, m.who, int64(recipients), int64(batches), bytes)
}

// Send implements changes.Sender.
func (m *messageSender) Send(ctx context.Context, b *models.Batch, in *intake.Builder) (abandoned bool, err error) {
	giveBack, err := takeLane(ctx, m.quotas, m.who, b)
	if err != nil {
		return false, err
	}
	if err = m.svc.storeBatch(ctx, b, in); err != nil {
		giveBack()
	}
	switch {
	case errors.Is(err, models.ErrNotFound):
		return true, nil
	case err != nil:
		return false, storeError("store messages", err)
	}
	m.svc.accepted(b)
	return false, nil
}

// Changed implements changes.Sender.
func (m *messageSender) Changed(chunk models.ID, lane models.Lane) {
	m.svc.announce[lane].AddChunk(chunk, lane)
}
