package storetest

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/softbounce"
)

func softBounceCases() []testCase {
	return []testCase{
		{"SoftBounces", testSoftBounces},
		{"SoftBouncesTogether", testSoftBouncesTogether},
	}
}

// bounce returns the bounce of a mail.
func bounce(log models.ID, at time.Time) softbounce.Bounce {
	return softbounce.Bounce{Log: log, At: at, Provider: "sg", Reason: models.MailboxFull}
}

// dueOf returns the addresses of a user that are due at a time.
func dueOf(t *testing.T, s models.Store, user string, at time.Time) (out []softbounce.Due) {
	t.Helper()
	for shard := range softbounce.Shards {
		byUser, err := softbounce.DueOf(t.Context(), s, shard, at)
		require.NoError(t, err)
		out = append(out, byUser[user]...)
	}
	return out
}

// done removes addresses from what is due.
func done(t *testing.T, s models.Store, ds []softbounce.Due) {
	t.Helper()
	for shard := range softbounce.Shards { // those of other shards change nothing
		require.NoError(t, softbounce.Done(t.Context(), s, shard, ds))
	}
}

// testSoftBounces counts the soft bounces of an address.
func testSoftBounces(t *testing.T, s models.Store) {
	ctx, user, at := t.Context(), models.NewUserID(), now()
	ann, bob := models.HashAddress("ann@x.example"), models.HashAddress("bob@x.example")
	var logs []models.ID
	for range 4 {
		logs = append(logs, models.NewBatchID(at).Log(1))
	}
	note := func(h models.AddressHash, bs ...softbounce.Bounce) {
		t.Helper()
		for range 2 {
			require.NoError(t, softbounce.Note(ctx, s, user, 3, map[models.AddressHash][]softbounce.Bounce{h: bs}))
		}
	}
	record := func(h models.AddressHash) softbounce.Record {
		t.Helper()
		found, err := softbounce.Records(ctx, s, user, []models.AddressHash{h, models.HashAddress("none@x.example")})
		require.NoError(t, err)
		require.Len(t, found, 1)
		return found[0]
	}
	note(ann, bounce(logs[1], at.Add(time.Second)), bounce(logs[0], at))
	note(bob, bounce(logs[0], at))
	require.Empty(t, dueOf(t, s, user, at))
	note(ann, bounce(logs[0], at.Add(time.Minute)), bounce(logs[2], at.Add(2*time.Minute)))
	all := []softbounce.Bounce{
		bounce(logs[1], at.Add(time.Second)), bounce(logs[0], at.Add(time.Minute)), bounce(logs[2], at.Add(2*time.Minute)),
	}
	require.Equal(t, all, record(ann).Bounces)
	note(ann, bounce(logs[0], at), bounce(logs[3], at), all[0])
	require.Equal(t, all, record(ann).Bounces, "older reports change nothing")
	require.Empty(t, dueOf(t, s, models.NewUserID(), at))

	due := dueOf(t, s, user, at)
	require.Len(t, due, 1)
	require.Equal(t, ann, due[0].Hash)
	note(ann, all...)
	done(t, s, due)
	due = dueOf(t, s, user, at)
	require.Len(t, due, 1, "it became due again meanwhile")
	due[0].Later = at.Add(time.Hour)
	done(t, s, due)
	require.Empty(t, dueOf(t, s, user, at))
	due = dueOf(t, s, user, at.Add(time.Hour))
	require.Len(t, due, 1)
	done(t, s, due)
	require.Empty(t, dueOf(t, s, user, at.Add(time.Hour)))

	old := record(ann)
	note(ann, bounce(logs[3], at.Add(3*time.Minute)))
	old.After(at.Add(time.Minute))
	require.NoError(t, softbounce.Keep(ctx, s, user, old))
	require.Len(t, record(ann).Bounces, 3, "it was changed meanwhile")
	r := record(ann)
	r.After(at.Add(time.Minute))
	require.NoError(t, softbounce.Keep(ctx, s, user, r))
	require.Equal(t, all[2:], record(ann).Bounces[:1])
	require.NoError(t, softbounce.Drop(ctx, s, user, at))
	require.Len(t, record(ann).Bounces, 2)
	left, err := softbounce.Records(ctx, s, user, []models.AddressHash{bob})
	require.NoError(t, err)
	require.Empty(t, left, "it has no newer bounce")
	require.NoError(t, softbounce.Erase(ctx, s, user, "ANN@x.example"))
	left, err = softbounce.Records(ctx, s, user, []models.AddressHash{ann})
	require.NoError(t, err)
	require.Empty(t, left)
}

// testSoftBouncesTogether notes the bounces of some addresses from many callers at once.
func testSoftBouncesTogether(t *testing.T, s models.Store) {
	const addresses, mails = 5, 6
	user, at := models.NewUserID(), now()
	var calls sync.WaitGroup
	for i := range mails {
		calls.Go(func() {
			bs := map[models.AddressHash][]softbounce.Bounce{}
			for a := range addresses {
				h := models.HashAddress(fmt.Sprint(a, "@x.example"))
				bs[h] = []softbounce.Bounce{bounce(models.NewBatchID(at).Log(a+1), at.Add(time.Duration(i)*time.Second))}
			}
			for softbounce.Note(t.Context(), s, user, mails, bs) != nil && t.Context().Err() == nil {
			}
		})
	}
	calls.Wait()
	due := dueOf(t, s, user, at)
	require.Len(t, due, addresses)
	for _, d := range due {
		found, err := softbounce.Records(t.Context(), s, user, []models.AddressHash{d.Hash})
		require.NoError(t, err)
		require.Len(t, found[0].Bounces, mails)
		require.True(t, slices.IsSortedFunc(found[0].Bounces, func(a, b softbounce.Bounce) int { return a.At.Compare(b.At) }))
	}
	done(t, s, due)
}
