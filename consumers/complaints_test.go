package consumers

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/feed"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// TestComplaintsArePublished: complaints of many recipients are posted as a notice to an endpoint of the operators,
// once for a user and day, although workers are restarted. They are not if their share is allowed, if too little was
// delivered, or while the notice is off.
func TestComplaintsArePublished(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := emptyRig(t, nil, "sg")
		cfg := r.posting()
		cfg.SumsPoll, cfg.Complaints, cfg.ComplaintsFrom = 50*time.Millisecond, 10, 10
		sg := newScripted("sg", always(models.Accepted))
		r.engine = r.worker(cfg, sg)
		restart := func(percent float64) {
			r.stop()
			cfg.Complaints = percent
			r.engine = r.worker(cfg, sg)
		}
		ctx := t.Context()
		// sends has a new user send mail to some recipients, has the first of them complain, and waits for the sums.
		sends := func(mails, complaints int) (user string) {
			r.user = models.NewUserID()
			u := models.User{ID: r.user, Name: "u" + r.user, Created: time.Now().UTC().Truncate(time.Millisecond)}
			require.NoError(t, r.store.CreateUser(ctx, u))
			b := r.batch(mails, true, nil)
			r.done(b)
			for n := 1; n <= complaints; n++ {
				r.event("sg", b.ID.Log(n), models.Event{
					ID: fmt.Sprint(r.user, n), Attempt: 1, Kind: models.Complained, At: time.Now(),
				})
			}
			r.until(func() bool {
				day := models.DayOf(b.Created())
				nodes, err := r.store.Nodes(ctx, r.user, models.Day, day, day.AddDate(0, 0, 1))
				require.NoError(t, err)
				return len(nodes) == 1 && nodes[0].Summary.Events[models.Complained] == int64(complaints) &&
					nodes[0].Summary.Success == int64(mails)
			})
			return r.user
		}
		// checked waits until a round of checks has begun and ended.
		checked := func() {
			var begun, last telemetry.Recount
			for begun.At.IsZero() || !last.At.After(begun.At) {
				raw, err := r.store.Transient(ctx, telemetry.RecountReport, telemetry.NewestRecount)
				if err == nil {
					require.NoError(t, json.Unmarshal(raw, &last))
				}
				if begun.At.IsZero() {
					begun.At = time.Now()
				}
				models.Pause(ctx, time.Millisecond)
			}
		}
		// published waits until there are notices of so many users, and returns these.
		published := func(n int) (users []string) {
			r.until(func() bool {
				page, err := feed.Read(ctx, r.store, feed.Installation, feed.Query{After: feed.Begin, Limit: 100})
				require.NoError(t, err)
				users = nil
				for _, u := range page.Updates {
					users = append(users, u.Notice.User)
				}
				return len(users) >= n
			})
			return users
		}
		sends(9, 9)
		sends(20, 2)
		want := []string{sends(20, 3)}
		require.Equal(t, want, published(1))
		restart(0)
		off := sends(10, 10)
		checked()
		require.Equal(t, want, published(1))
		restart(10)
		want = append(want, off)
		require.Equal(t, want, published(2))
		restart(10)
		want = append(want, sends(30, 4))
		require.Equal(t, want, published(3))

		posts := newApplication(r, feed.Installation, client.ComplaintsHigh).wait(t, 3)
		slices.SortFunc(posts, func(a, b update) int { return cmp.Compare(a.Data.Number, b.Data.Number) }) // made together
		for i, share := range [][]int64{{3, 20}, {10, 10}, {4, 30}} {
			n := posts[i].Data
			require.Equal(t, feed.ComplaintsHigh, posts[i].Type)
			require.Equal(t, []any{i + 1, want[i], share[0], share[1]}, []any{n.Number, n.User, n.Count, n.Delivered})
		}
	})
}
