package service

import (
	"context"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// maxAnnounced is the number of batches that are announced when a user is resumed.
const maxAnnounced = 100

// announceNewest announces the newest unfinished batches of a user, so that they go out at
// once. The agenda finds the others.
func (s *Service) announceNewest(ctx context.Context, user string) {
	batches, err := s.store.Batches(ctx, user, models.ID{}, maxAnnounced)
	if err != nil {
		s.log.Warn("cannot announce the batches of a resumed user; the agenda announces them later",
			"user_id", user, "err", err)
		return
	}
	for i := range batches {
		b := &batches[i]
		if sum, _, err := s.Mail.Total(ctx, b); err == nil && !b.Damaged && b.StateOf(sum, time.Now()) != models.BatchDone {
			s.announce[b.Lane].Add(b.ID, b.Chunks, b.Lane)
		}
	}
}
