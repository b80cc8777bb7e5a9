package telemetry

import (
	"encoding/json"
	"fmt"
	"math"
	"math/bits"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/codec"
)

// The history counts what happened at each provider by the minute. Every worker replaces its own report of a UTC hour;
// the history is the sum over all workers. It is approximate: a worker that is killed loses what it has not written,
// and an event that is posted twice counts twice. Summary has the exact counts.

const (
	// HistoryKept is how long the history of an hour is kept.
	HistoryKept = 31 * 24 * time.Hour
	// HistoryLate is the maximum delay of an event that is counted.
	HistoryLate = 24 * time.Hour
)

// HistoryKind returns the kind (Store.PutTransient) of the reports about the UTC hour
// that contains t. Each is a HistoryHour, by worker and start of the worker.
func HistoryKind(t time.Time) string { return "history/" + t.UTC().Format("2006010215") }

// HistoryHour has the counts of one worker in one hour, by provider and minute.
type HistoryHour map[string]map[int]*ProviderTally

// Encode returns the stored form of h.
func (h HistoryHour) Encode() []byte { return codec.PackJSON(h) }

// DecodeHistory reverses HistoryHour.Encode.
func DecodeHistory(raw []byte) (h HistoryHour, err error) { return h, codec.UnpackJSON(raw, &h) }

// At returns the counts of a provider for a minute of the hour. The caller may change them.
func (h HistoryHour) At(provider string, minute int) *ProviderTally {
	m := h[provider]
	if m == nil {
		m = map[int]*ProviderTally{}
		h[provider] = m
	}
	t := m[minute]
	if t == nil {
		t = &ProviderTally{}
		m[minute] = t
	}
	return t
}

// ProviderTally has the counts of one provider in a span of time. All except Calls count recipients.
type ProviderTally struct {
	Calls     int64  `json:"c,omitempty"` // calls that ended
	Accepted  int64  `json:"a,omitempty"` // outcome of these calls, like Refused and Unknown
	Refused   int64  `json:"r,omitempty"`
	Unknown   int64  `json:"u,omitempty"`
	Delivered int64  `json:"d,omitempty"` // by events, at their times
	Failed    int64  `json:"f,omitempty"` // by events: bounced, dropped or blocked
	Deferred  int64  `json:"w,omitempty"`
	Answers   Spread `json:"t,omitzero"` // response times
	Delivery  Spread `json:"e,omitzero"` // times from the call to the delivery
}

// Add adds the counts of o.
func (t *ProviderTally) Add(o *ProviderTally) {
	t.Calls += o.Calls
	t.Accepted += o.Accepted
	t.Refused += o.Refused
	t.Unknown += o.Unknown
	t.Delivered += o.Delivered
	t.Failed += o.Failed
	t.Deferred += o.Deferred
	t.Answers.Merge(&o.Answers)
	t.Delivery.Merge(&o.Delivery)
}

// spreadParts is the number of buckets per doubling. spreadLast is the last bucket, for 2^26 ms (18 hours) and longer.
const (
	spreadParts = 4
	spreadLast  = 26 * spreadParts
)

// Spread is a histogram of durations, from a millisecond to hours. Its buckets grow by 19 %. The zero value is empty.
type Spread struct {
	n []uint32 // by bucket, up to the last one that is not 0
}

// spreadBucket returns the bucket of d. Bucket i begins at 2^(i/4) ms.
func spreadBucket(d time.Duration) int {
	ms := float64(d) / float64(time.Millisecond)
	if ms < 1 {
		return 0
	}
	return min(int(math.Log2(ms)*spreadParts), spreadLast)
}

// spreadFrom returns the lower bound of a bucket.
func spreadFrom(i int) time.Duration {
	return time.Duration(math.Exp2(float64(i)/spreadParts) * float64(time.Millisecond))
}

// Add adds a duration.
func (s *Spread) Add(d time.Duration) { s.add(spreadBucket(d), 1) }

func (s *Spread) add(bucket int, n uint32) {
	for len(s.n) <= bucket {
		s.n = append(s.n, 0)
	}
	if sum, over := bits.Add32(s.n[bucket], n, 0); over == 0 {
		s.n[bucket] = sum
	}
}

// Merge adds the durations of o.
func (s *Spread) Merge(o *Spread) {
	for i, n := range o.n {
		if n > 0 {
			s.add(i, n)
		}
	}
}

// IsZero reports whether s is empty.
func (s Spread) IsZero() bool { return len(s.n) == 0 }

// Within returns the quantile part (0 to 1) of the durations, accurate to about 10 %, or 0 if there are none.
func (s *Spread) Within(part float64) time.Duration {
	total := 0.0
	for _, n := range s.n {
		total += float64(n)
	}
	left := part * total
	for i, n := range s.n {
		if left -= float64(n); n > 0 && left <= 0 {
			from, to := spreadFrom(i), spreadFrom(i+1)
			return to + time.Duration(left/float64(n)*float64(to-from)) // left is not positive
		}
	}
	return 0
}

// MarshalJSON implements json.Marshaler: bucket, count, bucket, count, …
func (s Spread) MarshalJSON() ([]byte, error) {
	out := []uint32{}
	for i, n := range s.n {
		if n > 0 {
			out = append(out, uint32(i), n)
		}
	}
	return json.Marshal(out)
}

// UnmarshalJSON implements json.Unmarshaler.
func (s *Spread) UnmarshalJSON(raw []byte) error {
	var in []uint32
	if err := json.Unmarshal(raw, &in); err != nil {
		return err
	}
	*s = Spread{}
	if len(in)%2 != 0 {
		return fmt.Errorf("%w: a histogram of %d numbers", models.ErrInvalid, len(in))
	}
	for i := 0; i < len(in); i += 2 {
		if in[i] > spreadLast {
			return fmt.Errorf("%w: bucket %d of a histogram", models.ErrInvalid, in[i])
		}
		s.add(int(in[i]), in[i+1])
	}
	return nil
}

// DeliveryTime returns the time from a call to its delivery: at least 0, and at most the time until the event was
// received. If the time of the event has only whole seconds, it returns the middle of the possible range.
func DeliveryTime(event, call, heard time.Time) time.Duration {
	first, last := max(0, event.Sub(call)), event.Sub(call)
	if event.Nanosecond() == 0 {
		last += time.Second
	}
	last = min(max(first, last), max(0, heard.Sub(call)))
	first = min(first, last)
	return (first + last) / 2
}
