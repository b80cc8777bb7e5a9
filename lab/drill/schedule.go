package drill

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/models"
)

// scheduledInTime posts batches that are due within seconds, a third of whose recipients have a time of their own, when
// earlier mail is delivered. Nothing breaks.
func scheduledInTime(ctx context.Context, d *drill) error {
	if err := d.settled(ctx); err != nil {
		return err
	}
	d.broken()
	d.healed()
	at := time.Now().Add(3 * time.Second).Truncate(time.Millisecond)
	if err := d.schedule.post(ctx, at.Add(1700*time.Millisecond), at, at.Add(time.Second)); err != nil {
		return err
	}
	return d.schedule.awaitLeft(ctx)
}

// scheduledThroughOutage posts batches for a few seconds later, a third of whose recipients have a time of their own,
// and breaks the first provider over that time. Meanwhile it moves some of them, to earlier and to later. No mail may leave
// before its time.
func scheduledThroughOutage(ctx context.Context, d *drill) error {
	at := time.Now().Add(6 * time.Second).Truncate(time.Millisecond)
	later := at.Add(4 * time.Second)
	if err := d.schedule.post(ctx, later, at, at, at, at.AddDate(0, 0, 1)); err != nil {
		return err
	}
	id := d.sim.Inject(simulator.Fault{
		Account: d.sim.pair[0].Name, Mode: simulator.ModeStatus, Status: http.StatusServiceUnavailable,
	})
	d.broken()
	for i, to := range map[int]time.Time{1: later, 3: at} {
		if err := d.schedule.move(ctx, &d.schedule.due[i], to); err != nil {
			return err
		}
	}
	err := d.schedule.awaitLeft(ctx)
	d.sim.Clear(id)
	d.healed()
	return err
}

// scheduledThrough posts a batch for a few seconds later, a third of whose recipients have a time of their own, and
// injects a fault over that time. No mail may leave before its time.
func scheduledThrough(inject func(ctx context.Context, d *drill) error) func(ctx context.Context, d *drill) error {
	return func(ctx context.Context, d *drill) error {
		at := time.Now().Add(3 * time.Second).Truncate(time.Millisecond)
		err := d.schedule.post(ctx, at.Add(time.Second), at)
		if err == nil {
			err = inject(ctx, d)
		}
		if err != nil {
			return err
		}
		return d.schedule.awaitLeft(ctx)
	}
}

// schedule is mail that may not leave before its times.
type schedule struct {
	user  *account
	mail  *traffic
	sim   *providers
	res   *Result
	due   []scheduledMail
	own   time.Time            // of the recipients with a time of their own
	times map[string]time.Time // of what was due, by log
}

// scheduledMail is a batch that may not leave before a time.
type scheduledMail struct {
	posted
	at  time.Time
	own int // its last recipients, who have a time of their own
}

// logs returns the logs of the recipients with the time of the batch, and of those with a time of their own.
func (b *scheduledMail) logs() (batch, own []string) {
	const size = models.MaxChunkRecipients
	first := b.n - b.own
	for i := range first {
		batch = append(batch, b.id.Chunk(i/size).Log(i%size+1).String())
	}
	for i := range b.own {
		own = append(own, b.id.Chunk((first+size-1)/size+i/size).Log(i%size+1).String())
	}
	return batch, own
}

// awaitLeft waits until mail of all batches has left, also to recipients with a time of their own, and notes what left
// before its time.
func (s *schedule) awaitLeft(ctx context.Context) error {
	left := func(log string) bool { return len(s.sim.copiesOf(log)) > 0 }
	err := poll(ctx, s.mail.bound(patience), "scheduled mail has gone out", func() (bool, error) {
		for _, b := range s.due {
			got, err := s.user.batch(ctx, b.id)
			_, own := b.logs()
			if err != nil || got.Counts.Delivered == 0 || !slices.ContainsFunc(own, left) {
				return false, err
			}
		}
		return true, nil
	})
	for _, b := range s.due {
		logs, own := b.logs()
		s.checkLeft(logs, b.at)
		s.checkLeft(own, s.own)
	}
	return err
}

// checkLeft notes the mail of logs that left before a time.
func (s *schedule) checkLeft(logs []string, at time.Time) {
	for _, log := range logs {
		s.times[log] = at
		for _, c := range s.sim.copiesOf(log) {
			if c.At.Before(at) {
				s.res.wrong("scheduled mail left %s too early", at.Sub(c.At))
			}
		}
	}
}

// post posts a batch for each of some times. The last third of its recipients have a time of their own.
func (s *schedule) post(ctx context.Context, own time.Time, times ...time.Time) error {
	s.own = own
	for _, at := range times {
		batch := s.mail.newBatch(s.mail.recipients / 10)
		batch.DeliverAt = at
		n := len(batch.To) / 3
		for i := range n {
			batch.To[len(batch.To)-1-i].DeliverAt = own
		}
		b, err := s.mail.accept(ctx, s.user, batch)
		if err != nil {
			return err
		}
		s.due = append(s.due, scheduledMail{b, at, n})
	}
	return nil
}

// move changes the time of a batch. If it has begun, it keeps its time.
func (s *schedule) move(ctx context.Context, b *scheduledMail, to time.Time) error {
	_, err := s.user.client.RescheduleBatch(ctx, b.id.String(), client.Reschedule{DeliverAt: to, Why: "a drill"})
	var refused *client.Error
	if errors.As(err, &refused) && refused.Code == "batch_begun" && b.at.Before(to) {
		return nil
	}
	if err == nil {
		b.at = to
	}
	return err
}

// measure adds the lateness of all scheduled mail to the result: from its time until its first copy was accepted. It
// judges nothing, because that depends on the machine.
func (s *schedule) measure() {
	var late []time.Duration
	for log, at := range s.times {
		copies := s.sim.copiesOf(log)
		if at.IsZero() || len(copies) == 0 {
			continue
		}
		first := slices.MinFunc(copies, func(a, b simulator.Copy) int { return a.At.Compare(b.At) })
		late = append(late, max(0, first.At.Sub(at)))
	}
	if len(late) > 0 {
		slices.Sort(late)
		s.res.Late = round(late[(len(late)-1)*99/100])
	}
}
