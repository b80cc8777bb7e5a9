package service

import (
	"context"
	"math"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// QueueView is a queue as it is shown.
type QueueView struct {
	Name     string      `json:"name"`
	Provider string      `json:"provider,omitempty"`
	Lane     models.Lane `json:"lane,omitempty"`
	Ready    int         `json:"ready"`   // waiting messages
	Working  int         `json:"working"` // messages being handled; -1 if the broker cannot tell
	// Oldest is an upper bound on the age of the oldest waiting message in seconds. It is
	// nil if no message waits, or if no worker has seen the queue move or empty.
	Oldest *float64 `json:"oldest_seconds"`
}

// Age returns Oldest as a duration, or 0 if it is unknown.
func (q *QueueView) Age() time.Duration {
	if q.Oldest == nil {
		return 0
	}
	return time.Duration(*q.Oldest * float64(time.Second))
}

// Queues returns the number and the age of the messages in each queue.
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
