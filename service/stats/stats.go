// Package stats counts mail by day, minute, provider, category, sender, template and tag.
package stats

import (
	"cmp"
	"context"
	"maps"
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

// lastHour returns the counts of some users' mail of the hour that ends with the present minute: of each minute the mail that
// was accepted in it, the oldest first. They come from the same sums as the days of Stats.
func (s *Reader) lastHour(
	ctx context.Context, users []string, now time.Time,
) (from time.Time, minutes []Counts, err error) {
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

// Counts holds the sums of logs as they are shown.
type Counts struct {
	Accepted    int64                            `json:"accepted"`
	Queued      int64                            `json:"queued"`
	Sent        int64                            `json:"sent"`
	Success     int64                            `json:"delivered"`
	Failed      int64                            `json:"failed"`
	Cancelled   int64                            `json:"cancelled"`
	Unconfirmed int64                            `json:"unconfirmed"`
	Rerouted    int64                            `json:"rerouted"`
	MayDouble   int64                            `json:"possible_duplicates"`
	Doubled     int64                            `json:"doubled"`
	Reasons     map[models.Reason]int64          `json:"failed_reasons"`
	Events      client.EventCounts               `json:"events"`
	Providers   map[string]client.ProviderCounts `json:"providers"`
}

// Ended returns the number of logs that are delivered or failed.
func (c Counts) Ended() int64 { return c.Success + c.Failed }

// Open returns the number of logs that are queued or sent.
func (c Counts) Open() int64 { return c.Queued + c.Sent }

// Of returns the number of logs in a state.
func (c Counts) Of(s models.State) int64 {
	sum := models.Summary{Queued: c.Queued, Sent: c.Sent, Success: c.Success, Failed: c.Failed, Cancelled: c.Cancelled}
	return sum.Of(s)
}

// Bounced returns the number of logs that failed because the mailbox does not exist.
func (c Counts) Bounced() int64 { return c.Reasons[models.MailboxInvalid] }

// CountsOf returns the counts of a summary.
func CountsOf(s *models.Summary) Counts {
	out := Counts{
		Accepted:    s.Accepted,
		Queued:      s.Queued,
		Sent:        s.Sent,
		Success:     s.Success,
		Failed:      s.Failed,
		Cancelled:   s.Cancelled,
		Unconfirmed: s.Unconfirmed,
		Rerouted:    s.Rerouted,
		MayDouble:   s.MayDouble,
		Doubled:     s.Doubled,
		Reasons:     map[models.Reason]int64{},
		Providers:   map[string]client.ProviderCounts{},
	}
	maps.Copy(out.Reasons, s.Reasons)
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

// DayCounts holds the counts of one UTC day.
type DayCounts struct {
	Date string `json:"date"`
	Counts
}

// Stats holds the counts of the days from From to To, both included.
type Stats struct {
	From     string      `json:"from"`
	To       string      `json:"to"`
	TimeZone string      `json:"time_zone"`
	Days     []DayCounts `json:"days"`
	Totals   Counts      `json:"totals"`
	// Groups has the counts by what was asked for, most mail first.
	Groups []GroupCounts `json:"groups,omitempty"`
	// MoreGroups reports that there are groups that are not counted apart.
	MoreGroups bool `json:"more_groups,omitempty"`
	// Users is the number of users whose mail it is, for pages.
	Users int64 `json:"-"`
	// Minutes has the counts of each minute of the last hour, from MinutesFrom, if they were asked for.
	Minutes     []Counts  `json:"-"`
	MinutesFrom time.Time `json:"-"`
}

// GroupCounts holds the counts of the mail with the same provider, tag, category, template or sender. See
// models.ByProvider.
type GroupCounts struct {
	Name string `json:"name"`
	Counts
	Rates client.Rates `json:"rates"`
}

// ratesOf returns the rates of some counts.
func ratesOf(c *Counts) client.Rates {
	share := func(n, of int64) float64 { return float64(n) / float64(max(of, 1)) }
	return client.Rates{
		Delivered:    share(c.Success, c.Ended()),
		Bounced:      share(c.Bounced(), c.Ended()),
		Complained:   share(c.Events.Complained, c.Success),
		Unsubscribed: share(c.Events.Unsubscribed, c.Success),
		Opened:       share(c.Events.Opened, c.Success),
		Clicked:      share(c.Events.Clicked, c.Success),
	}
}

// Query says which counts are wanted: of the days from From to To, both included. An empty To means today, and an empty
// From means 29 days before To. By, if not empty, names a kind of group, and Name, if not empty, one of that kind: then
// days and totals count only its mail. Minutes asks for the last hour of all mail by minute, too.
type Query struct {
	From, To, By, Name string
	Minutes            bool
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
	out := Stats{From: first.Format(time.DateOnly), To: last.Format(time.DateOnly), TimeZone: "UTC", Users: sent}
	for d := first; !d.After(last); d = d.AddDate(0, 0, 1) {
		sum := byDay[d.Unix()]
		if sum != nil && wanted.Name != "" {
			sum = sum.Groups[models.Group{Kind: by, Name: wanted.Name}]
		}
		if sum == nil {
			sum = &models.Summary{}
		}
		total.Add(sum)
		out.Days = append(out.Days, DayCounts{d.Format(time.DateOnly), CountsOf(sum)})
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
	s.Groups = []GroupCounts{}
	for name, sum := range sums {
		g := GroupCounts{Name: name, Counts: CountsOf(sum)}
		g.Rates = ratesOf(&g.Counts)
		s.Groups = append(s.Groups, g)
	}
	slices.SortFunc(s.Groups, func(a, b GroupCounts) int {
		return cmp.Or(cmp.Compare(b.Accepted, a.Accepted), cmp.Compare(a.Name, b.Name))
	})
}

// sums returns the sums of some users at a level whose spans begin in [from, to), by their start in Unix seconds, and how
// many of the users have sent.
func (s *Reader) sums(
	ctx context.Context, users []string, level models.Level, from, to time.Time,
) (byStart map[int64]*models.Summary, sent int64, err error) {
	found := make([][]models.Node, len(users))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(usersAtOnce)
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
	g.SetLimit(usersAtOnce)
	for i := range users[:min(len(users), people.MaxUsers)] {
		g.Go(func() error {
			sum, err := models.Lately(ctx, s.Store, users[i].ID, now)
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

const (
	unknownAge  = 10 * time.Second // how long a count is cached
	usersAtOnce = 8                // users whose mail is counted at the same time
)
