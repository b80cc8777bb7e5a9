package drill

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/lab/simulated"
	"github.com/safedelivr/safedelivr/models"
)

// posted is a batch that was accepted.
type posted struct {
	id models.ID
	n  int
	at time.Time // when it was first sent to the API

	suppressed int // recipients, by the answer

	of       *account
	attached bool // it has the attachment of the drill
	envelope bool // it is one mail to several addresses
}

// traffic is the mail of a drill. It posts batches until they are answered, and keeps those that were accepted.
type traffic struct {
	user, other *account
	recipients  int      // of the batches that a drill begins with
	order       []string // of the providers; nil: any
	withLink    bool     // mail has a link to unsubscribe, in a header field of the recipient
	senders     senders  // applications that use other ways in
	unanswered  unanswered

	mu      sync.Mutex
	batches []posted
	known   map[models.ID]posted // the same by their IDs
}

func newTraffic(user, other *account, s *scenario, pair simulated.Pair, recipients int) *traffic {
	t := &traffic{
		user: user, other: other, recipients: recipients, withLink: !pair.Plain(), known: map[models.ID]posted{},
	}
	if s.ordered {
		t.order = pair.Names()
	}
	t.senders = senders{user: user, unanswered: &t.unanswered, accepted: map[string]int{}}
	return t
}

func (t *traffic) all() []posted {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.batches)
}

// post has a batch of n recipients accepted, and every third time one mail to several addresses. See newBatch.
func (t *traffic) post(ctx context.Context, n int, domains ...string) error {
	_, err := t.accept(ctx, t.user, t.newBatch(n, domains...))
	if err == nil && len(t.all())%3 == 1 {
		_, err = t.accept(ctx, t.user, t.newEnvelope())
	}
	return err
}

// otherDomain is that of the recipients of the other user.
const otherDomain = "other.test"

// postOther has a small batch of the other user accepted.
func (t *traffic) postOther(ctx context.Context) error {
	_, err := t.accept(ctx, t.other, t.newBatch(backgroundSize, otherDomain))
	return err
}

// acceptTime is how long one request may take.
const acceptTime = 10 * time.Second

// accept has a batch of a user accepted. It repeats the request with one idempotency key until it is answered.
func (t *traffic) accept(ctx context.Context, a *account, batch client.NewBatch) (posted, error) {
	b := posted{n: len(batch.To) + len(batch.CC) + len(batch.BCC), of: a, at: time.Now()}
	b.envelope, b.attached = batch.Together, len(batch.Attachments) > 0
	key := models.NewUserID()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		within, cancel := context.WithTimeout(ctx, acceptTime)
		accepted, err := a.client.CreateBatch(within, batch, client.IdempotencyKey(key))
		cancel()
		switch {
		case err == nil:
			return t.accepted(b, &accepted)
		case !repeatable(err):
			return b, err
		}
		t.unanswered.add(a.ID, err)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return b, ctx.Err()
		}
	}
}

// unanswered counts the requests that may or may not have been accepted.
type unanswered struct {
	atomic.Int64
	last   atomic.Pointer[error]
	before int64 // the last mark
}

// mark begins to count anew for since.
func (u *unanswered) mark()        { u.before = u.Load() }
func (u *unanswered) since() int64 { return u.Load() - u.before }

// add counts a request of somebody.
func (u *unanswered) add(of string, err error) {
	err = fmt.Errorf("%s, at %s: %w", of, time.Now().UTC().Format("15:04:05.0"), err)
	u.last.Store(&err)
	u.Add(1)
}

// repeatable reports whether a batch may be accepted if it is sent again. Keys cannot be checked while the store is
// unavailable.
func repeatable(err error) bool {
	e, ok := err.(*client.Error) //nolint:errorlint // the client does not wrap it
	return client.Repeatable(err) || ok && (e.Status == http.StatusConflict || e.Status == http.StatusUnauthorized)
}

func (t *traffic) accepted(b posted, a *client.Accepted) (posted, error) {
	if a.Recipients != b.n {
		return b, fmt.Errorf("a batch of %d recipients was accepted with %d", b.n, a.Recipients)
	}
	b.suppressed = a.Suppressed
	var err error
	if b.id, err = models.ParseBatchID(a.ID); err != nil {
		return b, err
	}
	t.keep(b)
	return b, nil
}

// keep keeps a batch for the count.
func (t *traffic) keep(b posted) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.batches, t.known[b.id] = append(t.batches, b), b
}

// bound scales a time limit for few recipients to the recipients of the drill: new mail and its events wait behind
// theirs.
func (t *traffic) bound(limit time.Duration) time.Duration {
	return limit * time.Duration(max(t.recipients, t.posted(), fewRecipients)) / fewRecipients
}

// posted returns how many mails were accepted.
func (t *traffic) posted() (n int) {
	for _, b := range t.all() {
		n += b.n
	}
	return n
}

// batch returns a batch that was accepted.
func (t *traffic) batch(id models.ID) posted {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.known[id]
}

// isEnvelope reports whether a batch is one mail to several addresses.
func (t *traffic) isEnvelope(batch models.ID) bool { return t.batch(batch).envelope }

// add adds the batches of a user whose subjects begin with a text to those that are counted.
func (t *traffic) add(ctx context.Context, of *account, subject string) error {
	for b, err := range t.user.client.FindBatches(ctx, client.BatchOptions{User: of.ID}) {
		if err != nil {
			return err
		}
		if !strings.HasPrefix(b.Subject, subject) {
			continue
		}
		id, err := models.ParseBatchID(b.ID)
		if err != nil {
			return err
		}
		t.keep(posted{id: id, n: int(b.Counts.Accepted), of: of, at: b.Created})
	}
	return nil
}

// bouncing begins the addresses that no provider can deliver to.
const bouncing = "hardbounce"

// enclosed is the attachment of one batch in ten: of two pieces in the store.
var enclosed = client.Attachment{Filename: "drill.txt", ContentType: "text/plain",
	Content: bytes.Repeat([]byte("Nothing to do.\n"), 20_000)}

// newBatch returns a batch of n recipients at the domains in turn. One address in a hundred bounces, and one batch in
// ten has an attachment. The mail has a link to unsubscribe, if both providers take it. Without domains there are
// recipients who get no mail, or no more: see nameOf.
func (t *traffic) newBatch(n int, domains ...string) client.NewBatch {
	to := make([]client.Recipient, n)
	for i := range to {
		if len(domains) == 0 {
			to[i].Email = addressOf(i)
			continue
		}
		name := "user"
		if i%100 == 50 {
			name = bouncing + "+"
		}
		to[i].Email = fmt.Sprintf("%s%d@%s", name, i, domains[i%len(domains)])
	}
	var attachments []client.Attachment
	if len(t.all())%10 == 0 {
		attachments = []client.Attachment{enclosed}
	}
	return client.NewBatch{
		Attachments: attachments,
		Category:    drillCategory,
		Unsubscribe: new(t.withLink),

		From:      "Rehearsal <" + from + ">",
		Subject:   "This is a drill",
		Text:      "Nothing to do.",
		To:        to,
		Tags:      []string{drillTag},
		Providers: t.order,
	}
}

// postSome posts small batches, each with messages of its own.
func (t *traffic) postSome(ctx context.Context) error {
	for range 4 {
		if err := t.post(ctx, max(t.recipients/16, backgroundSize)); err != nil {
			return err
		}
	}
	return nil
}

// drillTag is the tag of all mail of a drill, but of that by Resend's API, whose tags have a name.
const drillTag = "drill"

// otherEvery is how many small batches there are for each one of the other user.
const otherEvery = 5

// sendBackground posts small batches until there is enough mail. It finishes the batch that it is posting.
func (t *traffic) sendBackground(ctx context.Context, enough <-chan struct{}) error {
	tick := time.NewTicker(backgroundPause)
	defer tick.Stop()
	for i := range applications { // a scenario may be too short for a turn of each
		if err := t.senders.send(ctx, i); err != nil {
			return err
		}
	}
	for n := 0; ; n++ {
		err := t.post(ctx, backgroundSize)
		if err == nil {
			err = t.senders.send(ctx, len(applications)+n)
		}
		if err == nil && n%otherEvery == 0 {
			err = t.postOther(ctx)
		}
		if err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-enough:
			return nil
		}
	}
}
