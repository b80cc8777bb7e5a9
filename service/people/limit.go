package people

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/feed"
	"github.com/safedelivr/safedelivr/service/audit"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/problem"
	"github.com/safedelivr/safedelivr/service/quota"
)

// LimitDeps holds what Limits use.
type LimitDeps struct {
	Store       models.Store
	Audit       *audit.Trail
	Quotas      models.Limits // of users for whom no operator sets others
	Sole        bool          // no other process uses the store
	DiskReserve int64         // free bytes below which nothing is accepted
	DiskFree    func() (int64, error)
	Log         *slog.Logger
}

// Limits says what users and keys may ask for. Its methods may be called by many goroutines at once.
type Limits struct {
	LimitDeps
	commands  quota.Commands
	processes quota.Processes
	quotas    *quota.Guard
}

// NewLimits returns the limits of the users of a store.
func NewLimits(d LimitDeps) *Limits {
	s := &Limits{LimitDeps: d}
	s.quotas = quota.New(d.Store, &s.processes)
	return s
}

// TakeCommand counts a command of a caller about a batch or a user, given by ID. It returns an error if the caller has
// given too many. What withholds mail is never counted: without a resumption a repeat of it changes nothing.
func (s *Limits) TakeCommand(who caller.Caller, target string) error {
	wait := s.commands.Take(who.Name(), target)
	if wait == 0 {
		return nil
	}
	return problem.New(problem.TooMany, "too_many_commands",
		"You have given more than %d commands about the same batch or user within a minute. Repeat the request later.",
		quota.CommandBurst).After(seconds(wait))
}

// seconds returns d in seconds, rounded up.
func seconds(d time.Duration) int { return int(math.Ceil(d.Seconds())) }

// Process reports this process to the others that share the limits of users, and counts them, until ctx ends. name must
// be unique. If no other process uses the store, it returns at once.
func (s *Limits) Process(ctx context.Context, name string) {
	if s.Sole {
		return
	}
	s.processes.Run(ctx, s.Store, name, func(err error) {
		s.Log.Warn("cannot count the processes that share the limits of users", "err", err)
	})
}

// subjects returns the user and the key of a caller with their limits. A caller who is no user has none.
func (s *Limits) subjects(ctx context.Context, who caller.Caller) ([]quota.Subject, error) {
	if who.User == "" {
		return nil, nil
	}
	rules, err := s.Audit.Rules(ctx)
	if err != nil {
		return nil, err
	}
	out := []quota.Subject{s.userSubject(rules, who.User)}
	if limits := rules.Limits(who.Key); who.Key != "" && len(limits) > 0 {
		out = append(out, quota.Subject{ID: who.Key, User: who.User, Limits: limits})
	}
	return out, nil
}

func (s *Limits) userSubject(rules *control.Rules, user string) quota.Subject {
	return quota.Subject{ID: user, User: user, Limits: rules.Limits(user).Over(s.Quotas)}
}

// Admit admits a request of a caller, who must call end when it is done. known is how much of the caller's limits is
// used, as far as this process knows; it is not nil even if the request is refused.
func (s *Limits) Admit(ctx context.Context, who caller.Caller) (end func(), known []quota.Usage, err error) {
	subjects, err := s.subjects(ctx, who)
	if err != nil {
		return nil, nil, err
	}
	end, err = s.begin(ctx, subjects)
	return end, s.quotas.Known(subjects), LimitError(err)
}

// joinPoll is how often a request that waits is tried again while this process joins others.
const joinPoll = 50 * time.Millisecond

// begin admits a request of subjects.
func (s *Limits) begin(ctx context.Context, subjects []quota.Subject) (end func(), err error) {
	err = s.joined(ctx, func() error {
		end, err = s.quotas.Begin(subjects)
		return err
	})
	return end, err
}

// joined calls take. While this process joins others, it has nearly nothing of the limits. What it would refuse then
// waits: take is called again.
func (s *Limits) joined(ctx context.Context, take func() error) error {
	for {
		joining := s.processes.Joining() && ctx.Err() == nil
		if err := take(); err == nil || !joining {
			return err
		}
		models.Pause(ctx, joinPoll)
	}
}

// resumeTime is how long a request that has waited for something waits for a place among those that run.
const resumeTime = 30 * time.Second

// Resume counts a request again that Admit has admitted and that has waited for something. It waits until the caller
// has fewer requests at once.
func (s *Limits) Resume(ctx context.Context, who caller.Caller) (end func(), err error) {
	subjects, err := s.subjects(ctx, who)
	if err != nil {
		return nil, err
	}
	for until := time.Now().Add(resumeTime); ; models.Pause(ctx, joinPoll) {
		end, err = s.quotas.Resume(subjects)
		if err == nil || ctx.Err() != nil || !time.Now().Before(until) {
			return end, LimitError(err)
		}
	}
}

// AdmitPage admits a request of the dashboard, as Admit does. It is counted apart from requests to the API, so that a
// program of a user does not keep the user from the pages.
func (s *Limits) AdmitPage(ctx context.Context, who caller.Caller) (end func(), err error) {
	subjects, err := s.subjects(ctx, who)
	if err != nil {
		return nil, err
	}
	for i := range subjects {
		subjects[i].ID = "dashboard " + subjects[i].ID
	}
	end, err = s.begin(ctx, subjects)
	return end, LimitError(err)
}

// Trial says whether amounts could be taken, for a dry run. It takes nothing.
type Trial struct {
	limits *Limits
	trial  *quota.Trial
}

// NewTrial returns a Trial of the limits as they are now.
func (s *Limits) NewTrial() *Trial { return &Trial{s, s.quotas.NewTrial()} }

// Take returns an error if amounts cannot be taken from the quotas of the caller.
func (t *Trial) Take(ctx context.Context, who caller.Caller, amounts []quota.Amount) (giveBack func(), err error) {
	subjects, err := t.limits.subjects(ctx, who)
	if err == nil {
		err = t.trial.Take(ctx, subjects, amounts)
	}
	return func() {}, err
}

// Take takes amounts from the quotas of the caller, and notifies operators of what is nearly used up.
func (s *Limits) Take(ctx context.Context, who caller.Caller, amounts []quota.Amount) (giveBack func(), err error) {
	subjects, err := s.subjects(ctx, who)
	if err != nil {
		return nil, err
	}
	giveBack, err = s.quotas.Take(ctx, subjects, amounts)
	for i := range subjects {
		if subjects[i].ID == who.User {
			s.quotas.Near(
				subjects[i],
				func(u quota.Usage, began time.Time) error { return s.noteNear(ctx, who.User, &u, began) },
			)
		}
	}
	return giveBack, err
}

// noteNear notifies operators that a user has used most of a limit.
func (s *Limits) noteNear(ctx context.Context, user string, u *quota.Usage, began time.Time) error {
	err := feed.NearQuota(ctx, s.Store, models.Notice{
		User: user, Limit: u.Limit, Count: u.Used, Most: u.Value, Since: began, Until: u.Ends,
	})
	if err != nil && ctx.Err() == nil {
		s.Log.Warn("cannot tell operators of a limit that is nearly used up; will retry", "user_id", user, "err", err)
	}
	return err
}

// Spooler returns what the intake of a caller's request asks before it writes to the spool.
func (s *Limits) Spooler(ctx context.Context, who caller.Caller) func(n int64) error {
	var mu sync.Mutex // parts of a request are read at the same time
	var subjects []quota.Subject
	held := int64(0)
	return func(n int64) error {
		mu.Lock()
		defer mu.Unlock()
		if n > 0 {
			if err := s.CheckDisk(ctx, who.User); err != nil {
				return err
			}
		}
		if subjects == nil {
			var err error
			if subjects, err = s.subjects(ctx, who); err != nil {
				return err
			}
		}
		if err := s.joined(ctx, func() error { return s.quotas.Spool(subjects, held, n) }); err != nil {
			return LimitError(err)
		}
		held += n
		return nil
	}
}

// nearReserve times the reserve is the free space of a disk below which each user has a share of it.
const nearReserve = 4

// CheckDisk returns an error if the free space of a disk is below the reserve. Before that it refuses the users whose
// stored mail takes more than what is free above the reserve, so that those with less can go on.
func (s *Limits) CheckDisk(ctx context.Context, user string) error {
	if s.DiskReserve <= 0 || s.DiskFree == nil {
		return nil
	}
	free, err := s.DiskFree()
	if err != nil {
		s.Log.Warn("cannot read the free disk space", "err", err)
		return nil
	}
	switch {
	case free < s.DiskReserve:
		return problem.New(problem.Unavailable, "disk_reserve", "The server has too little free disk space for that. "+
			"What it accepted goes on. Repeat the request later.").After(60)
	case free >= nearReserve*s.DiskReserve || user == "":
		return nil
	}
	stored, err := s.onDisk(ctx, user)
	if err != nil {
		return problem.FromStore("read usage", err)
	}
	share := free - s.DiskReserve
	if stored <= share {
		return nil
	}
	return problem.New(problem.Unavailable, "disk_share",
		"The disk of the server is nearly full, and your mail takes %d bytes of it, "+
			"which is more than your share of %d. Nothing was stored. Repeat the request when content was removed, "+
			"or ask an operator to free space.", stored, share).After(seconds(time.Hour))
}

// onDisk returns how many bytes a user has on the disk of this process.
func (s *Limits) onDisk(ctx context.Context, user string) (int64, error) {
	subject := quota.Subject{ID: user, User: user}
	spooled := s.quotas.Spooled(subject)
	if !s.Sole { // the store is on other disks
		return spooled, nil
	}
	stored, err := s.quotas.Stored(ctx, subject, models.StoredBytes)
	return spooled + stored, err
}

// LimitError returns the Error for an error of the quotas.
func LimitError(err error) error {
	var e *quota.Exceeded
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &e):
		return problem.FromStore("count against the limits", err)
	case e.Share > 0:
		return problem.New(problem.TooLarge, "over_limit",
			"Your limit %s of %d is shared by the processes of this installation, and the batch alone is more than the %d of "+
				"one. Split it, or ask an operator.", e.Limit, e.Value, e.Share)
	case e.After == 0:
		return problem.New(problem.TooLarge, "over_limit",
			"The batch alone is more than your limit %s of %d allows. Split it, or ask an operator.", e.Limit, e.Value)
	case e.Limit == models.StoredBatches:
		return problem.New(problem.TooMany, "limit_reached",
			"You have %d stored batches, which is your limit stored_batches. Nothing was stored. Old batches are removed by "+
				"themselves, a day at a time; until then put more recipients into a batch, or ask an operator for a higher "+
				"limit or for a shorter time that batches are kept.", e.Value).After(seconds(e.After))
	case e.Limit == models.StoredBytes:
		return problem.New(problem.TooMany, "limit_reached",
			"With this your mail would take more than the %d bytes of your limit stored_bytes. Nothing was stored. Old "+
				"content is removed by itself, a day at a time; until then ask an operator for a higher limit or for a shorter "+
				"time that content is kept.", e.Value).After(seconds(e.After))
	}
	return problem.New(problem.TooMany, "limit_reached",
		"Your limit %s of %d is reached. Nothing was stored. Repeat the request after the time in Retry-After.",
		e.Limit, e.Value).After(seconds(e.After))
}

// Usage returns the limits of the caller and how much of them is used.
func (s *Limits) Usage(ctx context.Context, who caller.Caller) (client.Limits, error) {
	return s.limitsOf(ctx, who.User, "")
}

// LimitsOf returns the limits of a user, given by ID or name, or of one of the user's keys, given by ID, and how much
// of them is used.
func (s *Limits) LimitsOf(ctx context.Context, who caller.Caller, user, key string) (client.Limits, error) {
	u, err := s.limited(ctx, who, user, key)
	if err != nil {
		return client.Limits{}, err
	}
	return s.limitsOf(ctx, u.ID, key)
}

// limited returns the user to whom limits belong, for an operator.
func (s *Limits) limited(ctx context.Context, who caller.Caller, user, key string) (models.User, error) {
	if err := who.NeedOperator(); err != nil {
		return models.User{}, err
	}
	u, err := find(ctx, s.Store, user)
	if err != nil || key == "" {
		return u, err
	}
	keys, err := s.Store.Keys(ctx, u.ID)
	if err != nil {
		return u, problem.FromStore("list keys", err)
	}
	if !slices.ContainsFunc(keys, func(k models.Key) bool { return k.ID == key }) {
		return u, problem.NoSuch("API key of this user")
	}
	return u, nil
}

func (s *Limits) limitsOf(ctx context.Context, user, key string) (client.Limits, error) {
	rules, err := s.Audit.Rules(ctx)
	if err != nil {
		return client.Limits{}, err
	}
	subject := s.userSubject(rules, user)
	set := rules.Limits(user)
	if key != "" {
		set = rules.Limits(key)
		subject = quota.Subject{ID: key, User: user, Limits: set}
	}
	used, err := s.quotas.Usage(ctx, subject)
	if err != nil {
		return client.Limits{}, problem.FromStore("read usage", err)
	}
	v := client.Limits{User: user, Key: key}
	for _, u := range used {
		_, isSet := set[u.Limit]
		v.Limits = append(v.Limits, client.LimitUse{Limit: string(u.Limit), Value: u.Value, Set: isSet, Used: u.Used,
			Resets: u.Ends})
	}
	return v, nil
}

// maxLimit is the largest value of a limit.
const maxLimit = 1_000_000_000_000

// SetLimits sets the limits of a user, given by ID or name, or of one of the user's keys, given by ID. Limits that are
// not given take their defaults; a key has none. An hour or day whose limit changes begins anew.
func (s *Limits) SetLimits(
	ctx context.Context, who caller.Caller, user, key string, limits models.Limits, why string,
) (client.Limits, error) {
	var f problem.Form
	for _, l := range slices.Sorted(maps.Keys(limits)) {
		at := problem.Pointer(string(l))
		switch {
		case !l.Valid():
			f.Wrong(at, "unknown_limit", "There is no limit with this name.")
		case limits[l] < 0 || limits[l] > maxLimit:
			f.Wrong(at, "invalid_value", "The limit must be from 0 (no limit) to %d.", int64(maxLimit))
		}
	}
	audit.WrongWhy(&f, why)
	if err := f.Err(); err != nil {
		return client.Limits{}, err
	}
	u, err := s.limited(ctx, who, user, key)
	if err != nil {
		return client.Limits{}, err
	}
	id := u.ID
	if key != "" {
		id = key
	}
	command := models.Command{Kind: models.SetLimits, User: u.ID, Subject: key, Limits: limits, Why: why}
	changed, err := s.Audit.Append(ctx, who, &command, func(rules *control.Rules) bool {
		return !maps.Equal(rules.Limits(id), limits)
	})
	if err != nil {
		return client.Limits{}, err
	}
	v, err := s.limitsOf(ctx, u.ID, key)
	v.Changed = changed
	return v, err
}
