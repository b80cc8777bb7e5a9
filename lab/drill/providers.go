package drill

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/lab/simulated"
	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/models"
)

// providers are the simulated ones, and know which mail they got.
type providers struct {
	*simulator.Simulator
	pair       simulated.Pair
	url        string
	victim     *victim                    // between the worker that is killed or frozen and the providers
	isEnvelope func(batch models.ID) bool // whether a batch is one mail to several addresses
	large      []string                   // IDs of faults that refuse large calls
}

// start starts the providers. They post to addresses that begin with hooks, and their time is scale times as fast. The
// function that it returns stops them.
func (p *providers) start(ctx context.Context, hooks string, scale float64, seed uint64) (stop func(), err error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p.Simulator = simulator.New(simulator.Options{
		RecipientKey: simulated.RecipientKey,
		KeepContent:  true, // for the links to unsubscribe
		TimeScale:    scale,
		EventDelay:   100 * time.Millisecond,
		Latency:      latency,
		Seed:         seed,
	})
	if err := p.pair.Open(ctx, p.Simulator, hooks); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	p.url, p.victim = "http://"+l.Addr().String(), &victim{providers: p.Simulator}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var serving sync.WaitGroup
	serving.Go(func() { _ = simulated.Serve(ctx, l, p.victim, p.Close) }) // calls fail without it, and so does the drill
	return func() {
		cancel()
		serving.Wait()
	}, nil
}

// taken returns how many mails a provider has accepted; all of them for "".
func (p *providers) taken(provider string) int64 { return p.Stats(provider).Accepted }

// copiesOf returns the copies of a mail: those of its log, and that of one mail to several.
func (p *providers) copiesOf(log string) []simulator.Copy {
	out := p.Copies(log)
	id, err := models.ParseLogID(log)
	if n := id.Recipient(); err == nil && p.isEnvelope(id.Batch()) {
		for first := range min(inTo, n-1) { // the mail has the log of the first address that got it
			out = append(out, p.Copies(id.ChunkID().Log(1+first).String()+"/"+sharing(n))...)
		}
	}
	return out
}

// outcomeOf returns the outcome of the copies of a mail.
func (p *providers) outcomeOf(log string) (o outcome) {
	for _, c := range p.copiesOf(log) {
		final := o.final
		if o.add(c, p.pair.LooksUp(c.Account)); p.pair.Silent(c.Account) {
			o.final = final // only the answer says it
		}
	}
	return o
}

// callsBefore describes the calls in the second before an answer, by the provider's own log.
func (p *providers) callsBefore(answer *client.Moment) (text string) {
	if answer == nil {
		return "; there is no answer"
	}
	for _, c := range p.CallLog(answer.Provider) {
		if ago := answer.At.Sub(c.At); ago >= 0 && ago < time.Second {
			text += fmt.Sprintf("; %s before, in %s: %d recipients, %d %s", ago, c.Took, c.Recipients, c.Status, c.Fault)
		}
	}
	return text
}

// metFault finds the call with an answer in the provider's own log, and returns the mode of the fault that answered it;
// "" if there is none.
func (p *providers) metFault(answer *client.Moment) string {
	began := answer.At.Add(-time.Duration(answer.TookMS * float64(time.Millisecond)))
	for _, c := range p.CallLog(answer.Provider) {
		if c.Fault != "" && c.Status == answer.Status && !c.At.Before(began) && !c.At.After(answer.At) {
			return c.Fault
		}
	}
	return ""
}
