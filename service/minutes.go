package service

import (
	"context"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// lastHour returns the counts of some users' mail of the hour that ends with the present minute: of each minute the mail that
// was accepted in it, the oldest first. They come from the same sums as the days of Stats.
func lastHour(ctx context.Context, s *Service, users []string, now time.Time) (from time.Time, minutes []Counts, err error) {
	to := now.UTC().Truncate(time.Minute).Add(time.Minute)
	from = to.Add(-time.Hour)
	sums, _, err := s.sums(ctx, users, models.Minute, from, to)
	if err != nil {
		return from, nil, storeError("read the counts of the last hour", err)
	}
	for at := from; at.Before(to); at = at.Add(time.Minute) {
		sum := sums[at.Unix()]
		if sum == nil {
			sum = &models.Summary{}
		}
		minutes = append(minutes, CountsOf(sum))
	}
	return from, minutes, nil
}
