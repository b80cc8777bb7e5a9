package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/simulator"
)

const (
	orderedSize   = 1_500                   // mails of the batch that flows while an order is given
	orderedMore   = 4_000                   // where mail is to wait for its turn: more chunks than calls at once
	orderedSoon   = 1500 * time.Millisecond // after its first calls an order is given, or up to twice as long
	orderedWait   = 3 * time.Second         // for which nothing may go out against it
	orderedLate   = 1500 * time.Millisecond // no call may begin after one second, and one may take a moment
	orderedAnswer = 150 * time.Millisecond  // of the providers meanwhile, so that the batch lasts
	orderedSlow   = 1800 * time.Millisecond // where calls are to be in flight: less than mail waits for a slot
	orderedTries  = 5                       // until some are
	orderedDomain = "held.test"
)

// slowCalls gives calls time for slow answers. They are large and few at once, so
// that mail that was planned waits for others to end.
var slowCalls = []string{
	"SAFEDELIVR_PROVIDERS_SG_TIMEOUT=6s", "SAFEDELIVR_PROVIDERS_SG_CONCURRENCY=1", "SAFEDELIVR_PROVIDERS_SG_CHUNK_LIMIT=25",
	"SAFEDELIVR_PROVIDERS_MG_TIMEOUT=6s", "SAFEDELIVR_PROVIDERS_MG_CONCURRENCY=1", "SAFEDELIVR_PROVIDERS_MG_CHUNK_LIMIT=25",
}

// stopped gives every order that withholds mail while mail flows, and lifts it.
func stopped(ctx context.Context, d *drill) error {
	d.broken()
	for _, o := range []*order{d.stopSlow(), d.stop(), d.pause(), d.offline("sg"), d.offline("mg"), d.block()} {
		err := errNoneInFlight
		for tries := 0; errors.Is(err, errNoneInFlight) && tries < orderedTries; tries++ {
			err = d.obeyed(ctx, o)
		}
		if err != nil {
			return err
		}
	}
	d.mended()
	return nil
}

// errNoneInFlight says that an order was answered when no call was under way, so
// that it could not be seen whether it tells of those.
var errNoneInFlight = errors.New("no call was in flight")

// order is one that keeps mail from going out, and the one that lifts it.
type order struct {
	name       string
	give, lift func(ctx context.Context, of models.ID) error
	mails      int                                        // of the batch that it is given in the middle of
	meets      func(of models.ID, c *simulator.Copy) bool // what it keeps back
	waits      bool                                       // that it waits, and does not go another way
	others     bool                                       // other mail flows on meanwhile
	answers    time.Duration                              // of the providers meanwhile
	clocksOff  bool                                       // ledgers cannot tell what began before the answer

	// afterwards looks at what the answer said, when nothing more may go out; may be nil.
	afterwards func(ctx context.Context, g *given) error
}

// given is an order that was given.
type given struct {
	of       posted
	slowed   time.Time // since when providers take their time
	answered time.Time
}

// obeyed has an order given in the middle of a batch, and lifted when it was looked
// at for a while what goes out against it. By the providers' own times that is
// nothing that began a moment later than the answer, and by the ledgers nothing
// that began after it. When it is lifted, the rest goes out.
func (d *drill) obeyed(ctx context.Context, o *order) error {
	b, err := d.accept(ctx, d.letter(o.mails, "rehearse.test", orderedDomain))
	if err != nil {
		return err
	}
	met := func(c *simulator.Copy) bool { return o.meets(b.id, c) }
	err = d.until(ctx, "some of a batch went out", func() bool { return d.sent(b.id, time.Time{}) > drillCall })
	d.sim.SetLatency("", o.answers)
	g := given{of: b, slowed: time.Now()}
	if err == nil {
		err = d.inTheMiddle(ctx, o, &g)
	}
	if err == nil {
		err = o.give(ctx, b.id)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", o.name, err)
	}
	g.answered = time.Now()
	if err := idle(ctx, orderedWait); err != nil {
		return err
	}
	if err := d.against(ctx, o, g.answered, met); err != nil {
		return err
	}
	out := d.sent(b.id, time.Time{})
	var none error
	if o.afterwards != nil {
		if none = o.afterwards(ctx, &g); none != nil && !errors.Is(none, errNoneInFlight) {
			return none
		}
	}
	if o.others {
		err := d.until(ctx, "other mail flows on", func() bool {
			return len(d.copiesSince(g.answered.Add(orderedLate), func(c *simulator.Copy) bool { return !met(c) })) > 0
		})
		if err != nil {
			return fmt.Errorf("%s: %w", o.name, err)
		}
	}
	if o.waits && out == b.n {
		return fmt.Errorf("%s: nothing was left to keep back", o.name)
	}
	d.sim.SetLatency("", drillLatency)
	if err := o.lift(ctx, b.id); err != nil {
		return fmt.Errorf("%s: %w", o.name, err)
	}
	lifted := time.Now()
	err = d.until(ctx, "a batch that was let go on is done", func() bool {
		now, err := d.batch(ctx, b.id)
		return err == nil && now.State == models.BatchDone
	})
	d.say("%s: in force after %d of %d mails, done %.1f s after it was lifted", o.name, out, b.n, time.Since(lifted).Seconds())
	return errors.Join(err, none)
}

// inTheMiddle waits for the moment at which an order is given: soon after calls
// have begun that take long, or when many have been answered.
func (d *drill) inTheMiddle(ctx context.Context, o *order, g *given) error {
	soon := orderedSoon
	if o.answers == orderedSlow {
		err := d.until(ctx, "slow calls have begun", func() bool { return d.sent(g.of.id, g.slowed) > 0 })
		if err != nil {
			return err
		}
		soon = orderedSlow / 10
	}
	return idle(ctx, soon+time.Duration(d.rnd.Int64N(int64(soon))))
}

// against says what went out against an order that was answered, if anything did.
func (d *drill) against(ctx context.Context, o *order, answered time.Time, met func(*simulator.Copy) bool) error {
	for id, copies := range d.copiesSince(answered, met) {
		for _, c := range copies {
			if c.At.After(answered.Add(orderedLate)) {
				return fmt.Errorf("%s: log %s went out through %s %s after the answer", o.name, id, c.Account, c.At.Sub(answered))
			}
		}
		if o.clocksOff {
			continue
		}
		story, err := d.timeline(ctx, id)
		if err != nil {
			return err
		}
		if called, _ := lastCall(story); called == nil || called.At.After(answered) {
			return fmt.Errorf("%s: a call for log %s began after the answer: %+v", o.name, id, called)
		}
	}
	return nil
}

// copiesSince lists the copies after a moment of the mail that an order meets.
func (d *drill) copiesSince(after time.Time, met func(*simulator.Copy) bool) map[models.ID][]simulator.Copy {
	out := map[models.ID][]simulator.Copy{}
	d.sim.EachCopy(func(id string, _ map[string]int) {
		for _, c := range d.sim.Copies(id) {
			if log, err := models.ParseLogID(id); err == nil && c.At.After(after) && met(&c) {
				out[log] = append(out[log], c)
			}
		}
	})
	return out
}

// sent counts the copies of a batch's mails that came after a moment.
func (d *drill) sent(batch models.ID, after time.Time) (n int) {
	d.sim.EachCopy(func(id string, _ map[string]int) {
		if !isOf(id, batch) {
			return
		}
		for _, c := range d.sim.Copies(id) {
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

// stop stops a batch, and resumes it.
func (d *drill) stop() *order {
	var said struct {
		InFlight *int `json:"in_flight"`
	}
	post := func(verb string, out any) func(context.Context, models.ID) error {
		return func(ctx context.Context, id models.ID) error {
			return d.ask(ctx, http.MethodPost, "/v1/batches/"+id.String()+"/"+verb, `{"why":"drill"}`, out)
		}
	}
	o := &order{name: "stop", mails: orderedSize, waits: true, answers: orderedAnswer, give: post("stop", &said), lift: post("resume", nil)}
	o.meets = func(of models.ID, c *simulator.Copy) bool { return isOf(c.ID, of) }
	o.afterwards = func(ctx context.Context, g *given) error { return d.toldInFlight(ctx, o, g, said.InFlight) }
	return o
}

// stopSlow is stop while calls take long.
func (d *drill) stopSlow() *order {
	o := d.stop()
	o.answers, o.mails = orderedSlow, orderedMore
	return o
}

// halt is stop where clocks are off.
func (d *drill) halt(ctx context.Context) error {
	o := d.stop()
	o.answers, o.clocksOff, o.afterwards = drillLatency, true, nil
	return d.obeyed(ctx, o)
}

// toldInFlight holds what the answer to a stop said to be in flight against the
// copies: all that came before it and were not answered, or after it. Beside them
// only calls can be meant whose answers were being written down, or which were not
// made in the end.
func (d *drill) toldInFlight(ctx context.Context, o *order, g *given, told *int) error {
	if told == nil {
		return errors.New("stop: it is not told how much is in flight")
	}
	since := func(before time.Duration) int { return d.sent(g.of.id, g.answered.Add(-before)) }
	least, most, late := since(min(o.answers, g.answered.Sub(g.slowed))), since(o.answers+time.Second), since(0)
	logs, err := d.logs(ctx, g.of.id)
	if err != nil {
		return err
	}
	for i := range logs {
		if logs[i].Attempts > 0 && len(d.sim.Copies(logs[i].ID.String())) == 0 {
			most++
		}
	}
	d.say("stop: %d told to be in flight; %d were unanswered, %d of %d came later", *told, least, late, most)
	if *told < least || *told > most {
		return fmt.Errorf("stop: %d told to be in flight; %d were unanswered, %d came later, and %d are all that can be meant", *told, least, late, most)
	}
	if o.answers == orderedSlow && least == 0 {
		return errNoneInFlight
	}
	return nil
}

// pause pauses the user.
func (d *drill) pause() *order {
	post := func(verb string) func(context.Context, models.ID) error {
		return func(ctx context.Context, _ models.ID) error {
			return d.ask(ctx, http.MethodPost, "/v1/users/"+d.user.ID+"/"+verb, `{"why":"drill"}`, nil)
		}
	}
	return &order{name: "pause", mails: orderedSize, waits: true, answers: orderedAnswer, give: post("pause"), lift: post("resume"), meets: func(models.ID, *simulator.Copy) bool { return true }}
}

// offline takes a provider offline, and online again.
func (d *drill) offline(provider string) *order {
	post := func(verb string) func(context.Context, models.ID) error {
		return func(ctx context.Context, _ models.ID) error {
			return d.ask(ctx, http.MethodPost, "/v1/providers/"+provider+"/"+verb, `{"why":"drill"}`, nil)
		}
	}
	return &order{name: provider + " offline", mails: orderedSize, answers: orderedAnswer, give: post("offline"), lift: post("online"), others: true,
		meets: func(_ models.ID, c *simulator.Copy) bool { return c.Account == provider }}
}

// block blocks a domain of recipients.
func (d *drill) block() *order {
	var rule struct {
		ID string `json:"id"`
	}
	return &order{name: "block", mails: orderedSize, waits: true, others: true, answers: orderedAnswer,
		meets: func(_ models.ID, c *simulator.Copy) bool { return strings.HasSuffix(c.Address, "@"+orderedDomain) },
		give: func(ctx context.Context, _ models.ID) error {
			return d.ask(ctx, http.MethodPost, "/v1/blocks", `{"domain":"`+orderedDomain+`","why":"drill"}`, &rule)
		},
		lift: func(ctx context.Context, _ models.ID) error {
			return d.ask(ctx, http.MethodDelete, "/v1/blocks/"+rule.ID, "", nil)
		}}
}

// ask gives an order, and reads what is answered.
func (d *drill) ask(ctx context.Context, method, path, body string, out any) error {
	r, err := http.NewRequestWithContext(ctx, method, d.client.base+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+d.client.key)
	r.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode >= 300 {
		return fmt.Errorf("%s %s answered %d: %s", method, path, resp.StatusCode, text)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(text, out)
}
