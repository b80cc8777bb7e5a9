package drafts

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/service/problem"
	"github.com/safedelivr/safedelivr/store/memory"
)

func codeOf(err error) string {
	var e *problem.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

func fields(pairs ...string) map[string]string {
	out := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		out[pairs[i]] = pairs[i+1]
	}
	return out
}

// TestDrafts: a draft is listed, read, replaced and deleted by its user alone.
func TestDrafts(t *testing.T) {
	t.Parallel()
	l, ctx := New(memory.Open(t), func(context.Context, string) error { return nil }), t.Context()
	message := fields("subject", "Offer", "to", "ann@example.com")
	a, err := l.Save(ctx, "ada", Draft{ID: NewID(), Editor: "one", Fields: message})
	require.NoError(t, err)
	b, err := l.Save(ctx, "ada", Draft{ID: NewID(), Editor: "one", Fields: fields("template", "welcome")})
	require.NoError(t, err)
	a.Fields["subject"] = "New offer"
	a, err = l.Save(ctx, "ada", a)
	require.NoError(t, err)
	require.Equal(t, 2, a.Version)
	list, err := l.List(ctx, "ada")
	require.NoError(t, err)
	require.Len(t, list, 2)
	titles := map[string]string{list[0].ID: list[0].Title, list[1].ID: list[1].Title}
	require.Equal(t, map[string]string{a.ID: "New offer", b.ID: "welcome"}, titles)
	got, err := l.Get(ctx, "ada", a.ID)
	require.NoError(t, err)
	require.Equal(t, a, got)

	_, err = l.Get(ctx, "bob", a.ID)
	require.Equal(t, "not_found", codeOf(err))
	_, err = l.Save(ctx, "bob", a)
	require.Equal(t, "not_found", codeOf(err))
	require.NoError(t, l.Delete(ctx, "bob", a.ID))
	require.NoError(t, l.Delete(ctx, "ada", a.ID))
	require.NoError(t, l.Delete(ctx, "ada", a.ID))
	_, err = l.Get(ctx, "ada", a.ID)
	require.Equal(t, "not_found", codeOf(err))
	_, err = l.Save(ctx, "ada", a)
	require.Equal(t, "not_found", codeOf(err), "a page that is still open brings a deleted draft back")
	list, err = l.List(ctx, "ada")
	require.NoError(t, err)
	require.Len(t, list, 1)
}

// TestDraftOfTwoPages: a page does not replace what another one has saved since, but it replaces
// what it has saved itself although it did not get the answer.
func TestDraftOfTwoPages(t *testing.T) {
	t.Parallel()
	l, ctx := New(memory.Open(t), func(context.Context, string) error { return nil }), t.Context()
	first, err := l.Save(ctx, "ada", Draft{ID: NewID(), Editor: "one", Fields: fields("subject", "1")})
	require.NoError(t, err)
	_, err = l.Save(ctx, "ada", Draft{ID: first.ID, Version: 1, Editor: "one", Fields: fields("subject", "2")})
	require.NoError(t, err)
	_, err = l.Save(ctx, "ada", Draft{ID: first.ID, Version: 1, Editor: "one", Fields: fields("subject", "3")})
	require.NoError(t, err)
	_, err = l.Save(ctx, "ada", Draft{ID: first.ID, Version: 2, Editor: "two", Fields: fields("subject", "4")})
	require.Equal(t, "draft_changed", codeOf(err))
	got, err := l.Get(ctx, "ada", first.ID)
	require.NoError(t, err)
	require.Equal(t, "3", got.Fields["subject"])
	_, err = l.Save(ctx, "ada", Draft{ID: first.ID, Version: 3, Editor: "two", Fields: fields("subject", "4")})
	require.NoError(t, err)
}

// TestDraftLimits: drafts are bounded in number, in size and together, also if many are saved at
// once. A draft that exists can still be saved when there are too many.
func TestDraftLimits(t *testing.T) {
	t.Parallel()
	l, ctx := New(memory.Open(t), func(context.Context, string) error { return nil }), t.Context()
	_, err := l.Save(ctx, "ada", Draft{ID: NewID(), Fields: fields("to", strings.Repeat("x", MaxSize))})
	require.Equal(t, "draft_too_large", codeOf(err))
	var wg sync.WaitGroup
	for i := range MaxDrafts + 5 {
		wg.Go(func() {
			for code := "changed_meanwhile"; code == "changed_meanwhile"; {
				_, err := l.Save(ctx, "ada", Draft{ID: NewID(), Fields: fields("subject", fmt.Sprint(i))})
				code = codeOf(err)
			}
		})
	}
	wg.Wait()
	list, err := l.List(ctx, "ada")
	require.NoError(t, err)
	require.Len(t, list, MaxDrafts)
	_, err = l.Save(ctx, "ada", Draft{ID: NewID()})
	require.Equal(t, "too_many_drafts", codeOf(err))
	d, err := l.Get(ctx, "ada", list[0].ID)
	require.NoError(t, err)
	_, err = l.Save(ctx, "ada", d)
	require.NoError(t, err)

	for range MaxTotal/MaxSize + 1 {
		_, err = l.Save(ctx, "bob", Draft{ID: NewID(), Fields: fields("to", strings.Repeat("x", MaxSize-1000))})
	}
	require.Equal(t, "too_many_drafts", codeOf(err))
}

// TestErasureOfDrafts: an erasure removes the rows of an address, and an open page does not bring
// them back.
func TestErasureOfDrafts(t *testing.T) {
	t.Parallel()
	l, ctx := New(memory.Open(t), func(context.Context, string) error { return nil }), t.Context()
	text := "email,name\nann@example.com,Ann\nBob@Example.com,Bob"
	message := fields("subject", "s", "to", text, "cc", "bob@example.com", "test", "bob@example.com")
	d, err := l.Save(ctx, "ada", Draft{ID: NewID(), Editor: "one", Fields: message})
	require.NoError(t, err)
	require.NoError(t, l.Erase(ctx, "ada", "bob@example.com"))
	got, err := l.Get(ctx, "ada", d.ID)
	require.NoError(t, err)
	require.Equal(t, fields("subject", "s", "to", "email,name\nann@example.com,Ann", "cc", "", "test", ""), got.Fields)
	_, err = l.Save(ctx, "ada", d)
	require.Equal(t, "draft_changed", codeOf(err))
}
