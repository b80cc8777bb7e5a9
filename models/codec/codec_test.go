package codec

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/safedelivr/safedelivr/models"
)

func TestRecipientsRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		one := rapid.Custom(func(t *rapid.T) models.Recipient {
			r := models.Recipient{
				Email:    rapid.String().Draw(t, "email"),
				Name:     rapid.String().Draw(t, "name"),
				ClientID: rapid.String().Draw(t, "client id"),
			}
			if vars := rapid.MapOfN(rapid.String(), rapid.String(), 0, 5).Draw(t, "vars"); len(vars) > 0 {
				r.Vars = vars
			}
			return r
		})
		rs := rapid.SliceOfN(one, 0, 50).Draw(t, "rs")
		got, err := DecodeRecipients(EncodeRecipients(rs))
		require.NoError(t, err)
		require.Len(t, got, len(rs))
		for i := range rs {
			require.Equal(t, rs[i], got[i])
		}
		again := EncodeRecipients(got)
		require.Equal(t, EncodeRecipients(rs), again, "one value, one form")
	})
}

func TestNounsRoundTrip(t *testing.T) {
	t.Parallel()
	e := models.Entry{
		Number:     3,
		Token:      models.NewToken(),
		Kind:       models.Attempt,
		At:         t0,
		Recipients: models.SetOf(1, 2, 9),
		Provider:   "sg",
		Worker:     "w",
		StartBy:    t0,
		CallEnds:   t0,
		Retry:      2,
		MayDouble:  true,
		Together:   true,
		Because:    "why",
	}
	gotE, err := DecodeEntry(EncodeEntry(&e))
	require.NoError(t, err)
	require.Equal(t, e, gotE)
	f := answer(4, models.Throttled, 1, 2)
	f.Outcome.Parts[0].Fewer = 500
	f.Events = event(1, "sg", models.Bounced, models.MailboxInvalid, 1).Events
	gotF, err := DecodeFact(f.Key, EncodeFact(&f))
	require.NoError(t, err)
	require.Equal(t, f, gotF)
	b := models.Batch{
		ID:         models.NewBatchID(t0),
		User:       "u",
		Content:    models.Content{From: models.Address{Email: "a@b.c"}, Subject: "s", HTML: strings.Repeat("x", 1<<20)},
		Lane:       models.Bulk,
		OnUnknown:  models.Hold,
		Recipients: 5,
		Chunks:     1,
		ExpiresAt:  t0,
	}
	raw := EncodeBatch(&b)
	require.Less(t, len(raw), 10_000)
	gotB, err := DecodeBatch(raw)
	require.NoError(t, err)
	require.Equal(t, b, gotB)
	s := models.Resolve(
		1,
		[]models.Entry{attempt(1, "sg", 1)},
		[]models.Fact{answer(1, models.RejectedRecipient, 1)},
	).Summary()
	gotS, err := DecodeSummary(EncodeSummary(&s))
	require.NoError(t, err)
	require.Equal(t, s, gotS)
}

func TestPostsRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		one := rapid.Custom(func(t *rapid.T) models.Post {
			return models.Post{Body: rapid.SliceOf(rapid.Byte()).Draw(t, "body"), Replay: rapid.String().Draw(t, "replay")}
		})
		in := models.Inbox{Posts: rapid.SliceOfN(one, 1, 20).Draw(t, "posts")}
		replay, raw := EncodePosts(in.Posts)
		got, err := DecodePosts(replay, raw)
		require.NoError(t, err)
		require.Equal(t, in.Posts, got)
		if len(in.Posts) > 1 {
			cut := rapid.IntRange(0, len(raw)-1).Draw(t, "cut")
			_, err = DecodePosts("", raw[:cut])
			require.ErrorIs(t, err, models.ErrInvalid, "what is cut off is not read as less")
		}
	})
}

func FuzzDecode(f *testing.F) {
	f.Add(EncodeRecipients([]models.Recipient{{Email: "a@b.c", Name: "n", Vars: map[string]string{"k": "v"}}}))
	e := attempt(1, "sg", 1)
	f.Add(EncodeEntry(&e))
	f.Add([]byte{formZstd, 1, 2, 3})
	f.Add(PackJSON(&e))
	known := answer(4, models.Throttled, 1, 2)
	known.Events = event(1, "sg", models.Bounced, models.MailboxInvalid, 1).Events
	f.Add(EncodeFact(&known))
	_, posts := EncodePosts([]models.Post{{Body: []byte("a"), Replay: "b"}, {}})
	f.Add(posts)
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = DecodeRecipients(b)
		_, _ = DecodeEntry(b)
		_, _ = DecodeFact("k", b)
		_, _ = DecodeBatch(b)
		_, _ = DecodeSummary(b)
		_, _ = DecodePosts("", b)
	})
}

func TestBatchTotals(t *testing.T) {
	t.Parallel()
	b := models.Batch{ID: models.NewBatchID(time.Now()), Recipients: 2500, Chunks: 3}
	require.Equal(t, []int{1000, 1000, 500, 0}, []int{b.ChunkSize(0), b.ChunkSize(1), b.ChunkSize(2), b.ChunkSize(3)})
	sum := b.Total(models.Summary{Accepted: 1000, Success: 1000})
	require.True(t, sum.Balanced())
	require.EqualValues(t, 1500, sum.Queued)
	require.Equal(t, models.BatchSending, b.StateOf(sum, t0))
	b.Sizes = []int{10, 20, 2470}
	require.Equal(t, 20, b.ChunkSize(1))
}

// TestVersionFloor checks that a version floor survives storage and counts once,
// however often its fact is written.
func TestVersionFloor(t *testing.T) {
	t.Parallel()
	f := models.Fact{Key: models.VersionFloorKey(53), VersionFloor: 50}
	got, err := DecodeFact(f.Key, EncodeFact(&f))
	require.NoError(t, err)
	require.Equal(t, f, got)
	facts := []models.Fact{f, answer(1, models.Accepted, 1), f}
	require.EqualValues(t, 1+2+50, models.Resolve(1, []models.Entry{attempt(1, "sg", 1)}, facts).Version)
}
