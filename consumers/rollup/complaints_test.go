package rollup

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/feed"
)

// complain has recipients of a batch report its mail as spam.
func (f *fixture) complain(b *models.Batch, recipients ...int) {
	f.Helper()
	for _, r := range recipients {
		e := models.Event{
			ID: fmt.Sprint(r), Attempt: 1, Provider: "sg", Recipient: r, Kind: models.Complained, At: time.Now(),
		}
		fact := models.Fact{Key: fmt.Sprint("complaint", r), Events: []models.Event{e}}
		require.NoError(f, f.store.PutFacts(f.Context(), models.ChunkFact{Chunk: b.ID, Fact: fact}))
	}
	f.Mark(f.user, b.ID)
	require.NoError(f, f.Flush(f.Context()))
}

// TestComplaints: a day of a user with too many complaints has one notice, up to a week later, whichever worker checks
// it. There is none about an allowed share, about a day with little mail, or if the limit is off.
func TestComplaints(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	now := models.DayOf(time.Now()).Add(12 * time.Hour)
	configure := func(percent float64) { f.cfg.Complaints, f.cfg.ComplaintsFrom = percent, 10 }
	configure(10)
	var want []string
	round := func(at time.Time, more ...string) {
		t.Helper()
		want = append(want, more...)
		require.NoError(t, f.checkSums(t.Context(), at))
		page, err := feed.Read(t.Context(), f.store, feed.Installation, feed.Query{After: feed.Begin, Limit: 100})
		require.NoError(t, err)
		var got []string
		for _, u := range page.Updates {
			n := u.Notice
			require.Equal(t, []any{models.ComplaintsHigh, f.user}, []any{n.Kind, n.User})
			got = append(got, fmt.Sprintf("%s %d/%d", n.Since.Format(time.DateOnly), n.Count, n.Delivered))
		}
		require.Equal(t, want, got)
	}
	day := func(back int) string { return now.AddDate(0, 0, -back).Format(time.DateOnly) }
	today := f.deliveredAt(20, now)
	few := f.deliveredAt(9, now.AddDate(0, 0, -3))
	week := f.deliveredAt(10, now.AddDate(0, 0, -complaintDays))
	old := f.deliveredAt(10, now.AddDate(0, 0, -complaintDays-1))
	f.complain(few, 1, 2, 3, 4, 5)
	f.complain(old, 1, 2, 3, 4, 5)
	f.complain(today, 1, 2)
	round(now)
	f.complain(today, 3)
	configure(0)
	round(now)
	configure(10)
	round(now, day(0)+" 3/20")
	page, err := feed.Read(t.Context(), f.store, feed.Installation, feed.Query{After: feed.Begin, Limit: 1})
	require.NoError(t, err)
	require.Equal(t, "3 of the 20 mails of user "+f.user+" that were accepted on "+now.Format("2 January")+
		" and delivered were reported as spam (15.00 %). Mailbox providers slow down or refuse such senders.",
		page.Updates[0].Notice.Text())
	f.complain(today, 4)
	f.restart()
	configure(10)
	round(now)
	f.complain(week, 1, 2)
	round(now, day(complaintDays)+" 2/10")
	f.deliveredAt(1, now.AddDate(0, 0, -3)) // with that it is a tenth mail
	round(now, day(3)+" 5/10")
	round(now.AddDate(0, 0, 1))
	round(now) // by a worker whose clock is behind
	round(now.AddDate(0, 0, complaintDays))
	round(now.AddDate(0, 0, complaintDays+1))
}
