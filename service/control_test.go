package service

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/inproc/inproctest"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/service/commands"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/store/memory"
)

// The texts of warnings, and how long after a command the agenda requeues its batch.
const (
	mayDoubleWarning = "It is unknown whether the providers accepted this mail, so it may arrive twice."
	inFlightWarning  = "Calls in flight cannot be stopped, but no new call starts."
	uncountedWarning = "The recipients could not be counted."
	lateWarning      = "The command is in effect, but the mail may not go out by itself: " +
		"repeat the command if nothing moves within a minute."
	noneToTry    = "No mail of this batch waits for another attempt."
	requeueAfter = 2 * time.Second
)

// TestCommandReachesWorkers: once a command that withholds mail is answered, a worker in
// another process knows it before its next call.
func TestCommandReachesWorkers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		store, broker := memory.Open(t), inproctest.New(t, "sg")
		s := New(Deps{
			Store:     store,
			Broker:    broker,
			Providers: []models.Provider{{Name: "sg"}},
			Config:    Config{SpoolDir: t.TempDir()},
		})
		t.Cleanup(s.Close)
		require.NoError(t, store.CreateUser(ctx, models.User{ID: "aaaa", Name: "ada", Created: time.Now().UTC()}))
		who := Caller{User: "aaaa", By: "aaaa", Operator: true}
		id := acceptBatch(t, s, who)

		worker := control.NewFollower(store)
		known := func() *control.Rules {
			require.NoError(t, worker.EnsureFresh(ctx, control.MaxRuleAge))
			return worker.Rules()
		}
		known()
		for range 2 { // a repeat changes nothing and has the same answer
			require.NoError(t, worker.Sync(ctx))
			out, _, err := s.Commands.Batch(ctx, who, models.StopBatch, id.String(), "", Repeat{})
			require.NoError(t, err)
			require.Equal(t, new(0), out.InFlight)
			stopped, _ := known().Stopped(id)
			require.True(t, stopped)
		}
		require.NoError(t, worker.Sync(ctx))
		_, _, err := s.Operate.ControlProvider(ctx, who, models.ProviderOffline, "sg", "", Repeat{})
		require.NoError(t, err)
		require.Equal(t, models.ProviderOffline, known().Provider("sg").Mode)
	})
}

// TestRequeueAfterPropagation: a batch is announced and put on the agenda only after
// workers in other processes know the command that lets it go out.
func TestRequeueAfterPropagation(t *testing.T) {
	t.Parallel()
	for _, do := range []models.CommandKind{
		models.TryBatch,
		models.RetryBatch,
		models.ReleaseBatch,
		models.ResumeBatch,
		models.CancelBatch,
	} {
		t.Run(string(do), func(t *testing.T) {
			t.Parallel()
			f := newCommandRig(t)
			id := f.batch()
			switch do { // the others need nothing
			case models.TryBatch:
				f.refused(id)
			case models.RetryBatch:
				f.end(id, models.RetriesUsedUp)
			case models.ReleaseBatch:
				f.end(id, models.OutcomeUnknown)
			case models.ResumeBatch:
				_, _, err := f.Commands.Batch(t.Context(), f.who, models.StopBatch, id.String(), "", Repeat{})
				require.NoError(t, err)
				f.store.written()
				require.NoError(t, f.worker.Sync(t.Context()))
			}
			f.store.schedule = func(n int) error {
				if n == 2 && f.known() < f.Audit.Follower.Rules().UpTo() {
					f.early <- id
				}
				return nil
			}
			out, _, err := f.Commands.Batch(t.Context(), f.who, do, id.String(), "", Repeat{})
			require.NoError(t, err)
			require.True(t, out.Changed)
			require.Equal(t, id, <-f.announced)
			require.Empty(t, f.early)
			calls, scheduled := f.store.written()
			require.Equal(t, []string{"schedule", "command", "schedule"}, calls)
			commands, err := f.store.Commands(t.Context(), f.Audit.Follower.Rules().UpTo()-1, 1)
			require.NoError(t, err)
			require.Len(t, scheduled[0], 2, "soon, and when the command is in effect or never will be")
			require.Equal(t, f.cfg.RetryTime, scheduled[0][1].Due.Sub(scheduled[0][0].Due).Round(time.Second))
			require.Equal(t, id, scheduled[1][0].ID)
			require.False(t, scheduled[1][0].Due.Before(commands[0].At.Add(requeueAfter)))
		})
	}
}

// TestReleaseRangeWaitsOnce: a release of several batches waits only once until the
// workers know the commands.
func TestReleaseRangeWaitsOnce(t *testing.T) {
	t.Parallel()
	f := newCommandRig(t)
	want := []models.ID{f.batch(), f.batch()}
	for _, id := range want {
		f.putHeld(id)
	}
	now := time.Now()
	rel := client.Release{From: now.Add(-time.Hour), To: now.Add(time.Hour)}
	out, _, err := f.Commands.ReleaseRange(t.Context(), f.who, rel, Repeat{})
	require.NoError(t, err)
	require.Equal(t, client.ReleaseResult{Batches: 2, Recipients: 2, Warning: mayDoubleWarning}, out)
	require.ElementsMatch(t, want, []models.ID{<-f.announced, <-f.announced})
	require.Empty(t, f.early)
	calls, scheduled := f.store.written()
	require.Equal(t, []string{"schedule", "command", "schedule", "command", "schedule"}, calls)
	require.Len(t, scheduled[2], 2)
}

// TestResumedUserIsAnnounced: the newest batches of a resumed user are announced after the
// workers know the command.
func TestResumedUserIsAnnounced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newCommandRig(t)
		id := f.batch()
		for _, do := range []models.CommandKind{models.PauseUser, models.ResumeUser} {
			require.NoError(t, f.worker.Sync(t.Context()))
			_, _, err := f.People.Control(t.Context(), operator, do, "ada", "", Repeat{})
			require.NoError(t, err)
		}
		require.Equal(t, id, <-f.announced)
		require.Empty(t, f.early)
	})
}

// TestFailureAfterCommand: once a command is in effect, a later failure is a warning in
// the answer.
func TestFailureAfterCommand(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newCommandRig(t)
		id := f.batch()
		f.putHeld(id)
		f.store.ledgerErr = models.ErrUnavailable
		out, _, err := f.Commands.Batch(t.Context(), f.who, models.StopBatch, id.String(), "", Repeat{})
		require.NoError(t, err)
		require.True(t, out.Changed)
		require.True(t, out.Stopped)
		require.Nil(t, out.InFlight)
		require.Nil(t, out.Recipients)
		require.Equal(t, uncountedWarning+" "+inFlightWarning, out.Warning)
		raw, err := json.Marshal(out)
		require.NoError(t, err)
		require.Contains(t, string(raw), `"in_flight":null`)

		f.store.ledgerErr = nil
		f.store.schedule = func(n int) error {
			if n == 2 {
				return models.ErrUnavailable
			}
			return nil
		}
		f.store.written()
		out, _, err = f.Commands.Batch(t.Context(), f.who, models.ReleaseBatch, id.String(), "", Repeat{})
		require.NoError(t, err)
		require.Equal(t, new(0), out.InFlight)
		waiting := " Nothing goes out yet. It will when the batch is resumed."
		require.Equal(t, lateWarning+" "+mayDoubleWarning+waiting, out.Warning)
		require.Equal(t, id, <-f.announced, "it is announced although the agenda failed")
	})
}

// TestRetryDoesNotReachErasedMail: a retry reaches no mail whose address was erased, and says so.
func TestRetryDoesNotReachErasedMail(t *testing.T) {
	f := newCommandRig(t)
	id := f.batch()
	f.end(id, models.NoProviderLeft)
	rs, err := f.store.Recipients(t.Context(), id)
	require.NoError(t, err)
	reached := func() int {
		t.Helper()
		v, err := f.Commands.DryRunBatch(t.Context(), f.who, models.RetryBatch, id.String(), "")
		require.NoError(t, err)
		require.NotNil(t, v.Recipients)
		return *v.Recipients
	}
	require.Equal(t, 1, reached())
	boss := Caller{By: "cli:zoe", Operator: true}
	for out := (client.Erasure{}); !out.Done; { // a busy machine needs several parts
		out, _, err = f.Erasures.Address(t.Context(), boss, rs[0].Email, out.Next, "", Repeat{})
		require.NoError(t, err)
	}
	require.NoError(t, f.worker.Sync(t.Context()))
	require.Zero(t, reached())
}

// TestRescheduleIsOnAgendaBefore: the agenda has a batch at its new time before the command is in effect, so that it
// goes out then even if this process ends between the two. A batch that is due at once is announced after workers know
// it.
func TestRescheduleIsOnAgendaBefore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newCommandRig(t)
		at := time.Now().UTC().AddDate(0, 0, 2).Truncate(time.Second)
		id := acceptBatch(t, f.Service, f.who, "deliver_at", at.Format(time.RFC3339))
		require.Equal(t, id, <-f.announced)
		f.store.written()
		for _, to := range []time.Time{at.AddDate(0, 0, 1), at, time.Now().UTC().Truncate(time.Second)} {
			require.NoError(t, f.worker.Sync(t.Context()))
			times := intake.Times{DeliverAt: to.Format(time.RFC3339)}
			out, _, err := f.Commands.Reschedule(t.Context(), f.who, commands.Reschedule{Batch: id.String(), Times: times},
				Repeat{})
			require.NoError(t, err)
			require.True(t, out.Changed)
			f.known()
			require.Equal(t, to, f.worker.Rules().Scheduled(&models.Batch{ID: id}).DeliverAt)
			calls, scheduled := f.store.written()
			soon := time.Now().Add(requeueAfter)
			if to.After(soon) {
				require.Equal(t, []string{"schedule", "command"}, calls)
				require.Equal(t, to, scheduled[0][0].Due)
				continue
			}
			require.Equal(t, []string{"schedule", "command", "schedule"}, calls)
			require.Equal(t, id, <-f.announced)
			require.Empty(t, f.early)
			require.Equal(t, f.cfg.RetryTime, scheduled[0][1].Due.Sub(scheduled[0][0].Due).Round(time.Second))
		}
	})
}

// TestTryReachesWhatWaits: a batch is tried if a part of it waits for another attempt, and the result says how much
// does. Suspended providers are named, because they are not tried.
func TestTryReachesWhatWaits(t *testing.T) {
	t.Parallel()
	f := newWaitRig(t)
	f.put()
	try := func() (commands.Result, commands.Result) {
		t.Helper()
		dry, err := f.Commands.DryRunBatch(t.Context(), f.who, models.TryBatch, f.batch.ID.String(), "")
		require.NoError(t, err)
		done, _, err := f.Commands.Batch(t.Context(), f.who, models.TryBatch, f.batch.ID.String(), "", Repeat{})
		require.NoError(t, err)
		return dry, done
	}
	until := f.now.Add(time.Hour)
	f.report(suspended(until), suspended(until.Add(time.Minute)))
	for _, out := range []func() commands.Result{
		func() commands.Result { dry, _ := try(); return dry },
		func() commands.Result { _, done := try(); return done },
	} {
		got := out()
		require.False(t, got.Changed)
		require.Equal(t, new(0), got.Recipients)
		require.Equal(t, noneToTry, got.Warning)
	}
	require.Zero(t, f.Audit.Follower.Rules().UpTo(), "nothing was commanded")

	f.attempt(f.now, models.Unavailable)
	dry, done := try()
	require.True(t, dry.DryRun && dry.Changed && done.Changed)
	require.Equal(t, new(1), dry.Recipients)
	require.Equal(t, new(1), done.Recipients)
	require.Contains(t, done.Warning, "mg until "+until.Add(time.Minute).Format(time.RFC3339)+", sg until "+
		until.Format(time.RFC3339))
	require.Equal(t, models.TryBatch, f.Audit.Follower.Rules().Batch(&f.batch).Try.Kind)
	_, err := f.Commands.DryRunBatch(t.Context(), Caller{User: "bbbb", By: "bbbb"}, models.TryBatch,
		f.batch.ID.String(), "")
	require.Error(t, err, "another user")
}
