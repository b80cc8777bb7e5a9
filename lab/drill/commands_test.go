package drill

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/models"
)

const (
	commandSize   = 1_500                   // mails of the batch that is being sent when a command is given
	commandMore   = 4_000                   // if mail must wait: more chunks than calls at once
	commandSoon   = 1500 * time.Millisecond // a command is given so long after the first calls, or up to twice as long
	commandWait   = 3 * time.Second         // for which nothing may be sent against it
	commandAnswer = 150 * time.Millisecond  // of the providers meanwhile, so that the batch lasts
	commandSlow   = 1800 * time.Millisecond // if calls must be in flight: less than mail waits for a slot
	commandTries  = 5                       // until calls are in flight
	blockedDomain = "held.test"
)

// slowCalls allows slow answers. Calls are large and few run at once, so that mail waits for them.
var slowCalls = []string{
	"SAFEDELIVR_PROVIDERS_SG_TIMEOUT=6s",
	"SAFEDELIVR_PROVIDERS_SG_CONCURRENCY=1",
	"SAFEDELIVR_PROVIDERS_SG_CHUNK_LIMIT=25",
	"SAFEDELIVR_PROVIDERS_MG_TIMEOUT=6s",
	"SAFEDELIVR_PROVIDERS_MG_CONCURRENCY=1",
	"SAFEDELIVR_PROVIDERS_MG_CHUNK_LIMIT=25",
}

// commandsObeyed gives every command that withholds mail while mail is being sent, and undoes it.
func commandsObeyed(ctx context.Context, d *drill) error {
	d.broken()
	for _, o := range []*command{
		d.user.stopSlow(), d.user.stop(), d.user.pause(), d.user.offline("sg"), d.user.offline("mg"), d.user.block(),
	} {
		err := errNoneInFlight
		for tries := 0; errors.Is(err, errNoneInFlight) && tries < commandTries; tries++ {
			err = d.obeys(ctx, o)
		}
		if err != nil {
			return err
		}
	}
	d.healed()
	return nil
}

// errNoneInFlight says that no call was in flight when a command was answered, so that its count proves nothing.
var errNoneInFlight = errors.New("no call was in flight")

// command is a command that withholds mail, and the one that undoes it.
type command struct {
	name       string
	give, undo func(ctx context.Context, of models.ID) error
	mails      int                                        // of the batch that is being sent
	meets      func(of models.ID, c *simulator.Copy) bool // what it holds back
	waits      bool                                       // mail waits, and is not sent through another provider
	others     bool                                       // other mail is sent meanwhile
	answers    time.Duration                              // how long the providers take to answer meanwhile
	clocksOff  bool                                       // ledgers do not say what began before the answer

	// afterwards checks the answer, when nothing more may be sent; nil if there is nothing to check.
	afterwards func(ctx context.Context, d *drill, g *given) error
}

// given is a command that was given.
type given struct {
	of       posted
	slowed   time.Time // when the providers began to take longer
	answered time.Time
}

// obeys gives a command while a batch is being sent, checks for a while that no mail is sent against it, and undoes it.
// By the providers' times no call may begin later than shortly after the answer, and by the ledgers none after it. When
// the command is undone, the rest must be sent.
func (d *drill) obeys(ctx context.Context, o *command) error {
	b, err := d.mail.accept(ctx, d.user, d.mail.newBatch(o.mails, "rehearse.test", blockedDomain))
	if err != nil {
		return err
	}
	g, err := d.giveDuring(ctx, o, b)
	if err != nil {
		return fmt.Errorf("%s: %w", o.name, err)
	}
	if err := pause(ctx, commandWait); err != nil {
		return err
	}
	met := func(c *simulator.Copy) bool { return o.meets(b.id, c) }
	if err := d.against(ctx, o, g.answered, met); err != nil {
		return err
	}
	sent := d.sim.sent(b.id, time.Time{})
	var none error
	if o.afterwards != nil {
		if none = o.afterwards(ctx, d, g); none != nil && !errors.Is(none, errNoneInFlight) {
			return none
		}
	}
	if o.others {
		err := d.until(ctx, "other mail is sent", func() bool {
			late := g.answered.Add(callLate)
			return len(d.sim.copiesSince(late, func(c *simulator.Copy) bool { return !met(c) })) > 0
		})
		if err != nil {
			return fmt.Errorf("%s: %w", o.name, err)
		}
	}
	if o.waits && sent == b.n {
		return fmt.Errorf("%s: nothing was left to hold back", o.name)
	}
	return errors.Join(d.undo(ctx, o, b, sent), none)
}

// giveDuring gives a command while a batch is being sent.
func (d *drill) giveDuring(ctx context.Context, o *command, b posted) (*given, error) {
	err := d.until(ctx, "some of a batch was sent", func() bool { return d.sim.sent(b.id, time.Time{}) > callSize })
	d.sim.SetLatency("", o.answers)
	g := &given{of: b, slowed: time.Now()}
	if err == nil {
		err = d.inTheMiddle(ctx, o, g)
	}
	if err == nil {
		err = o.give(ctx, b.id)
	}
	g.answered = time.Now()
	return g, err
}

// undo undoes a command and waits until the batch is done.
func (d *drill) undo(ctx context.Context, o *command, b posted, sent int) error {
	d.sim.SetLatency("", latency)
	if err := o.undo(ctx, b.id); err != nil {
		return fmt.Errorf("%s: %w", o.name, err)
	}
	undone := time.Now()
	err := d.until(ctx, "a batch that was held back is done", func() bool {
		now, err := d.user.batch(ctx, b.id)
		return err == nil && now.State == client.BatchDone
	})
	d.say("%s: in effect after %d of %d mails, done %.1f s after it was undone", o.name, sent, b.n,
		time.Since(undone).Seconds())
	return err
}

// inTheMiddle waits until a command can be given: soon after slow calls have begun, or when many calls have been
// answered.
func (d *drill) inTheMiddle(ctx context.Context, o *command, g *given) error {
	soon := commandSoon
	if o.answers == commandSlow {
		err := d.until(ctx, "slow calls have begun", func() bool { return d.sim.sent(g.of.id, g.slowed) > 0 })
		if err != nil {
			return err
		}
		soon = commandSlow / 10
	}
	return pause(ctx, soon+time.Duration(d.rnd.Int64N(int64(soon))))
}

// against returns an error if mail was sent against a command that was answered.
func (d *drill) against(ctx context.Context, o *command, answered time.Time, met func(*simulator.Copy) bool) error {
	for id, copies := range d.sim.copiesSince(answered, met) {
		for _, c := range copies {
			if c.At.After(answered.Add(callLate)) {
				return fmt.Errorf("%s: log %s was sent through %s %s after the answer", o.name, id, c.Account, c.At.Sub(answered))
			}
		}
		if o.clocksOff {
			continue
		}
		story, err := d.user.timeline(ctx, id)
		if err != nil {
			return err
		}
		if call, _ := lastCall(story); call == nil || call.At.After(answered) {
			return fmt.Errorf("%s: a call for log %s began after the answer: %+v", o.name, id, call)
		}
	}
	return nil
}

// copiesSince returns the copies after a time of the mail that a command meets, by log.
func (p *providers) copiesSince(after time.Time, met func(*simulator.Copy) bool) map[string][]simulator.Copy {
	out := map[string][]simulator.Copy{}
	p.EachCopy(func(id string, _ map[string]int) {
		id = logOf(id)
		for _, c := range p.copiesOf(id) {
			if c.At.After(after) && met(&c) {
				out[id] = append(out[id], c)
			}
		}
	})
	return out
}

// sent counts the copies of a batch's mails after a time.
func (p *providers) sent(batch models.ID, after time.Time) (n int) {
	p.EachCopy(func(id string, _ map[string]int) {
		if id = logOf(id); !isOf(id, batch) {
			return
		}
		for _, c := range p.copiesOf(id) {
			if c.At.After(after) {
				n++
			}
		}
	})
	return n
}

func isOf(log string, batch models.ID) bool {
	id, err := models.ParseLogID(log)
	return err == nil && id.Batch() == batch
}

// stop stops a batch and resumes it.
func (a *account) stop() *command {
	var inFlight *int
	o := &command{
		name:    "stop",
		mails:   commandSize,
		waits:   true,
		answers: commandAnswer,
		meets:   func(of models.ID, c *simulator.Copy) bool { return isOf(c.ID, of) },
		give: func(ctx context.Context, id models.ID) error {
			result, err := a.client.StopBatch(ctx, id.String(), why)
			inFlight = result.InFlight
			return err
		},
		undo: func(ctx context.Context, id models.ID) error {
			_, err := a.client.ResumeBatch(ctx, id.String(), why)
			return err
		},
	}
	o.afterwards = func(ctx context.Context, d *drill, g *given) error { return d.checkInFlight(ctx, o, g, inFlight) }
	return o
}

// why is the reason of all commands.
const why = "drill"

// stopSlow is stop with slow calls.
func (a *account) stopSlow() *command {
	o := a.stop()
	o.answers, o.mails = commandSlow, commandMore
	return o
}

// stopWithWrongClock is stop while a clock is wrong.
func (d *drill) stopWithWrongClock(ctx context.Context) error {
	o := d.user.stop()
	o.answers, o.clocksOff, o.afterwards = latency, true, nil
	return d.obeys(ctx, o)
}

// checkInFlight compares the number in flight that a stop returned with the copies that came before it without an
// answer, or after it. The number may also include calls whose answers were being stored, or that were not made.
func (d *drill) checkInFlight(ctx context.Context, o *command, g *given, inFlight *int) error {
	if inFlight == nil {
		return errors.New("stop: the answer does not say how much is in flight")
	}
	since := func(before time.Duration) int { return d.sim.sent(g.of.id, g.answered.Add(-before)) }
	least := since(min(o.answers, g.answered.Sub(g.slowed)))
	most, late := since(o.answers+time.Second), since(0)
	logs, err := d.user.logs(ctx, g.of.id)
	if err != nil {
		return err
	}
	for i := range logs {
		if logs[i].Attempts > 0 && len(d.sim.copiesOf(logs[i].ID)) == 0 {
			most++
		}
	}
	d.say("stop: %d in flight; %d had no answer, %d of %d came later", *inFlight, least, late, most)
	if *inFlight < least || *inFlight > most {
		return fmt.Errorf("stop: %d in flight; %d had no answer, %d came later, and %d are possible at most",
			*inFlight, least, late, most)
	}
	if o.answers == commandSlow && least == 0 {
		return errNoneInFlight
	}
	return nil
}

// pause pauses the user and resumes it.
func (a *account) pause() *command {
	return &command{
		name:    "pause",
		mails:   commandSize,
		waits:   true,
		answers: commandAnswer,
		meets:   func(_ models.ID, c *simulator.Copy) bool { return !strings.HasSuffix(c.Address, "@"+otherDomain) },
		give: func(ctx context.Context, _ models.ID) error {
			_, err := a.client.PauseUser(ctx, a.ID, why)
			return err
		},
		undo: func(ctx context.Context, _ models.ID) error {
			_, err := a.client.ResumeUser(ctx, a.ID, why)
			return err
		},
	}
}

// offline takes a provider offline, and online again.
func (a *account) offline(provider string) *command {
	return &command{
		name:    provider + " offline",
		mails:   commandSize,
		answers: commandAnswer,
		others:  true,
		meets:   func(_ models.ID, c *simulator.Copy) bool { return c.Account == provider },
		give: func(ctx context.Context, _ models.ID) error {
			_, err := a.client.ProviderOffline(ctx, provider, why)
			return err
		},
		undo: func(ctx context.Context, _ models.ID) error {
			_, err := a.client.ProviderOnline(ctx, provider, why)
			return err
		},
	}
}

// block blocks a domain of recipients.
func (a *account) block() *command {
	var rule client.Block
	return &command{
		name:    "block",
		mails:   commandSize,
		waits:   true,
		others:  true,
		answers: commandAnswer,
		meets:   func(_ models.ID, c *simulator.Copy) bool { return strings.HasSuffix(c.Address, "@"+blockedDomain) },
		give: func(ctx context.Context, _ models.ID) (err error) {
			rule, err = a.client.AddBlock(ctx, client.NewBlock{Domain: blockedDomain, Why: why})
			return err
		},
		undo: func(ctx context.Context, _ models.ID) error {
			_, err := a.client.RemoveBlock(ctx, rule.ID, why)
			return err
		},
	}
}
