// Package changes carries out what a user says of messages by ids of the user's own: that they are new, changed or
// cancelled. A message is never sent in two versions, and a request that is repeated changes nothing.
package changes

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/clientid"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/problem"
)

// Action is what a record says of a message.
type Action string

// The actions.
const (
	New    Action = "new"
	Update Action = "update"
	Cancel Action = "cancel"
)

// Valid reports whether a is an action.
func (a Action) Valid() bool { return a == New || a == Update || a == Cancel }

// Record is one record of a request.
type Record struct {
	ID     string // of the message
	Action Action
	Hash   string              // the same for records with the same message
	Group  string              // the same for records that differ only in the recipient
	Raw    []byte              // as the request has it
	Wrong  *problem.FieldError // the first mistake that was found in it
}

// Result is the result of a record.
type Result struct {
	ID      string    `json:"id"`
	Status  Status    `json:"status"`
	Code    string    `json:"code,omitempty"`    // why it was rejected
	Pointer string    `json:"pointer,omitempty"` // to the mistake in the record, if there is one
	Detail  string    `json:"detail,omitempty"`
	Log     models.ID `json:"log,omitzero"` // of the message as it is now
}

// Status is the result of a record.
type Status string

// The states of records.
const (
	Accepted  Status = "accepted"  // the message is stored and will be sent
	Unchanged Status = "unchanged" // it was so already
	Updated   Status = "updated"   // it will be sent in this version, and in no other
	Cancelled Status = "cancelled" // it will not be sent
	Rejected  Status = "rejected"  // nothing was changed
)

// Store is the part of models.Store that changes need.
type Store interface {
	models.DocumentStore
	Batch(ctx context.Context, id models.ID) (models.Batch, error)
	AbandonBatch(ctx context.Context, batch models.ID, chunks int) (bool, error)
	Record(ctx context.Context, chunk models.ID) ([]models.Entry, []models.Fact, error)
	Ledger(ctx context.Context, chunk models.ID) ([]models.Entry, error)
	Append(ctx context.Context, chunk models.ID, e models.Entry) error
	Schedule(ctx context.Context, es ...models.AgendaEntry) error
}

// Sender accepts batches.
type Sender interface {
	// Check returns the batch of a request, without ID and user, or the error that lists the mistakes.
	Check(ctx context.Context, in *intake.Intake) (models.Batch, error)
	// Take counts batches against the limits of the user, or in a dry run says whether it would. giveBack undoes that.
	Take(ctx context.Context, recipients, batches int, bytes int64) (giveBack func(), err error)
	// Send stores a batch and announces it. abandoned says that another request has removed it.
	Send(ctx context.Context, b *models.Batch, in *intake.Intake) (abandoned bool, err error)
	// Changed announces a chunk whose ledger has changed.
	Changed(chunk models.ID, lane models.Lane)
}

// Changes are those of one request.
type Changes struct {
	Store  Store
	Sender Sender
	User   string
	Strict bool // change nothing if a record is rejected
	DryRun bool // change nothing at all

	MaxRecipients int // of a batch
	// Wait is how long another request may take to store what it has begun, before it is abandoned.
	Wait time.Duration
	// Read decodes a record.
	Read func(raw []byte) *Record
	// Begin returns a request with the content of the first of some records and the recipients of all, in their order.
	Begin func(rs []*Record) (*intake.Intake, error)

	prepaid bool // the limits were asked for all records
	sent    int  // batches
	batches map[models.ID]*models.Batch
}

// Records that are carried out together. Those with the same content become one batch, and each batch takes memory.
const (
	windowRecords = 10_000
	windowBatches = 500
	windowBytes   = 8 << 20
)

// Do carries out records and returns the result of each. After an error a part of them may be carried out; the same
// records may be given again, until there is none.
func (c *Changes) Do(ctx context.Context, rs *intake.Records) ([]Result, error) {
	carryOut := c.window
	if c.DryRun {
		carryOut = c.try
	}
	if !c.Strict {
		return c.all(ctx, rs, carryOut)
	}
	recipients, batches, bytes := 0, 0, int64(0)
	c.prepaid = true
	results, err := c.all(ctx, rs, func(ctx context.Context, ts []*task) error {
		t := try{Changes: c, tasks: ts}
		defer t.close()
		err := t.plan(ctx)
		for _, g := range t.groups {
			recipients, batches, bytes = recipients+len(g.tasks), batches+1, bytes+g.in.Size(&g.batch)
		}
		if c.DryRun && err == nil {
			settle(ts)
		}
		return err
	})
	if err != nil || refuse(results) {
		return results, err
	}
	giveBack, err := c.Sender.Take(ctx, recipients, batches, bytes)
	if err != nil || c.DryRun {
		return results, err
	}
	results, err = c.all(ctx, rs, c.window)
	if err != nil && c.sent == 0 {
		giveBack()
	}
	return results, err
}

// refuse rejects all records if one is rejected, and reports whether it did.
func refuse(results []Result) (refused bool) {
	for i := range results {
		refused = refused || results[i].Status == Rejected
	}
	for i := range results {
		if r := &results[i]; refused && r.Status != Rejected {
			*r = Result{ID: r.ID, Status: Rejected, Code: "other_rejected", Detail: "Another record was rejected."}
		}
	}
	return refused
}

// all calls do for the records, some at a time.
func (c *Changes) all(
	ctx context.Context, rs *intake.Records, do func(ctx context.Context, ts []*task) error,
) ([]Result, error) {
	results := make([]Result, 0, rs.Count())
	seen := make(map[string]struct{}, rs.Count())
	var window []*task
	size, groups := 0, map[string]struct{}{}
	flush := func() error {
		c.batches = map[models.ID]*models.Batch{}
		err := cmp.Or(ctx.Err(), do(ctx, window))
		for _, t := range window {
			results = append(results, t.result)
		}
		window, size = nil, 0
		clear(groups)
		return err
	}
	err := rs.Each(func(raw []byte) error {
		t := &task{Record: c.Read(raw)}
		t.result.ID = t.ID
		_, again := seen[t.ID]
		seen[t.ID] = struct{}{}
		switch {
		case t.Wrong != nil:
			t.reject(*t.Wrong)
		case again:
			t.reject(problem.FieldError{Pointer: "/id", Code: "repeated", Detail: "Another record of the request has this id."})
		}
		window, groups[t.Group] = append(window, t), struct{}{}
		if size += len(raw); len(window) < windowRecords && len(groups) < windowBatches && size < windowBytes {
			return nil
		}
		return flush()
	})
	if err == nil {
		err = flush()
	}
	return results, err
}

// try finds the results that some records with different ids would have.
func (c *Changes) try(ctx context.Context, ts []*task) error {
	t := try{Changes: c, tasks: ts}
	defer t.close()
	err := t.plan(ctx)
	if err == nil {
		err = t.take(ctx)
	}
	if err != nil {
		return err
	}
	settle(ts)
	return nil
}

// settle sets the results that records without a mistake would have.
func settle(ts []*task) {
	for _, k := range open(ts) {
		switch {
		case !k.send:
			k.settle(Cancelled, k.now.Log)
		case len(k.message.Versions) > 0:
			k.settle(Updated, k.now.Log)
		default:
			k.settle(Accepted, k.now.Log)
		}
	}
}

// tries is how often a record is tried for whose message others race.
const tries = 8

// window carries out some records with different ids.
func (c *Changes) window(ctx context.Context, ts []*task) error {
	for n := range tries {
		t := try{Changes: c, tasks: ts}
		err := t.do(ctx)
		t.close()
		if err != nil {
			return err
		}
		if ts = open(ts); len(ts) == 0 {
			return nil
		}
		models.Pause(ctx, rand.N(time.Duration(n+1)*20*time.Millisecond)) //nolint:gosec // spreads racing requests
	}
	for _, t := range ts {
		t.reject(
			problem.FieldError{Code: "changed_meanwhile", Detail: "Other requests change the same message all the time."},
		)
	}
	return nil
}

// task is a record that is carried out.
type task struct {
	*Record
	result Result // without a status as long as nothing is decided

	message clientid.Message
	now     clientid.Version // zero: there is none
	cancel  bool             // the present log is to be cancelled
	send    bool             // a new version is to be sent
	log     models.ID        // of the new version
}

// open returns the tasks for which nothing is decided.
func open(ts []*task) (out []*task) {
	for _, t := range ts {
		if t.result.Status == "" {
			out = append(out, t)
		}
	}
	return out
}

// settle ends the task.
func (t *task) settle(s Status, log models.ID) {
	t.result, t.send, t.cancel = Result{ID: t.ID, Status: s, Log: log}, false, false
}

// reject ends the task because of a mistake or of the state of the message.
func (t *task) reject(why problem.FieldError) {
	t.settle(Rejected, t.now.Log)
	t.result.Code, t.result.Pointer, t.result.Detail = why.Code, why.Pointer, models.Clip(why.Detail)
}

// refused returns the mistake that an error names, and false if the error says nothing about the request.
func refused(err error) (problem.FieldError, bool) {
	var e *problem.Error
	if !errors.As(err, &e) || e.Kind == problem.Internal || e.Kind == problem.Unavailable {
		return problem.FieldError{}, false
	}
	if len(e.Fields) > 0 {
		return e.Fields[0], true
	}
	return problem.FieldError{Code: e.Code, Detail: e.Detail}, true
}
