package service

import (
	"context"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// Account is what is told of a provider account.
type Account struct {
	Name        string             `json:"name"`
	Kind        string             `json:"kind"`
	Weight      int                `json:"weight"`
	Concurrency int                `json:"concurrency"`
	Rate        float64            `json:"rate_per_second,omitempty"`
	ChunkLimit  int                `json:"chunk_limit"`
	Events      models.EventSource `json:"events"`
	Health      *Health            `json:"health"` // null where no worker has reported
	Worker      *Counters          `json:"worker,omitempty"`
	RateUsed    float64            `json:"rate_used"`                    // recipients accepted per second, over the last seconds
	AnswerMS    float64            `json:"answer_ms,omitempty"`          // how long calls usually take; 0: not known
	ReportedMS  float64            `json:"reported_within_ms,omitempty"` // nine of ten mails are delivered, or otherwise reported on, within it; 0: not known
	LastWebhook time.Time          `json:"last_webhook_at,omitzero"`     // when a verified post came last, to ten seconds
}

// Health is an account's present health.
type Health struct {
	State string    `json:"state"`
	Since time.Time `json:"since"`
	Why   string    `json:"why,omitempty"`
	Until time.Time `json:"until,omitzero"`
}

// Counters is what the worker behind Health did since it started.
type Counters struct {
	Calls     int64 `json:"calls"`
	Accepted  int64 `json:"accepted"`
	Refused   int64 `json:"refused"`
	Unknown   int64 `json:"unknown"`
	Delivered int64 `json:"delivered"`
	Failures  int64 `json:"failures"`
	Inflight  int64 `json:"inflight"`
}

// Accounts tells of all provider accounts.
func (s *Service) Accounts(ctx context.Context) ([]Account, error) {
	accounts, err := s.health(ctx)
	if err != nil {
		return nil, storeError("read accounts", err)
	}
	if accounts == nil {
		accounts = []Account{}
	}
	return accounts, nil
}
