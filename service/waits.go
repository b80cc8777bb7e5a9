package service

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/policy"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/service/walk"
)

// defaultPolicy returns the decision table of workers with default settings.
func defaultPolicy(providers []models.Provider, recheck time.Duration) *policy.Policy {
	return policy.New(policy.Config{
		MaxRetries:     10,
		Recheck:        recheck,
		EvidenceWindow: 15 * time.Minute,
		FinalEventWait: 100 * time.Hour,
		Delays:         []time.Duration{time.Minute},
	}, providers)
}

// waits finds out what queued mail waits for, at one moment. It decides as a worker does.
type waits struct {
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

// waiting returns what mail waits for now.
func (s *Service) waiting(ctx context.Context) (*waits, error) {
	rules, err := s.Audit.Rules(ctx)
	if err != nil {
		return nil, err
	}
	providers, err := s.reported.Get(reportsAge, func() (map[string]providerNow, error) {
		return s.readReported(context.WithoutCancel(ctx)) // others wait for it, too
	})
	if err != nil {
		return nil, storeError("read the reports of workers", err)
	}
	return &waits{policy: s.policy, rules: rules, providers: providers, now: time.Now()}, nil
}

func (s *Service) readReported(ctx context.Context) (map[string]providerNow, error) {
	workers, err := telemetry.Reports[telemetry.WorkerState](ctx, s.store, telemetry.WorkerReport)
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

// logs returns what each log of a chunk waits for; nil for logs that have ended. recipients
// may be empty if no block rule is about their domains.
func (w *waits) logs(b *models.Batch, v *models.View, recipients []models.Recipient) []*models.Wait {
	out := make([]*models.Wait, v.Size)
	cancelled := w.rules.Batch(b).Cancel != nil
	steps := w.plan(b, v, recipients)
	for i := range steps {
		wait := w.step(&steps[i], cancelled)
		for r := range steps[i].Recipients.All() {
			out[r-1] = wait
		}
	}
	return out
}

// plan returns the next steps of a chunk, as for logs.
func (w *waits) plan(b *models.Batch, v *models.View, recipients []models.Recipient) []policy.Step {
	return w.policy.Plan(v, b, &policy.Commands{
		Rule:       w.rules.Batch(b),
		Rules:      w.rules,
		Blocks:     policy.BlocksMeeting(w.rules, b),
		Recipients: recipients,
	}, w.now)
}

// step returns what the recipients of a step wait for.
func (w *waits) step(st *policy.Step, cancelled bool) *models.Wait {
	switch st.Do {
	case policy.Wait:
		return w.commanded(st.Waits)
	case policy.Call:
		return w.call(st)
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

// commanded adds to a wait for a block rule or an offline provider who gave the command, why
// and when.
func (w *waits) commanded(wait *models.Wait) *models.Wait {
	out := *wait
	switch wait.Code { //nolint:exhaustive // the others have it, or wait for no command
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

// call returns what a call waits for. The next call goes to the option that is ready first.
func (w *waits) call(st *policy.Step) *models.Wait {
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
	case len(w.providers) == 0:
		return &models.Wait{Code: models.WaitNoWorker, Text: turn.Text + "; no worker is running"}
	}
	var first *models.Wait // of the option that is ready first
	var away []string      // why options are not ready
	for _, o := range st.Options {
		wait := w.option(o, st, turn)
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

// option returns what a call waits for if it is to go to an option; turn if the provider
// takes it now.
func (w *waits) option(o policy.Option, st *policy.Step, turn *models.Wait) *models.Wait {
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

// sooner reports whether mail that waits for a is sent before mail that waits for b: mail
// that waits for no time comes first, and then mail whose wait ends first.
func sooner(a, b *models.Wait) bool {
	rank := func(w *models.Wait) int {
		switch w.Code { //nolint:exhaustive // the codes of options
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
// first in WaitCodes. It returns nil for a batch that has ended.
func (s *Service) batchWait(ctx context.Context, b *models.Batch, queued int) (*models.Wait, error) {
	w, err := s.waiting(ctx)
	if err != nil {
		return nil, err
	}
	rule := w.rules.Batch(b)
	if rule.Waits != nil || queued < 0 || b.Damaged {
		return rule.Waits, nil
	}
	first, _, err := chunkWait(ctx, s, w, b, queued, models.State.Open)
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

// Warnings in the results of commands.
const (
	mayDoubleWarning = "It is unknown whether the providers accepted this mail, so it may arrive twice."
	inFlightWarning  = "Calls in flight cannot be stopped, but no new call starts."
	uncountedWarning = "The recipients could not be counted."
	noneFailed       = "No mail of this batch has failed that can be sent again without the risk of a second copy."
	noneHeld         = "No mail of this batch is held."
	lateWarning      = "The command is in effect, but the mail may not go out by itself: " +
		"repeat the command if nothing moves within a minute."
)

// warnOfWaiting adds a warning if mail of a batch still waits for something after a
// command that should let it go out.
func (s *Service) warnOfWaiting(rules *control.Rules, b *models.Batch, out *BatchControlResult) {
	if waits := s.waitsFor(rules, b); len(waits) > 0 {
		out.Waits = true
		out.warn("Nothing goes out yet. It will when " + strings.Join(waits, ", and ") + ".")
	}
}

// waitsFor returns what must happen before mail of a batch can go out. It ignores block
// rules for a provider or for a recipient's domain, which affect only some of the mail.
func (s *Service) waitsFor(rules *control.Rules, b *models.Batch) []string {
	var out []string
	if rules.StoppedBy(b.ID) != "" {
		out = append(out, "the batch is resumed")
	}
	if rules.Paused(b.User) {
		out = append(out, "the user is resumed")
	}
	if slices.ContainsFunc(rules.Holds(), func(h models.Command) bool { return b.Created().Before(h.Before) }) {
		out = append(out, "an operator lifts the hold that followed a restore")
	}
	if slices.ContainsFunc(rules.Blocks(), func(bl models.Block) bool { return !bl.Fail && bl.Meets(b, "", "") }) {
		out = append(out, "the block rule for it is removed")
	}
	if s.allOffline(rules, b) {
		out = append(out, "a provider that it may use is online")
	}
	return out
}

// allOffline reports whether every provider that a batch may use is offline.
func (s *Service) allOffline(rules *control.Rules, b *models.Batch) bool {
	for i := range s.providers {
		name := s.providers[i].Name
		if (len(b.Providers) == 0 || slices.Contains(b.Providers, name)) &&
			rules.Provider(name).Mode != models.ProviderOffline {
			return false
		}
	}
	return len(s.providers) > 0
}

// countInFlight sets the number of recipients in flight: of the chunk if the command was
// about a log, otherwise of the batch. For a command that changes which recipients are sent
// for the first time, it also sets the number of those. If they cannot be counted, it adds
// a warning.
func (s *Service) countInFlight(ctx context.Context, b *models.Batch, out *BatchControlResult) {
	byState := !counted(out.Command)
	n, err := s.countUnfinished(ctx, b, out)
	if err != nil {
		s.log.Warn("cannot count the recipients of a command", "batch_id", b.ID.String(), "err", err)
		out.warn(uncountedWarning)
		return
	}
	out.InFlight = &n.inFlight
	if byState {
		out.Recipients = new(int)
		if out.Changed {
			*out.Recipients = n.unsent
		}
	}
}

// putDues stores when mail of a batch is due, for lists in the order of time. It is called before the batch has these
// times: an entry without a batch that has its time says nothing.
func (s *Service) putDues(ctx context.Context, b *models.Batch) error {
	dues := b.Dues(time.Now())
	if len(dues) == 0 {
		return nil
	}
	return s.store.PutDue(ctx, b.User, dues...)
}

// inOrderOfTime makes a list one of batches with mail whose time is to come, next first.
func (s *Service) inOrderOfTime(ctx context.Context, users []string, l *listing[BatchView]) {
	span := walk.Span{First: time.Now()}
	l.up = true
	l.ID = func(v *BatchView) models.ID {
		d := models.Due{At: v.DueAt, Batch: v.ID}
		return d.ID()
	}
	l.Steps = func(from models.ID, up bool) walk.Steps {
		span.From, span.Up = from, up
		return walks(users, span, func(span walk.Span) walk.Steps { return walk.Dues(ctx, s.store, span) })
	}
}

// dueThen reports whether a batch is due at the time of an entry, and next, and the filter selects it.
func (s *Service) dueThen(
	ctx context.Context, b *models.Batch, v *BatchView, d *models.Due, f *LogFilter,
) (bool, error) {
	at := b.Created()
	if v.DueAt.UnixMilli() != d.At.UnixMilli() || at.Before(f.From) || !f.To.IsZero() && !at.Before(f.To) ||
		f.Tag != "" && !slices.Contains(b.Groups, models.Group{Kind: models.ByTag, Name: f.Tag}) {
		return false, nil
	}
	if len(f.counts()) == 0 {
		return true, nil
	}
	for cs, err := range s.store.Summaries(ctx, b.User, b.ID, 0) {
		if err != nil || f.mayMatch(&cs.Summary) {
			return err == nil, err
		}
	}
	return false, nil
}

// maxIntake is longer than it takes to store a batch.
const maxIntake = 24 * time.Hour

// removeDue removes an entry of a batch that never exists any more, or that is cancelled. If it fails, the next reader
// does it.
func (s *Service) removeDue(ctx context.Context, user string, d *models.Due) {
	if d.Batch.IsZero() {
		return
	}
	if err := s.store.RemoveDue(ctx, user, d.ID()); err != nil {
		s.log.Debug("time of a batch not removed", "batch_id", d.Batch.String(), "err", err)
	}
}
