package drill

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/client"
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

// suppressions are the addresses that the drill suppresses.
type suppressions struct {
	user *account
	mail *traffic
	sim  *providers

	mu       sync.Mutex
	at       map[string]time.Time // when it was answered that an address is suppressed
	repeated map[string]bool      // whether the request to suppress an address was repeated
}

// since returns when the answer came that an address is suppressed; zero: it is not.
func (s *suppressions) since(email string) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at[email]
}

// add notes that addresses are suppressed since now.
func (s *suppressions) add(emails ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for _, email := range emails {
		s.at[email] = now
	}
}

// before suppresses addresses before any mail is sent.
func (s *suppressions) before(ctx context.Context) error {
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
			imported, err := s.user.client.ImportSuppressions(ctx, csv, options...)
			if err == nil && imported.Rejected > 0 {
				err = fmt.Errorf("suppressions were rejected: %v", imported.Errors)
			}
			s.add(emails...)
			return err
		})
	}
	return g.Wait()
}

// meanwhile suppresses one address after the other, and lets another recipient unsubscribe, until there is
// enough mail.
func (s *suppressions) meanwhile(ctx context.Context, enough <-chan struct{}, say say) error {
	t := time.NewTicker(suppressPause)
	defer t.Stop()
	left, gone := leavingAt, unsubscribeAt
	for {
		select {
		case <-t.C:
		case <-enough:
			say("%d addresses were suppressed and %d unsubscribed while mail was sent",
				left/suppressEvery, gone/suppressEvery)
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
		done, err := s.suppressOne(ctx, left)
		if done {
			left += suppressEvery
		}
		if err == nil {
			done, err = s.unsubscribeOne(ctx, gone)
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
func (s *suppressions) suppressOne(ctx context.Context, i int) (done bool, err error) {
	if i >= suppressible {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, acceptTime)
	defer cancel()
	_, err = s.user.client.AddSuppression(ctx, client.NewSuppression{Email: addressOf(i)})
	switch {
	case err == nil:
		s.add(addressOf(i))
		return true, nil
	case repeatable(err):
		s.repeated[addressOf(i)] = true
		return false, nil
	}
	return false, fmt.Errorf("suppress an address: %w", err)
}

// unsubscribeOne makes the request of RFC 8058 for recipient i, if there is mail with a link. It reports whether that
// is done: it may be repeated.
func (s *suppressions) unsubscribeOne(ctx context.Context, i int) (done bool, err error) {
	link := s.linkOf(i)
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
	if err == nil {
		_ = resp.Body.Close()
	}
	switch {
	case err != nil || resp.StatusCode >= http.StatusInternalServerError: // the server is away
		s.repeated[addressOf(i)] = true
		return false, nil
	case resp.StatusCode == http.StatusOK:
		s.add(addressOf(i))
		return true, nil
	}
	return false, errors.New("a link to unsubscribe was answered " + resp.Status)
}

// linkOf returns the link to unsubscribe in a mail to recipient i of a batch; "" if there is no such mail yet.
func (s *suppressions) linkOf(i int) string {
	for _, b := range s.mail.all() {
		if i >= b.n || i >= suppressible || b.envelope {
			continue
		}
		for _, c := range s.sim.Copies(b.id.Log(i + 1).String()) {
			if c.Address == addressOf(i) {
				return strings.Trim(c.Headers["List-Unsubscribe"], "<>")
			}
		}
	}
	return ""
}

// wrongly says why a log may not have ended as suppressed; "" if it may: the drill suppressed the address,
// or a provider reported of other mail of the same user that it is bad or does not want mail.
func (s *suppressions) wrongly(ctx context.Context, l *client.Log) (string, error) {
	if !s.since(l.Email).IsZero() {
		return "", nil
	}
	reported := func(x client.Suppression) bool { return x.Origin == "event" && x.LogID != "" && x.LogID != l.ID }
	id, err := models.ParseLogID(l.ID)
	if err != nil {
		return "", err
	}
	list, err := s.mail.batch(id.Batch()).of.client.GetSuppressions(ctx, l.Email)
	var e *client.Error
	switch {
	case errors.As(err, &e) && e.Code == "not_found":
		return "its address is not suppressed", nil
	case err == nil && !slices.ContainsFunc(list.Suppressions, reported):
		return "no event of other mail suppressed its address", nil
	}
	return "", err
}

// differ says how the published additions to a suppression list differ from the list; "" if they do not.
func (s *suppressions) differ(
	ctx context.Context, c *client.Client, added []client.AddedSuppression, options ...client.CallOption,
) (string, error) {
	listed := map[addition]bool{}
	for x, err := range c.ListSuppressions(ctx, "", "", "", client.ListOptions{}, options...) {
		if err != nil {
			return "", err
		}
		listed[additionOf(&x)] = true
	}
	return publishedWrongly(listed, added, s.repeated), nil
}
