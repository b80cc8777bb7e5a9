package demo

import (
	"context"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/lab/receiver"
	"github.com/safedelivr/safedelivr/models"
)

// postWait is how long updates may take to be posted.
const postWait = 5 * time.Minute

// compareUpdates reads the feed of updates to its end, and compares it with the batch and with what an application got.
func (d *demo) compareUpdates(ctx context.Context, s *Summary, batch *client.Counts) error {
	published := map[receiver.Update]client.State{}
	newest := map[string]client.Update{}
	options := client.UpdateOptions{Batch: d.batch.String(), Events: receiver.Types}
	for u, err := range d.client.Updates(options).All(ctx) {
		if err != nil {
			return err
		}
		published[receiver.Named(&u)] = u.State
		if u.Event != "" {
			continue
		}
		if u.Number != newest[u.Log].Number+1 {
			s.wrong("update %d of %s follows number %d", u.Number, u.Log, newest[u.Log].Number)
		}
		newest[u.Log] = u
	}
	states := map[client.State]int64{}
	for _, u := range newest {
		states[u.State]++
	}
	if states[client.Delivered] != batch.Delivered || states[client.Failed] != batch.Failed {
		s.wrong("the updates say %d delivered and %d failed, the batch %d and %d",
			states[client.Delivered], states[client.Failed], batch.Delivered, batch.Failed)
	}
	within, cancel := context.WithTimeout(ctx, postWait)
	defer cancel()
	for range models.Every(within, 50*time.Millisecond) {
		if d.receiver.Missing(published) == 0 {
			break
		}
	}
	n := d.receiver.Counts()
	s.Updates, s.Posted, s.Posts = int64(len(published)), int64(n.Updates), int64(n.Posts)
	if missing := d.receiver.Missing(published); missing > 0 || n.Refused > 0 {
		s.wrong("%d updates were not posted, and %d posts were not verified", missing, n.Refused)
	}
	return ctx.Err()
}
