// Package quota admits what users and API keys ask for, within their limits. The limits
// hold for all processes together.
package quota

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/safedelivr/safedelivr/models"
)

// Subject is a user or an API key, with its limits.
type Subject struct {
	ID     string // unique among users and keys
	User   string // the user, or the owner of the key
	Limits models.Limits
}

// Exceeded means that a limit refuses a request.
type Exceeded struct {
	Subject string
	Limit   models.Limit
	Value   int64
	After   time.Duration // when the request may be admitted; 0: never
	Share   int64         // of this process, if the request never fits into that; 0: it never fits into the limit
}

// Error implements error.
func (e *Exceeded) Error() string { return fmt.Sprintf("%s is limited to %d", e.Limit, e.Value) }

// Store is the part of models.Store that a Guard needs.
type Store interface {
	models.ClaimStore
	models.DocumentStore
	BatchIDsAfter(ctx context.Context, user string, after models.ID, limit int) ([]models.ID, error)
	PutTransient(ctx context.Context, kind, name string, value []byte, ttl time.Duration) error
	Transient(ctx context.Context, kind, name string) ([]byte, error)
	Transients(ctx context.Context, kind string) (map[string][]byte, error)
}

// Guard admits requests. Its methods may be called by many goroutines at once.
type Guard struct {
	store     Store
	processes *Processes

	mu       sync.Mutex
	subjects map[string]*counts
}

// New returns a Guard for one of the processes that share the limits.
func New(store Store, processes *Processes) *Guard {
	return &Guard{store: store, processes: processes, subjects: map[string]*counts{}}
}

// maxSubjects is the number of subjects after which a Guard forgets those that ask for nothing.
const maxSubjects = 10_000

// counts is what a process has admitted of one subject.
type counts struct {
	requests *rate.Limiter // nil: no limit
	joining  bool          // requests is that of a process that joins others
	running  int64
	spooled  int64
	windows  map[string]*window
	stored   storage // batches
	bytes    storage
	used     time.Time
}

// of returns the counts of a subject. The caller holds mu.
func (g *Guard) of(id string, now time.Time) *counts {
	c := g.subjects[id]
	if c == nil {
		if len(g.subjects) >= maxSubjects {
			g.forget(now)
		}
		c = &counts{windows: map[string]*window{}}
		g.subjects[id] = c
	}
	c.used = now
	return c
}

// forget removes the subjects that have asked for nothing within a minute. What they had
// claimed of their windows is lost to them. The caller holds mu.
func (g *Guard) forget(now time.Time) {
	for id, c := range g.subjects {
		if c.running == 0 && c.spooled == 0 && now.Sub(c.used) > time.Minute {
			delete(g.subjects, id)
		}
	}
}

// Begin admits a request of the subjects, which must call end when it is done. Its error is an *Exceeded.
func (g *Guard) Begin(subjects []Subject) (end func(), err error) {
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	all, err := g.idle(subjects, now)
	if err != nil {
		return nil, err
	}
	for i, s := range subjects {
		c := all[i]
		perSecond := g.share(s.Limits[models.RequestsPerSecond])
		if c.setRate(now, perSecond, g.processes.Joining()); perSecond == 0 {
			continue
		}
		if missing := 1 - c.requests.TokensAt(now); missing > 0 {
			return nil, exceeded(s, models.RequestsPerSecond, time.Duration(missing/float64(perSecond)*float64(time.Second)))
		}
	}
	for _, c := range all {
		if c.requests != nil {
			c.requests.AllowN(now, 1)
		}
	}
	return g.run(all), nil
}

// Resume is Begin for a request that has begun before and has ended to wait: it counts among those that run at once,
// and not among those of the second.
func (g *Guard) Resume(subjects []Subject) (end func(), err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	all, err := g.idle(subjects, time.Now())
	if err != nil {
		return nil, err
	}
	return g.run(all), nil
}

// idle returns the counts of the subjects, or an error if one has as many requests at once as it may. The caller
// holds mu.
func (g *Guard) idle(subjects []Subject, now time.Time) (all []*counts, err error) {
	for _, s := range subjects {
		c := g.of(s.ID, now)
		all = append(all, c)
		if most := g.share(s.Limits[models.RequestsAtOnce]); most > 0 && c.running >= most {
			return nil, exceeded(s, models.RequestsAtOnce, time.Second)
		}
	}
	return all, nil
}

// run counts a request that runs, until it ends. The caller holds mu.
func (g *Guard) run(all []*counts) (end func()) {
	for _, c := range all {
		c.running++
	}
	return sync.OnceFunc(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		for _, c := range all {
			c.running--
		}
	})
}

// share returns this process's part of a limit, at least 1, or 0 if there is no limit.
func (g *Guard) share(limit int64) int64 {
	switch {
	case limit == 0:
		return 0
	case g.processes.Joining():
		return 1
	}
	return max(1, limit/g.processes.Count())
}

// setRate lets so many requests begin in each second, and at once. 0: there is no limit. What a process has admitted
// while it joined others does not count afterwards.
func (c *counts) setRate(now time.Time, perSecond int64, joining bool) {
	joined := c.joining && !joining
	c.joining = joining
	switch {
	case perSecond == 0:
		c.requests = nil
	case c.requests == nil || joined:
		c.requests = rate.NewLimiter(rate.Limit(perSecond), int(perSecond))
	case c.requests.Burst() != int(perSecond):
		c.requests.SetLimitAt(now, rate.Limit(perSecond))
		c.requests.SetBurstAt(now, int(perSecond))
	}
}

// spoolRetry is when a request that found too many bytes held may be repeated.
const spoolRetry = 10 * time.Second

// Spooled returns how many bytes of requests of a subject are on the disk of this process.
func (g *Guard) Spooled(s Subject) int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.of(s.ID, time.Now()).spooled
}

// Spool counts n more bytes of a request that is being read and holds some already. A request is in one process, so it
// must fit into the share of that. Its error is an *Exceeded. A negative n gives bytes back.
func (g *Guard) Spool(subjects []Subject, held, n int64) error {
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range subjects {
		most, c := s.Limits[models.SpoolBytes], g.of(s.ID, now)
		share := g.share(most)
		switch {
		case most == 0 || n < 0 || c.spooled+n <= share:
		case held+n > most:
			return exceeded(s, models.SpoolBytes, 0)
		case held+n > share && !g.processes.Joining():
			e := exceeded(s, models.SpoolBytes, 0)
			e.Share = share
			return e
		default:
			return exceeded(s, models.SpoolBytes, spoolRetry)
		}
	}
	for _, s := range subjects {
		g.subjects[s.ID].spooled += n
	}
	return nil
}

func exceeded(s Subject, l models.Limit, after time.Duration) *Exceeded {
	return &Exceeded{Subject: s.ID, Limit: l, Value: s.Limits[l], After: after}
}

// Amount is an amount of a limit of hours or days.
type Amount struct {
	Limit models.Limit
	N     int64
	At    time.Time // in the hour or day; if it is not after now, the present one
}

// Take admits amounts for all subjects, or nothing. giveBack returns the unused part. Errors: an *Exceeded, those of
// the store.
func (g *Guard) Take(ctx context.Context, subjects []Subject, amounts []Amount) (giveBack func(), err error) {
	var taken []func()
	giveBack = func() {
		for _, f := range taken {
			f()
		}
	}
	for _, s := range subjects {
		for _, a := range amounts {
			take := g.take
			switch {
			case keptOf(a.Limit) != nil && s.counted(a.Limit):
				take = g.takeStored
			case s.Limits[a.Limit] == 0:
				continue
			}
			back, err := take(ctx, s, a)
			if err != nil {
				giveBack()
				return nil, err
			}
			taken = append(taken, back)
		}
	}
	return giveBack, nil
}

func (g *Guard) take(ctx context.Context, s Subject, a Amount) (giveBack func(), err error) {
	if a.N > s.Limits[a.Limit] {
		return nil, exceeded(s, a.Limit, 0)
	}
	now := time.Now()
	w := g.window(s, a.Limit, models.LaterOf(now, a.At))
	for {
		last := w.allClaimed() // before spend: meanwhile another caller may claim the last slice
		if w.spend(a.N) {
			break
		}
		if last {
			return nil, exceeded(s, a.Limit, w.ends().Sub(now))
		}
		if err := g.claimNext(ctx, w, a.N); err != nil {
			return nil, err
		}
	}
	return func() { w.add(a.N, 0) }, nil
}

// maxWindows is the number of windows of a subject after which a Guard forgets those that are not of now. What it had
// claimed of later ones is lost to the subject.
const maxWindows = 1000

// window returns the window of a limit at a time.
func (g *Guard) window(s Subject, l models.Limit, at time.Time) *window {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	c := g.of(s.ID, now)
	key := keyOf(s, l, at)
	if old := c.windows[key]; old != nil {
		return old
	}
	maps.DeleteFunc(c.windows, func(_ string, w *window) bool { return !now.Before(w.ends()) })
	if len(c.windows) >= maxWindows {
		maps.DeleteFunc(c.windows, func(_ string, w *window) bool { return now.Before(w.begin) })
	}
	w := newWindow(s, l, at)
	c.windows[key] = w
	return w
}

// claimNext claims the next slice of a window, unless another caller has brought the credit to n.
func (g *Guard) claimNext(ctx context.Context, w *window, n int64) error {
	w.claiming.Lock()
	defer w.claiming.Unlock()
	slice, credit := w.state()
	if credit >= n || slice == w.slices() {
		return nil
	}
	now := time.Now()
	c := models.Claim{ID: models.NewBatchID(now), Hash: "quota", At: now.UTC()}
	keep := w.ends().Add(w.length).Sub(now)
	there, err := g.store.Claim(ctx, w.sliceKey(slice), c, keep)
	for errors.Is(err, models.ErrOutcomeUnknown) && ctx.Err() == nil {
		there, err = g.store.Claim(ctx, w.sliceKey(slice), c, keep)
	}
	switch {
	case err != nil:
		return err
	case there.ID == c.ID:
		w.add(w.size(slice), 1)
	default:
		w.add(0, 1)
	}
	return nil
}

// window is an hour or a day of a limit. Its amount is cut into slices. A process claims a
// slice before it admits anything of it, so that all processes together never admit more.
// What a process has claimed and not used when it ends is lost until the window ends.
type window struct {
	key    string
	begin  time.Time
	length time.Duration
	limit  int64

	claiming sync.Mutex  // held while a slice is claimed
	said     atomic.Bool // that it is nearly used up

	mu     sync.Mutex
	credit int64 // claimed and not used
	next   int   // the first slice that is not known to be claimed
}

// maxSlices is the number of slices of a window.
const maxSlices = 64

// keyOf returns the key of the window of a limit at a time.
func keyOf(s Subject, l models.Limit, at time.Time) string {
	begin := strconv.FormatInt(at.UTC().Truncate(lengthOf(l)).Unix(), 10)
	return "quota " + s.ID + " " + string(l) + " " + begin + " " + strconv.FormatInt(s.Limits[l], 10)
}

// lengthOf returns the length of the windows of a limit.
func lengthOf(l models.Limit) time.Duration {
	if l == models.RecipientsPerHour || l == models.UrgentRecipientsPerHour {
		return time.Hour
	}
	return 24 * time.Hour
}

func newWindow(s Subject, l models.Limit, at time.Time) *window {
	length := lengthOf(l)
	return &window{key: keyOf(s, l, at), begin: at.UTC().Truncate(length), length: length, limit: s.Limits[l]}
}

// spend uses n of the credit, if there is so much.
func (w *window) spend(n int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.credit < n {
		return false
	}
	w.credit -= n
	return true
}

// add adds credit, and slices to those that are known to be claimed.
func (w *window) add(credit int64, slices int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.credit += credit
	w.next += slices
}

func (w *window) state() (next int, credit int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.next, w.credit
}

func (w *window) allClaimed() bool {
	next, _ := w.state()
	return next == w.slices()
}

func (w *window) ends() time.Time { return w.begin.Add(w.length) }

func (w *window) slices() int { return int(min(w.limit, maxSlices)) }

// size returns the amount of a slice.
func (w *window) size(slice int) int64 {
	n, i := int64(w.slices()), int64(slice)
	return w.limit/n*(i+1) + w.limit%n*(i+1)/n - w.limit/n*i - w.limit%n*i/n
}

func (w *window) sliceKey(slice int) string { return w.key + " " + strconv.Itoa(slice) }
