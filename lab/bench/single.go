package main

import (
	"fmt"
	"os"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
)

// single measures mails that are posted one by one, from the post to the provider, and what each costs the product.
func (b *bench) single(be *backend) error {
	n := b.deliver / 10
	var keys []string
	for _, row := range []struct {
		how string
		o   rigOptions
	}{
		{"16 connections", rigOptions{posting: 16}},
		{"64 connections", rigOptions{posting: 64}},
		{"256 connections", rigOptions{posting: 256}},
		{"64 connections, with all events", rigOptions{posting: 64, webhooks: true}},
		{fmt.Sprintf("64 connections, %s batches stored before", thousands(int64(b.stored))),
			rigOptions{posting: 64, seed: b.putStored}},
		{fmt.Sprintf("64 connections, %s users", thousands(int64(b.users))),
			rigOptions{posting: 64, seed: func(s models.Store) (err error) {
				keys, err = b.putUsers(s)
				return err
			}, keys: func(i int) string { return keys[i%len(keys)] }}},
	} {
		title := fmt.Sprintf("accept to provider, %s mails one by one, %s", thousands(int64(n)), row.how)
		fmt.Fprintln(os.Stderr, be.title+":", title)
		rate, cpu, err := median(b.runs, func() (float64, [2]time.Duration, error) {
			o := row.o
			o.warm = true
			return b.deliverRun(be, &o, n, 1)
		})
		if err != nil {
			return err
		}
		b.report.add(be, title, rate, "mails/s",
			fmt.Sprintf("the product's processor time per mail: %d us", int(cpu[0].Microseconds())/n))
	}
	return nil
}

// putStored stores batches whose mail has not been looked at.
func (b *bench) putStored(s models.Store) error {
	u, err := s.UserByName(b.ctx, "bench")
	if err != nil {
		return err
	}
	day := time.Now().Add(-24 * time.Hour)
	_, err = each(b.stored, b.conns, func(i int) error {
		batch := models.Batch{ID: models.NewBatchID(day.Add(time.Duration(i) * time.Millisecond)), User: u.ID,
			Content: models.Content{From: models.Address{Email: "shop@bench.test"}, Subject: "Your order", Text: "Thank you."},
			Lane:    models.Bulk, OnUnknown: models.Hold, Recipients: 1, Chunks: 1, ExpiresAt: day.Add(time.Hour)}
		to := []models.Recipient{{Email: fmt.Sprintf("user%d@bench.test", i)}}
		return s.PutBatch(b.ctx, batch, models.Chunk{ID: batch.ID, Recipients: to})
	})
	return err
}

// putUsers creates users and returns a key of each.
func (b *bench) putUsers(s models.Store) ([]string, error) {
	keys := make([]string, b.users)
	_, err := each(b.users, b.conns, func(i int) error {
		u := models.User{ID: models.NewUserID(), Name: fmt.Sprintf("user-%d", i), Created: time.Now()}
		if err := s.CreateUser(b.ctx, u); err != nil {
			return err
		}
		k, secret := models.NewKey(u.ID, "bench", time.Now())
		keys[i] = secret
		return s.CreateKey(b.ctx, k)
	})
	return keys, err
}

// as returns a client with the key of a post.
func (r *rig) as(key string) *client.Client {
	return client.New("http://"+r.addr, key, client.HTTPClient(r.http))
}
