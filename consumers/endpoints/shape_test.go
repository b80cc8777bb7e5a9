package endpoints

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/endpoint"
	"github.com/safedelivr/safedelivr/models/feed"
	"github.com/safedelivr/safedelivr/models/shape"
)

// foreign is an application that reads the webhooks of another service. It refuses the first posts.
type foreign struct {
	refuse int

	mu     sync.Mutex
	bodies [][]byte
	at     []time.Time
}

func (r *foreign) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bodies, r.at = append(r.bodies, body), append(r.at, time.Now()); len(r.bodies) <= r.refuse {
		w.WriteHeader(http.StatusNotAcceptable)
	}
}

func (r *foreign) got() [][]byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([][]byte(nil), r.bodies...)
}

// shaped stores an endpoint with a shape, which gets all updates.
func (f *fixture) shaped(app *foreign, name shape.Name, change func(*endpoint.Endpoint)) *endpoint.Endpoint {
	f.t.Helper()
	return f.endpoint(&receiver{t: f.t, url: f.serve(app)}, func(e *endpoint.Endpoint) {
		e.Shape, e.Events = string(name), []string{string(feed.All)}
		if change != nil {
			change(e)
		}
	})
}

// TestFreshTokens: each attempt at a post in the shape of Mailgun has a token, a time and a signature of its own, and the
// same event. Discourse refuses a token that it knows, and a time of half a day ago.
func TestFreshTokens(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		app := &foreign{refuse: 2}
		e := f.shaped(app, shape.Mailgun, nil)
		f.publish(f.batch(1, nil), 1, models.Success, 1)
		f.run("w", time.Minute, 2*time.Minute)
		f.eventually(func() bool { return len(app.got()) == 3 })
		tokens, events := map[string]bool{}, map[string]bool{}
		for i, body := range app.got() {
			var post struct {
				Signature struct{ Token, Timestamp, Signature string }
				Event     json.RawMessage `json:"event-data"`
			}
			require.NoError(t, json.Unmarshal(body, &post))
			require.Len(t, post.Signature.Token, 50)
			require.Equal(t, strconv.FormatInt(app.at[i].Unix(), 10), post.Signature.Timestamp)
			mac := hmac.New(sha256.New, []byte(e.Secrets[0].String()))
			mac.Write([]byte(post.Signature.Timestamp + post.Signature.Token))
			require.Equal(t, hex.EncodeToString(mac.Sum(nil)), post.Signature.Signature)
			tokens[post.Signature.Token], events[string(post.Event)] = true, true
		}
		require.Len(t, tokens, 3)
		require.Len(t, events, 1)
		require.Greater(t, app.at[2].Sub(app.at[0]), 3*time.Minute)
	})
}

// TestWordlessUpdatesAreNotPosted: an update that a shape has no word for is passed over, and those after it are posted.
func TestWordlessUpdatesAreNotPosted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		apps, of := map[shape.Name]*foreign{}, map[shape.Name]*endpoint.Endpoint{}
		want := map[shape.Name]int{shape.Mailgun: 5, shape.SendGrid: 3, shape.Postmark: 3, shape.Resend: 2}
		for name := range want {
			apps[name] = &foreign{}
			of[name] = f.shaped(apps[name], name, nil)
		}
		b := f.batch(1, nil)
		f.publish(b, 1, models.Queued, 1)
		f.happen(b, models.FeedChange{Event: models.Bounced, Reason: models.MailboxFull, Number: 1,
			Recipients: models.SetOf(1)})
		f.happen(b, models.FeedChange{State: models.Failed, Reason: models.OutcomeUnknown, Number: 2,
			Recipients: models.SetOf(1)})
		require.NoError(t, feed.PublishSuppressions(t.Context(), f.store, f.user, []models.FeedSuppression{{}}))
		head, err := f.store.FeedHead(t.Context(), f.user)
		require.NoError(t, err)
		f.head = head.Number
		f.happen(b, models.FeedChange{Event: models.Unsubscribed, Number: 2, Recipients: models.SetOf(1)})
		f.happen(b, models.FeedChange{Event: models.Opened, Number: 3, Recipients: models.SetOf(1)})
		f.publish(b, 3, models.Success, 1)
		f.run("w")
		for name, n := range want {
			f.eventually(func() bool { return f.state(of[name]).Next.Entry == f.head })
			require.Len(t, apps[name].got(), n, name)
			require.EqualValues(t, n, f.state(of[name]).Posted, name)
		}
	})
}

// TestBatchOfSendGrid: a post in the shape of SendGrid may have many events, in a list without anything around it. A
// retry is one post for each update after the endpoint was changed to a shape that has one in a post.
func TestBatchOfSendGrid(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		app := &foreign{refuse: 1}
		e := f.shaped(app, shape.SendGrid, func(e *endpoint.Endpoint) { e.Batch = true })
		f.publish(f.batch(3, nil), 1, models.Success, 1, 2, 3)
		f.run("w", time.Minute)
		f.eventually(func() bool { return len(app.got()) == 1 })
		var list []map[string]any
		require.NoError(t, json.Unmarshal(app.got()[0], &list))
		require.Len(t, list, 3)
		require.Equal(t, "delivered", list[2]["event"])
		f.change(e, func(e *endpoint.Endpoint) { e.Shape, e.Batch = client.ShapePostmark, false })
		f.eventually(func() bool { return len(app.got()) == 4 })
		for i, body := range app.got()[1:] {
			var event struct{ RecordType, Recipient string }
			require.NoError(t, json.Unmarshal(body, &event))
			require.Equal(t, "Delivery u"+strconv.Itoa(i+1)+"@x.test", event.RecordType+" "+event.Recipient)
		}
	})
}
