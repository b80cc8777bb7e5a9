package drill

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/client"
)

const (
	messagesChanged = 200 // by ids of the client's own
	messageRounds   = 5   // how often they are changed
	messageSubject  = "Version "
)

// messagesThroughKills creates, changes and cancels messages by ids while the server that takes the request is killed,
// and each second time the worker, too. Each request is repeated until it is answered. The messages are due at several
// times meanwhile, so that some are changed in time and some too late.
func messagesThroughKills(ctx context.Context, d *drill) error {
	d.broken()
	d.versions = make([]string, messagesChanged)
	began := time.Now().Truncate(time.Millisecond)
	for round := range messageRounds {
		changes := d.messageChanges(round, began)
		cut, stop := context.WithTimeout(ctx, acceptTime)
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			_, _ = d.user.client.PutMessages(cut, slices.Values(changes)) // it is cut off
		}()
		select {
		case <-time.After(time.Duration(d.rnd.Int64N(int64(300 * time.Millisecond)))):
		case <-answered:
		}
		err := d.servers.killReceiving(ctx, round%2 == 1)
		<-answered
		stop()
		if err != nil {
			return err
		}
		if err := d.putMessages(ctx, changes, fmt.Sprint(messageSubject, round)); err != nil {
			return err
		}
	}
	err := d.mail.add(ctx, d.user, messageSubject)
	d.healed()
	d.say("of %d changes of messages %d were too late", d.changed, d.tooLate)
	return err
}

// messageDue are the times at which messages are due in turn.
var messageDue = []time.Duration{time.Second, 2500 * time.Millisecond, 5 * time.Second, 9 * time.Second}

// messageChanges returns the records of a round: new messages at first, then changes and some cancellations.
func (*drill) messageChanges(round int, began time.Time) (out []client.MessageChange) {
	for i := range messagesChanged {
		c := client.MessageChange{
			ID:        fmt.Sprint("message-", i),
			Action:    client.UpdateMessage,
			From:      "Rehearsal <" + from + ">",
			To:        fmt.Sprintf("message%d@messages.test", i),
			Subject:   fmt.Sprint(messageSubject, round),
			Text:      "Nothing to do.",
			Tags:      []string{drillTag},
			DeliverAt: began.Add(messageDue[i%len(messageDue)]),
		}
		switch {
		case round == 0:
			c.Action = client.NewMessage
		case (i+round)%5 == 0:
			c = client.MessageChange{ID: c.ID, Action: client.CancelMessage}
		}
		out = append(out, c)
	}
	return out
}

// putMessages repeats a request until it is answered, and notes the version of each message that was answered.
func (d *drill) putMessages(ctx context.Context, changes []client.MessageChange, version string) error {
	var results []client.ChangeResult
	err := poll(ctx, d.mail.bound(patience), "changes of messages are answered", func() (bool, error) {
		within, cancel := context.WithTimeout(ctx, acceptTime)
		defer cancel()
		answered, err := d.user.client.PutMessages(within, slices.Values(changes))
		results = answered
		return err == nil, ctx.Err()
	})
	d.changed += len(results)
	for i, r := range results {
		switch {
		case r.Status == "rejected" && slices.Contains([]string{"in_flight", "already_delivered", "already_failed"}, r.Code):
			d.tooLate++
		case r.Status == "rejected":
			d.res.wrong("the change of message %s was rejected: %s %s", r.ID, r.Code, r.Detail)
		case changes[i].Action == client.CancelMessage:
			d.versions[i] = ""
		default:
			d.versions[i] = version
		}
	}
	return err
}

// countMessages compares each message with the version that was answered last: it was sent once, or is held because the
// outcome is unknown, or was cancelled and not sent. No other version was sent.
func (d *drill) countMessages(ctx context.Context) error {
	for i, want := range d.versions {
		m, err := d.user.client.Message(ctx, fmt.Sprint("message-", i))
		if err != nil {
			return err
		}
		d.noteLateness(m.Log.ID, m.Log.DeliverAt)
		sent := 0
		for _, v := range m.History {
			sent += len(d.sim.copiesOf(v.Log))
		}
		cancelled := m.Log.State == client.Cancelled
		switch now := m.Log; {
		case sent > 1:
			d.res.wrong("message %s was sent %d times", m.ID, sent)
		case want == "" && (sent > 0 || !cancelled):
			d.res.wrong("message %s was answered as cancelled, is %s and was sent %d times", m.ID, now.State, sent)
		case want != "" && (m.Log.Subject != want || cancelled):
			d.res.wrong("message %s is %s %q, and %q was answered", m.ID, now.State, m.Log.Subject, want)
		case want != "" && sent == 0 && !held(&now):
			d.res.wrong("message %s is %s %s, and was never sent", m.ID, now.State, now.Reason)
		}
	}
	return nil
}
