package changes

import (
	"context"
	"errors"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/clientid"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/problem"
)

// try is one try to carry out tasks. Each of its steps may be the last of the process: a repeat of the request finds
// what is done, and does the rest.
type try struct {
	*Changes
	tasks  []*task
	groups []*group
}

// group are tasks whose messages become one batch.
type group struct {
	tasks    []*task
	in       *intake.Intake
	batch    models.Batch
	giveBack func()
}

// sendAtOnce is how many batches are stored at the same time.
const sendAtOnce = 8

// plan decides what to do, and changes nothing. Tasks without a result are done by do.
func (t *try) plan(ctx context.Context) error {
	if err := t.read(ctx); err != nil {
		return err
	}
	if err := t.judge(ctx); err != nil {
		return err
	}
	return t.check(ctx)
}

// do carries out the tasks. Those without a result have to be tried again.
func (t *try) do(ctx context.Context) error {
	if err := t.plan(ctx); err != nil {
		return err
	}
	if err := t.take(ctx); err != nil {
		return err
	}
	if err := t.cancelAll(ctx); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(sendAtOnce)
	sent := make([]bool, len(t.groups))
	for i, of := range t.groups {
		g.Go(func() (err error) {
			sent[i], err = t.send(ctx, of)
			return err
		})
	}
	err := g.Wait()
	for i, ok := range sent {
		if ok {
			t.sent++
		} else if err == nil {
			t.groups[i].giveBack()
		}
	}
	return err
}

// close releases the requests.
func (t *try) close() {
	for _, g := range t.groups {
		if g.in != nil {
			g.in.Close()
		}
	}
}

// check divides the tasks that send into groups and checks their messages.
func (t *try) check(ctx context.Context) error {
	at := map[string]*group{}
	for _, k := range open(t.tasks) {
		if !k.send {
			continue
		}
		g := at[k.Group]
		if g == nil || len(g.tasks) == t.MaxRecipients {
			g = &group{giveBack: func() {}}
			at[k.Group] = g
			t.groups = append(t.groups, g)
		}
		g.tasks = append(g.tasks, k)
	}
	kept := t.groups[:0]
	for _, g := range t.groups {
		err := t.build(ctx, g)
		if err != nil || len(g.tasks) > 0 {
			kept = append(kept, g)
		}
		if err != nil {
			t.groups = kept
			return err
		}
	}
	t.groups = kept
	return nil
}

// build makes the batch of a group, without the messages that have mistakes.
func (t *try) build(ctx context.Context, g *group) error {
	for len(g.tasks) > 0 {
		if g.in != nil {
			g.in.Close()
			g.in = nil
		}
		rs := make([]*Record, len(g.tasks))
		for i, k := range g.tasks {
			rs[i] = k.Record
		}
		in, whole := t.Begin(rs)
		if whole == nil {
			g.in = in
			g.batch, whole = t.Sender.Check(ctx, in)
		}
		if _, ok := refused(whole); whole != nil && !ok {
			return whole
		}
		if err := rejectSome(g); err != nil {
			return err
		}
		before := len(rs)
		if why, wrong := refused(whole); wrong && len(g.tasks) > 0 {
			if end := g.batch.ExpiresAt; why.Pointer == "/"+intake.ExpiresAt && !end.IsZero() && end.Before(time.Now()) {
				why.Code = "expired"
			}
			for _, k := range g.tasks {
				k.reject(inRecord(why))
			}
			g.tasks = nil
		}
		if len(g.tasks) == before {
			return nil
		}
	}
	if g.in != nil {
		g.in.Close()
		g.in = nil
	}
	return nil
}

// rejectSome rejects the tasks of a group in whose recipients the intake has found mistakes.
func rejectSome(g *group) error {
	if g.in == nil {
		return nil
	}
	err := g.in.EachRejected(func(r models.Rejection) error {
		g.tasks[r.Index].reject(inRecord(problem.FieldError{Pointer: r.Pointer, Code: r.Code, Detail: r.Detail}))
		return nil
	})
	g.tasks = open(g.tasks)
	return err
}

// inRecord returns a mistake of a batch as one of a record.
func inRecord(w problem.FieldError) problem.FieldError {
	switch rest, ofRecipient := strings.CutPrefix(w.Pointer, "/to/"); {
	case ofRecipient:
		_, member, _ := strings.Cut(rest, "/")
		if w.Pointer = "/" + member; member == "" || member == "email" {
			w.Pointer = "/to"
		}
	case w.Pointer == "/"+intake.Template, w.Pointer == "/"+intake.Language:
		w.Code = "invalid_template"
	}
	return w
}

// take asks the limits for the batches of the groups.
func (t *try) take(ctx context.Context) error {
	if t.prepaid {
		return nil
	}
	kept := t.groups[:0]
	for _, g := range t.groups {
		giveBack, err := t.Sender.Take(ctx, len(g.tasks), 1, g.in.Size(&g.batch))
		why, limited := refused(err)
		switch {
		case limited:
			for _, k := range g.tasks {
				k.reject(why)
			}
			g.in.Close()
			continue
		case err == nil:
			g.giveBack = giveBack
		}
		if kept = append(kept, g); err != nil {
			return err
		}
	}
	t.groups = kept
	return nil
}

// cancelAll cancels the present logs of tasks that need it.
func (t *try) cancelAll(ctx context.Context) error {
	chunks := map[models.ID][]*task{}
	for _, k := range open(t.tasks) {
		if k.cancel {
			chunks[k.now.Log.ChunkID()] = append(chunks[k.now.Log.ChunkID()], k)
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readAtOnce)
	for chunk, ks := range chunks {
		g.Go(func() error { return t.cancelChunk(ctx, chunk, ks) })
	}
	return problem.FromStore("cancel messages", g.Wait())
}

// renewAfter is when the agenda looks at a chunk whose logs are cancelled, if no worker has done so.
const renewAfter = 10 * time.Second

// cancelChunk cancels logs of a chunk. The compare-and-set of its ledger decides between that and a worker that hands
// the mail over.
func (t *try) cancelChunk(ctx context.Context, chunk models.ID, ks []*task) error {
	b := t.batches[chunk.Batch()]
	defer func() { t.Sender.Changed(chunk, b.Lane) }()
	if err := t.Store.Schedule(ctx, models.AgendaEntry{
		Due:  time.Now().Add(renewAfter),
		Kind: models.LookAtChunk,
		ID:   chunk,
		User: b.User,
		Lane: b.Lane,
	}); err != nil {
		return err
	}
	for {
		v, err := t.view(ctx, chunk)
		if err != nil {
			return err
		}
		entry := models.Entry{
			Number: v.NextNumber(),
			Token:  models.NewToken(),
			Kind:   models.Cancel,
			At:     time.Now().UTC(),
			Reason: models.CancelledByRq,
		}
		var now []*task
		entry.Detail, now = ending(v, ks)
		if len(now) == 0 {
			return nil
		}
		for _, k := range now {
			entry.Recipients.Add(k.now.Log.Recipient())
		}
		var lost *models.ConflictError
		switch err := t.Store.Append(ctx, chunk, entry); {
		case errors.As(err, &lost):
			continue
		case err != nil:
			return err
		}
		for _, k := range now {
			if k.cancel = false; k.Action == Cancel {
				k.settle(Cancelled, k.now.Log)
			}
		}
	}
}

// bySender is the detail of the cancellation of a message.
const bySender = "the sender has cancelled the message"

// ending returns which tasks the next entry of a ledger is for, and its detail. Tasks that come too late are rejected.
func ending(v *models.View, ks []*task) (detail string, now []*task) {
	for _, k := range ks {
		if !k.cancel {
			continue
		}
		r := k.now.Log.Recipient()
		s := v.Status(r)
		switch {
		case s.State == models.Cancelled && k.Action == Update:
			k.cancel = false // by another request
		case s.State == models.Cancelled && !replaced(s):
			k.settle(Unchanged, k.now.Log)
		case !mayEnd(s, handedOver(v, r)):
			k.reject(tooLate(s))
		case len(now) == 0 || now[0].Action == k.Action:
			now = append(now, k)
		}
	}
	if len(now) > 0 && now[0].Action == Update {
		return models.Replaced, now
	}
	return bySender, now
}

// send stores the batch of a group, after its messages are claimed for it. It reports whether the batch is stored.
func (t *try) send(ctx context.Context, g *group) (bool, error) {
	if left := open(g.tasks); len(left) < len(g.tasks) {
		g.tasks = left
		if err := t.build(ctx, g); err != nil {
			return false, err
		}
	}
	if len(g.tasks) == 0 {
		return false, nil
	}
	b := &g.batch
	b.ID, b.User, b.ClientIDs, b.Rejected = models.NewBatchID(time.Now()), t.User, true, 0
	claims := make(map[string]clientid.Message, len(g.tasks))
	chunk, r := 0, 0
	for _, k := range g.tasks {
		if r++; r > b.ChunkSize(chunk) {
			chunk, r = chunk+1, 1
		}
		k.log = b.ID.Chunk(chunk).Log(r)
		claims[k.ID] = k.message.Add(clientid.Version{Log: k.log, Hash: k.Hash})
	}
	lost, err := clientid.Put(ctx, t.Store, t.User, claims)
	if err != nil {
		return false, problem.FromStore("store messages", err)
	}
	if len(lost) == len(g.tasks) {
		return false, nil
	}
	if err := t.leaveOut(ctx, g, lost); err != nil {
		return false, problem.FromStore("leave out messages", err)
	}
	abandoned, err := t.Sender.Send(ctx, b, g.in)
	if err != nil || abandoned {
		return false, err
	}
	for _, k := range g.tasks {
		switch {
		case lost[k.ID]:
		case len(k.message.Versions) > 0:
			k.settle(Updated, k.log)
		default:
			k.settle(Accepted, k.log)
		}
	}
	return true, nil
}

// leaveOut cancels the messages of a group that other requests have changed meanwhile. The batch does not exist yet, so
// that no worker can hand them over before.
func (t *try) leaveOut(ctx context.Context, g *group, lost map[string]bool) error {
	chunks := map[models.ID]models.Set{}
	for _, k := range g.tasks {
		if lost[k.ID] {
			who := chunks[k.log.ChunkID()]
			who.Add(k.log.Recipient())
			chunks[k.log.ChunkID()] = who
		}
	}
	for chunk, who := range chunks {
		err := t.Store.Append(ctx, chunk, models.Entry{
			Number:     1,
			Token:      models.NewToken(),
			Kind:       models.Cancel,
			At:         time.Now().UTC(),
			Recipients: who,
			Reason:     models.CancelledByRq,
			Detail:     "another request has changed the message at the same time",
		})
		if err != nil {
			return err
		}
	}
	return nil
}
