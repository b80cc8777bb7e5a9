package endpoints

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/safedelivr/safedelivr/models/feed"
)

// received is a post that a receiver got.
type received struct {
	id      string
	types   []feed.Type
	updates []feed.Described
	header  http.Header
	status  int // that was answered
}

// receiver is an application that gets posts. It verifies each with the library of Standard Webhooks.
type receiver struct {
	t      *testing.T
	url    string
	answer func(w http.ResponseWriter, n int) // to the nth post, from 1; nil: 204

	mu     sync.Mutex
	secret string
	posts  []received
}

func newReceiver(f *fixture, answer func(w http.ResponseWriter, n int)) *receiver {
	r := &receiver{t: f.t, answer: answer}
	r.url = f.serve(r)
	return r
}

// status returns an answer with a status for the first posts, and 204 for the others.
func status(code, first int) func(w http.ResponseWriter, n int) {
	return func(w http.ResponseWriter, n int) {
		if n <= first {
			w.WriteHeader(code)
		} else {
			w.WriteHeader(http.StatusNoContent)
		}
	}
}

type recorder struct {
	http.ResponseWriter
	status int
}

func (r *recorder) WriteHeader(code int) { r.status = code; r.ResponseWriter.WriteHeader(code) }

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return // the sender was stopped
	}
	r.mu.Lock()
	verifier, err := standardwebhooks.NewWebhook(r.secret)
	r.mu.Unlock()
	if err == nil {
		err = verifier.Verify(body, req.Header)
	}
	var m struct {
		Type feed.Type
		Data json.RawMessage
	}
	if err == nil {
		err = json.Unmarshal(body, &m)
	}
	if err == nil {
		err = described(m.Type, body)
	}
	p := received{id: req.Header.Get("webhook-id"), header: req.Header}
	add := func(kind feed.Type, raw json.RawMessage) {
		var v feed.Described
		if err == nil {
			err = json.Unmarshal(raw, &v)
		}
		p.types, p.updates = append(p.types, kind), append(p.updates, v)
	}
	if m.Type == "batch" {
		var all []struct {
			Type feed.Type
			Data json.RawMessage
		}
		err = json.Unmarshal(m.Data, &all)
		for i := range all {
			add(all[i].Type, all[i].Data)
		}
	} else {
		add(m.Type, m.Data)
	}
	if err != nil {
		r.t.Errorf("a post that is not valid: %v: %s", err, body)
	}
	r.mu.Lock()
	n := len(r.posts) + 1
	r.posts = append(r.posts, p)
	r.mu.Unlock()
	rec := &recorder{ResponseWriter: w, status: http.StatusOK}
	if r.answer != nil {
		r.answer(rec, n)
	}
	r.mu.Lock()
	r.posts[n-1].status = rec.status
	r.mu.Unlock()
}

// description is that of the API.
var description = sync.OnceValues(func() (*openapi3.T, error) {
	return openapi3.NewLoader().LoadFromFile("../../api/openapi.yaml")
})

// described returns an error if a post is not as the description of the API says.
func described(kind feed.Type, body []byte) error {
	doc, err := description()
	if err != nil {
		return err
	}
	hook := doc.Webhooks[string(kind)]
	if hook == nil {
		return fmt.Errorf("posts of type %s are not described", kind)
	}
	var v any
	if err := json.Unmarshal(body, &v); err != nil {
		return err
	}
	return hook.Post.RequestBody.Value.Content["application/json"].Schema.Value.VisitJSON(v)
}

// got returns the posts so far.
func (r *receiver) got() []received {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]received(nil), r.posts...)
}

// accepted returns the updates of the posts that were accepted, in their order.
func (r *receiver) accepted() (out []feed.Described) {
	for _, p := range r.got() {
		if p.status/100 == 2 {
			out = append(out, p.updates...)
		}
	}
	return out
}
