package mail

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/policy"
	"github.com/safedelivr/safedelivr/models/settings"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/service/backlog"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/problem"
)

// DefaultPolicy returns the decision table of workers with default settings.
func DefaultPolicy(providers []models.Provider, recheck time.Duration) *policy.Policy {
	times := settings.Default[settings.Times]()
	return policy.New(policy.Config{
		MaxRetries:     settings.Default[settings.Limits]().Retries,
		Recheck:        recheck,
		EvidenceWindow: times.EvidenceWindow,
		FinalEventWait: times.FinalEvent,
		Delays:         []time.Duration{time.Minute},
	}, providers)
}

// Waits finds out what queued mail waits for, at one moment. It decides as a worker does.
type Waits struct {
	policy    *policy.Policy
	rules     *control.Rules
	providers map[string]providerNow // empty: no worker has reported
	now       time.Time
}

// providerNow is what workers report of a provider.
type providerNow struct {
	health telemetry.Health // the best: any worker may hand over the mail
	limit  string           // that mail waits for in every worker; "": none
}

// reportsAge is how long the reports of workers are shared.
const reportsAge = time.Second

// Waiting returns what mail waits for now.
func (s *Reader) Waiting(ctx context.Context) (*Waits, error) {
	rules, err := s.Audit.Rules(ctx)
	if err != nil {
		return nil, err
	}
	providers, err := s.reported.Get(reportsAge, func() (map[string]providerNow, error) {
		return s.readReported(context.WithoutCancel(ctx)) // others wait for it, too
	})
	if err != nil {
		return nil, problem.FromStore("read the reports of workers", err)
	}
	return &Waits{policy: s.Policy, rules: rules, providers: providers, now: time.Now()}, nil
}

func (s *Reader) readReported(ctx context.Context) (map[string]providerNow, error) {
	workers, err := telemetry.Reports[telemetry.WorkerState](ctx, s.Store, telemetry.WorkerReport)
	if err != nil {
		return nil, err
	}
	out := map[string]providerNow{}
	for _, w := range workers {
		for i := range w.Providers {
			p := &w.Providers[i]
			now, ok := out[p.Name]
			if !ok {
				now = providerNow{p.Health, p.Limit}
			}
			if p.Health.Severity() < now.health.Severity() {
				now.health = p.Health
			}
			if p.Limit == "" {
				now.limit = ""
			}
			out[p.Name] = now
		}
	}
	return out, nil
}

// NoWorker reports whether no worker is running.
func (w *Waits) NoWorker() bool { return len(w.providers) == 0 }

// Suspended returns until when each provider that a batch may use is suspended, or nil if one of them is not.
func (w *Waits) Suspended(b *models.Batch) (until []string) {
	for _, name := range slices.Sorted(maps.Keys(w.providers)) {
		if len(b.Providers) > 0 && !slices.Contains(b.Providers, name) {
			continue
		}
		h := w.providers[name].health
		if h.State != telemetry.Suspended || !h.Until.After(w.now) {
			return nil
		}
		until = append(until, name+" until "+h.Until.UTC().Format(time.RFC3339))
	}
	return until
}

// logs returns what each log of a chunk waits for; nil for logs that have ended. recipients
// may be empty if no block rule is about their domains.
func (w *Waits) logs(b *models.Batch, v *models.View, recipients []models.Recipient) []*models.Wait {
	out := make([]*models.Wait, v.Size)
	cancelled := w.rules.Batch(b).Cancel != nil
	steps := w.Plan(b, v, recipients)
	for i := range steps {
		wait := w.Step(&steps[i], cancelled)
		for r := range steps[i].Recipients.All() {
			out[r-1] = wait
		}
	}
	return out
}

// Plan returns the next steps of a chunk, as for logs.
func (w *Waits) Plan(b *models.Batch, v *models.View, recipients []models.Recipient) []policy.Step {
	return w.policy.Plan(v, b, &policy.Commands{
		Rule:       w.rules.Batch(b),
		Rules:      w.rules,
		Blocks:     policy.BlocksMeeting(w.rules, b),
		Recipients: recipients,
	}, w.now)
}

// Step returns what the recipients of a step wait for.
func (w *Waits) Step(st *policy.Step, cancelled bool) *models.Wait {
	switch st.Do {
	case policy.Wait:
		return w.commanded(st.Waits)
	case policy.Call:
		if st.Repeats > 0 {
			return st.Waits
		}
		return w.Call(st)
	case policy.End, policy.Nothing:
	}
	switch {
	case cancelled:
		return &models.Wait{Code: models.WaitBatchCancelled, Text: "the batch is cancelled; a worker records that soon"}
	case st.Reason == models.Expired:
		return &models.Wait{Code: models.WaitExpiry, Text: "it has expired; a worker records that soon"}
	}
	return &models.Wait{Code: models.WaitEnding, Text: "a worker records the end soon: " + st.Reason.Words()}
}

// commanded adds to a wait for a block rule or an offline provider who gave the command, why and when.
func (w *Waits) commanded(wait *models.Wait) *models.Wait {
	out := *wait
	switch wait.Code { // the others have it, or wait for no command
	case models.WaitBlockRule:
		blocks := w.rules.Blocks()
		if i := slices.IndexFunc(blocks, func(bl models.Block) bool { return bl.ID == wait.Block }); i >= 0 {
			out.By, out.Why, out.Since = blocks[i].By, blocks[i].Why, blocks[i].At
		}
	case models.WaitProviderOffline:
		if wait.Provider != "" {
			mode := w.rules.Provider(wait.Provider)
			out.By, out.Since = mode.By, mode.Since // the text has the reason
		}
	}
	return &out
}

// Call returns what a call waits for. The next call goes to the option that is ready first.
func (w *Waits) Call(st *policy.Step) *models.Wait {
	turn := &models.Wait{Code: models.WaitTurn, Text: "waiting to be handed to a provider"}
	if st.Because != "" {
		turn = &models.Wait{Code: models.WaitTurn, Text: "waiting for another attempt: " + st.Because}
	}
	if st.Retry > 0 {
		turn.Retry, turn.Retries = st.Retry, max(w.policy.MaxRetries(), st.Retry)
	}
	switch {
	case st.MayDouble && !st.Released:
		return &models.Wait{Code: models.WaitEvidence, Text: st.Because + "; the next attempt follows a last look-up"}
	case w.NoWorker():
		return &models.Wait{Code: models.WaitNoWorker, Text: turn.Text + "; no worker is running"}
	}
	var first *models.Wait // of the option that is ready first
	var away []string      // why options are not ready
	for _, o := range st.Options {
		wait := w.Option(o, st, turn)
		if wait.Code == models.WaitProviderSuspend {
			away = append(away, wait.Text)
		}
		if first == nil || sooner(wait, first) {
			first = wait
		}
	}
	if len(away) == len(st.Options) && len(away) > 1 {
		first.Text, first.Provider = strings.Join(away, "; "), ""
	}
	return first
}

// Option returns what a call waits for if it is to go to an option; turn if the provider takes it now.
func (w *Waits) Option(o policy.Option, st *policy.Step, turn *models.Wait) *models.Wait {
	p := w.providers[o.Provider]
	wait := &models.Wait{Provider: o.Provider, Until: o.NotBefore, Retry: turn.Retry, Retries: turn.Retries}
	suspended := p.health.State == telemetry.Suspended && p.health.Until.After(w.now)
	switch {
	case suspended && p.health.Until.After(o.NotBefore):
		wait.Code, wait.Until = models.WaitProviderSuspend, p.health.Until
		wait.Text = o.Provider + " is suspended: " + cmp.Or(p.health.Why, p.health.Source)
	case slices.Contains(p.health.Senders, st.SenderDomain):
		wait.Code, wait.Until = models.WaitProviderSuspend, time.Time{}
		wait.Text = o.Provider + " refuses the sender domain " + st.SenderDomain + " for now"
	case o.NotBefore.After(w.now):
		wait.Code, wait.Text = models.WaitRetry, turn.Text
	case p.health.State == telemetry.Probing:
		wait.Code, wait.Until = models.WaitConcurrencyLimit, time.Time{}
		wait.Text = o.Provider + " gets one message at a time until it answers one"
	case p.limit == telemetry.RateLimit:
		wait.Code, wait.Until, wait.Text = models.WaitRateLimit, time.Time{}, "the rate limit of "+o.Provider+" is used up"
	case p.limit == telemetry.ConcurrencyLimit:
		wait.Code, wait.Until = models.WaitConcurrencyLimit, time.Time{}
		wait.Text = "as many calls to " + o.Provider + " are running as its limit allows"
	default:
		return turn
	}
	return wait
}

// sooner reports whether mail that waits for a is sent before mail that waits for b. Mail that waits for no time comes
// first, then mail whose wait ends first.
func sooner(a, b *models.Wait) bool {
	rank := func(w *models.Wait) int {
		switch w.Code { // the codes of options
		case models.WaitTurn:
			return 0
		case models.WaitRateLimit, models.WaitConcurrencyLimit:
			return 1
		}
		if w.Until.IsZero() {
			return 3
		}
		return 2
	}
	return cmp.Or(rank(a)-rank(b), a.Until.Compare(b.Until)) < 0
}

// batchWait returns what a batch waits for: the command that withholds it, or what one of
// its chunks waits for. If the mail of the chunk waits for several things, it returns the
// first of the codes. It returns nil for a batch that has ended.
func (s *Reader) batchWait(ctx context.Context, b *models.Batch, queued int) (*models.Wait, error) {
	w, err := s.Waiting(ctx)
	if err != nil {
		return nil, err
	}
	rule := w.rules.Batch(b)
	if rule.Waits != nil || queued < 0 || b.Damaged {
		return rule.Waits, nil
	}
	first, _, err := s.chunkWait(ctx, w, b, queued, models.State.Open)
	if err != nil {
		return nil, err
	}
	if first != nil && first.Code == models.WaitSchedule && len(b.Own) > 0 {
		first.Text = "scheduled by the sender, for some recipients at times of their own"
		first.Until = nextTime(rule.Scheduled(b), w.now, first.Until)
	}
	return first, nil
}

// nextTime returns the first time after now at which recipients of a batch may be handed over, until at the latest.
func nextTime(b *models.Batch, now, until time.Time) time.Time {
	for _, s := range b.Schedules() {
		if at := s.MayLeave(now, false); at.After(now) {
			until = models.EarlierOf(until, at)
		}
	}
	return until
}

// A backlog is shared for a while, and for longer the more it cost: reading it takes a twentieth of the time at most.
const (
	backlogAge  = 2 * time.Second
	backlogPart = 20
	backlogTime = 10 * time.Second // that a read may take
)

// backlogs shares the backlog of all users.
type backlogs struct {
	mu   sync.Mutex
	last backlog.Backlog
	next time.Time // when it is read again
}

// Backlog returns the mail of all users that waits here, for operators.
func (s *Reader) Backlog(ctx context.Context, who caller.Caller) (backlog.Backlog, error) {
	if err := who.NeedOperator(); err != nil {
		return backlog.Backlog{}, err
	}
	b := &s.backlogs
	b.mu.Lock()
	defer b.mu.Unlock()
	began := time.Now()
	if began.Before(b.next) {
		return b.last, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), backlogTime) // others wait for it, too
	defer cancel()
	users, err := s.People.All(ctx)
	if err != nil {
		return backlog.Backlog{}, problem.FromStore("list users", err)
	}
	ids := make([]string, len(users))
	for i := range users {
		ids[i] = users[i].ID
	}
	w, err := s.Waiting(ctx)
	if err != nil {
		return backlog.Backlog{}, err
	}
	first := models.DayOf(began.Add(-maxAge))
	look := func(ctx context.Context, id models.ID) (backlog.Batch, bool, error) {
		return s.waitingBatch(ctx, w, id)
	}
	last, err := backlog.Read(ctx, s.Store, ids, first, began, look)
	if err != nil {
		return backlog.Backlog{}, problem.FromStore("read the mail that waits", err)
	}
	b.last, b.next = last, time.Now().Add(max(backlogAge, backlogPart*time.Since(began)))
	return last, nil
}

// waitingBatch returns what a batch waits for, and false if no mail of it waits here.
func (s *Reader) waitingBatch(ctx context.Context, w *Waits, id models.ID) (out backlog.Batch, waits bool, err error) {
	b, err := s.Store.Batch(ctx, id)
	if errors.Is(err, models.ErrNotFound) || errors.Is(err, models.ErrDamaged) || errors.Is(err, models.ErrNewer) {
		return out, false, nil // the check of sums reports it
	}
	if err != nil {
		return out, false, err
	}
	out = backlog.Batch{ID: b.ID, Lane: b.Lane}
	first := -1
	for cs, err := range s.Store.Summaries(ctx, b.User, b.ID, 0) {
		if err != nil {
			return out, false, err
		}
		if out.Recipients += cs.Summary.Queued; first < 0 && cs.Summary.Queued > 0 {
			first = cs.Chunk.ChunkNumber()
		}
	}
	if first < 0 {
		return out, false, nil
	}
	rule := w.rules.Batch(&b)
	out.Since = models.LaterOf(b.Created(), rule.Scheduled(&b).ScheduleOf(first).DeliverAt)
	if rule.Waits != nil {
		out.Wait = *rule.Waits
		return out, true, nil
	}
	wait, released, err := s.chunkWait(ctx, w, &b, first, func(s models.State) bool { return s == models.Queued })
	if wait == nil || err != nil {
		return out, false, err
	}
	out.Wait, out.Since = *wait, models.LaterOf(out.Since, released)
	if wait.Code == models.WaitSchedule {
		out.Since = time.Time{}
	}
	return out, true, nil
}

// chunkWait returns what the logs of a chunk in some states wait for, the first of the codes, and when one of the chunk
// was released last. It returns nil if none waits.
func (s *Reader) chunkWait(ctx context.Context, w *Waits, b *models.Batch, n int, in func(models.State) bool,
) (first *models.Wait, released time.Time, err error) {
	entries, facts, err := s.Store.Record(ctx, b.ID.Chunk(n))
	var recipients []models.Recipient
	byDomain := slices.ContainsFunc(
		policy.BlocksMeeting(w.rules, b), func(bl models.Block) bool { return bl.Domain != "" })
	if err == nil && byDomain && !b.Redacted {
		recipients, err = s.Store.Recipients(ctx, b.ID.Chunk(n))
	}
	if errors.Is(err, models.ErrNotFound) || errors.Is(err, models.ErrDamaged) {
		return nil, released, nil // the check of sums reports it
	}
	if err != nil {
		return nil, released, err
	}
	for i := range entries {
		if entries[i].Kind == models.Release {
			released = models.LaterOf(released, entries[i].At)
		}
	}
	v := models.Resolve(b.ChunkSize(n), entries, facts)
	for i, wait := range w.logs(b.OfChunk(n), v, recipients) {
		if wait != nil && in(v.Logs[i].State) && (first == nil || wait.Before(first)) {
			first = wait
		}
	}
	return first, released, nil
}
