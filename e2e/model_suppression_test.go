//go:build full

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"pgregory.net/rapid"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/models"
)

// categories are those of batches.
var categories = []string{"", "news", "offers"}

// listed is a time for which an address was on a suppression list.
type listed struct {
	email    string
	category string // empty: all mail
	everyone bool   // the list is that of all users

	from time.Time // when the answer came that says so
	to   time.Time // when its removal was asked for; zero: it was not
}

// meets reports whether the entry suppresses a recipient of a batch.
func (e *listed) meets(b *asked, email string) bool {
	return e.email == email && (e.category == "" || e.category == b.batch.Category)
}

// suppress adds addresses to suppression lists, if possible those of recipients whose mail waits.
func (m *model) suppress(t *rapid.T) {
	emails := m.waiting()
	if len(emails) == 0 {
		for _, r := range m.any(t).batch.To {
			emails = append(emails, r.Email)
		}
	}
	for range rapid.IntRange(1, 3).Draw(t, "addresses") {
		e := listed{
			email:    rapid.SampledFrom(emails).Draw(t, "email"),
			category: rapid.SampledFrom(categories).Draw(t, "category"),
			everyone: rapid.IntRange(0, 3).Draw(t, "everyone") == 0,
		}
		key := m.newKey("suppression")
		m.list(t, e, http.StatusCreated, func() int {
			return m.ask(key, func(ctx context.Context, options ...client.CallOption) error {
				_, err := m.client.AddSuppression(ctx, client.NewSuppression{Email: e.email, Category: e.category},
					e.on(options)...)
				return err
			}).Status
		})
	}
}

// suppressFirst posts a batch that a rule holds back, and removes the rule when some of its recipients are suppressed.
func (m *model) suppressFirst(t *rapid.T) {
	m.addBlock(t, client.NewBlock{Sender: "@model.test"})
	m.post(t)
	m.suppress(t)
	m.unblock(t)
}

// on returns options of a request with that for the list of the entry.
func (e *listed) on(options []client.CallOption) []client.CallOption {
	if e.everyone {
		options = append(options, client.Everyone())
	}
	return options
}

// waiting returns the addresses whose mail no provider has.
func (m *model) waiting() (emails []string) {
	for _, b := range m.batches {
		for _, l := range m.logs(b.id, client.Queued) {
			if len(m.sim.Copies(l.ID)) == 0 {
				emails = append(emails, l.Email)
			}
		}
	}
	return emails
}

// list makes a request that adds an entry, now and then with a kill in the middle, and notes when it was answered.
func (m *model) list(t *rapid.T, e listed, want int, ask func() int) {
	if rapid.IntRange(0, 4).Draw(t, "break off") == 0 {
		m.cutOff(t, ask, want)
	} else if status := ask(); status != want {
		t.Fatalf("a suppression was answered %d", status)
	}
	e.from = time.Now()
	m.listed = append(m.listed, e)
}

// unsuppress removes an address from a list on which it was put.
func (m *model) unsuppress(t *rapid.T) {
	if len(m.listed) == 0 {
		t.Skip("no address is suppressed yet")
	}
	e := rapid.SampledFrom(m.listed).Draw(t, "entry")
	asked := time.Now()
	m.must(t, "", func(ctx context.Context, options ...client.CallOption) error {
		_, err := m.client.RemoveSuppressions(ctx, e.email, "", "", "the model", e.on(options)...)
		return err
	}, http.StatusOK)
	for i := range m.listed {
		if o := &m.listed[i]; o.email == e.email && o.everyone == e.everyone && o.to.IsZero() {
			o.to = asked
		}
	}
}

// unsubscribe follows the link in a mail, as the mail program of its recipient does.
func (m *model) unsubscribe(t *rapid.T) {
	type mail struct {
		entry listed
		link  string
	}
	var mails []mail
	for _, b := range m.batches {
		for i := range b.batch.To {
			e := listed{email: b.batch.To[i].Email, category: b.batch.Category}
			copies := m.sim.Copies(b.id.Log(i + 1).String())
			if e.category != "" && len(copies) > 0 {
				mails = append(mails, mail{entry: e, link: strings.Trim(copies[0].Headers["List-Unsubscribe"], "<>")})
			}
		}
	}
	if len(mails) == 0 {
		t.Skip("there is no link yet")
	}
	chosen := rapid.SampledFrom(mails).Draw(t, "mail")
	m.list(t, chosen.entry, http.StatusOK, func() int { return oneClick(t, chosen.link) })
}

// oneClick makes the request of RFC 8058. It returns the status of the answer, or 0 if none arrived.
func oneClick(t *rapid.T, link string) int {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	form := url.Values{"List-Unsubscribe": {"One-Click"}}.Encode()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, link, strings.NewReader(form))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0 // it may have been cut off
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

// inFlight is how long after the answer to a suppression a call may arrive that began before it: as after a command,
// no call begins after one second, and one may take a moment.
const inFlight = 1500 * time.Millisecond

// suppressedRightly compares a log and its copies with the suppression lists.
func (m *model) suppressedRightly(b *asked, l *client.Log, copies []simulator.Copy) error {
	for i := range m.listed {
		e := &m.listed[i]
		if !e.meets(b, l.Email) {
			continue
		}
		for k := range copies {
			if err := m.sentBefore(e, l, &copies[k]); err != nil {
				return err
			}
		}
		if e.from.Before(b.at) && e.to.IsZero() && l.Reason != string(models.Suppressed) && !b.cancelled {
			return fmt.Errorf("its address was suppressed at %s, and the log does not say so", e.from)
		}
	}
	if l.Reason == string(models.Suppressed) && len(copies) > 0 && !slices.ContainsFunc(copies, curable) {
		return errors.New("a provider took the mail, and the log says that it was suppressed")
	}
	return m.listedByEvent(b, l)
}

// toldSuppressed returns an error if the answer to the request for a batch does not count all recipients that were
// suppressed before.
func (m *model) toldSuppressed(b *asked) error {
	if b.key == "" {
		return nil // the answer about a message does not say it
	}
	least := 0
	for _, r := range b.batch.To {
		before := func(e listed) bool { return e.meets(b, r.Email) && e.from.Before(b.at) && e.to.IsZero() }
		if slices.ContainsFunc(m.listed, before) {
			least++
		}
	}
	if b.suppressed < least {
		return fmt.Errorf("%d recipients of batch %s were suppressed, and the answer says %d", least, b.id, b.suppressed)
	}
	return nil
}

// curable reports whether a copy failed for a reason that another provider can cure.
func curable(c simulator.Copy) bool { return strings.HasPrefix(c.Outcome, "blocked") }

// sentBefore returns an error if a copy was sent while its address was suppressed.
func (m *model) sentBefore(e *listed, l *client.Log, c *simulator.Copy) error {
	if c.At.Before(e.from) || !e.to.IsZero() && c.At.After(e.to) {
		return nil
	}
	late := c.At.Sub(e.from)
	whole, err := m.client.Log(context.Background(), l.ID)
	if err != nil {
		return err
	}
	var call *client.Moment // the copy's: the newest at its provider
	for i := range whole.Timeline {
		if a := &whole.Timeline[i]; a.What == "attempt" && a.Provider == c.Account && !a.At.After(c.At) {
			call = a
		}
	}
	if late > inFlight || call == nil || call.At.After(e.from) {
		return fmt.Errorf("sent %s after its address was suppressed: %+v", late, whole.Timeline)
	}
	return nil
}

// listedByEvent returns an error if an event of a log suppresses its address, and it is not on the list of the user.
func (m *model) listedByEvent(b *asked, l *client.Log) error {
	reason, category := "", ""
	switch {
	case strings.HasPrefix(l.Email, "hardbounce") && l.Reason == string(models.MailboxInvalid):
		reason = string(models.HardBounce)
	case strings.HasPrefix(l.Email, "complain") && l.State == client.Delivered:
		reason = string(models.Complaint)
	case strings.HasPrefix(l.Email, "unsubscribe") && l.State == client.Delivered:
		reason, category = string(models.Unsubscribe), b.batch.Category
	default:
		return nil
	}
	removed := func(e listed) bool { return e.email == l.Email && !e.everyone && !e.to.IsZero() }
	if slices.ContainsFunc(m.listed, removed) {
		return nil
	}
	list, err := m.client.GetSuppressions(context.Background(), l.Email)
	if err != nil {
		return fmt.Errorf("its events suppress its address as %s: %w", reason, err)
	}
	there := func(s client.Suppression) bool { return s.Reason == reason && s.Category == category }
	if !slices.ContainsFunc(list.Suppressions, there) {
		return fmt.Errorf("its events suppress its address as %s %s, and the list has %+v", reason, category,
			list.Suppressions)
	}
	return nil
}
