package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// accept measures how fast batches are accepted. The providers need an hour for an
// answer, so that the product does little else.
func (b *bench) accept(be *backend) error {
	if err := b.acceptOne(be, "accept, 1,000 recipients per post", 1000, b.bulkPosts); err != nil {
		return err
	}
	return b.acceptOne(be, "accept, 1 recipient per post", 1, b.conns*b.singles)
}

func (b *bench) acceptOne(be *backend, title string, recipients, posts int) error {
	bodies := make([]string, min(posts, 64)) // encoded before the measurement
	for i := range bodies {
		bodies[i] = batchText(i*recipients, recipients, "")
	}
	fmt.Fprintln(os.Stderr, be.title+":", title)
	rate, l, err := median(b.runs, func() (float64, load, error) {
		l, err := b.postBatches(be, bodies, posts)
		return l.rate(posts * recipients), l, err
	})
	if err != nil {
		return err
	}
	decode, _, err := median(b.runs, func() (float64, load, error) {
		l, err := b.rawDecode(bodies, posts)
		return l.rate(posts * recipients), l, err
	})
	if err != nil {
		return err
	}
	store, _, err := median(b.runs, func() (float64, load, error) {
		l, err := b.rawStore(be, recipients, posts)
		return l.rate(posts * recipients), l, err
	})
	if err != nil {
		return err
	}
	unit := "recipients/s"
	if recipients == 1 {
		unit = "batches/s"
	}
	detail := fmt.Sprintf("p50 %s, p99 %s, %d connections", short(l.quantile(0.5)), short(l.quantile(0.99)), b.conns)
	b.report.add(be, title, rate, unit, detail, base{"HTTP and JSON alone", decode}, base{"store calls alone", store})
	return nil
}

// postBatches posts the bodies to the product.
func (b *bench) postBatches(be *backend, bodies []string, posts int) (load, error) {
	r, err := b.newRig(be, &rigOptions{latency: time.Hour, concurrency: 1})
	if err != nil {
		return load{}, err
	}
	defer r.kill()
	if _, err := each(2*b.conns, b.conns, func(i int) error { // opens connections and fills caches
		_, err := r.post(strings.NewReader(bodies[i%len(bodies)]))
		return err
	}); err != nil {
		return load{}, err
	}
	return each(posts, b.conns, func(i int) error {
		_, err := r.post(strings.NewReader(bodies[i%len(bodies)]))
		return err
	})
}

// rawDecode measures an HTTP server that only decodes the body and answers with an ID.
// Server and client share this process.
func (b *bench) rawDecode(bodies []string, posts int) (load, error) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			From, Subject, Text, HTML string
			To                        []models.Recipient
		}
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.WriteHeader(http.StatusAccepted)
		fmt.Fprintf(w, `{"id":%q,"recipients":%d}`, models.NewBatchID(time.Now()), len(in.To))
	}))
	defer server.Close()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: b.conns}}
	defer client.CloseIdleConnections()
	return each(posts, b.conns, func(i int) error {
		q, err := http.NewRequestWithContext(b.ctx, http.MethodPost, server.URL, strings.NewReader(bodies[i%len(bodies)]))
		if err != nil {
			return err
		}
		resp, err := client.Do(q)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
		return err
	})
}

// rawStore measures the store's calls of accepting a batch, without HTTP.
func (b *bench) rawStore(be *backend, recipients, posts int) (load, error) {
	dir, err := os.MkdirTemp(b.dir, "store-")
	if err != nil {
		return load{}, err
	}
	place := newPlace()
	store, err := be.openStore(b.ctx, dir, place)
	if err != nil {
		return load{}, err
	}
	defer func() {
		_ = store.Close()
		_ = be.clear(b.ctx, place)
	}()
	to := make([]models.Recipient, recipients)
	for i := range to {
		to[i] = models.Recipient{Email: fmt.Sprintf("user%d@bench.test", i), Name: fmt.Sprintf("Person %d", i),
			Vars: map[string]string{"first": fmt.Sprintf("P%d", i), "order": fmt.Sprintf("%08d", i)}}
	}
	user := models.NewUserID()
	content := models.Content{
		From:    models.Address{Email: "shop@bench.test"},
		Subject: "Your order {{order}}",
		Text:    "Dear {{first}}",
	}
	return each(posts, b.conns, func(int) error {
		batch := models.Batch{
			ID:         models.NewBatchID(time.Now()),
			User:       user,
			Content:    content,
			Lane:       models.Bulk,
			OnUnknown:  models.Hold,
			Recipients: recipients,
			Chunks:     1,
			ExpiresAt:  time.Now().Add(time.Hour),
		}
		entry := models.AgendaEntry{
			Due:    time.Now().Add(time.Minute),
			Kind:   models.LookAtBatch,
			ID:     batch.ID,
			User:   user,
			Chunks: 1,
			Lane:   batch.Lane,
		}
		if err := store.Schedule(b.ctx, entry); err != nil {
			return err
		}
		return store.PutBatch(b.ctx, batch, models.Chunk{ID: batch.ID, Recipients: to})
	})
}
