package api

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// TestPutIDs: an id has up to 255 bytes.
func TestPutIDs(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, c := range []struct{ id, want string }{
		{strings.Repeat("x", 255), "accepted "},
		{strings.Repeat("é", 127) + "x", "accepted "},
		{strings.Repeat("x", 256), "rejected invalid_value"},
		{strings.Repeat("é", 128), "rejected invalid_value"},
	} {
		r := f.changed(record("new", c.id, "Hi", "ann@example.com"))[0]
		require.Equal(t, c.want, string(r.Status)+" "+r.Code)
		if r.Code == "" {
			v, now := f.present(c.id)
			require.Equal(t, "Hi queued", now)
			require.Equal(t, c.id, v.Log.MessageID)
		}
	}
}

// TestPutIDOfTwoUsers: the same id of two users is two messages. Neither user sees, changes or cancels that of the
// other.
func TestPutIDOfTwoUsers(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	g := *f
	g.secret = f.foreign
	mine := f.changed(record("new", "a", "Mine", "ann@example.com"))
	theirs := g.changed(record("new", "a", "Theirs", "bob@example.com"))
	require.Equal(t, []string{"a accepted"}, resultWords(mine))
	require.Equal(t, []string{"a accepted"}, resultWords(theirs))
	require.NotEqual(t, mine[0].Log, theirs[0].Log)
	require.Equal(t, []string{"a updated"}, resultWords(g.changed(record("update", "a", "Changed", "bob@example.com"))))
	_, now := f.present("a")
	require.Equal(t, "Mine queued", now)
	require.Equal(t, []string{"a cancelled"}, resultWords(f.changed(`{"id": "a", "action": "cancel"}`)))
	_, now = g.present("a")
	require.Equal(t, "Changed queued", now)
}

// TestPutFields: each field of a record has the effect that it has in a batch, and a record that differs in one of them
// is another version.
func TestPutFields(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.template(letter)
	day := time.Now().UTC().AddDate(0, 0, 3).Truncate(24 * time.Hour)
	local := day.Format("2006-01-02") + "T09:00"
	vienna, err := time.LoadLocation("Europe/Vienna")
	require.NoError(t, err)
	nine, err := time.ParseInLocation("2006-01-02T15:04", local, vienna)
	require.NoError(t, err)
	type message struct {
		b models.Batch
		r models.Recipient
	}
	fields := map[string]struct {
		more string
		has  func(m *message) any
		want any
	}{
		"deliver_at": {`, "deliver_at": "` + day.Format(time.RFC3339) + `"`,
			func(m *message) any { return m.b.DeliverAt }, day},
		"time_zone": {
			`, "deliver_at": "` + local + `", "time_zone": "Europe/Vienna"`,
			func(m *message) any { return m.b.DeliverAt }, nine.UTC(),
		},
		"expires_at": {`, "expires_at": "` + day.Format(time.RFC3339) + `"`,
			func(m *message) any { return m.b.ExpiresAt }, day},
		"send_window": {
			`, "send_window": {"from": "00:00", "to": "24:00", "weekdays": ["monday", "tuesday"], "time_zone": "UTC"}`,
			func(m *message) any { return m.b.Window.Days },
			[]models.Weekday{models.Weekday(time.Monday), models.Weekday(time.Tuesday)},
		},
		"lane":      {`, "lane": "urgent"`, func(m *message) any { return m.b.Lane }, models.Urgent},
		"tags":      {`, "tags": ["a", "b"]`, func(m *message) any { return m.b.Content.Tags }, []string{"a", "b"}},
		"providers": {`, "providers": ["mg"]`, func(m *message) any { return m.b.Providers }, []string{"mg"}},
		"name":      {`, "name": "Ann"`, func(m *message) any { return m.r.Name }, "Ann"},
		"metadata":  {`, "metadata": {"k": "v"}`, func(m *message) any { return m.r.Metadata }, map[string]string{"k": "v"}},
	}
	for id, c := range fields {
		plain := record("new", id, "Hi", "ann@example.com")
		full := record("update", id, "Hi", "ann@example.com", c.more)
		require.Equal(t, []string{id + " accepted"}, resultWords(f.changed(plain)))
		rs := f.changed(full)
		require.Equal(t, []string{id + " updated"}, resultWords(rs), "%s: %s", id, rs[0].Detail)
		require.Equal(t, []string{id + " unchanged"}, resultWords(f.changed(full)))
		log := rs[0].Log
		b, err := f.store.Store.Batch(t.Context(), log.Batch())
		require.NoError(t, err)
		recipients, err := f.store.Store.Recipients(t.Context(), log.ChunkID())
		require.NoError(t, err)
		require.Equal(t, c.want, c.has(&message{b, recipients[log.Recipient()-1]}), id)
	}
	require.Len(t, f.sendable(), 1)
	rs := f.changed(`{"id": "t", "action": "new", "template": "welcome", "to": "ann@example.com", "name": "Ann"}`)
	require.Equal(t, []string{"t accepted"}, resultWords(rs))
	_, now := f.present("t")
	require.Equal(t, "Hi Ann queued", now)
	require.Equal(t, http.StatusOK, f.get("/v1/messages/t").Status)
}

// TestPutInOrderOfTime: the list of scheduled batches has messages in the order in which they are due, also after a
// change.
func TestPutInOrderOfTime(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	day := time.Now().UTC().AddDate(0, 0, 5).Truncate(time.Second)
	send := func(action, id string, days int) models.ID {
		at := fmt.Sprintf(`, "deliver_at": %q`, day.AddDate(0, 0, days).Format(time.RFC3339))
		rs := f.changed(record(action, id, "Hi "+id, "ann@example.com", at))
		return rs[0].Log.Batch()
	}
	due := func() (out []models.ID) {
		for _, b := range read[batchList](f, "/v1/batches?state=scheduled").Batches {
			out = append(out, b.ID)
		}
		return out
	}
	a, b := send("new", "a", 2), send("new", "b", 0)
	require.Equal(t, []models.ID{b, a}, due())
	changed := send("update", "b", 3)
	require.Contains(t, due(), changed)
	require.Greater(t, slices.Index(due(), changed), slices.Index(due(), a))
}
