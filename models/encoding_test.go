package models

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestRecipientsRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		one := rapid.Custom(func(t *rapid.T) Recipient {
			r := Recipient{Email: rapid.String().Draw(t, "email"), Name: rapid.String().Draw(t, "name")}
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
	e := Entry{Number: 3, Token: NewToken(), Kind: Attempt, At: t0, Recipients: SetOf(1, 2, 9), Provider: "sg", Worker: "w", StartBy: t0, CallEnds: t0,
		Retry: 2, MayDouble: true, Because: "why"}
	gotE, err := DecodeEntry(e.Encode())
	require.NoError(t, err)
	require.Equal(t, e, gotE)
	f := answer(4, Throttled, 1, 2)
	f.Events = event(1, "sg", Bounced, MailboxInvalid, 1).Events
	gotF, err := DecodeFact(f.Key, f.Encode())
	require.NoError(t, err)
	require.Equal(t, f, gotF)
	b := Batch{ID: NewBatchID(t0), User: "u", Content: Content{From: Address{Email: "a@b.c"}, Subject: "s", HTML: strings.Repeat("x", 1<<20)},
		Lane: Bulk, OnUnknown: Hold, Recipients: 5, Chunks: 1, Deadline: t0}
	raw := b.Encode()
	require.Less(t, len(raw), 10_000)
	gotB, err := DecodeBatch(raw)
	require.NoError(t, err)
	require.Equal(t, b, gotB)
	s := Resolve(1, []Entry{attempt(1, "sg", 1)}, []Fact{answer(1, RejectedRecipient, 1)}).Summary()
	gotS, err := DecodeSummary(s.Encode())
	require.NoError(t, err)
	require.Equal(t, s, gotS)
}

func TestPostsRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		one := rapid.Custom(func(t *rapid.T) Post {
			return Post{Body: rapid.SliceOf(rapid.Byte()).Draw(t, "body"), Replay: rapid.String().Draw(t, "replay")}
		})
		in := Inbox{Posts: rapid.SliceOfN(one, 1, 20).Draw(t, "posts")}
		replay, raw := in.Encode()
		got, err := DecodePosts(replay, raw)
		require.NoError(t, err)
		require.Equal(t, in.Posts, got)
		if len(in.Posts) > 1 {
			cut := rapid.IntRange(0, len(raw)-1).Draw(t, "cut")
			_, err = DecodePosts("", raw[:cut])
			require.ErrorIs(t, err, ErrInvalid, "what is cut off is not read as less")
		}
	})
}

// TestCutPosts: entries hold all posts, in order, and none too many.
func TestCutPosts(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		sizes := rapid.SliceOfN(rapid.OneOf(rapid.IntRange(0, 1000), rapid.IntRange(0, maxPostsBytes), rapid.Just(2*maxPostsBytes)), 0, 500).Draw(t, "sizes")
		all := make([]Post, len(sizes))
		for i, n := range sizes {
			all[i] = Post{Body: make([]byte, n), Replay: strconv.Itoa(i)}
		}
		var got []Post
		for rest := all; len(rest) > 0; {
			var entry []Post
			entry, rest = CutPosts(rest)
			require.NotEmpty(t, entry)
			require.LessOrEqual(t, len(entry), maxPosts)
			in := Inbox{Posts: entry}
			require.True(t, len(entry) == 1 || in.Size() <= maxPostsBytes)
			if len(rest) > 0 {
				require.True(t, len(entry) == maxPosts || in.Size()+rest[0].Size() > maxPostsBytes, "another would fit")
			}
			got = append(got, entry...)
		}
		require.Len(t, got, len(all))
		for i := range got {
			require.Equal(t, all[i].Replay, got[i].Replay)
		}
	})
}

func FuzzDecode(f *testing.F) {
	f.Add(EncodeRecipients([]Recipient{{Email: "a@b.c", Name: "n", Vars: map[string]string{"k": "v"}}}))
	e := attempt(1, "sg", 1)
	f.Add(e.Encode())
	f.Add([]byte{formZstd, 1, 2, 3})
	f.Add(packJSON(&e))
	known := answer(4, Throttled, 1, 2)
	known.Events = event(1, "sg", Bounced, MailboxInvalid, 1).Events
	f.Add(known.Encode())
	_, posts := (&Inbox{Posts: []Post{{Body: []byte("a"), Replay: "b"}, {}}}).Encode()
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

func TestPlaceholders(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{"name", "a.b-c"}, Placeholders("Hi {{name}} {{ a.b-c }} {{name}} {{1x}} {{}} {{a b}} {{open"))
	require.Equal(t, "Hi <name>{{ 9 }}{{", Rewrite("Hi {{name}}{{ 9 }}{{", func(n string) string { return "<" + n + ">" }))
	require.Equal(t, "{{<x>", Rewrite("{{{{x}}", func(n string) string { return "<" + n + ">" }))
	r := Recipient{Email: "a@b.c", Name: "Ann", Vars: map[string]string{"name": "Other"}}
	v, ok := r.Value("name")
	require.True(t, ok)
	require.Equal(t, "Other", v)
	_, ok = r.Value("none")
	require.False(t, ok)
}

func FuzzPlaceholders(f *testing.F) {
	f.Add("a {{b}} c {{ d }} {{")
	f.Fuzz(func(t *testing.T, s string) {
		var b strings.Builder
		n := 0
		EachPlaceholder(s, func(x string) { b.WriteString(x) }, func(string) { n++ })
		if n == 0 {
			require.Equal(t, s, b.String(), "plain text stays as it is")
		}
	})
}

func TestBatchTotals(t *testing.T) {
	t.Parallel()
	b := Batch{ID: NewBatchID(time.Now()), Recipients: 2500, Chunks: 3}
	require.Equal(t, []int{1000, 1000, 500, 0}, []int{b.ChunkSize(0), b.ChunkSize(1), b.ChunkSize(2), b.ChunkSize(3)})
	sum := b.Total(Summary{Accepted: 1000, Success: 1000})
	require.True(t, sum.Balanced())
	require.EqualValues(t, 1500, sum.Queued)
	require.Equal(t, BatchSending, b.StateOf(sum))
	b.Sizes = []int{10, 20, 2470}
	require.Equal(t, 20, b.ChunkSize(1))
}

// A fact that lifts the version is stored as JSON, and lifts once however often it
// is written.
func TestLift(t *testing.T) {
	t.Parallel()
	f := Fact{Key: LiftKey(53), Lift: 50}
	got, err := DecodeFact(f.Key, f.Encode())
	require.NoError(t, err)
	require.Equal(t, f, got)
	facts := []Fact{f, answer(1, Accepted, 1), f}
	require.EqualValues(t, 1+2+50, Resolve(1, []Entry{attempt(1, "sg", 1)}, facts).Version)
}
