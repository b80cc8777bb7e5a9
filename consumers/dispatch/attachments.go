package dispatch

import (
	"context"
	"fmt"
	"io"

	"github.com/safedelivr/safedelivr/models"
)

// loadFiles reads the attachments of a job's message, after it got the memory for them. done
// gives the memory back. Errors: errBusy (there was no memory soon), and those of
// models.OpenAttachment.
func (w *caller) loadFiles(ctx context.Context, c *Chunk, j *job) (done func(), err error) {
	list := c.Batch.Content.Attachments
	if len(list) == 0 {
		return func() {}, nil
	}
	patience, cancel := context.WithTimeout(ctx, slotPatience)
	defer cancel()
	giveBack, err := j.Provider.Memory.Take(patience, c.Batch.Content.AttachmentSize())
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, fmt.Errorf("%w: stopping", models.ErrUnavailable)
	case err != nil:
		return nil, errBusy
	}
	read := map[string][]byte{} // equal ones share their bytes
	j.files = make([][]byte, 0, len(list))
	for i := range list {
		a := &list[i]
		if _, ok := read[a.SHA256]; !ok {
			data := make([]byte, a.Size)
			in := models.OpenAttachment(ctx, w.Store, c.Batch.ID, a)
			_, err := io.ReadFull(in, data)
			if err == nil {
				_, err = io.Copy(io.Discard, in) // at its end it checks the hash
			}
			if err != nil {
				giveBack()
				return nil, err
			}
			read[a.SHA256] = data
		}
		j.files = append(j.files, read[a.SHA256])
	}
	return func() {
		j.files = nil
		giveBack()
	}, nil
}
