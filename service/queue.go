package service

import (
	"context"
	"math"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// QueueView is how full a queue is.
type QueueView struct {
	Name     string      `json:"name"`
	Provider string      `json:"provider,omitempty"`
	Lane     models.Lane `json:"lane,omitempty"`
	Ready    int         `json:"ready"`
	Working  int         `json:"working"` // -1 where the broker cannot tell
	// Oldest is for how many seconds the oldest waiting message has waited at
	// most; nil: none waits, or no worker has seen this queue move or empty.
	Oldest *float64 `json:"oldest_seconds"`
}

// Age is Oldest as a duration; 0: not known.
func (q *QueueView) Age() time.Duration {
	if q.Oldest == nil {
		return 0
	}
	return time.Duration(*q.Oldest * float64(time.Second))
}

// Queues tells how full the queues are, and how old.
func (s *Service) Queues(ctx context.Context, who Caller) ([]QueueView, error) {
	if err := who.operates(); err != nil {
		return nil, err
	}
	depths, err := s.broker.Depths(ctx)
	if err != nil {
		return nil, brokerError(err)
	}
	reports, err := reportsOf[telemetry.QueueTimes](ctx, s, telemetry.QueuesReport)
	if err != nil {
		return nil, storeError("read the age of queues", err)
	}
	since := telemetry.QueueTimes{}
	for _, times := range reports {
		since.Take(times)
	}
	now := time.Now()
	out := make([]QueueView, 0, len(depths))
	for _, d := range depths {
		q := QueueView{
			Name:     d.Queue.Name(),
			Provider: d.Queue.Provider,
			Lane:     d.Queue.Lane,
			Ready:    d.Ready,
			Working:  d.Unacked,
		}
		if at := since[q.Name]; d.Ready > 0 && !at.IsZero() {
			age := math.Round(max(0, now.Sub(at).Seconds())*10) / 10
			q.Oldest = &age
		}
		out = append(out, q)
	}
	return out, nil
}
