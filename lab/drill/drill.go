package drill

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
)

const (
	startBy         = 3 * time.Second
	patience        = 90 * time.Second // for one state, with few recipients: see bound
	scenarioLimit   = 4 * time.Minute
	fewRecipients   = 3_000
	latency         = 60 * time.Millisecond
	callTimeout     = 2 * time.Second
	callSize        = 10 // recipients per call, so that there are many calls
	backgroundPause = 300 * time.Millisecond
	backgroundSize  = 20
)

// drill is one run of a scenario. Each of its parts keeps what it has to know for the count in the end.
type drill struct {
	*scenario
	environment *environment
	rnd         *rand.Rand
	say         say
	res         Result

	user    *account // whose mail is sent while things break
	other   *account // another user, who sends a little mail
	hostile *account // another user, who attacks

	sim          *providers
	servers      *servers
	incident     *incident
	mail         *traffic
	suppressions *suppressions
	schedule     *schedule
	messages     *messages
	feeds        *feeds
	notices      *notices
	verdict      *verdict

	before map[string]int64 // mails that each provider had accepted when it was healed
}

// say prints a line about the progress of a drill.
type say func(format string, args ...any)

func newDrill(env *environment, s *scenario, o Options, say say) *drill {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s.name))
	its := *s
	if its.breaks == 1 && env.pair.Silent(env.pair[0].Name) {
		its.holds |= answersWithheld // nothing else says whether the mail was accepted
	}
	d := &drill{
		scenario:    &its,
		environment: env,
		say:         say,
		rnd:         rand.New(rand.NewPCG(o.Seed, h.Sum64())), //nolint:gosec // it chooses moments
		user:        &account{},
		other:       &account{},
		hostile:     &account{},
		incident:    &incident{began: time.Now()},
		res:         Result{Name: s.name},
	}
	d.mail = newTraffic(d.user, d.other, &its, env.pair, o.Recipients)
	d.sim = &providers{pair: env.pair, isEnvelope: d.mail.isEnvelope}
	d.servers = &servers{scenario: &its, environment: env, sim: d.sim, incident: d.incident}
	d.suppressions = &suppressions{
		user: d.user, mail: d.mail, sim: d.sim, at: map[string]time.Time{}, repeated: map[string]bool{},
	}
	d.schedule = &schedule{user: d.user, mail: d.mail, sim: d.sim, res: &d.res, times: map[string]time.Time{}}
	d.messages = &messages{user: d.user, mail: d.mail, sim: d.sim, schedule: d.schedule, res: &d.res}
	d.feeds = &feeds{user: d.user, other: d.other, mail: d.mail, suppressions: d.suppressions, res: &d.res}
	d.notices = &notices{
		scenario: &its, environment: env, user: d.user, mail: d.mail,
		suppressions: d.suppressions, incident: d.incident, res: &d.res,
	}
	d.verdict = &verdict{
		scenario: &its, user: d.user, mail: d.mail, sim: d.sim,
		suppressions: d.suppressions, messages: d.messages, incident: d.incident, res: &d.res,
	}
	return d
}

// play runs the scenario and counts what came of it.
func (d *drill) play(ctx context.Context) Result {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	go d.limit(ctx, end)
	go d.incident.heldUp.note(ctx)
	if err := d.run(ctx); err != nil {
		d.res.wrong("%v", errors.Join(context.Cause(ctx), err))
		for _, p := range d.servers.all() {
			d.res.wrong("the server printed: %s", p.out)
		}
	}
	d.res.Seconds = round(time.Since(d.incident.began))
	d.say("%s", &d.res)
	return d.res
}

func (d *drill) run(ctx context.Context) error {
	if err := d.servers.choose(ctx); err != nil {
		return err
	}
	stop, err := d.sim.start(ctx, d.servers.hooks(), cmp.Or(d.scale, timeScale), d.rnd.Uint64())
	if err != nil {
		return err
	}
	defer stop()
	for _, a := range []*account{d.user, d.other, d.hostile} {
		if *a, err = d.environment.newAccount(ctx, d.servers); err != nil {
			return err
		}
	}
	defer d.servers.stop()
	defer d.feeds.stop()
	err = inTurn(ctx, d.servers.start, d.feeds.start, d.suppressions.before, d.rehearse, d.count)
	if err != nil {
		return err
	}
	d.servers.stop() // what they know of failed calls is complete then, and an embedded store is free
	return d.notices.compareOutages(ctx)
}

// count compares all that is stored and published with what was posted and sent.
func (d *drill) count(ctx context.Context) error {
	defer d.schedule.measure()
	err := inTurn(ctx, d.verdict.count, d.messages.count, d.verdict.compareDays, d.feeds.count, d.notices.count)
	if err != nil {
		return err
	}
	if out, err := d.environment.command(ctx, d.servers.env, "check", "--user", d.user.Name); err != nil {
		d.res.wrong("safedelivr check: %v: %s", err, out)
	}
	return nil
}

// limit ends a scenario that takes too long. The more mail it posts, the longer it may take.
func (d *drill) limit(ctx context.Context, end context.CancelCauseFunc) {
	for {
		limit := d.mail.bound(scenarioLimit) + d.longer
		left := limit - time.Since(d.incident.began)
		if left <= 0 {
			end(fmt.Errorf("the scenario took longer than %s", limit))
			return
		}
		if pause(ctx, left) != nil {
			return
		}
	}
}

// inTurn takes steps until one returns an error.
func inTurn(ctx context.Context, steps ...func(context.Context) error) error {
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// rehearse sends mail, injects the fault while mail is being sent, and waits until every log has its final state.
func (d *drill) rehearse(ctx context.Context) error {
	enough := make(chan struct{})
	var meanwhile errgroup.Group
	meanwhile.Go(func() error { return d.suppressions.meanwhile(ctx, enough, d.say) })
	err := d.injectDuringMail(ctx, &meanwhile, enough)
	close(enough)
	if err := cmp.Or(err, meanwhile.Wait()); err != nil {
		return err
	}
	if err := d.mail.addApplications(ctx, &d.res, d.say); err != nil {
		return err
	}
	return d.settled(ctx)
}

// injectDuringMail posts mail, and injects the fault when some of it is sent. It lets meanwhile post more until enough
// is closed, and returns when all is normal again.
func (d *drill) injectDuringMail(ctx context.Context, meanwhile *errgroup.Group, enough <-chan struct{}) error {
	if err := d.mail.postOther(ctx); err != nil {
		return err
	}
	size := min(max(d.mail.recipients/8, 25), 1000)
	for left := d.mail.recipients; left > 0; left -= size {
		if err := d.mail.post(ctx, min(size, left)); err != nil {
			return err
		}
	}
	moment := int64(float64(d.mail.recipients) * (0.1 + 0.5*d.rnd.Float64()))
	if err := d.until(ctx, "mail is sent", func() bool { return d.sim.taken("") >= moment }); err != nil {
		return err
	}
	meanwhile.Go(func() error { return d.mail.sendBackground(ctx, enough) })
	if err := d.inject(ctx, d); err != nil {
		return err
	}
	return d.normal(ctx)
}

// until waits for a state.
func (d *drill) until(ctx context.Context, what string, f func() bool) error {
	return poll(ctx, d.mail.bound(patience), what, func() (bool, error) { return f(), nil })
}

// broken notes that the fault has been injected.
func (d *drill) broken() {
	d.incident.broken()
	d.mail.unanswered.mark()
	d.say("✗ %s", d.sim.pair.Fill(d.story))
}

// healed notes that the fault has ended.
func (d *drill) healed() {
	d.incident.healedAt = time.Now()
	d.before = map[string]int64{}
	for _, a := range d.sim.pair.Names() {
		d.before[a] = d.sim.taken(a)
	}
	d.say("✓ healed after %.1f s", time.Since(d.incident.brokenAt).Seconds())
}

// quiet reports whether the providers have everything that was posted, but what was suppressed.
func (d *drill) quiet() bool {
	wanted := d.mail.posted()
	for _, b := range d.mail.all() {
		wanted -= b.suppressed
	}
	return d.sim.taken("") >= int64(wanted)
}

// normalDomain is that of the recipients of mail that is posted when all should be normal. No fault made an address of
// it bounce, so that none is suppressed.
const normalDomain = "normal.test"

// normal waits until every provider that was broken accepts mail again and new mail is delivered.
func (d *drill) normal(ctx context.Context) error {
	b, err := d.mail.accept(ctx, d.user, d.mail.newBatch(backgroundSize, normalDomain))
	if err != nil {
		return err
	}
	why := ""
	err = d.until(ctx, "all is normal again", func() bool {
		for _, a := range d.sim.pair.Names()[:d.breaks] {
			if why = a + " accepts no mail"; d.sim.taken(a) <= d.before[a] {
				return false
			}
		}
		got, err := d.user.batch(ctx, b.id)
		why = fmt.Sprintf("new mail is %s %+v, %v", got.State, got.Counts, err)
		return err == nil && got.State == client.BatchDone && got.Counts.Delivered > 0
	})
	d.res.Normal = round(time.Since(d.incident.healedAt))
	if err != nil {
		return fmt.Errorf("%w: %s", err, why)
	}
	return nil
}

// settled waits until every log has its final state and the providers have sent all events.
func (d *drill) settled(ctx context.Context) error {
	left := d.mail.all()
	err := poll(ctx, d.mail.bound(scenarioLimit)+d.longer, "every log has a final state", func() (bool, error) {
		for len(left) > 0 {
			b, err := d.user.batch(ctx, left[0].id)
			if err != nil || b.State != client.BatchDone {
				return false, err
			}
			left = left[1:]
		}
		return true, nil
	})
	if err != nil {
		soon, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		return errors.Join(err, unfinished(soon, d.user.client, left[0].id))
	}
	if err := d.sim.Settle(ctx); err != nil {
		return err
	}
	return d.verdict.evidenced(ctx)
}

// unfinished returns an error that has a log of a batch without a final state, and what happened to it.
func unfinished(ctx context.Context, c *client.Client, batch models.ID) error {
	for l, err := range c.Logs(ctx, batch.String(), client.LogOptions{}) {
		if err != nil {
			return err
		}
		if l.State != client.Delivered && l.State != client.Failed {
			l, err = c.Log(ctx, l.ID)
			text, _ := json.Marshal(l) // it was made from JSON
			return errors.Join(err, fmt.Errorf("a log that is not final: %s", text))
		}
	}
	return nil
}
