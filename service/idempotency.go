package service

import (
	"context"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/idempotency"
)

// Repeat identifies a request that its client may send again. The zero value identifies
// none: each such request is a new one.
type Repeat = idempotency.Repeat

// once calls do for a request of the caller as idempotency.Once does.
func once[T any](
	ctx context.Context,
	s *Service,
	who Caller,
	r Repeat,
	do func(ctx context.Context, c models.Claim, older bool) (T, error),
) (v T, replayed bool, err error) {
	return idempotency.Once(ctx, s.guard, who.User, r, do)
}
