// Package receiver is an application to which updates are posted. Demo and drill count what it got.
package receiver

import (
	"cmp"
	"context"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/client"
)

// Network is where receivers listen: an endpoint there has to be allowed.
const Network = "127.0.0.0/8"

// Types are the types of updates of mail.
var Types = []string{
	client.LogDelivered, client.LogFailed, client.LogCancelled, client.LogQueued, client.LogDeferred, client.LogBounced,
	client.LogComplained, client.LogUnsubscribed, client.LogOpened, client.LogClicked, client.BatchEnded,
}

// Update names an update.
type Update struct {
	User   string // in posts of everyone's mail
	About  string // the log, the batch that is done, or the ID of an addition to a suppression list
	Event  string
	Number int
}

// Named returns the name of an update.
func Named(u *client.Update) Update {
	about := cmp.Or(u.Log, u.Batch)
	if u.Suppression != nil {
		about = u.Suppression.ID
	}
	return Update{u.User, about, u.Event, u.Number}
}

// Receiver takes posts whose signature is right. Its methods may be called by many goroutines at once.
type Receiver struct {
	server *http.Server
	done   chan struct{}
	id     string // of the endpoint

	mu      sync.Mutex
	hook    *client.Webhook
	status  int           // of the answers; 0: that of a post that is right
	changed chan struct{} // closed when status changes
	got     map[Update]client.State
	posts   int
	failed  int // posts that were answered with status
	refused int // posts that are not verified
}

// Start starts a receiver on this machine and registers it as an endpoint with some settings.
func Start(
	ctx context.Context, c *client.Client, s client.EndpointSettings, options ...client.CallOption,
) (*Receiver, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &Receiver{done: make(chan struct{}), got: map[Update]client.State{}, changed: make(chan struct{})}
	r.server = &http.Server{Handler: r, ReadHeaderTimeout: 5 * time.Second}
	r.mu.Lock() // until the secret is known
	defer r.mu.Unlock()
	go func() {
		defer close(r.done)
		_ = r.server.Serve(l) // until Close
	}()
	s.URL = "http://" + l.Addr().String()
	e, err := c.CreateEndpoint(ctx, s, options...)
	if err == nil {
		r.id = e.ID
		r.hook, err = client.NewWebhook(e.Secret)
	}
	if err != nil {
		_ = r.server.Close()
		return nil, err
	}
	return r, nil
}

// Endpoint returns the ID of the endpoint.
func (r *Receiver) Endpoint() string { return r.id }

// Close ends the receiver.
func (r *Receiver) Close() {
	_ = r.server.Close()
	<-r.done
}

// These are no statuses: the connection is closed without an answer, at once, or when the receiver is set to do
// something else.
const (
	Hangup = -1
	Hang   = -2
)

// Answer makes the receiver take nothing and answer with a status, or take posts again, if it is 0.
func (r *Receiver) Answer(status int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status = status
	close(r.changed)
	r.changed = make(chan struct{})
}

// ServeHTTP takes a post.
func (r *Receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return // the sender was killed
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.status != 0 {
		if r.failed++; r.status < 0 {
			if r.status == Hang {
				r.hang(req.Context())
			}
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(r.status)
		return
	}
	// The drill moves the clocks of servers, so the time of a post may be any.
	seconds, _ := strconv.ParseInt(req.Header.Get("Webhook-Timestamp"), 10, 64)
	events, err := r.hook.Parse(req.Header, body, time.Unix(seconds, 0))
	if err != nil {
		r.refused++
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	r.posts++
	for i := range events {
		u := &events[i].Update
		r.got[Named(u)] = u.State
	}
}

// hang waits until the receiver is set to something else, or until a post is given up. r.mu is not held meanwhile.
func (r *Receiver) hang(ctx context.Context) {
	changed := r.changed
	r.mu.Unlock()
	defer r.mu.Lock()
	select {
	case <-changed:
	case <-ctx.Done():
	}
}

// Counts are numbers of posts, and of different updates in those that were taken.
type Counts struct{ Posts, Updates, Failed, Refused int }

// Counts returns what the receiver got so far.
func (r *Receiver) Counts() Counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	return Counts{r.posts, len(r.got), r.failed, r.refused}
}

// Missing returns how many updates the receiver did not get.
func (r *Receiver) Missing(published map[Update]client.State) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for u, state := range published {
		if got, ok := r.got[u]; !ok || got != state {
			n++
		}
	}
	return n
}
