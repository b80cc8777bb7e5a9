// Package reports reads the reports about mail that come to the mailboxes of providers, and puts them into the inbox like
// webhooks.
package reports

import (
	"context"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/consumers/jobs"
	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
)

// A round ends before the lease does, so that one worker at a time reads a mailbox.
const (
	every     = 10 * time.Second
	roundTime = 45 * time.Second
	leaseTTL  = time.Minute
)

// Reader reads the mailboxes. All fields are required.
type Reader struct {
	jobs.Runner
	Inbox interface {
		PutInbox(ctx context.Context, in models.Inbox) error
	}
	Broker interface {
		Publish(ctx context.Context, ms ...models.Message) error
	}
	Providers *provider.Set
	// Refused is called for each mail that has no report about a mail of its provider.
	Refused func(provider, why string)
}

// mailbox is an adapter that may have a mailbox.
type mailbox interface {
	HasMailbox() bool
	ReadReports(ctx context.Context, store func([]models.Post) error) (others int, err error)
}

// Run reads the mailboxes until ctx ends, each by itself.
func (r *Reader) Run(ctx context.Context) {
	var all sync.WaitGroup
	for _, p := range r.Providers.All() {
		if box, ok := p.Adapter.(mailbox); ok && box.HasMailbox() {
			all.Go(func() { r.Runner.Run(ctx, r.job(p.Name, box)) })
		}
	}
	all.Wait()
}

// job returns the job that reads the mailbox of a provider.
func (r *Reader) job(provider string, box mailbox) *jobs.Job {
	return &jobs.Job{Lease: "reports." + provider, TTL: leaseTTL, Every: every, AtStart: true,
		Doing: "read the mailbox of " + provider,
		Round: func(ctx context.Context, _ time.Time) error {
			ctx, cancel := context.WithTimeout(ctx, roundTime)
			defer cancel()
			others, err := box.ReadReports(ctx, func(posts []models.Post) error { return r.put(ctx, provider, posts) })
			for range others {
				r.Refused(provider, "no_report")
			}
			if others > 0 {
				r.Log.Info("mail without a report was marked as read", "provider", provider, "mails", others)
			}
			return err
		}}
}

// put stores reports and announces them. If the broker fails, the agenda finds them.
func (r *Reader) put(ctx context.Context, provider string, posts []models.Post) error {
	for len(posts) > 0 {
		in := models.Inbox{ID: models.NewInboxID(time.Now()), Provider: provider}
		in.Posts, posts = models.CutPosts(posts)
		if err := r.Inbox.PutInbox(ctx, in); err != nil {
			return err
		}
		_ = r.Broker.Publish(ctx, models.Message{Kind: models.EventMessage, Provider: provider, ID: in.ID})
	}
	return nil
}
