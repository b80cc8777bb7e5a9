package demo

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/client"
)

// update names an update.
type update struct {
	log    string
	number int
}

// receiver is an application to which the updates of the batch are posted.
type receiver struct {
	mu      sync.Mutex
	hook    *client.Webhook
	posts   int64
	refused int64
	got     map[update]client.State
}

// ServeHTTP takes a post whose signature is right.
func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	hook := r.hook
	r.mu.Unlock()
	events, err := hook.Read(req)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.refused++
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	r.posts++
	for i := range events {
		u := &events[i].Update
		r.got[update{u.Log, u.Number}] = u.State
	}
}

// startReceiver starts an application and registers it as an endpoint. The channel is closed when it has stopped.
func (d *demo) startReceiver(ctx context.Context) (<-chan struct{}, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	d.receiver = &receiver{got: map[update]client.State{}}
	server := &http.Server{Handler: d.receiver, ReadHeaderTimeout: 5 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		go func() {
			<-ctx.Done()
			_ = server.Close()
		}()
		_ = server.Serve(l) // until it is closed
	}()
	e, err := d.client.CreateEndpoint(ctx, client.EndpointSettings{URL: "http://" + l.Addr().String(), Batch: true})
	if err == nil {
		d.receiver.hook, err = client.NewWebhook(e.Secret)
	}
	return done, err
}

// compareUpdates reads the feed of updates to its end, and compares it with the batch and with what was posted.
func (d *demo) compareUpdates(ctx context.Context, s *Summary, batch *client.Counts) error {
	told := map[update]client.State{}
	newest := map[string]client.Update{}
	for u, err := range d.client.Updates(client.UpdateOptions{Batch: d.batch.String()}).All(ctx) {
		if err != nil {
			return err
		}
		if u.Number != newest[u.Log].Number+1 {
			s.wrong("update %d of %s follows number %d", u.Number, u.Log, newest[u.Log].Number)
		}
		told[update{u.Log, u.Number}] = u.State
		newest[u.Log] = u
	}
	states := map[client.State]int64{}
	for _, u := range newest {
		states[u.State]++
	}
	if states[client.Success] != batch.Success || states[client.Failed] != batch.Failed {
		s.wrong("the updates say %d success and %d failed, the batch %d and %d",
			states[client.Success], states[client.Failed], batch.Success, batch.Failed)
	}
	s.Updates = int64(len(told))
	r := d.receiver
	for end := time.Now().Add(30 * time.Second); ; {
		r.mu.Lock()
		missing := int64(0)
		for u, state := range told {
			if r.got[u] != state {
				missing++
			}
		}
		s.Posts, s.Posted = r.posts, int64(len(r.got))
		refused := r.refused
		r.mu.Unlock()
		if refused > 0 {
			s.wrong("%d posts were not verified", refused)
			return nil
		}
		if missing == 0 {
			return nil
		}
		if time.Now().After(end) {
			s.wrong("%d updates were not posted", missing)
			return nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
