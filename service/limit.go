package service

import (
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/feed"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/problem"
	"github.com/safedelivr/safedelivr/service/quota"
	"github.com/safedelivr/safedelivr/service/templates"
)

// takeCommand counts a command of a caller about a batch or a user, given by ID. It returns
// an error if the caller has given too many. What withholds mail is never counted: without
// a resumption a repeat of it changes nothing.
func (s *Service) takeCommand(who Caller, target string) error {
	wait := s.commands.Take(who.Name(), target)
	if wait == 0 {
		return nil
	}
	return Fail(TooMany, "too_many_commands",
		"You have given more than %d commands about the same batch or user within a minute. Repeat the request later.",
		quota.CommandBurst).After(seconds(wait))
}

// seconds returns d in seconds, rounded up.
func seconds(d time.Duration) int { return int(math.Ceil(d.Seconds())) }

// Process reports this process to the others that share the limits of users, and counts
// them, until ctx ends. name must be unique. If no other process uses the store, it
// returns at once.
func (s *Service) Process(ctx context.Context, name string) {
	if s.cfg.Sole {
		return
	}
	s.processes.Run(ctx, s.store, name, func(err error) {
		s.log.Warn("cannot count the processes that share the limits of users", "err", err)
	})
}

// subjects returns the user and the key of a caller with their limits. A caller who is no
// user has none.
func (s *Service) subjects(ctx context.Context, who Caller) ([]quota.Subject, error) {
	if who.User == "" {
		return nil, nil
	}
	rules, err := s.rules(ctx)
	if err != nil {
		return nil, err
	}
	out := []quota.Subject{s.userSubject(rules, who.User)}
	if limits := rules.Limits(who.Key); who.Key != "" && len(limits) > 0 {
		out = append(out, quota.Subject{ID: who.Key, User: who.User, Limits: limits})
	}
	return out, nil
}

func (s *Service) userSubject(rules *control.Rules, user string) quota.Subject {
	return quota.Subject{ID: user, User: user, Limits: rules.Limits(user).Over(s.cfg.Quotas)}
}

// Admit admits a request of a caller, who must call end when it is done. known is how much
// of the caller's limits is used, as far as this process knows; it is not nil even if the
// request is refused.
func (s *Service) Admit(ctx context.Context, who Caller) (end func(), known []quota.Usage, err error) {
	subjects, err := s.subjects(ctx, who)
	if err != nil {
		return nil, nil, err
	}
	end, err = s.begin(ctx, subjects)
	return end, s.quotas.Known(subjects), limitError(err)
}

// joinPoll is how often a request that waits is tried again while this process joins others.
const joinPoll = 50 * time.Millisecond

// begin admits a request of subjects.
func (s *Service) begin(ctx context.Context, subjects []quota.Subject) (end func(), err error) {
	err = s.joined(ctx, func() error {
		end, err = s.quotas.Begin(subjects)
		return err
	})
	return end, err
}

// joined calls take. While this process joins others, it has nearly nothing of the limits. What it would refuse then
// waits: take is called again.
func (s *Service) joined(ctx context.Context, take func() error) error {
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
func (s *Service) Resume(ctx context.Context, who Caller) (end func(), err error) {
	subjects, err := s.subjects(ctx, who)
	if err != nil {
		return nil, err
	}
	for until := time.Now().Add(resumeTime); ; models.Pause(ctx, joinPoll) {
		end, err = s.quotas.Resume(subjects)
		if err == nil || ctx.Err() != nil || !time.Now().Before(until) {
			return end, limitError(err)
		}
	}
}

// AdmitPage admits a request of the dashboard, as Admit does. It is counted apart from requests
// to the API, so that a program of a user does not keep the user from the pages.
func (s *Service) AdmitPage(ctx context.Context, who Caller) (end func(), err error) {
	subjects, err := s.subjects(ctx, who)
	if err != nil {
		return nil, err
	}
	for i := range subjects {
		subjects[i].ID = "dashboard " + subjects[i].ID
	}
	end, err = s.begin(ctx, subjects)
	return end, limitError(err)
}

// quotas takes amounts from the limits of a caller, or says whether they would be taken.
type quotas interface {
	take(ctx context.Context, who Caller, amounts []quota.Amount) (giveBack func(), err error)
}

// trial is quotas of a dry run.
type trial struct {
	svc *Service
	*quota.Trial
}

func (s *Service) newTrial() *trial { return &trial{s, s.quotas.NewTrial()} }

func (t *trial) take(ctx context.Context, who Caller, amounts []quota.Amount) (giveBack func(), err error) {
	subjects, err := t.svc.subjects(ctx, who)
	if err == nil {
		err = t.Take(ctx, subjects, amounts)
	}
	return func() {}, err
}

// takeQuota takes batches with recipients and bytes from the quotas of the caller. If they are not stored after
// all, giveBack returns them.
func takeQuota(
	ctx context.Context, q quotas, who Caller, recipients, batches, bytes int64,
) (giveBack func(), err error) {
	giveBack, err = q.take(ctx, who, []quota.Amount{
		{Limit: models.RecipientsPerHour, N: recipients},
		{Limit: models.RecipientsPerDay, N: recipients},
		{Limit: models.BatchesPerDay, N: batches},
		{Limit: models.StoredBatches, N: batches},
		{Limit: models.StoredBytes, N: bytes},
	})
	return giveBack, limitError(err)
}

// takeBatch takes a batch from the quotas of the caller. It becomes bulk if it was urgent and is over the limit of
// urgent mail. If it is not stored after all, giveBack returns it.
func takeBatch(
	ctx context.Context, q quotas, who Caller, b *models.Batch, in *intake.Intake,
) (giveBack func(), err error) {
	all, err := takeQuota(ctx, q, who, int64(b.Recipients), 1, in.Size(b))
	if err != nil {
		return nil, err
	}
	urgent, err := takeLane(ctx, q, who, b)
	if err != nil {
		all()
		return nil, err
	}
	return func() { all(); urgent() }, nil
}

// takeLane counts the recipients of an urgent batch in the hours in which they may leave. Over the limit of its caller
// the batch becomes bulk; everything else that was decided because it was urgent stays.
func takeLane(ctx context.Context, q quotas, who Caller, b *models.Batch) (giveBack func(), err error) {
	if b.Lane != models.Urgent {
		return func() {}, nil
	}
	giveBack, err = q.take(ctx, who, urgentAmounts(b, time.Now()))
	if e, over := errors.AsType[*quota.Exceeded](err); over {
		b.Lane, b.LaneLimit = models.Bulk, e.Limit
		return func() {}, nil
	}
	return giveBack, limitError(err)
}

// urgentAmounts returns how many recipients of an urgent batch may leave in each hour.
func urgentAmounts(b *models.Batch, now time.Time) (out []quota.Amount) {
	hours := map[time.Time]int64{}
	for n := range b.Chunks {
		hours[b.ScheduleOf(n).MayLeave(now, false).UTC().Truncate(time.Hour)] += int64(b.ChunkSize(n))
	}
	for at, n := range hours {
		out = append(out, quota.Amount{Limit: models.UrgentRecipientsPerHour, N: n, At: at})
	}
	return out
}

// take takes amounts from the quotas of the caller, and tells operators of what is nearly used up.
func (s *Service) take(ctx context.Context, who Caller, amounts []quota.Amount) (giveBack func(), err error) {
	subjects, err := s.subjects(ctx, who)
	if err != nil {
		return nil, err
	}
	giveBack, err = s.quotas.Take(ctx, subjects, amounts)
	for i := range subjects {
		if subjects[i].ID == who.User {
			s.quotas.Near(
				subjects[i],
				func(u quota.Usage, began time.Time) error { return s.tellNear(ctx, who.User, &u, began) },
			)
		}
	}
	return giveBack, err
}

// tellNear tells operators that a user has used most of a limit.
func (s *Service) tellNear(ctx context.Context, user string, u *quota.Usage, began time.Time) error {
	err := feed.NearQuota(ctx, s.store, models.Notice{
		User: user, Limit: u.Limit, Count: u.Used, Most: u.Value, Since: began, Until: u.Ends,
	})
	if err != nil && ctx.Err() == nil {
		s.log.Warn("cannot tell operators of a limit that is nearly used up; will retry", "user_id", user, "err", err)
	}
	return err
}

// spooler returns what the intake of a caller's request asks before it writes to the spool.
func (s *Service) spooler(ctx context.Context, who Caller) func(n int64) error {
	var subjects []quota.Subject
	held := int64(0)
	return func(n int64) error {
		if n > 0 {
			if err := s.checkDisk(ctx, who.User); err != nil {
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
			return limitError(err)
		}
		held += n
		return nil
	}
}

// nearReserve times the reserve is the free space of a disk below which each user has a share of it.
const nearReserve = 4

// checkDisk returns an error if the free space of a disk is below the reserve. Before that it refuses the users whose
// stored mail takes more than what is free above the reserve, so that those with less can go on.
func (s *Service) checkDisk(ctx context.Context, user string) error {
	if s.cfg.DiskReserve <= 0 || s.cfg.DiskFree == nil {
		return nil
	}
	free, err := s.cfg.DiskFree()
	if err != nil {
		s.log.Warn("cannot read the free disk space", "err", err)
		return nil
	}
	switch {
	case free < s.cfg.DiskReserve:
		return Fail(Unavailable, "disk_reserve", "The server has too little free disk space for that. "+
			"What it accepted goes on. Repeat the request later.").After(60)
	case free >= nearReserve*s.cfg.DiskReserve || user == "":
		return nil
	}
	stored, err := s.onDisk(ctx, user)
	if err != nil {
		return storeError("read usage", err)
	}
	share := free - s.cfg.DiskReserve
	if stored <= share {
		return nil
	}
	return Fail(Unavailable, "disk_share", "The disk of the server is nearly full, and your mail takes %d bytes of it, "+
		"which is more than your share of %d. Nothing was stored. Repeat the request when content was removed, "+
		"or ask an operator to free space.", stored, share).After(seconds(time.Hour))
}

// onDisk returns how many bytes a user has on the disk of this process.
func (s *Service) onDisk(ctx context.Context, user string) (int64, error) {
	subject := quota.Subject{ID: user, User: user}
	spooled := s.quotas.Spooled(subject)
	if !s.cfg.Sole { // the store is on other disks
		return spooled, nil
	}
	stored, err := s.quotas.Stored(ctx, subject, models.StoredBytes)
	return spooled + stored, err
}

// limitError returns the Error for an error of the quotas.
func limitError(err error) error {
	var e *quota.Exceeded
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &e):
		return storeError("count against the limits", err)
	case e.Share > 0:
		return Fail(TooLarge, "over_limit",
			"Your limit %s of %d is shared by the processes of this installation, and the batch alone is more than the %d of "+
				"one. Split it, or ask an operator.", e.Limit, e.Value, e.Share)
	case e.After == 0:
		return Fail(TooLarge, "over_limit",
			"The batch alone is more than your limit %s of %d allows. Split it, or ask an operator.", e.Limit, e.Value)
	case e.Limit == models.StoredBatches:
		return Fail(TooMany, "limit_reached",
			"You have %d stored batches, which is your limit stored_batches. Nothing was stored. Old batches are removed by "+
				"themselves, a day at a time; until then put more recipients into a batch, or ask an operator for a higher "+
				"limit or for a shorter time that batches are kept.", e.Value).After(seconds(e.After))
	case e.Limit == models.StoredBytes:
		return Fail(TooMany, "limit_reached",
			"With this your mail would take more than the %d bytes of your limit stored_bytes. Nothing was stored. Old "+
				"content is removed by itself, a day at a time; until then ask an operator for a higher limit or for a shorter "+
				"time that content is kept.", e.Value).After(seconds(e.After))
	}
	return Fail(TooMany, "limit_reached",
		"Your limit %s of %d is reached. Nothing was stored. Repeat the request after the time in Retry-After.",
		e.Limit, e.Value).After(seconds(e.After))
}

// Usage returns the limits of the caller and how much of them is used.
func (s *Service) Usage(ctx context.Context, who Caller) (client.Limits, error) {
	return s.limitsOf(ctx, who.User, "")
}

// LimitsOf returns the limits of a user, given by ID or name, or of one of the user's keys,
// given by ID, and how much of them is used.
func (s *Service) LimitsOf(ctx context.Context, who Caller, user, key string) (client.Limits, error) {
	u, err := s.limited(ctx, who, user, key)
	if err != nil {
		return client.Limits{}, err
	}
	return s.limitsOf(ctx, u.ID, key)
}

// limited returns the user to whom limits belong, for an operator.
func (s *Service) limited(ctx context.Context, who Caller, user, key string) (models.User, error) {
	u, err := s.User(ctx, who, user)
	if err != nil || key == "" {
		return u, err
	}
	keys, err := s.store.Keys(ctx, u.ID)
	if err != nil {
		return u, storeError("list keys", err)
	}
	if !slices.ContainsFunc(keys, func(k models.Key) bool { return k.ID == key }) {
		return u, noSuch("API key of this user")
	}
	return u, nil
}

func (s *Service) limitsOf(ctx context.Context, user, key string) (client.Limits, error) {
	rules, err := s.rules(ctx)
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
		return client.Limits{}, storeError("read usage", err)
	}
	v := client.Limits{User: user, Key: key}
	for _, u := range used {
		_, isSet := set[u.Limit]
		v.Limits = append(v.Limits, client.LimitUse{Limit: string(u.Limit), Value: u.Value, Set: isSet, Used: u.Used, Resets: u.Ends})
	}
	return v, nil
}

// maxLimit is the largest value of a limit.
const maxLimit = 1_000_000_000_000

// SetLimits sets the limits of a user, given by ID or name, or of one of the user's keys,
// given by ID. Limits that are not given take their defaults; a key has none. An hour or
// day whose limit changes begins anew.
func (s *Service) SetLimits(
	ctx context.Context,
	who Caller,
	user, key string,
	limits models.Limits,
	why string,
) (client.Limits, error) {
	var f Form
	for _, l := range slices.Sorted(maps.Keys(limits)) {
		at := problem.Pointer(string(l))
		switch {
		case !l.Valid():
			f.Wrong(at, "unknown_limit", "There is no limit with this name.")
		case limits[l] < 0 || limits[l] > maxLimit:
			f.Wrong(at, "invalid_value", "The limit must be from 0 (no limit) to %d.", int64(maxLimit))
		}
	}
	wrongWhy(&f, why)
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
	changed, err := s.appendCommand(ctx, who, &command, func(rules *control.Rules) bool {
		return !maps.Equal(rules.Limits(id), limits)
	})
	if err != nil {
		return client.Limits{}, err
	}
	v, err := s.limitsOf(ctx, u.ID, key)
	v.Changed = changed
	return v, err
}

// NewIntake returns an empty request for a batch of the caller. When ctx ends, reading and
// checking end. The caller must close it.
func (s *Service) NewIntake(ctx context.Context, who Caller) *intake.Intake {
	c := s.intake
	c.Spooling = s.spooler(ctx, who)
	c.Template = func(ref, language string) (*templates.Filler, error) {
		return s.templates.Use(ctx, who.User, ref, language)
	}
	c.Defaults = func() (models.SendDefaults, error) {
		rules, err := s.rules(ctx)
		if err != nil {
			return models.SendDefaults{}, err
		}
		return rules.Defaults(who.User), nil
	}
	c.Enter = func() (func(), error) { return s.cfg.Priority.Enter(ctx, who.User) }
	return intake.New(ctx, &c)
}
