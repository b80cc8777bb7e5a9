package lists

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/models/settings"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/drift"
	"github.com/safedelivr/safedelivr/models/suppression"
	"github.com/safedelivr/safedelivr/store/memory"
)

// bounces and blocks are the lists of the scripted provider.
const (
	bounces = "bounces"
	blocks  = "blocks"
)

// scripted is a provider with two lists, whose pages have two entries.
type scripted struct {
	models.Adapter
	lists  map[string][]models.Listed
	asked  []models.ListQuery
	answer func(q models.ListQuery) error // nil: no error
}

func (*scripted) MaxRecipients() int { return 1000 }

func (*scripted) Lists() []models.ProviderList {
	return []models.ProviderList{{Name: bounces, Reason: models.HardBounce}, {Name: blocks}}
}

func (p *scripted) ReadList(_ context.Context, q models.ListQuery) (page models.ListPage, err error) {
	p.asked = append(p.asked, q)
	if p.answer != nil {
		if err := p.answer(q); err != nil {
			return page, err
		}
	}
	from, _ := strconv.Atoi(q.Cursor)
	for i, e := range p.lists[q.List] {
		if i >= from && i < from+2 && !e.At.Before(q.From) {
			page.Entries = append(page.Entries, e)
		}
	}
	if from+2 < len(p.lists[q.List]) {
		page.Next = strconv.Itoa(from + 2)
	}
	return page, nil
}

func (*scripted) Unlist(context.Context, string, string) error { return nil }

// none is a provider without lists.
type none struct{ models.Adapter }

func (none) MaxRecipients() int { return 1000 }

// fixture is a store, a provider with lists and one without.
type fixture struct {
	t      *testing.T
	store  *memory.Store
	api    *scripted
	log    bytes.Buffer
	joined int
	failed int
	read   time.Time
	now    time.Time
}

func (f *fixture) ListsJoined(_ string, n int)      { f.joined += n }
func (f *fixture) ListsFailed(string)               { f.failed++ }
func (f *fixture) ListsRead(_ string, at time.Time) { f.read = at }

func newFixture(t *testing.T) *fixture {
	return &fixture{t: t, store: memory.Open(t), api: &scripted{lists: map[string][]models.Listed{}}, now: time.Now()}
}

// reader returns a reader of a process that has just started.
func (f *fixture) reader(store Store, worker string) *Reader {
	f.t.Helper()
	log := slog.New(slog.NewTextHandler(&f.log, nil))
	specs := []provider.Spec{
		{Adapter: f.api, Provider: models.Provider{Name: "sg"}},
		{Adapter: none{}, Provider: models.Provider{Name: "relay"}},
	}
	providers, err := provider.NewSet(specs, &provider.Config{Pace: settings.Pace{Heartbeat: time.Second},
		Logger: log}, nil)
	require.NoError(f.t, err)
	lists := suppression.New(f.store, suppression.DefaultMemory)
	return New(Config{Worker: worker, Every: time.Hour, Logger: log},
		Deps{Store: store, Suppressions: lists, Providers: providers, Observer: f})
}

// once makes a round of a reader, if it is due and no other worker makes one.
func once(ctx context.Context, r *Reader, now time.Time) error {
	runner, job := r.job()
	_, err := runner.Once(ctx, job, now)
	return err
}

// round makes a round an hour after the last one.
func (f *fixture) round() {
	f.t.Helper()
	f.now = f.now.Add(time.Hour)
	require.NoError(f.t, once(f.t.Context(), f.reader(f.store, "w"), f.now))
}

// forgetWhole makes the next round read a list from its beginning, and returns the state.
func (f *fixture) forgetWhole(list string) drift.State {
	f.t.Helper()
	st, version, err := drift.ReadState(f.t.Context(), f.store, "sg")
	require.NoError(f.t, err)
	st.Lists[list].Whole = time.Now().Add(-wholeEvery)
	require.NoError(f.t, drift.PutState(f.t.Context(), f.store, "sg", &st, version+1))
	return st
}

// listed adds entries to a list of the provider.
func (f *fixture) listed(list string, reason models.SuppressionReason, at time.Time, emails ...string) {
	for _, email := range emails {
		e := models.Listed{Email: email, Reason: reason, Text: "550 no", At: at}
		f.api.lists[list] = append(f.api.lists[list], e)
	}
}

// suppressed returns the addresses of everyone's list that are in effect, with all that it has of them.
func (f *fixture) suppressed() map[string]models.Suppression {
	f.t.Helper()
	es, err := f.store.Suppressions(f.t.Context(), models.EveryonesList, models.SuppressionKey{}, 1000)
	require.NoError(f.t, err)
	out := map[string]models.Suppression{}
	for _, e := range es {
		if e.InEffect(time.Now()) {
			out[e.Email] = e
		}
	}
	return out
}

// held reports whether mail to an address is held back, as a process that has just started finds.
func (f *fixture) held(email string) bool {
	f.t.Helper()
	found, err := suppression.New(f.store, suppression.DefaultMemory).Suppressed(f.t.Context(),
		suppression.Mail{User: models.NewUserID()}, 1, func(int) string { return email }, 0)
	require.NoError(f.t, err)
	return len(found.Suppressed) == 1
}

// shown returns the addresses that the provider suppresses and we do not.
func (f *fixture) shown() (out []string) {
	f.t.Helper()
	es, err := drift.Entries(f.t.Context(), f.store, "", 1000)
	require.NoError(f.t, err)
	for _, e := range es {
		out = append(out, e.List+" "+e.Email)
	}
	return out
}

// additions counts the marks in the log of additions of everyone's list.
func (f *fixture) additions() (n int) {
	f.t.Helper()
	as, err := f.store.Additions(f.t.Context(), models.EveryonesList, 0, 1000)
	require.NoError(f.t, err)
	for _, a := range as {
		n += len(a.Marks)
	}
	return n
}

// TestEntriesJoin: new entries are suppressed with origin, list, text and time, once; those that hold only
// there are shown.
func TestEntriesJoin(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	at := time.Now().Add(-time.Hour).Truncate(time.Millisecond).UTC()
	f.listed(bounces, models.HardBounce, at, "Ann@x.test", "bob@x.test", "cy@x.test")
	f.listed(bounces, "", at, "full@x.test", "no address", strings.Repeat("a", 400)+"@x.test")
	f.listed(blocks, "", at, "ann@x.test", "dee@x.test")
	for range 3 {
		f.round()
		es := f.suppressed()
		require.Len(t, es, 3)
		e := es["ann@x.test"]
		require.Equal(t, models.HardBounce, e.Reason)
		require.Equal(t, models.FromProvider, e.Origin)
		require.Equal(t, "sg", e.By)
		require.Equal(t, "bounces: 550 no", e.Why)
		require.Equal(t, at, e.At)
		require.ElementsMatch(t, []string{"bounces full@x.test", "blocks dee@x.test"}, f.shown())
		require.Equal(t, 3, f.joined)
		require.Equal(t, 3, f.additions())
		require.True(t, f.held("BOB@x.test"))
		require.False(t, f.held("dee@x.test"))
		require.Equal(t, f.now.Unix(), f.read.Unix())
	}
	require.Zero(t, f.failed)
}

// TestRemovalByHandHolds: what was removed here is not suppressed again by the provider's old entry, and is
// shown; by a newer entry it is.
func TestRemovalByHandHolds(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	at := time.Now().Add(-time.Hour)
	f.listed(bounces, models.HardBounce, at, "ann@x.test")
	f.round()
	e := f.suppressed()["ann@x.test"]
	e.Removed, e.By, e.Why, e.At = true, "ops", "it works now", time.Now().UTC().Truncate(time.Millisecond)
	require.NoError(t, f.store.PutSuppressions(t.Context(), models.EveryonesList, e))
	f.api.lists[bounces] = append(f.api.lists[bounces], f.api.lists[bounces][0]) // the same again
	f.forgetWhole(bounces)
	f.round()
	require.Empty(t, f.suppressed())
	require.False(t, f.held("ann@x.test"))
	require.Equal(t, []string{"bounces ann@x.test"}, f.shown())

	f.api.lists[bounces][0].At = e.At.Add(time.Second)
	f.round()
	require.Len(t, f.suppressed(), 1)
	require.True(t, f.held("ann@x.test"))
	require.Empty(t, f.shown())
	require.Equal(t, 2, f.joined)
}

// TestOthersEntriesStay: an entry with another origin and an erased one are not replaced.
func TestOthersEntriesStay(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	mine := models.NewSuppression("ann@x.test", models.HardBounce, models.FromAPI, time.Now().Add(-2*time.Hour))
	erased := models.NewSuppression("bob@x.test", models.HardBounce, models.FromAPI, time.Now().Add(-2*time.Hour))
	erased.Email = ""
	require.NoError(t, f.store.PutSuppressions(t.Context(), models.EveryonesList, mine, erased))
	f.listed(bounces, models.HardBounce, time.Now().Add(-time.Hour), "ann@x.test", "bob@x.test")
	f.round()
	es := f.suppressed()
	require.Equal(t, mine, es["ann@x.test"])
	require.NotContains(t, es, "bob@x.test")
	require.Empty(t, f.shown())
	require.Zero(t, f.joined)
}

// TestClearedElsewhere: an entry that is gone from the provider's list is not shown any more, after the list
// was read as a whole.
func TestClearedElsewhere(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.listed(blocks, "", time.Now().Add(-time.Hour), "ann@x.test", "bob@x.test", "cy@x.test")
	f.round()
	require.Len(t, f.shown(), 3)
	f.api.lists[blocks] = f.api.lists[blocks][2:]
	require.Equal(t, 3, f.forgetWhole(blocks).Shown)
	f.round()
	require.Equal(t, []string{"blocks cy@x.test"}, f.shown())
	st, _, err := drift.ReadState(t.Context(), f.store, "sg")
	require.NoError(t, err)
	require.Equal(t, 1, st.Shown)
}

// TestOnlyNewEntriesAreRead: the second round reads what began since an hour before the first.
func TestOnlyNewEntriesAreRead(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.round()
	require.True(t, f.api.asked[0].From.IsZero())
	begun := f.api.asked[0].To
	f.api.asked = nil
	f.round()
	require.Equal(t, begun.Add(-overlap), f.api.asked[0].From)
	f.api.asked = nil
	require.NoError(t, once(t.Context(), f.reader(f.store, "other"), f.now.Add(time.Minute)))
	require.Empty(t, f.api.asked, "it is not due")
}

// TestLongListIsReadInRounds: a round reads a bounded number of pages, and the next one goes on there.
func TestLongListIsReadInRounds(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for i := range 2*maxPages + 3 {
		f.listed(bounces, models.HardBounce, time.Now().Add(-time.Hour), fmt.Sprintf("u%d@x.test", i))
	}
	f.round()
	require.Len(t, f.suppressed(), 2*maxPages)
	f.round()
	require.Len(t, f.suppressed(), 2*maxPages+3)
	require.Equal(t, 2*maxPages+3, f.additions())
}

// TestRefusedKey: a key that may not read a list is said once in the log and is no failure; the other list is
// read.
func TestRefusedKey(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.listed(blocks, "", time.Now().Add(-time.Hour), "ann@x.test")
	f.api.answer = func(q models.ListQuery) error {
		if q.List == bounces {
			return fmt.Errorf("403: %w", models.ErrNoLists)
		}
		return nil
	}
	for range 3 {
		f.round()
	}
	require.Equal(t, 1, strings.Count(f.log.String(), "level=WARN"), f.log.String())
	require.Zero(t, f.failed)
	require.Equal(t, f.now.Unix(), f.read.Unix())
	require.Len(t, f.shown(), 1)
	st, _, err := drift.ReadState(t.Context(), f.store, "sg")
	require.NoError(t, err)
	require.Equal(t, []string{bounces}, st.Refused(f.api.Lists()))

	f.api.answer = nil
	f.listed(bounces, models.HardBounce, time.Now(), "bob@x.test")
	f.round()
	require.Len(t, f.suppressed(), 1)
	st, _, err = drift.ReadState(t.Context(), f.store, "sg")
	require.NoError(t, err)
	require.Empty(t, st.Refused(f.api.Lists()))
}

// TestFailedPage: a page that fails is read again in the next round, from the same cursor; a cursor that the
// provider refuses is given up, and the list is read from its beginning.
func TestFailedPage(t *testing.T) {
	t.Parallel()
	for _, refusal := range []error{errors.New("503"), models.ErrInvalid} {
		f := newFixture(t)
		f.listed(bounces, models.HardBounce, time.Now().Add(-time.Hour), "a@x.test", "b@x.test", "c@x.test", "d@x.test")
		f.api.answer = func(q models.ListQuery) error {
			if q.Cursor != "" {
				return refusal
			}
			return nil
		}
		f.round()
		require.Len(t, f.suppressed(), 2)
		require.Equal(t, 1, f.failed)
		require.True(t, f.read.IsZero())
		st, _, err := drift.ReadState(t.Context(), f.store, "sg")
		require.NoError(t, err)
		require.Contains(t, st.Error, refusal.Error())

		f.api.answer, f.api.asked = nil, nil
		f.round()
		require.Equal(t, errors.Is(refusal, models.ErrInvalid), f.api.asked[0].Cursor == "")
		require.Len(t, f.suppressed(), 4)
		require.Equal(t, f.now.Unix(), f.read.Unix())
	}
}

var errKilled = errors.New("killed")

// killed is a store whose process is killed before the n-th write of a document.
type killed struct {
	*memory.Store
	writes int
}

func (k *killed) kill() error {
	if k.writes--; k.writes < 0 {
		return errKilled
	}
	return nil
}

func (k *killed) PutDocument(ctx context.Context, owner, kind string, d models.Document) error {
	if err := k.kill(); err != nil {
		return err
	}
	return k.Store.PutDocument(ctx, owner, kind, d)
}

func (k *killed) PutDocuments(ctx context.Context, owner, kind string, ds []models.Document) ([]int, error) {
	if err := k.kill(); err != nil {
		return nil, err
	}
	return k.Store.PutDocuments(ctx, owner, kind, ds)
}

func (k *killed) Lease(ctx context.Context, name, holder string, ttl time.Duration) (bool, error) {
	if k.writes < 0 {
		return false, errKilled // a killed worker releases nothing
	}
	return k.Store.Lease(ctx, name, holder, ttl)
}

// TestKilledReaderIsReplaced: wherever a worker is killed, another one goes on, nothing is lost and nothing is
// stored twice.
func TestKilledReaderIsReplaced(t *testing.T) {
	t.Parallel()
	for writes := range 12 {
		f := newFixture(t)
		for i := range 7 {
			f.listed(bounces, models.HardBounce, time.Now().Add(-time.Hour), fmt.Sprintf("u%d@x.test", i))
			f.listed(blocks, "", time.Now().Add(-time.Hour), fmt.Sprintf("v%d@x.test", i))
		}
		now := f.now.Add(time.Hour)
		err := once(t.Context(), f.reader(&killed{f.store, writes}, "w1"), now)
		if err != nil {
			require.ErrorIs(t, err, errKilled)
			require.NoError(t, once(t.Context(), f.reader(f.store, "w2"), now))
			asked := len(f.api.asked)
			_, err := f.store.Lease(t.Context(), lease, "w1", 0) // it has expired
			require.NoError(t, err)
			require.NoError(t, once(t.Context(), f.reader(f.store, "w2"), now.Add(poll)))
			require.Greater(t, len(f.api.asked), asked)
		}
		require.Len(t, f.suppressed(), 7)
		require.Len(t, f.shown(), 7)
		require.Equal(t, 7, f.additions())
		require.Equal(t, 7, f.joined)
	}
}

// TestKilledBetweenEntryAndMark: the entries of a page are stored and their marks are not, when the process is
// killed. The next one makes them count.
func TestKilledBetweenEntryAndMark(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.listed(bounces, models.HardBounce, time.Now().Add(-time.Hour), "ann@x.test")
	e := models.NewSuppression("ann@x.test", models.HardBounce, models.FromProvider, time.Now().Add(-time.Hour))
	require.NoError(t, f.store.PutSuppressions(t.Context(), models.EveryonesList, e))
	require.False(t, f.held("ann@x.test"))
	f.round()
	require.True(t, f.held("ann@x.test"))
}
