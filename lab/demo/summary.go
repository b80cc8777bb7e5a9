package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/service"
)

// Summary is the result of the demo. All fields except Accepted and Queued are counted from the simulated providers'
// copies, or compared with them.
type Summary struct {
	Accepted   int64    `json:"accepted"`
	Delivered  int64    `json:"delivered"`
	Failed     int64    `json:"failed"`     // bounced or suppressed
	Suppressed int64    `json:"suppressed"` // no provider got the message
	Queued     int64    `json:"queued"`
	Sent       int64    `json:"sent"` // accepted by a provider, without a report
	Rerouted   int64    `json:"rerouted"`
	Lost       int64    `json:"lost"`    // no provider has a copy
	Doubled    int64    `json:"doubled"` // more than one copy was delivered
	Again      int64    `json:"again"`   // copies that the receiver blocked, after which another provider got one
	Updates    int64    `json:"updates"` // of the batch, in the feed
	Posted     int64    `json:"posted"`  // updates that the application got and verified
	Posts      int64    `json:"posts"`   // in which it got them
	FailoverMS float64  `json:"failover_ms"`
	Seconds    float64  `json:"seconds"`
	Mistakes   []string `json:"mistakes,omitempty"` // sums that do not add up
}

func (s *Summary) good() bool { return s.Lost == 0 && s.Doubled == 0 && len(s.Mistakes) == 0 }

func (s *Summary) wrong(format string, args ...any) {
	s.Mistakes = append(s.Mistakes, fmt.Sprintf(format, args...))
}

// balanced reports whether the states of a batch or a day add up.
func balanced(c *client.Counts) bool {
	return c.Accepted == c.Queued+c.Sent+c.Delivered+c.Failed+c.Cancelled
}

// summary counts the copies at the providers and compares them with what the API says.
func (d *demo) summary(ctx context.Context) (Summary, error) {
	s := Summary{Seconds: d.seconds()}
	if err := d.sim.Settle(ctx); err != nil {
		return s, err
	}
	b, err := d.client.Batch(ctx, d.batch.String())
	if err != nil {
		return s, err
	}
	s.Accepted, s.Failed, s.Queued, s.Sent = b.Counts.Accepted, b.Counts.Failed, b.Counts.Queued, b.Counts.Sent
	s.Rerouted = b.Counts.Rerouted
	n := d.countCopies()
	s.Delivered = n.deliveredOnce + n.deliveredMore
	s.Doubled = n.deliveredMore
	s.Suppressed = d.suppressed
	s.Lost = int64(d.o.Recipients) - n.distinct - s.Suppressed
	if s.Accepted != int64(d.o.Recipients) {
		s.wrong("accepted %d of %d", s.Accepted, d.o.Recipients)
	}
	if !balanced(&b.Counts) {
		s.wrong("the batch's counts do not add up: %+v", b.Counts)
	}
	if b.Counts.Delivered != s.Delivered {
		s.wrong("delivered %d, delivered at the providers %d", b.Counts.Delivered, s.Delivered)
	}
	if b.Counts.Failed != n.bounced+s.Suppressed {
		s.wrong("failed %d, bounced at the providers %d, suppressed %d", b.Counts.Failed, n.bounced, s.Suppressed)
	}
	if n := d.sim.Copies(d.batch.Log(complained + 1).String()); s.Suppressed == 0 || len(n) > 0 {
		s.wrong("suppressed %d; the providers have %d copies of the message to %s", s.Suppressed, len(n),
			d.address(complained))
	}
	if err := d.compareStats(ctx, &s, &b.Counts); err != nil {
		return s, err
	}
	if err := d.compareUpdates(ctx, &s, &b.Counts); err != nil {
		return s, err
	}
	failover, err := d.failover(ctx)
	if err != nil {
		return s, err
	}
	s.FailoverMS = float64(failover.Microseconds()) / 1000
	s.Again = d.sim.Stats("").Accepted - n.distinct
	return s, nil
}

// copyCounts are numbers of messages.
type copyCounts struct {
	distinct                     int64
	deliveredOnce, deliveredMore int64
	bounced                      int64
}

// countCopies reads every copy that the simulated providers keep.
func (d *demo) countCopies() (n copyCounts) {
	var ids []string
	d.sim.EachCopy(func(id string, _ map[string]int) { ids = append(ids, id) })
	for _, id := range ids {
		delivered, bounced := 0, 0
		for _, c := range d.sim.Copies(id) {
			switch c.Outcome {
			case "deliver":
				delivered++
			case "hardbounce":
				bounced++
			}
		}
		n.distinct++
		switch {
		case delivered > 1:
			n.deliveredMore++
		case delivered == 1:
			n.deliveredOnce++
		case bounced > 0:
			n.bounced++
		}
	}
	return n
}

// compareStats waits until every summary is up to date and compares the day's stats with the batch.
func (d *demo) compareStats(ctx context.Context, s *Summary, batch *client.Counts) error {
	engine := d.app.Engine()
	for end := time.Now().Add(10 * time.Second); engine.Pending() > 0 && time.Now().Before(end); {
		if err := engine.Flush(ctx); err != nil {
			return err
		}
	}
	day := d.batch.Time().UTC().Format(time.DateOnly)
	stats, err := d.client.GetStats(ctx, day, day, "", "")
	if err != nil {
		return err
	}
	t := &stats.Totals
	same := t.Accepted == batch.Accepted && t.Delivered == batch.Delivered && t.Failed == batch.Failed
	if !same || !balanced(t) {
		s.wrong("the day's stats %+v differ from the batch %+v", *t, *batch)
	}
	return nil
}

// failover returns the time of the failover as the page of the batch shows it. It lasts from the beginning of the first
// provider's first failed call to that of the first call for one of its messages through another. 0: no message was
// rerouted.
func (d *demo) failover(ctx context.Context) (time.Duration, error) {
	who := service.Caller{User: login.LocalUser().ID}
	f, err := d.app.Service().Mail.Flow(ctx, who, d.batch.String())
	for i := range f.Outages {
		if o := &f.Outages[i]; o.Provider == d.first() && o.Rerouted > 0 {
			return o.Failover, nil
		}
	}
	return 0, err
}

func (d *demo) print(s *Summary) {
	first, second := d.sim.Stats(d.first()), d.sim.Stats(d.second())
	d.say("\nCounted from the providers' own copies after %.1f s:", s.Seconds)
	d.say("  accepted   %8d", s.Accepted)
	d.say("  delivered  %8d   %s and %s refused %d and %d calls, and accepted %d + %d = %d messages:",
		s.Delivered, d.first(), d.second(), first.Refused, second.Refused, first.Accepted, second.Accepted,
		first.Accepted+second.Accepted)
	d.say("                        %d of them were blocked by the receiver and tried again through the other", s.Again)
	d.say("  bounced    %8d   (hard bounces are not sent again)", s.Failed-s.Suppressed)
	d.say("  suppressed %8d   (no provider got the message)", s.Suppressed)
	d.say("  rerouted   %8d", s.Rerouted)
	d.say("  queued     %8d", s.Queued)
	d.say("  sent       %8d   (without a report)", s.Sent)
	d.say("  lost       %8d", s.Lost)
	d.say("  doubled    %8d", s.Doubled)
	d.say("  failover   %8.0f ms from %s's first failed call to the first of its messages sent to %s",
		s.FailoverMS, d.o.Providers[0].Title, d.o.Providers[1].Title)
	d.say(
		"  updates    %8d   read from the feed to its end; an application got all of them in %d signed posts",
		s.Updates,
		s.Posts,
	)
	if len(s.Mistakes) == 0 {
		d.say("  sums       add up: batch, day and copies agree")
	}
	for _, m := range s.Mistakes {
		d.say("  WRONG      %s", m)
	}
}

// printHints prints commands that can be pasted into bash and zsh.
func (d *demo) printHints() {
	d.say("\nStill running. Paste these into another terminal:")
	auth := " -H " + quoted("Authorization: Bearer "+d.key)
	hint := func(what, command string) { d.say("\n%s\n  %s", what, command) }
	get := func(what, path string) { hint(what, `curl -s -w '\n' `+quoted(d.client.URL(path))+auth) }
	get("The batch:", "/v1/batches/"+d.batch.String())
	first := d.o.Providers[0].Title
	get("The story of one recipient, whose mail "+first+" could not deliver:", "/v1/logs/"+d.batch.Log(26).String())
	get("The recipients whose mail failed:", "/v1/batches/"+d.batch.String()+"/logs?state=failed")
	get("What changed, in order, from the feed of updates:", "/v1/updates?limit=3&batch="+d.batch.String())
	get("The health of the providers:", "/v1/providers")
	hint("Send one message yourself:", `curl -s -w '\n' `+quoted(d.client.URL("/v1/batches"))+auth+
		` -d from=me@demo.test -d 'subject=Hi {{name}}' -d 'text=It works.' -d 'to=Ann <ann@demo.test>'`)
	fault, _ := json.Marshal(simulator.Fault{Account: d.first(), Mode: "status:503"}) // texts: never an error
	hint("Break "+first+": it answers 503 to everything.",
		"curl -s -w '\\n' "+quoted(d.simURL+"/control/faults")+" -d "+quoted(string(fault)))
	hint("Send 3,000 messages, and watch them on the page Batches:",
		`curl -s -w '\n' `+quoted(d.client.URL("/v1/batches"))+auth+` -d from=me@demo.test -d subject=Hello -d text=Hello `+
			`-d "to=$(printf 'user%s@demo.test,' $(seq 3000))last@demo.test"`)
	hint("Heal "+first+":", "curl -s -w '\\n' -X DELETE "+quoted(d.simURL+"/control/faults?account="+d.first()))
	d.say("\nAddresses at demo.test decide about the mail: hardbounce@ bounces, softbounce@ is deferred\n"+
		"first, mailboxfull@ is full, blocked@ is blocked by the receiver, blocked-%[1]s@ only through %[1]s,\n"+
		"complain@ is marked as spam, expire@ is never delivered. hardbounce+7@ is another one of the same kind.", d.first())
	hint("Log in again:", "SAFEDELIVR_DATA_DIR="+quoted(d.o.Dir)+" "+program()+" login")
	d.say("\nCtrl-C ends it.")
}

// quoted returns a text as one word of a shell.
func quoted(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// program returns how to run this program in a shell.
func program() string {
	if _, err := exec.LookPath("safedelivr"); err == nil {
		return "safedelivr"
	}
	path, err := os.Executable()
	if err != nil {
		return "safedelivr"
	}
	return quoted(path)
}
