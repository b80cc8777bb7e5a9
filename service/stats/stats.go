// Package stats counts mail by day, minute, provider, category, sender, template and tag.
package stats

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/cached"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/operation"
	"github.com/safedelivr/safedelivr/service/people"
	"github.com/safedelivr/safedelivr/service/problem"
)

// Deps holds what a Reader uses.
type Deps struct {
	Store  models.Store
	People *people.People
}

// Reader reads counts. Its methods may be called by many goroutines at once.
type Reader struct {
	Deps
	unknown cached.Value[Unknown]
}

// New returns the counts of a store.
func New(d Deps) *Reader { return &Reader{Deps: d} }

// lastHour returns the counts of some users' mail of the hour that ends with the present minute: of each minute the
// mail that was accepted in it, the oldest first. They come from the same sums as the days of Stats.
func (s *Reader) lastHour(
	ctx context.Context, users []string, now time.Time,
) (from time.Time, minutes []client.Counts, err error) {
	to := now.UTC().Truncate(time.Minute).Add(time.Minute)
	from = to.Add(-time.Hour)
	sums, _, err := s.sums(ctx, users, models.Minute, from, to)
	if err != nil {
		return from, nil, problem.FromStore("read the counts of the last hour", err)
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

// CountsOf returns the counts of a summary.
func CountsOf(s *models.Summary) client.Counts {
	out := client.Counts{
		Accepted:           s.Accepted,
		Queued:             s.Queued,
		Sent:               s.Sent,
		Delivered:          s.Success,
		Failed:             s.Failed,
		Cancelled:          s.Cancelled,
		Unconfirmed:        s.Unconfirmed,
		Rerouted:           s.Rerouted,
		PossibleDuplicates: s.MayDouble,
		Doubled:            s.Doubled,
		FailedReasons:      map[string]int64{},
		Providers:          map[string]client.ProviderCounts{},
	}
	for r, n := range s.Reasons {
		out.FailedReasons[string(r)] = n
	}
	out.Events = client.EventCounts{
		Deferred:     s.Events[models.Deferred],
		Bounced:      s.Events[models.Bounced],
		Complained:   s.Events[models.Complained],
		Unsubscribed: s.Events[models.Unsubscribed],
		Opened:       s.Events[models.Opened],
		Clicked:      s.Events[models.Clicked],
	}
	for k, v := range s.Providers {
		out.Providers[k] = client.ProviderCounts(v)
	}
	return out
}

// Stats holds the counts of some days, and what pages show besides.
type Stats struct {
	client.Stats
	// Users is the number of users whose mail it is.
	Users int64 `json:"-"`
	// Minutes has the counts of each minute of the last hour, from MinutesFrom, if they were asked for.
	Minutes     []client.Counts `json:"-"`
	MinutesFrom time.Time       `json:"-"`
}

// ratesOf returns the rates of some counts.
func ratesOf(c *client.Counts) client.Rates {
	share := func(n, of int64) float64 { return float64(n) / float64(max(of, 1)) }
	return client.Rates{
		Delivered:    share(c.Delivered, c.Ended()),
		Bounced:      share(c.FailedReasons[string(models.MailboxInvalid)], c.Ended()),
		Complained:   share(c.Events.Complained, c.Delivered),
		Unsubscribed: share(c.Events.Unsubscribed, c.Delivered),
		Opened:       share(c.Events.Opened, c.Delivered),
		Clicked:      share(c.Events.Clicked, c.Delivered),
	}
}

// Query says which counts are wanted.
type Query struct {
	operation.Whose
	// First day. Default: 29 days before `to`.
	From string `query:"from" format:"date"`
	// Last day. Default: today. The range may have at most 400 days.
	To string `query:"to" format:"date"`
	// Count the mail of each provider, category, sender (the domain of `from`), template or tag apart, too.
	By string `query:"by" enum:"provider,category,sender,template,tag"`
	// With `by`: count in `days` and `totals` only the mail of this provider, category, sender, template or tag.
	Name string `query:"name"`

	Minutes bool // count the last hour by minute, too; no parameter
}

// MaxDays is the number of days that one request may cover.
const MaxDays = 400

// Of returns the counts of the caller's mail, or of everybody's if the caller wants that.
func (s *Reader) Of(ctx context.Context, who caller.Caller, wanted Query) (Stats, error) {
	var q operation.Query
	last := q.Day("to", wanted.To, time.Now().UTC().Truncate(24*time.Hour))
	first := q.Day("from", wanted.From, last.AddDate(0, 0, -29))
	if q.Found() == 0 && (last.Before(first) || last.Sub(first) >= MaxDays*24*time.Hour) {
		q.Bad("from", "from must not be after to, and the range may have at most %d days.", MaxDays)
	}
	by := models.GroupKind(wanted.By)
	if by != "" && !by.Valid() {
		q.Bad("by", "by must be provider, category, sender, template or tag.")
	}
	if wanted.Name != "" && by == "" {
		q.Bad("name", "name needs by.")
	}
	if err := q.Err(); err != nil {
		return Stats{}, err
	}
	users, err := s.People.Owners(ctx, who, "")
	if err != nil {
		return Stats{}, err
	}
	byDay, sent, err := s.sums(ctx, users, models.Day, first, last.AddDate(0, 0, 1))
	if err != nil {
		return Stats{}, problem.FromStore("read stats", err)
	}
	var total models.Summary
	out := Stats{Users: sent}
	out.From, out.To, out.TimeZone = first.Format(time.DateOnly), last.Format(time.DateOnly), "UTC"
	for d := first; !d.After(last); d = d.AddDate(0, 0, 1) {
		sum := byDay[d.Unix()]
		if sum != nil && wanted.Name != "" {
			sum = sum.Groups[models.Group{Kind: by, Name: wanted.Name}]
		}
		if sum == nil {
			sum = &models.Summary{}
		}
		total.Add(sum)
		out.Days = append(out.Days, client.DayCounts{Date: d.Format(time.DateOnly), Counts: CountsOf(sum)})
	}
	out.Totals = CountsOf(&total)
	if by != "" {
		out.group(byDay, by)
	}
	if wanted.Minutes {
		out.MinutesFrom, out.Minutes, err = s.lastHour(ctx, users, time.Now())
	}
	return out, err
}

// group sets the groups of a kind.
func (s *Stats) group(byDay map[int64]*models.Summary, by models.GroupKind) {
	sums := map[string]*models.Summary{}
	for _, day := range byDay {
		s.MoreGroups = s.MoreGroups || day.MoreGroups
		for g, sum := range day.Groups {
			if g.Kind != by {
				continue
			}
			if sums[g.Name] == nil {
				sums[g.Name] = &models.Summary{}
			}
			sums[g.Name].Add(sum)
		}
	}
	s.Groups = []client.GroupCounts{}
	for name, sum := range sums {
		g := client.GroupCounts{Name: name, Counts: CountsOf(sum)}
		g.Rates = ratesOf(&g.Counts)
		s.Groups = append(s.Groups, g)
	}
	slices.SortFunc(s.Groups, func(a, b client.GroupCounts) int {
		return cmp.Or(cmp.Compare(b.Accepted, a.Accepted), cmp.Compare(a.Name, b.Name))
	})
}

// sums returns the sums of some users at a level whose spans begin in [from, to), by their start in Unix seconds, and
// how many of the users have sent.
func (s *Reader) sums(
	ctx context.Context, users []string, level models.Level, from, to time.Time,
) (byStart map[int64]*models.Summary, sent int64, err error) {
	found := make([][]models.Node, len(users))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(UsersAtOnce)
	for i, user := range users {
		g.Go(func() (err error) {
			found[i], err = s.Store.Nodes(ctx, user, level, from, to)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, 0, err
	}
	byStart = map[int64]*models.Summary{}
	for _, nodes := range found {
		if slices.ContainsFunc(nodes, func(n models.Node) bool { return n.Summary.Accepted > 0 }) {
			sent++
		}
		for i := range nodes {
			start := nodes[i].Span.Start.Unix()
			if byStart[start] == nil {
				byStart[start] = &models.Summary{}
			}
			byStart[start].Add(&nodes[i].Summary)
		}
	}
	return byStart, sent, nil
}

// Unknown counts the mails whose outcome is unknown.
type Unknown struct {
	Mails   int64
	Users   int  // number of users that have such mails
	Partial bool // only the first people.MaxUsers users were counted
}

// UnknownOutcomes counts the mails of all users that were accepted today or yesterday
// (UTC) and whose outcome is unknown.
func (s *Reader) UnknownOutcomes(ctx context.Context, who caller.Caller) (Unknown, error) {
	if err := who.NeedOperator(); err != nil {
		return Unknown{}, err
	}
	out, err := s.unknown.Get(unknownAge, func() (Unknown, error) { return s.countUnknown(ctx, time.Now()) })
	if err != nil {
		return Unknown{}, problem.FromStore("count unknown outcomes", err)
	}
	return out, nil
}

func (s *Reader) countUnknown(ctx context.Context, now time.Time) (Unknown, error) {
	users, err := s.People.All(ctx)
	if err != nil {
		return Unknown{}, err
	}
	out := Unknown{Partial: len(users) > people.MaxUsers}
	var mu sync.Mutex
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(UsersAtOnce)
	for i := range users[:min(len(users), people.MaxUsers)] {
		g.Go(func() error {
			sum, err := s.lately(ctx, users[i].ID, now)
			mu.Lock()
			defer mu.Unlock()
			if n := sum.Unknown(); n > 0 {
				out.Mails += n
				out.Users++
			}
			return err
		})
	}
	return out, g.Wait()
}

// lately returns the sum of a user's batches of today and yesterday (UTC).
func (s *Reader) lately(ctx context.Context, user string, now time.Time) (models.Summary, error) {
	today := models.DayOf(now)
	nodes, err := s.Store.Nodes(ctx, user, models.Day, today.AddDate(0, 0, -1), today.AddDate(0, 0, 1))
	var sum models.Summary
	for i := range nodes {
		sum.Add(&nodes[i].Summary)
	}
	return sum, err
}

const unknownAge = 10 * time.Second // how long a count is cached

// UsersAtOnce is the number of users whose mail is counted at the same time.
const UsersAtOnce = 8
