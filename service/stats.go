package service

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// LastCheck returns the newest recount that a worker made of recently accepted batches.
// It returns a NotFound error if no worker has made one lately.
func (s *Service) LastCheck(ctx context.Context, who Caller) (out telemetry.Recount, err error) {
	if err := who.NeedOperator(); err != nil {
		return out, err
	}
	raw, err := s.store.Transient(ctx, telemetry.RecountReport, telemetry.NewestRecount)
	if errors.Is(err, models.ErrNotFound) {
		return out, Fail(NotFound, "not_found", "No worker has recounted the sums lately.")
	}
	if err == nil {
		err = json.Unmarshal(raw, &out)
	}
	if err != nil {
		return out, storeError("read the newest recount", err)
	}
	return out, nil
}

// usersAtOnce is the number of users whose mail is counted at the same time.
const usersAtOnce = 8
