package dispatch

import (
	"context"
	"fmt"
	"io"

	"golang.org/x/sync/semaphore"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
)

const (
	// attachmentCopies times the size of its attachments is what a call takes: the bytes, and
	// the request with their base64.
	attachmentCopies = 3
	// largestAttachments is what those of the largest message take.
	largestAttachments = attachmentCopies * 25_000_000
)

// memory bounds what the attachments of calls take, by provider.
type memory struct {
	part int64
	free map[string]*semaphore.Weighted
}

func newMemory(all int64, providers []*provider.Provider) memory {
	m := memory{free: map[string]*semaphore.Weighted{}}
	m.part = max(all/int64(max(len(providers), 1)), largestAttachments)
	for _, p := range providers {
		m.free[p.Name] = semaphore.NewWeighted(m.part)
	}
	return m
}

// loadFiles reads the attachments of a job's message, after it got the memory for them. The
// job's done gives the memory back. Errors: errBusy (there was no memory soon), and those of
// models.OpenAttachment.
func (d *Dispatcher) loadFiles(ctx context.Context, c *Chunk, j *job) (done func(), err error) {
	list := c.Batch.Content.Attachments
	if len(list) == 0 {
		return func() {}, nil
	}
	free := d.memory.free[j.Provider.Name]
	n := min(attachmentCopies*c.Batch.Content.AttachmentSize(), d.memory.part)
	patience, cancel := context.WithTimeout(ctx, slotPatience)
	defer cancel()
	if free.Acquire(patience, n) != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%w: stopping", models.ErrUnavailable)
		}
		return nil, errBusy
	}
	read := map[string][]byte{} // equal ones share their bytes
	j.files = make([][]byte, 0, len(list))
	for i := range list {
		a := &list[i]
		if _, ok := read[a.SHA256]; !ok {
			data := make([]byte, a.Size)
			in := models.OpenAttachment(ctx, d.store, c.Batch.ID, a)
			_, err := io.ReadFull(in, data)
			if err == nil {
				_, err = io.Copy(io.Discard, in) // at its end it checks the hash
			}
			if err != nil {
				free.Release(n)
				return nil, err
			}
			read[a.SHA256] = data
		}
		j.files = append(j.files, read[a.SHA256])
	}
	return func() {
		j.files = nil
		free.Release(n)
	}, nil
}
