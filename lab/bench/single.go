package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
)

const seeders = 16 // goroutines that store data before a measurement

// single measures mails that are posted one by one, from the post to the provider, and what each costs the product.
func (b *bench) single(be *backend) error {
	n := b.deliver / 10
	keys := make([]string, b.users)
	for _, row := range []struct {
		how string
		o   rigOptions
	}{
		{"16 connections", rigOptions{posting: 16}},
		{"64 connections", rigOptions{posting: 64}},
		{"256 connections", rigOptions{posting: 256}},
		{"64 connections, with all events", rigOptions{posting: 64, webhooks: true}},
		{fmt.Sprintf("64 connections, %s batches stored before", thousands(int64(b.stored))),
			rigOptions{posting: 64, seed: putStored(b.ctx, b.stored)}},
		{fmt.Sprintf("64 connections, %s users", thousands(int64(b.users))),
			rigOptions{posting: 64, seed: putUsers(b.ctx, keys), keys: func(i int) string { return keys[i%len(keys)] }}},
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

// putStored returns a function that stores n batches of the user, which were accepted a day ago.
func putStored(ctx context.Context, n int) func(models.Store) error {
	return func(s models.Store) error {
		u, err := s.UserByName(ctx, "bench")
		if err != nil {
			return err
		}
		day := time.Now().Add(-24 * time.Hour)
		_, err = each(n, seeders, func(i int) error {
			id := models.NewBatchID(day.Add(time.Duration(i) * time.Millisecond))
			return putMail(ctx, s, id, u.ID, models.Bulk, fmt.Sprintf("user%d@bench.test", i))
		})
		return err
	}
}

// putUsers creates users and fills keys with one of each.
func putUsers(ctx context.Context, keys []string) func(models.Store) error {
	return func(s models.Store) error {
		_, err := each(len(keys), seeders, func(i int) error {
			u := models.User{ID: models.NewUserID(), Name: fmt.Sprintf("user-%d", i), Created: time.Now()}
			if err := s.CreateUser(ctx, u); err != nil {
				return err
			}
			k, secret := models.NewKey(u.ID, "bench", time.Now())
			keys[i] = secret
			return s.CreateKey(ctx, k)
		})
		return err
	}
}

// as returns a client with the key of a post.
func (r *rig) as(key string) *client.Client {
	return client.New("http://"+r.addr, key, client.HTTPClient(r.http))
}
