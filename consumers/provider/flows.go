package provider

import (
	"maps"
	"math/bits"
	"sync"
	"time"
)

// A provider that accepts mail and reports nothing about it is unhealthy, too. Every
// worker counts, by the time of the attempt, what a provider accepted and what it
// reported on. The sums of all workers are judged once the time has passed that the
// provider usually takes to report.

const (
	flowBucket   = 10 * time.Second
	flowKept     = 400             // buckets: more than the longest wait and the period that is judged
	silenceOver  = 5 * time.Minute // period of mail that is judged; less if that is clear
	silenceLeast = 20              // recipients that must have been accepted before silence means anything
	silenceSteps = 3               // in at least so many buckets, unless they are silenceMany
	silenceMany  = 1000
	learnLeast   = 50 // reports before a provider's usual time is known
)

// Flow counts what a provider accepted in a bucket of time, and how much of it it
// reported on.
type Flow struct {
	Accepted int64 `json:"t"`
	Reported int64 `json:"h"`
}

// Flows holds the counts of this worker and of its peers, by provider and bucket.
type Flows struct {
	mu     sync.Mutex
	mine   map[string]map[int64]Flow
	others map[string]map[string]map[int64]Flow // by worker
	delays map[string]*delays
	before map[string]time.Duration // how long providers took to report before this worker began
	held   map[string]int           // consecutive suspensions of a provider for silence
}

// NewFlows returns empty counts.
func NewFlows() *Flows {
	return &Flows{
		mine:   map[string]map[int64]Flow{},
		others: map[string]map[string]map[int64]Flow{},
		delays: map[string]*delays{},
		before: map[string]time.Duration{},
		held:   map[string]int{},
	}
}

// bucket returns the number of the bucket that holds t.
func bucket(t time.Time) int64 { return t.Unix() / int64(flowBucket/time.Second) }

// Add counts recipients that were accepted and reported on, by the time of their attempt.
func (f *Flows) Add(provider string, at time.Time, taken, heard int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.mine[provider]
	if m == nil {
		m = map[int64]Flow{}
		f.mine[provider] = m
	}
	b := bucket(at)
	now := bucket(time.Now())
	if b < now-flowKept {
		return
	}
	v := m[b]
	v.Accepted += taken
	v.Reported += heard
	m[b] = v
	if len(m) > flowKept+1 {
		maps.DeleteFunc(m, func(k int64, _ Flow) bool { return k < now-flowKept })
	}
}

// Report counts a report on an attempt, of an event at the time at, received at came.
func (f *Flows) Report(provider string, attempt, happened, came time.Time) {
	f.Add(provider, attempt, 0, 1)
	f.mu.Lock()
	defer f.mu.Unlock()
	d := f.delays[provider]
	if d == nil {
		d = &delays{}
		f.delays[provider] = d
	}
	d.add(reportTime(attempt, happened, came))
}

// lateReport is the delay from which a report was not posted in its time: webhooks were
// down, or it was looked up. Such a report says nothing of how long the provider usually
// takes.
const lateReport = 10 * time.Minute

// reportTime returns how long after an attempt its provider reported.
func reportTime(attempt, happened, came time.Time) time.Duration {
	if came.Sub(happened) > lateReport {
		came = happened
	}
	return max(0, came.Sub(attempt))
}

// Snapshot returns the counts of this worker for its peers.
func (f *Flows) Snapshot() map[string]map[int64]Flow {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make(map[string]map[int64]Flow, len(f.mine))
	for provider, m := range f.mine {
		out[provider] = maps.Clone(m)
	}
	return out
}

// Merge takes in the counts of a peer; nil: the peer is gone.
func (f *Flows) Merge(worker string, said map[string]map[int64]Flow) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if said != nil {
		f.others[worker] = said
		return
	}
	// The counts of a worker that is gone are kept as long as all others.
	from := bucket(time.Now()) - flowKept
	maps.DeleteFunc(f.others, func(_ string, said map[string]map[int64]Flow) bool {
		for _, m := range said {
			for b := range m {
				if b >= from {
					return false
				}
			}
		}
		return true
	})
}

// between returns the sum of the buckets from first to last, over all workers.
func (f *Flows) between(provider string, first, last int64) (sum Flow) {
	f.mu.Lock()
	defer f.mu.Unlock()
	count := func(m map[int64]Flow) {
		for b, v := range m {
			if b >= first && b <= last {
				sum.Accepted += v.Accepted
				sum.Reported += v.Reported
			}
		}
	}
	count(f.mine[provider])
	for _, said := range f.others {
		count(said[provider])
	}
	return sum
}

// silent reports whether there was enough mail and next to no report on it.
func (f Flow) silent() bool { return f.Accepted >= silenceLeast && !f.talks() }

// talks reports whether there was more than next to no report.
func (f Flow) talks() bool { return f.Reported > 0 && f.Reported*50 >= f.Accepted }

// newest returns the counts between two buckets, or those of their newest part if that is silent. Reports on earlier
// mail say nothing of a provider that became silent later. A single batch may be slow mail, for example to a domain
// that is down. So the part must be much mail, or span several buckets.
func (f *Flows) newest(provider string, first, last int64) Flow {
	var sum Flow
	steps := 0
	for b := last; b >= first; b-- {
		v := f.between(provider, b, b)
		if v.Accepted > 0 {
			steps++
		}
		sum.Accepted += v.Accepted
		sum.Reported += v.Reported
		if sum.silent() && (steps >= silenceSteps || sum.Accepted >= silenceMany) {
			return sum
		}
	}
	return sum
}

// ReportTime returns the time in which a provider sends nine of ten reports; 0: not known.
func (f *Flows) ReportTime(provider string) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if d := f.delays[provider]; d != nil && d.most() > 0 {
		return d.most()
	}
	return f.before[provider]
}

// delays is a histogram of times, by powers of two of a millisecond, in which old values
// slowly fade.
type delays struct {
	n     [40]float64
	total float64
	seen  int
}

func (d *delays) add(t time.Duration) {
	d.n[min(bits.Len64(uint64(max(0, t.Milliseconds()))), len(d.n)-1)]++
	d.total++
	d.seen++
	if d.total > 20_000 {
		for i := range d.n {
			d.n[i] /= 2
		}
		d.total /= 2
	}
}

// most returns an upper bound of the time that nine of ten take; 0: not known.
func (d *delays) most() time.Duration {
	if d.seen < learnLeast {
		return 0
	}
	sum := 0.0
	for i, n := range d.n {
		if sum += n; sum >= 0.9*d.total {
			return time.Duration(1<<i) * time.Millisecond
		}
	}
	return 0
}

func (f *Flows) hold(provider string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.held[provider]++
	return f.held[provider] - 1
}

func (f *Flows) forgive(provider string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.held, provider)
}
