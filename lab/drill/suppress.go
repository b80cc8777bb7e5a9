package drill

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/models"
)

// The names of recipients who get no mail, or no more.
const (
	barred        = "barred"        // suppressed for the user before any mail is sent
	barredForAll  = "barredforall"  // the same for all users
	leaving       = "leaving"       // suppressed while mail is sent
	unsubscribing = "unsubscribing" // unsubscribes by the link in a mail
)

const (
	suppressible  = 1000                   // number of the recipients of a batch among which these are
	suppressEvery = 20                     // each name is that of one recipient among so many, the first of which are:
	barredAt      = 3                      // for the user and for all users in turn
	leavingAt     = 7                      // suppressed
	unsubscribeAt = 11                     // unsubscribes
	suppressPause = 200 * time.Millisecond // between two suppressions
	drillCategory = "drill"                // of all mail of a drill
)

// nameOf returns the name of recipient i of a batch.
func nameOf(i int) string {
	switch n := i % suppressEvery; {
	case i%100 == 50:
		return bouncing + "+"
	case i >= suppressible:
	case n == barredAt && i/suppressEvery%2 == 0:
		return barred + "+"
	case n == barredAt:
		return barredForAll + "+"
	case n == leavingAt:
		return leaving + "+"
	case n == unsubscribeAt:
		return unsubscribing + "+"
	}
	return "user"
}

// addressOf returns the address of recipient i of a batch, unless the batch has domains of its own.
func addressOf(i int) string { return fmt.Sprintf("%s%d@rehearse.test", nameOf(i), i) }

// suppressedAt returns when the answer came that an address is suppressed; zero: it is not.
func (d *drill) suppressedAt(email string) time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.suppressed[email]
}

// isSuppressed notes that addresses are suppressed since now.
func (d *drill) isSuppressed(emails ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	for _, email := range emails {
		d.suppressed[email] = now
	}
}

// suppressBefore suppresses addresses before any mail is sent.
func (d *drill) suppressBefore(ctx context.Context) error {
	var g errgroup.Group
	for name, options := range map[string][]client.CallOption{barred: nil, barredForAll: {client.Everyone()}} {
		var emails []string
		for i := range suppressible {
			if nameOf(i) == name+"+" {
				emails = append(emails, addressOf(i))
			}
		}
		g.Go(func() error {
			csv := strings.NewReader("email\n" + strings.Join(emails, "\n"))
			imported, err := d.user.client.ImportSuppressions(ctx, csv, options...)
			if err == nil && imported.Rejected > 0 {
				err = fmt.Errorf("suppressions were rejected: %v", imported.Errors)
			}
			d.isSuppressed(emails...)
			return err
		})
	}
	return g.Wait()
}

// suppressMeanwhile suppresses one address after the other, and lets another recipient unsubscribe, until there is
// enough mail.
func (d *drill) suppressMeanwhile(ctx context.Context, enough <-chan struct{}) error {
	t := time.NewTicker(suppressPause)
	defer t.Stop()
	left, gone := leavingAt, unsubscribeAt
	for {
		select {
		case <-t.C:
		case <-enough:
			d.say("%d addresses were suppressed and %d unsubscribed while mail was sent",
				left/suppressEvery, gone/suppressEvery)
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
		done, err := d.suppressOne(ctx, left)
		if done {
			left += suppressEvery
		}
		if err == nil {
			done, err = d.unsubscribeOne(ctx, gone)
		}
		if err != nil {
			return err
		}
		if done {
			gone += suppressEvery
		}
	}
}

// suppressOne suppresses recipient i. It reports whether that is done: it may be repeated.
func (d *drill) suppressOne(ctx context.Context, i int) (done bool, err error) {
	if i >= suppressible {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, acceptTime)
	defer cancel()
	_, err = d.user.client.AddSuppression(ctx, client.NewSuppression{Email: addressOf(i)})
	switch {
	case err == nil:
		d.isSuppressed(addressOf(i))
		return true, nil
	case repeatable(err):
		d.repeated[addressOf(i)] = true
		return false, nil
	}
	return false, fmt.Errorf("suppress an address: %w", err)
}

// unsubscribeOne makes the request of RFC 8058 for recipient i, if there is mail with a link. It reports whether that
// is done: it may be repeated.
func (d *drill) unsubscribeOne(ctx context.Context, i int) (done bool, err error) {
	link := d.linkOf(i)
	if link == "" {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, acceptTime)
	defer cancel()
	form := strings.NewReader(url.Values{"List-Unsubscribe": {"One-Click"}}.Encode())
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, link, form)
	if err != nil {
		return false, err
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		d.repeated[addressOf(i)] = true
		return false, nil // the server is away
	}
	_ = resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusOK:
		d.isSuppressed(addressOf(i))
		return true, nil
	case resp.StatusCode >= http.StatusInternalServerError:
		d.repeated[addressOf(i)] = true
		return false, nil
	}
	return false, errors.New("a link to unsubscribe was answered " + resp.Status)
}

// linkOf returns the link to unsubscribe in a mail to recipient i of a batch; "" if there is no such mail yet.
func (d *drill) linkOf(i int) string {
	for _, b := range d.mail.all() {
		if i >= b.n || i >= suppressible || b.envelope {
			continue
		}
		for _, c := range d.sim.Copies(b.id.Log(i + 1).String()) {
			if c.Address == addressOf(i) {
				return strings.Trim(c.Headers["List-Unsubscribe"], "<>")
			}
		}
	}
	return ""
}

// callLate is how long after the answer to a request that withholds mail a call may arrive that began before it: no
// call begins after one second, and one may take a moment.
const callLate = 1500 * time.Millisecond

// checkSuppressed notes the copies of a log that were sent after its address was suppressed, and a log of a batch that
// was accepted afterwards and does not say so.
func (d *drill) checkSuppressed(ctx context.Context, b *posted, l *client.Log) error {
	since := d.suppressedAt(l.Email)
	if since.IsZero() {
		return nil
	}
	for _, c := range d.sim.copiesOf(l.ID) {
		if !c.At.After(since) {
			continue
		}
		story, err := d.user.timeline(ctx, l.ID)
		if err != nil {
			return err
		}
		if !d.beganBefore(&c, since, story) {
			d.res.Unwanted++
			d.res.wrong("log %s was sent through %s %s after the address was suppressed: %s",
				l.ID, c.Account, c.At.Sub(since), describe(story))
		}
	}
	if since.Before(b.at) && l.Reason != string(models.Suppressed) {
		d.res.wrong("log %s is %s %s, and its address was suppressed before", l.ID, l.State, l.Reason)
	}
	return nil
}

// beganBefore reports whether the call of a copy began before its address was suppressed.
func (d *drill) beganBefore(c *simulator.Copy, since time.Time, story []client.Moment) bool {
	switch {
	case c.At.Sub(since) > callLate && !d.incident.heldUp.within(since, c.At):
		return false
	case d.clocksOff:
		return true
	}
	var call *client.Moment // the newest at the provider
	for i := range story {
		if m := &story[i]; m.What == "attempt" && m.Provider == c.Account && !m.At.After(c.At) {
			call = m
		}
	}
	return call != nil && !call.At.After(since)
}
