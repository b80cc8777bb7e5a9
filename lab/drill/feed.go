package drill

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/lab/receiver"
)

// published is the part of an update that is compared.
type published struct {
	log      string // or the batch that is done, or the ID of an addition to the suppression list
	number   int
	state    client.State
	event    string
	provider string // of an event
	reason   string
	at       time.Time
	added    client.AddedSuppression // if the update is about that
}

func updateOf(u *client.Update) published {
	t := published{log: receiver.Named(u).About, number: u.Number, state: u.State, event: u.Event, reason: u.Reason, at: u.At}
	if u.Event != "" {
		t.provider = u.Provider
	}
	if u.Suppression != nil {
		t.added = *u.Suppression
	}
	return t
}

// everything asks for all types of updates.
var everything = client.UpdateOptions{Events: append(slices.Clone(receiver.Types), client.SuppressionAdded)}

// feeds are the feeds of updates. While things break, a client reads that of the user, and all updates are posted.
type feeds struct {
	user, other  *account
	mail         *traffic
	suppressions *suppressions
	res          *Result

	receiver  *receiver.Receiver // to which every update of the user is posted
	everyone  *receiver.Receiver // to which those of all users are posted
	cancel    context.CancelFunc // of the client
	following sync.WaitGroup
	read      []published // by the client
}

// start starts an application that gets the updates of the user, one that gets those of all users, and the client.
func (f *feeds) start(ctx context.Context) (err error) {
	s := client.EndpointSettings{Events: everything.Events, Batch: true}
	if f.receiver, err = receiver.Start(ctx, f.user.client, s); err != nil {
		return err
	}
	s.Everyone = true
	if f.everyone, err = receiver.Start(ctx, f.user.client, s, client.OfInstallation()); err != nil {
		return err
	}
	ctx, f.cancel = context.WithCancel(ctx)
	f.following.Go(func() { f.follow(ctx) })
	return nil
}

// stop stops what has started.
func (f *feeds) stop() {
	if f.cancel != nil {
		f.cancel()
		f.following.Wait()
	}
	for _, r := range []*receiver.Receiver{f.receiver, f.everyone} {
		if r != nil {
			r.Close()
		}
	}
}

// follow reads the feed. After an error, as while the API is away, it goes on where it stopped.
func (f *feeds) follow(ctx context.Context) {
	o := everything
	o.Wait, o.PageSize = 5*time.Second, 200
	updates := f.user.client.Updates(o)
	for ctx.Err() == nil {
		for u, err := range updates.All(ctx) {
			if err != nil {
				break
			}
			f.read = append(f.read, updateOf(&u))
		}
		_ = pause(ctx, 200*time.Millisecond) // an error ends the loop
	}
}

// count compares the feeds of updates with the states of the mail, with what the client has read, and with what
// was posted.
func (f *feeds) count(ctx context.Context) error {
	all, err := f.countFeed(ctx, f.user)
	if err != nil {
		return err
	}
	others, err := f.countFeed(ctx, f.other)
	if err != nil {
		return err
	}
	f.cancel()
	f.following.Wait()
	if n := len(f.read); n > len(all) || !slices.Equal(f.read, all[:n]) {
		f.res.wrong("a client that followed the feed has read %d updates, which are not the first of %d", n, len(all))
	}
	if err := f.countPosts(ctx, "the user", f.receiver, statesOf("", all)); err != nil {
		return err
	}
	everyones := statesOf(f.user.ID, all)
	maps.Copy(everyones, statesOf(f.other.ID, others))
	if err := f.countPosts(ctx, "all users", f.everyone, everyones); err != nil {
		return err
	}
	// The servers of the next drill would post to it.
	if err := f.user.client.RemoveEndpoint(ctx, f.everyone.Endpoint(), client.OfInstallation()); err != nil {
		return err
	}
	return f.countRanges(ctx, all)
}

// countFeed reads the feed of a user to its end, and compares it with the logs and the suppression list.
func (f *feeds) countFeed(ctx context.Context, a *account) (all []published, err error) {
	updates := a.client.Updates(everything)
	newest := map[bool]map[string]published{false: {}, true: {}} // by log, of events and others apart
	events := map[string][]published{}
	var added []client.AddedSuppression
	why := ""
	err = poll(ctx, f.mail.bound(patience), "the feed agrees with the logs", func() (_ bool, err error) {
		for u, err := range updates.All(ctx) {
			if err != nil {
				return false, err
			}
			now := updateOf(&u)
			all = append(all, now)
			if u.Suppression != nil {
				added = append(added, now.added)
				continue
			}
			of := newest[u.Event != ""]
			if why := follows(of[now.log], &u); why != "" {
				f.res.wrong("update %d of log %s %s", u.Number, now.log, why)
			}
			if of[now.log] = now; u.Event != "" {
				events[now.log] = append(events[now.log], now)
			}
		}
		if why, err = f.suppressions.differ(ctx, a.client, added); why != "" || err != nil {
			return false, err
		}
		for i, l := range a.logged {
			why = f.differs(ctx, &l, newest[false][l.log])
			if why == "" && i%20 == 0 {
				why, err = f.otherEvents(ctx, l.log, events[l.log])
			}
			if why != "" || err != nil {
				break
			}
		}
		return why == "", err
	})
	if why != "" && ctx.Err() == nil {
		f.res.wrong("the feed of updates: %s", why)
		err = nil
	}
	return all, err
}

// statesOf returns the states in updates. The names of the updates have a user.
func statesOf(user string, all []published) map[receiver.Update]client.State {
	states := map[receiver.Update]client.State{}
	for i := range all {
		u := &all[i]
		states[receiver.Update{User: user, About: u.log, Event: u.event, Number: u.number}] = u.state
	}
	return states
}

// countPosts waits until all updates were posted to an endpoint.
func (f *feeds) countPosts(
	ctx context.Context, whose string, r *receiver.Receiver, states map[receiver.Update]client.State,
) error {
	err := poll(ctx, f.mail.bound(patience), "every update of "+whose+" is posted", func() (bool, error) {
		return r.Missing(states) == 0, nil
	})
	n := r.Counts()
	if n.Refused > 0 {
		f.res.wrong("%d of %d posts were not verified", n.Refused, n.Posts+n.Refused)
	}
	if missing := r.Missing(states); err != nil && ctx.Err() == nil {
		f.res.wrong("%d of %d updates of %s were not posted", missing, len(states), whose)
		err = nil
	}
	return err
}

// follows says why an update may not follow on the one before of its log; "" if it may.
func follows(before published, u *client.Update) string {
	switch {
	case u.Number != before.number+1:
		return fmt.Sprintf("follows update %d", before.number)
	case u.At.Before(before.at):
		return "is older than the one before"
	}
	return ""
}

// differs says how the newest update of a log differs from the log; "" if it does not. The log may have changed since
// it was counted.
func (f *feeds) differs(ctx context.Context, l *published, newest published) string {
	if newest.state == l.state && newest.reason == l.reason {
		return ""
	}
	now, err := f.user.client.Log(ctx, l.log)
	switch {
	case err != nil:
		return err.Error()
	case newest.state == now.State && newest.reason == now.Reason:
		return ""
	}
	return fmt.Sprintf("log %s is %s %s, and its update %d says %s %s", l.log, now.State, now.Reason, newest.number,
		newest.state, newest.reason)
}

// otherEvents says how the events of a log in the feed differ from those in its timeline; "" if they do not.
func (f *feeds) otherEvents(ctx context.Context, log string, happened []published) (string, error) {
	story, err := f.user.timeline(ctx, log)
	if err != nil {
		return "", err
	}
	counted := map[[2]string]int{}
	for _, m := range story {
		if m.What != "event" {
			continue
		}
		switch m.Event {
		case "bounced", "dropped", "blocked", "rejected":
			counted[[2]string{"bounced", m.Provider}] = 1
		case "deferred", "complained", "unsubscribed", "opened", "clicked":
			counted[[2]string{m.Event, m.Provider}] = 1
		}
	}
	inFeed := map[[2]string]int{}
	for _, t := range happened {
		inFeed[[2]string{t.event, t.provider}]++
	}
	if !maps.Equal(counted, inFeed) {
		return fmt.Sprintf("log %s has the events %v, and its updates are %v", log, counted, inFeed), nil
	}
	return "", nil
}

// countRanges reads the feed in ranges of time that touch.
func (f *feeds) countRanges(ctx context.Context, all []published) error {
	if len(all) == 0 {
		return nil
	}
	var read []published
	from := time.Time{}
	for _, to := range []time.Time{all[len(all)/3].at, all[len(all)/2].at, all[len(all)-1].at.Add(time.Microsecond)} {
		o := everything
		o.From, o.To = from, to
		part := f.user.client.Updates(o)
		for u, err := range part.All(ctx) {
			if err != nil {
				return err
			}
			read = append(read, updateOf(&u))
		}
		if part.Complete().Before(to) {
			f.res.wrong("the updates before %s are complete only until %s", to, part.Complete())
		}
		from = to
	}
	if !slices.Equal(read, all) {
		f.res.wrong("ranges of time that touch have %d updates, and the feed has %d", len(read), len(all))
	}
	return nil
}
