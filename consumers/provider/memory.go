package provider

import (
	"context"

	"golang.org/x/sync/semaphore"
)

const (
	// attachmentCopies times the size of its attachments is what a call takes: the bytes, and
	// the request with their base64.
	attachmentCopies = 3
	// largestAttachments is what those of the largest message take.
	largestAttachments = attachmentCopies * 25_000_000
)

// memory bounds what the attachments of a provider's calls take. Each provider has an equal
// part of all, so that one that hangs delays no other, but at least what the largest message
// takes.
type memory struct {
	part int64
	free *semaphore.Weighted
}

func newMemory(all int64, providers int) *memory {
	part := max(all/int64(providers), largestAttachments)
	return &memory{part, semaphore.NewWeighted(part)}
}

// Take waits until a call may hold attachments of a size in bytes. The caller must call
// giveBack when it no longer does. Errors: that of ctx.
func (m *memory) Take(ctx context.Context, size int64) (giveBack func(), err error) {
	n := min(attachmentCopies*size, m.part)
	if err := m.free.Acquire(ctx, n); err != nil {
		return nil, err
	}
	return func() { m.free.Release(n) }, nil
}
