package templates

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/service/problem"
)

// TestTurns: many previews of one user hold one place, and the next user need not wait for all of them.
func TestTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		turns := newTurns(2)
		end, err := turns.take(ctx, "hostile")
		require.NoError(t, err)
		var order []string
		var mu sync.Mutex
		note := func(what string) {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, what)
		}
		wait := func(ctx context.Context, user string, end chan struct{}) {
			release, err := turns.take(ctx, user)
			if err != nil {
				note(user + " left")
				return
			}
			note(user)
			<-end
			release()
		}
		ends := make(chan struct{})
		for range 10 {
			go wait(ctx, "hostile", ends)
		}
		synctest.Wait()
		require.Empty(t, order)
		annEnds := make(chan struct{})
		go wait(t.Context(), "ann", annEnds)
		synctest.Wait()
		require.Equal(t, []string{"ann"}, order, "she waits for nothing")
		go wait(t.Context(), "bob", ends)
		synctest.Wait()
		require.Len(t, order, 1, "both places are taken")
		close(annEnds)
		synctest.Wait()
		require.Equal(t, []string{"ann", "bob"}, order)
		cancel()
		synctest.Wait()
		require.Len(t, order, 12, "those that wait leave with their requests")
		end()
		close(ends)
		synctest.Wait()
		require.Empty(t, turns.places)
		_, err = turns.take(t.Context(), "hostile")
		require.NoError(t, err, "the user's turn is free")
	})
}

// TestManyTags: a template with many tags is refused before it is compiled, also if they are in several languages.
func TestManyTags(t *testing.T) {
	t.Parallel()
	s := client.TemplateSource{TemplateContent: client.TemplateContent{Subject: "s", Text: "t"},
		Languages: map[string]client.TemplateContent{}}
	for _, language := range []string{"de", "en", "fr", "it"} {
		many := make([]byte, 0, 200_000)
		for range 6_000 {
			many = append(many, "{% if a %}"...)
		}
		s.Languages[language] = client.TemplateContent{Text: string(many)}
	}
	l := New(nil, nil)
	_, _, err := l.Preview(t.Context(), "user", Sample{Source: s})
	var refused *problem.Error
	require.ErrorAs(t, err, &refused)
	require.Contains(t, refused.Fields[0].Detail, "20000 tags and outputs")
}
