package models

import (
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestIDLayout(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		at := time.UnixMilli(rapid.Int64Range(0, 1<<47).Draw(t, "ms")).UTC()
		b := NewBatchID(at)
		n := rapid.IntRange(0, MaxChunks-1).Draw(t, "chunk")
		r := rapid.IntRange(1, MaxChunkRecipients).Draw(t, "recipient")
		c, l := b.Chunk(n), b.Chunk(n).Log(r)
		require.Equal(t, at, l.Time())
		require.Equal(t, b, l.Batch())
		require.Equal(t, c, l.ChunkID())
		require.Equal(t, n, l.ChunkNumber())
		require.Equal(t, r, l.Recipient())
		require.Equal(t, b, b.Chunk(0), "chunk 0 has its batch's id")
		for _, id := range []ID{b, c, l} {
			u, err := uuid.Parse(id.String())
			require.NoError(t, err)
			require.Equal(t, uuid.Version(7), u.Version())
			require.Equal(t, uuid.RFC4122, u.Variant())
			back, err := ParseID(id.String())
			require.NoError(t, err)
			require.Equal(t, id, back)
		}
		_, err := ParseBatchID(l.String())
		require.ErrorIs(t, err, ErrInvalid)
		_, err = ParseLogID(c.String())
		require.ErrorIs(t, err, ErrInvalid)
	})
}

func TestIDsAreUnique(t *testing.T) {
	t.Parallel()
	now := time.Now()
	seen := map[ID]bool{}
	for range 20_000 {
		id := NewBatchID(now)
		require.False(t, seen[id])
		require.Zero(t, id.low())
		seen[id] = true
	}
}

func TestParseIDIsStrict(t *testing.T) {
	t.Parallel()
	good := NewBatchID(time.Now()).Log(3).String()
	for name, bad := range map[string]string{
		"empty":        "",
		"upper case":   strings.ToUpper(good),
		"braces":       "{" + good + "}",
		"urn":          "urn:uuid:" + good,
		"no hyphens":   strings.ReplaceAll(good, "-", ""),
		"version 4":    good[:14] + "4" + good[15:],
		"variant":      good[:19] + "c" + good[20:],
		"long":         good + "0",
		"space":        " " + good[1:],
		"hyphen moved": good[:7] + "-" + good[7:8] + good[9:],
	} {
		_, err := ParseID(bad)
		require.ErrorIs(t, err, ErrInvalid, name)
	}
	over := NewBatchID(time.Now()).Log(1001)
	_, err := ParseLogID(over.String())
	require.ErrorIs(t, err, ErrInvalid)
}

func FuzzParseID(f *testing.F) {
	f.Add(NewBatchID(time.Now()).Log(7).String())
	f.Add("01890a5d-ac96-774b-bcce-b302099a8057")
	f.Add("")
	f.Fuzz(func(t *testing.T, s string) {
		if id, err := ParseID(s); err == nil {
			require.Equal(t, s, id.String())
		}
	})
}

func TestSet(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		numbers := rapid.SliceOfDistinct(rapid.IntRange(1, MaxChunkRecipients), func(n int) int { return n })
		a, b := SetOf(numbers.Draw(t, "a")...), SetOf(numbers.Draw(t, "b")...)
		back, err := parseSet(a.String())
		require.NoError(t, err)
		require.Equal(t, a, back)
		require.Equal(t, a.Len()+b.Len(), a.Or(b).Len()+a.And(b).Len())
		require.True(t, a.Minus(b).And(b).Empty())
		lower, upper := a.Halves()
		require.Equal(t, a, lower.Or(upper))
		require.True(t, lower.And(upper).Empty())
		require.Contains(t, []int{0, 1}, lower.Len()-upper.Len())
	})
}

func FuzzParseSet(f *testing.F) {
	f.Add("1-5,7")
	f.Add("1000")
	f.Add("5-1")
	f.Fuzz(func(t *testing.T, s string) {
		if set, err := parseSet(s); err == nil {
			back, err := parseSet(set.String())
			require.NoError(t, err)
			require.Equal(t, set, back)
		}
	})
}

func TestMatchKey(t *testing.T) {
	t.Parallel()
	id := NewBatchID(time.Now())
	retry := Message{Kind: ProviderMessage, Provider: "sg", ID: id, Retry: 3, Lane: Bulk}
	log := Message{Kind: LogMessage, Provider: "sg", ID: id.Log(1), Lane: Bulk}
	require.Equal(t, "sg."+id.String()+".retry.3", retry.Key())
	for _, c := range []struct {
		binding, key string
		want         bool
	}{
		{"sg.#", retry.Key(), true},
		{"sg.*", retry.Key(), false},
		{"sg.*.retry.*", retry.Key(), true},
		{"batch.#", retry.Key(), false},
		{"sg.#", log.Key(), false},
		{"log.sg.#", log.Key(), true},
		{"log.*.#", log.Key(), true},
		{"event.#", "event.sg", true},
		{"#", "a.b", true},
		{"#", "", true},
		{"#.#", "a", true},
		{"a.#.z", "a.z", true},
		{"a.#.z", "a.b.c.z", true},
		{"a.#.z", "a.b", false},
		{"*.b", "a.b", true},
		{"*", "a.b", false},
	} {
		require.Equal(t, c.want, MatchKey(c.binding, c.key), "%s on %s", c.binding, c.key)
	}
}

// FuzzMatchKey compares the matching of routing keys with regular expressions.
func FuzzMatchKey(f *testing.F) {
	for _, s := range [][2]string{
		{"sg.#", "sg.0198.retry.3"}, {"log.*.#", "log.sg.x"}, {"a.#.z", "a.z"},
		{"#.#", ""}, {"*", "a.b"}, {"..", "."},
	} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, binding, key string) {
		words := strings.Split(binding, ".")
		if len(words) > 8 || len(key) > 100 || !utf8.ValidString(binding) || !utf8.ValidString(key) {
			return
		}
		pattern := `(?s)\A`
		for _, w := range words {
			switch w {
			case "#":
				pattern += `(?:[^.]*\.)*`
			case "*":
				pattern += `[^.]*\.`
			default:
				pattern += regexp.QuoteMeta(w) + `\.`
			}
		}
		want := regexp.MustCompile(pattern + `\z`).MatchString(key + ".")
		require.Equal(t, want, MatchKey(binding, key), "%q on %q", binding, key)
	})
}

func TestProviderNames(t *testing.T) {
	t.Parallel()
	for _, ok := range []string{"sg", "sg-eu", "a1"} {
		require.True(t, ValidProviderName(ok), ok)
	}
	for _, bad := range []string{"", "batch", "log", "event", "feed", "1a", "SG", "a.b", "a_b", "-a",
		strings.Repeat("a", 33)} {
		require.False(t, ValidProviderName(bad), bad)
	}
}

func TestEveryMessageHasOneQueue(t *testing.T) {
	t.Parallel()
	queues := Queues([]string{"sg", "mg", "sg-eu"})
	id := NewBatchID(time.Now())
	for _, m := range []Message{
		{Kind: BatchMessage, ID: id, Lane: Urgent},
		{Kind: ProviderMessage, Provider: "sg", ID: id, Lane: Bulk, Retry: 2},
		{Kind: ProviderMessage, Provider: "sg-eu", ID: id, Lane: Bulk},
		{Kind: LogMessage, Provider: "mg", ID: id.Log(5), Lane: Urgent, Retry: 1},
		{Kind: EventMessage, Provider: "mg", ID: id},
	} {
		require.NoError(t, m.Validate())
		var got []string
		for _, q := range queues {
			if (q.Lane == "" || q.Lane == m.Lane) && MatchKey(q.Binding(), m.Key()) {
				got = append(got, q.Name())
			}
		}
		require.Len(t, got, 1, m.Key())
	}
}
