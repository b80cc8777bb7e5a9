package events

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/store/memory"
)

// parsedAdapter parses a models.Parsed as JSON.
type parsedAdapter struct{ jsonAdapter }

func (parsedAdapter) Parse(body []byte) (out models.Parsed) {
	_ = json.Unmarshal(body, &out)
	return out
}

// A matchRig is a Processor for the provider sg, and the mail of one user.
type matchRig struct {
	*testing.T
	*Processor
	store *memory.Store
	user  models.User
}

func newMatchRig(t *testing.T) *matchRig {
	t.Helper()
	store := memory.Open(t)
	q := newProcessor(t, store, parsedAdapter{}, &marks{marked: map[models.ID][]func(){}})
	u := models.User{ID: models.NewUserID(), Name: "ann", Created: time.Now()}
	require.NoError(t, store.CreateUser(t.Context(), u))
	return &matchRig{t, q, store, u}
}

// send stores a batch to two addresses with one attempt at a time before now. It returns the
// chunk.
func (r *matchRig) send(ago time.Duration, name string, to ...string) models.ID {
	r.Helper()
	at := time.Now().Add(-ago)
	b := models.Batch{
		ID:         models.NewBatchID(at),
		User:       r.user.ID,
		Lane:       models.Bulk,
		OnUnknown:  models.Hold,
		Recipients: len(to),
		Chunks:     1,
		ExpiresAt:  at.Add(time.Hour),
	}
	c := models.Chunk{ID: b.ID}
	for _, a := range to {
		c.Recipients = append(c.Recipients, models.Recipient{Email: a})
	}
	require.NoError(r, r.store.PutBatch(r.Context(), b, c))
	require.NoError(r, r.store.PutAddressIndex(r.Context(), r.user.ID, models.NewAddressIndex(c.ID, c.Recipients)))
	require.NoError(r, r.store.Append(r.Context(), c.ID, models.Entry{
		Number:     1,
		Token:      models.NewToken(),
		Kind:       models.Attempt,
		Provider:   name,
		Recipients: models.SetTo(len(to)),
		At:         at,
	}))
	return c.ID
}

// answer stores the answer to the attempt of a chunk of two recipients.
func (r *matchRig) answer(chunk models.ID, class models.Class, id string) {
	r.Helper()
	o := models.Outcome{Attempt: 1, At: time.Now(), Parts: []models.Part{{
		Class:      class,
		Recipients: models.SetTo(2),
		MessageID:  id,
	}}}
	fact := models.Fact{Key: models.OutcomeKey(1), Outcome: &o}
	require.NoError(r, r.store.PutFacts(r.Context(), models.ChunkFact{Chunk: chunk, Fact: fact}))
}

// report processes a post with one event that names no log.
func (r *matchRig) report(kind models.EventKind, messageID, address string) {
	r.Helper()
	body, err := json.Marshal(models.Parsed{Unnamed: []models.UnnamedEvent{{
		MessageID: messageID,
		Address:   address,
		Event:     models.Event{ID: messageID + string(kind), Kind: kind, At: time.Now().UTC()},
	}}})
	require.NoError(r, err)
	in := models.Inbox{ID: models.NewInboxID(time.Now()), Provider: "sg", Posts: []models.Post{{Body: body}}}
	require.NoError(r, r.store.PutInbox(r.Context(), in))
	entries, err := r.store.Inbox(r.Context(), in.ID)
	require.NoError(r, err)
	require.NoError(r, r.attributeOnly(entries, newEventGroup(0)))
}

// again tries the events again that were not matched.
func (r *matchRig) again() {
	r.Helper()
	require.NoError(r, r.MatchAgain(r.Context(), time.Now().Add(matchPause)))
}

// events returns the events of a chunk.
func (r *matchRig) events(chunk models.ID) []*models.Event {
	r.Helper()
	_, facts, err := r.store.Record(r.Context(), chunk)
	require.NoError(r, err)
	return models.Events(facts)
}

// TestEventIsMatchedByMessageID: an event without our arguments belongs to the mail with its
// message id and address.
func TestEventIsMatchedByMessageID(t *testing.T) {
	t.Parallel()
	r := newMatchRig(t)
	mine, other := r.send(time.Hour, "sg", "a@x.test", "Ann@x.test"), r.send(time.Hour, "sg", "ann@x.test", "b@x.test")
	r.answer(mine, models.Accepted, "m1")
	r.answer(other, models.Accepted, "m2")
	r.report(models.Delivered, "m1", "ann@X.test")
	found := r.events(mine)
	require.Len(t, found, 1)
	require.Equal(t, 2, found[0].Recipient)
	require.Equal(t, 1, found[0].Attempt)
	require.False(t, found[0].Guess)
	require.Empty(t, r.events(other))
	require.Zero(t, r.Unmatched())
}

// named processes a post with one event that names a chunk or a log, an attempt and an address.
func (r *matchRig) named(id models.ID, attempt int, address string) {
	r.Helper()
	body, err := json.Marshal(models.Parsed{Events: []models.ParsedEvent{{
		Log: id, Address: address,
		Event: models.Event{ID: address, Attempt: attempt, Kind: models.Delivered, At: time.Now().UTC()},
	}}})
	require.NoError(r, err)
	in := models.Inbox{ID: models.NewInboxID(time.Now()), Provider: "sg", Posts: []models.Post{{Body: body}}}
	require.NoError(r, r.store.PutInbox(r.Context(), in))
	entries, err := r.store.Inbox(r.Context(), in.ID)
	require.NoError(r, err)
	require.NoError(r, r.attributeOnly(entries, newEventGroup(0)))
}

// TestEventOfChunk: an event that names its chunk and its attempt belongs to the recipient with its address. One with
// the address of nobody, or of two, and one of another attempt or another provider are refused.
func TestEventOfChunk(t *testing.T) {
	t.Parallel()
	r := newMatchRig(t)
	mine := r.send(time.Hour, "sg", "a@x.test", "Ann@x.test", "two@x.test", "TWO@x.test")
	other := r.send(time.Hour, "mg", "ann@x.test")
	r.named(mine, 1, "ann@X.test")
	found := r.events(mine)
	require.Len(t, found, 1)
	require.Equal(t, 2, found[0].Recipient)
	require.Equal(t, 1, found[0].Attempt)
	require.Equal(t, "sg", found[0].Provider)
	require.False(t, found[0].Guess)
	for _, e := range []struct {
		id      models.ID
		attempt int
		address string
	}{
		{mine, 1, "nobody@x.test"},
		{mine, 1, "two@x.test"},
		{mine, 1, ""},
		{mine, 2, "a@x.test"},
		{other, 1, "ann@x.test"},
		{mine.Chunk(7), 1, "ann@x.test"},
		{models.NewBatchID(time.Now()), 1, "ann@x.test"},
	} {
		before := r.counts.forged.Load()
		r.named(e.id, e.attempt, e.address)
		require.Equal(t, before+1, r.counts.forged.Load(), "%+v", e)
	}
	require.Len(t, r.events(mine), 1)
	require.Empty(t, r.events(other))
}

// TestBounceIsMatchedByAddress: a bounce with nothing but an address is attributed if
// one recent attempt fits, and marked as a guess.
func TestBounceIsMatchedByAddress(t *testing.T) {
	t.Parallel()
	r := newMatchRig(t)
	mine := r.send(50*time.Hour, "sg", "ann@x.test", "b@x.test")
	r.answer(mine, models.Accepted, "m1")
	r.answer(r.send(time.Hour, "sg", "ann@x.test", "b@x.test"), models.Unavailable, "")
	r.send(time.Hour, "mg", "ann@x.test", "b@x.test")
	r.send(matchAge+time.Hour, "sg", "ann@x.test", "b@x.test")
	r.report(models.Delivered, "", "ann@x.test")
	require.Empty(t, r.events(mine), "only a bounce is guessed")
	r.matcher.schedule.next = time.Time{}
	r.report(models.Bounced, "", "ann@x.test")
	found := r.events(mine)
	require.Len(t, found, 1)
	require.True(t, found[0].Guess)
	require.Equal(t, 1, found[0].Recipient)
}

// TestAmbiguousGuessDecidesNothing: a bounce that fits two attempts belongs to neither, and is
// counted.
func TestAmbiguousGuessDecidesNothing(t *testing.T) {
	t.Parallel()
	r := newMatchRig(t)
	a, b := r.send(time.Hour, "sg", "ann@x.test", "b@x.test"), r.send(2*time.Hour, "sg", "ann@x.test", "b@x.test")
	r.answer(a, models.Accepted, "m1")
	r.answer(b, models.Accepted, "m2")
	r.report(models.Bounced, "", "ann@x.test")
	require.Zero(t, r.Unmatched(), "it is tried again")
	r.again()
	require.Empty(t, r.events(a))
	require.Empty(t, r.events(b))
	require.EqualValues(t, 1, r.Unmatched())
	r.Providers.Get("sg").Count(func(n *telemetry.Counters) { require.EqualValues(t, 1, n.Unmatched) })
}

// TestEventBeforeItsAnswerIsMatchedLater: an event may come in before the answer to its call
// is stored.
func TestEventBeforeItsAnswerIsMatchedLater(t *testing.T) {
	t.Parallel()
	r := newMatchRig(t)
	mine := r.send(time.Second, "sg", "ann@x.test", "b@x.test")
	r.report(models.Delivered, "m1", "ann@x.test")
	require.Empty(t, r.events(mine))
	r.answer(mine, models.Accepted, "m1")
	r.again()
	require.Len(t, r.events(mine), 1)
	require.Zero(t, r.Unmatched())
}

// TestUnmatchedEventIsMatchedByReplay: an event that fitted no mail stays in the inbox, and a
// replay attributes it if one fits now.
func TestUnmatchedEventIsMatchedByReplay(t *testing.T) {
	t.Parallel()
	r := newMatchRig(t)
	r.report(models.Delivered, "m1", "ann@x.test")
	r.again()
	require.EqualValues(t, 1, r.Unmatched())
	mine := r.send(time.Second, "sg", "ann@x.test", "b@x.test")
	r.answer(mine, models.Accepted, "m1")
	r.matcher.schedule.next = time.Now().Add(time.Hour) // a replay waits for nothing
	now := time.Now()
	group := newEventGroup(now.UnixMilli())
	var entries []models.Inbox
	for in, err := range r.store.Posts(t.Context(), now.Add(-time.Hour), now.Add(time.Hour)) {
		require.NoError(t, err)
		full, err := r.store.Inbox(t.Context(), in.ID)
		require.NoError(t, err)
		entries = append(entries, full...)
	}
	require.NoError(t, r.attributeOnly(entries, group))
	require.Len(t, r.events(mine), 1)
}

// TestUnmatchedEventsAreListed: events that fit no message, or several, are listed with those that they fit, also after
// the worker was started again, until a replay matches them.
func TestUnmatchedEventsAreListed(t *testing.T) {
	t.Parallel()
	r := newMatchRig(t)
	a, b := r.send(time.Hour, "sg", "ann@x.test", "b@x.test"), r.send(2*time.Hour, "sg", "ann@x.test", "b@x.test")
	r.answer(a, models.Accepted, "m1")
	r.answer(b, models.Accepted, "m2")
	listed := func() (all []telemetry.UnmatchedEvent, solved []models.ID) {
		reports, err := r.store.Transients(t.Context(), telemetry.UnmatchedReport)
		require.NoError(t, err)
		for _, raw := range reports {
			var one telemetry.Unmatched
			require.NoError(t, json.Unmarshal(raw, &one))
			all, solved = append(all, one.Events...), append(solved, one.Solved...)
		}
		return all, solved
	}
	r.report(models.Bounced, "", "ann@x.test")
	r.matcher.schedule.next = time.Time{}
	r.report(models.Delivered, "m9", "new@x.test")
	require.NoError(t, r.matcher.unmatched.put(t.Context()))
	all, _ := listed()
	require.Empty(t, all, "they are tried again")
	r.again()
	require.NoError(t, r.matcher.unmatched.put(t.Context()))
	all, _ = listed()
	require.Len(t, all, 2)
	slices.SortFunc(all, func(a, b telemetry.UnmatchedEvent) int { return len(b.Logs) - len(a.Logs) })
	require.ElementsMatch(t, []models.ID{a.Log(1), b.Log(1)}, all[0].Logs)
	require.Empty(t, all[1].Logs)
	require.Equal(t, "sg", all[1].Provider)

	r.matcher.unmatched = unmatchedList{store: r.store} // as if the worker was started again
	require.NoError(t, r.matcher.unmatched.read(t.Context()))
	r.report(models.Delivered, "m8", "other@x.test")
	r.matcher.schedule.next = time.Time{}
	r.again()
	require.NoError(t, r.matcher.unmatched.put(t.Context()))
	again, _ := listed()
	require.Len(t, again, 3)

	r.answer(r.send(time.Second, "sg", "new@x.test", "b@x.test"), models.Accepted, "m9")
	require.NoError(t, r.matcher.unmatched.beginReplay(t.Context()))
	entries, err := r.store.Inbox(t.Context(), all[1].Post)
	require.NoError(t, err)
	require.NoError(t, r.attributeOnly(entries, newEventGroup(time.Now().UnixMilli())))
	require.NoError(t, r.matcher.unmatched.endReplay(t.Context(), 1))
	_, solved := listed()
	require.Equal(t, []models.ID{all[1].ID}, solved)
}

// attributeOnly parses entries, matches and stores their events. It reconciles no chunk.
func (r *matchRig) attributeOnly(entries []models.Inbox, group *eventGroup) error {
	for i := range entries {
		r.parse(&entries[i], group)
	}
	if err := r.matcher.match(r.Context(), group); err != nil {
		return err
	}
	if err := r.attributor.attribute(r.Context(), group); err != nil {
		return err
	}
	return r.store.PutFacts(r.Context(), group.facts...)
}

// TestSearchesAreRare: searches take a tenth of the time at most. Events that come in
// meanwhile wait for the second try, which searches for all of them at once.
func TestSearchesAreRare(t *testing.T) {
	t.Parallel()
	r := newMatchRig(t)
	mine := r.send(time.Hour, "sg", "ann@x.test", "b@x.test")
	r.answer(mine, models.Accepted, "m1")
	began := time.Now()
	r.matcher.schedule.ended(began, began.Add(time.Minute))
	require.False(t, r.matcher.schedule.mayBegin(began.Add(matchShare*time.Minute)))
	require.True(t, r.matcher.schedule.mayBegin(began.Add((matchShare+1)*time.Minute)))
	r.report(models.Delivered, "m1", "ann@x.test")
	require.Empty(t, r.events(mine))
	r.again()
	require.Len(t, r.events(mine), 1)
}

// TestSeenKindsAreStored: the time of the newest event of each kind is stored at most once an
// hour.
func TestSeenKindsAreStored(t *testing.T) {
	t.Parallel()
	r := newMatchRig(t)
	mine := r.send(time.Minute, "sg", "ann@x.test", "b@x.test")
	r.answer(mine, models.Accepted, "m1")
	stored := func() (names []string) {
		require.NoError(t, r.Seen.Save(t.Context()))
		all, err := r.store.Transients(t.Context(), telemetry.EventSeen)
		require.NoError(t, err)
		return slices.Sorted(maps.Keys(all))
	}
	r.report(models.Delivered, "m1", "ann@x.test")
	require.Equal(t, []string{"sg/delivered"}, stored())
	r.matcher.schedule.next = time.Time{}
	r.report(models.Opened, "m1", "ann@x.test")
	require.Equal(t, []string{"sg/delivered", "sg/opened"}, stored())
	key := telemetry.SeenKind{Provider: "sg", Kind: models.Opened}
	require.Equal(t, key, telemetry.ParseSeenKind("sg/opened"))
	ev := &models.Event{Provider: "sg", Kind: models.Opened}
	r.Seen.note(ev, time.Now())
	require.Empty(t, r.Seen.due(), "the stored time is recent enough")
	r.Seen.note(ev, time.Now().Add(seenSave))
	require.Len(t, r.Seen.due(), 1)
}
