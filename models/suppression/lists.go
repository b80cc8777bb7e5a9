// Package suppression finds which recipients are suppressed, without a read for each of
// them.
package suppression

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
)

const (
	markBytes = 40   // memory of one mark in a map, at most; measured by BenchmarkMillion
	maxLists  = 5000 // number of lists that a process keeps
	pageRows  = 50   // additions that are read at a time
)

// DefaultMemory is the default budget of Lists, in bytes: enough for 1.6 million addresses.
const DefaultMemory = 64 << 20

// Lists knows the marks of all addresses that were ever added to the lists that this process
// uses. It reads the entries of an address only if its mark is among them. A process has one.
// Its methods may be called by many goroutines at once.
type Lists struct {
	store Store
	now   func() control.Instant

	mu     sync.Mutex
	known  *simplelru.LRU[string, *list]
	budget int // maximum number of marks in all lists
	marks  int // in the lists of known
}

// Store is the part of models.Store that Lists need.
type Store interface {
	models.SuppressionStore
	models.DocumentStore
	models.FeedStore
}

// New returns Lists that use up to memory bytes for marks. A list that does not fit is read
// for every recipient.
func New(store Store, memory int64) *Lists {
	l := &Lists{store: store, now: control.Now, budget: int(memory / markBytes)}
	known, err := simplelru.NewLRU(maxLists, func(_ string, v *list) {
		v.dropped = true
		l.marks -= v.counted
	})
	if err != nil {
		panic("suppression: " + err.Error()) // maxLists is positive
	}
	l.known = known
	return l
}

// list is what a process knows of one list.
type list struct {
	name    string
	adding  chan struct{} // holds a value while Add works
	reading sync.Mutex    // one reader of the log at a time

	mu    sync.RWMutex
	fresh control.Instant // beginning of the last successful read; zero: none
	upTo  int             // number of the last addition that was read
	marks map[uint64]struct{}
	long  bool // the list does not fit, and marks is nil

	counted int  // marks that Lists.marks counts; guarded by Lists.mu
	dropped bool // guarded by Lists.mu
}

// get returns a list, which may be empty.
func (l *Lists) get(name string) *list {
	l.mu.Lock()
	defer l.mu.Unlock()
	v, ok := l.known.Get(name)
	if !ok {
		v = &list{name: name, marks: map[uint64]struct{}{}, adding: make(chan struct{}, 1)}
		l.known.Add(name, v)
	}
	return v
}

// reserve reports whether a list of n marks fits. It drops lists that were not used for
// longer.
func (l *Lists) reserve(v *list, n int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n > l.budget {
		n = 0
	}
	if !v.dropped {
		l.marks += n - v.counted
		v.counted = n
		for l.marks > l.budget && l.known.Len() > 1 {
			if _, oldest, _ := l.known.GetOldest(); oldest == v {
				l.known.Get(v.name)
			}
			l.known.RemoveOldest()
		}
	}
	return n > 0
}

// upToDate returns a list whose log was read at most age ago.
func (l *Lists) upToDate(ctx context.Context, name string, age time.Duration) (*list, error) {
	v := l.get(name)
	if l.within(v, age) {
		return v, nil
	}
	v.reading.Lock()
	defer v.reading.Unlock()
	if l.within(v, age) { // another caller has read it
		return v, nil
	}
	for began := l.now(); ; {
		page, err := l.store.Additions(ctx, name, v.upTo, pageRows)
		if err != nil {
			return nil, err
		}
		l.apply(v, page)
		if len(page) < pageRows {
			v.mu.Lock()
			v.fresh = began
			v.mu.Unlock()
			return v, nil
		}
	}
}

func (l *Lists) within(v *list, age time.Duration) bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.fresh != control.Instant{} && l.now().Since(v.fresh) < age
}

// apply adds the marks of additions to a list.
func (l *Lists) apply(v *list, page []models.SuppressionAddition) {
	if len(page) == 0 {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.upTo = page[len(page)-1].Number
	if v.long {
		return
	}
	for i := range page {
		for _, m := range page[i].Marks {
			v.marks[m] = struct{}{}
		}
	}
	if !l.reserve(v, len(v.marks)) {
		v.long, v.marks = true, nil
	}
}

// Mail is what the lists must know about mail.
type Mail struct {
	User             string
	Category         string
	PassUnsubscribes bool // unsubscribes from a category do not count
}

// MailOf returns the mail of a batch.
func MailOf(b *models.Batch) Mail {
	return Mail{User: b.User, Category: b.Category, PassUnsubscribes: b.PassUnsubscribes}
}

// Found is what Suppressed has found.
type Found struct {
	// Suppressed has the recipients that are suppressed, by index, and why.
	Suppressed map[int]models.Suppression

	upTo [2]int // numbers of the last additions that were known
	read bool   // entries were read
}

// Endings returns the entries of a ledger that end the suppressed recipients, without number
// and token: one for each cause. number returns the number of a recipient by its index.
func (f *Found) Endings(number func(i int) int) []models.Entry {
	var out []models.Entry
	now := time.Now().UTC()
	for i, why := range f.Suppressed {
		words := models.Clip(why.Words())
		k := slices.IndexFunc(out, func(e models.Entry) bool { return e.Detail == words })
		if k < 0 {
			k = len(out)
			out = append(out, models.Entry{Kind: models.Ending, At: now, Reason: models.Suppressed, Detail: words})
		}
		out[k].Recipients.Add(number(i))
	}
	return out
}

// Suppressed returns which of n recipients are suppressed for mail. at returns the address
// of a recipient by its index. The result has all additions from before age ago.
func (l *Lists) Suppressed(
	ctx context.Context, mail Mail, n int, at func(i int) string, age time.Duration,
) (Found, error) {
	var found Found
	for k, name := range [2]string{mail.User, models.EveryonesList} {
		v, err := l.upToDate(ctx, name, age)
		if err != nil {
			return found, err
		}
		upTo, who := v.candidates(n, at)
		found.upTo[k] = upTo
		if len(who) == 0 {
			continue
		}
		found.read = true
		if err := l.read(ctx, name, mail, who, &found); err != nil {
			return found, err
		}
	}
	return found, nil
}

// Changed reports whether Suppressed might find other recipients now than it has found.
func (l *Lists) Changed(ctx context.Context, mail Mail, found *Found, age time.Duration) (bool, error) {
	changed := found.read // entries may have been added or removed again
	for k, name := range [2]string{mail.User, models.EveryonesList} {
		v, err := l.upToDate(ctx, name, age)
		if err != nil {
			return true, err
		}
		v.mu.RLock()
		changed = changed || v.upTo != found.upTo[k]
		v.mu.RUnlock()
	}
	return changed, nil
}

// candidates returns the indexes of the recipients that the list may have, by hash, and the
// number of its last addition.
func (v *list) candidates(n int, at func(i int) string) (upTo int, who map[models.AddressHash][]int) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if len(v.marks) == 0 && !v.long {
		return v.upTo, nil
	}
	who = map[models.AddressHash][]int{}
	for i := range n {
		address := at(i)
		if _, ok := v.marks[models.MarkAddress(address)]; ok || v.long {
			h := models.HashAddress(address)
			who[h] = append(who[h], i)
		}
	}
	return v.upTo, who
}

// read reads the entries of addresses and adds the recipients that they suppress to found.
func (l *Lists) read(
	ctx context.Context, name string, mail Mail, who map[models.AddressHash][]int, found *Found,
) error {
	hashes := make([]models.AddressHash, 0, len(who))
	for h := range who {
		hashes = append(hashes, h)
	}
	entries, err := l.store.SuppressionsOf(ctx, name, hashes...)
	if err != nil {
		return err
	}
	if mail.PassUnsubscribes {
		entries = slices.DeleteFunc(entries, func(e models.Suppression) bool {
			return e.Reason == models.Unsubscribe && e.Category != ""
		})
	}
	now := time.Now()
	for len(entries) > 0 {
		h := entries[0].Hash
		end := slices.IndexFunc(entries, func(e models.Suppression) bool { return e.Hash != h })
		if end < 0 {
			end = len(entries)
		}
		if why := models.Strongest(entries[:end], mail.Category, now); why != nil {
			for _, i := range who[h] {
				if found.Suppressed == nil {
					found.Suppressed = map[int]models.Suppression{}
				}
				if _, there := found.Suppressed[i]; !there {
					found.Suppressed[i] = *why
				}
			}
		}
		entries = entries[end:]
	}
	return nil
}
