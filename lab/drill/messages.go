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
	m := d.messages
	m.versions = make([]string, messagesChanged)
	began := time.Now().Truncate(time.Millisecond)
	for round := range messageRounds {
		changes := messageChanges(round, began)
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
		if err := m.put(ctx, changes, fmt.Sprint(messageSubject, round)); err != nil {
			return err
		}
	}
	err := d.mail.add(ctx, d.user, messageSubject)
	d.healed()
	d.say("of %d changes of messages %d were too late", m.changed, m.tooLate)
	return err
}

// messages are those that the client created with ids of its own, and has changed since.
type messages struct {
	user     *account
	mail     *traffic
	sim      *providers
	schedule *schedule
	res      *Result

	versions         []string // of each message, the one that was answered last; empty: cancelled
	changed, tooLate int      // changes, and those that a provider had already
}

// messageDue are the times at which messages are due in turn.
var messageDue = []time.Duration{time.Second, 2500 * time.Millisecond, 5 * time.Second, 9 * time.Second}

// messageChanges returns the records of a round: new messages at first, then changes and some cancellations.
func messageChanges(round int, began time.Time) (out []client.MessageChange) {
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

// put repeats a request until it is answered, and notes the version of each message that was answered.
func (m *messages) put(ctx context.Context, changes []client.MessageChange, version string) error {
	var results []client.ChangeResult
	err := poll(ctx, m.mail.bound(patience), "changes of messages are answered", func() (_ bool, err error) {
		within, cancel := context.WithTimeout(ctx, acceptTime)
		defer cancel()
		results, err = m.user.client.PutMessages(within, slices.Values(changes))
		return err == nil, ctx.Err()
	})
	m.changed += len(results)
	for i, r := range results {
		switch {
		case r.Status == "rejected" && slices.Contains([]string{"in_flight", "already_delivered", "already_failed"}, r.Code):
			m.tooLate++
		case r.Status == "rejected":
			m.res.wrong("the change of message %s was rejected: %s %s", r.ID, r.Code, r.Detail)
		case changes[i].Action == client.CancelMessage:
			m.versions[i] = ""
		default:
			m.versions[i] = version
		}
	}
	return err
}

// count compares each message with the version that was answered last: it was sent once, or is held because the
// outcome is unknown, or was cancelled and not sent. No other version was sent.
func (m *messages) count(ctx context.Context) error {
	for i, want := range m.versions {
		shown, err := m.user.client.Message(ctx, fmt.Sprint("message-", i))
		if err != nil {
			return err
		}
		m.schedule.times[shown.Log.ID] = shown.Log.DeliverAt
		sent := 0
		for _, v := range shown.History {
			sent += len(m.sim.copiesOf(v.Log))
		}
		cancelled := shown.Log.State == client.Cancelled
		switch now := shown.Log; {
		case sent > 1:
			m.res.wrong("message %s was sent %d times", shown.ID, sent)
		case want == "" && (sent > 0 || !cancelled):
			m.res.wrong("message %s was answered as cancelled, is %s and was sent %d times", shown.ID, now.State, sent)
		case want != "" && (shown.Log.Subject != want || cancelled):
			m.res.wrong("message %s is %s %q, and %q was answered", shown.ID, now.State, shown.Log.Subject, want)
		case want != "" && sent == 0 && !held(&now):
			m.res.wrong("message %s is %s %s, and was never sent", shown.ID, now.State, now.Reason)
		}
	}
	return nil
}
