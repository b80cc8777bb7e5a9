package endpoints

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/internal/testkit"
	updates "github.com/safedelivr/safedelivr/models/feed"
)

// TestAnswerWords: a page says whether there was an answer, and what it means.
func TestAnswerWords(t *testing.T) {
	t.Parallel()
	require.Equal(t, "Accepted (204)", answerWords(204, ""))
	require.Equal(t, "It answered 410: the address is gone", answerWords(410, "bye"))
	require.Equal(t, "No answer: connection refused", answerWords(0, "connection refused"))
	require.Equal(t, "No answer", answerWords(0, ""))
}

// TestNextAttempt: only the newest attempt at a post says when the next one is.
func TestNextAttempt(t *testing.T) {
	t.Parallel()
	at := time.Now()
	v := endpointView{Attempts: []client.EndpointAttempt{{Post: "a"}, {Post: "b"}, {Post: "a"}},
		retries: map[string]time.Time{"a": at}}
	require.Equal(t, at, v.Next(0))
	require.Zero(t, v.Next(1))
	require.Zero(t, v.Next(2))
}

// TestStates: each state of an endpoint is shown.
func TestStates(t *testing.T) {
	t.Parallel()
	field, _ := reflect.TypeFor[client.Endpoint]().FieldByName("State")
	names := strings.Split(field.Tag.Get("enum"), ",")
	require.ElementsMatch(t, names, slices.Collect(maps.Keys(states)))
}

// TestEventGroups: each type of update is in a group with others.
func TestEventGroups(t *testing.T) {
	t.Parallel()
	for _, types := range [][]updates.Type{updates.Types, updates.NoticeTypes} {
		var all []updates.Type
		for _, g := range eventGroups(types) {
			require.Greater(t, len(g.Types), 1, g.Title)
			all = append(all, g.Types...)
		}
		require.ElementsMatch(t, types, all)
		for _, typ := range types {
			noun, _, _ := strings.Cut(string(typ), ".")
			require.True(t, slices.ContainsFunc(eventNouns, func(n eventNoun) bool { return slices.Contains(n.nouns, noun) }),
				"%s belongs to no group", typ)
		}
	}
}

// TestEndpointIsShown: the page of an endpoint shows each of its fields.
func TestEndpointIsShown(t *testing.T) {
	t.Parallel()
	page := func(e *client.Endpoint) string {
		view := &endpointView{Endpoint: *e, Attempts: []client.EndpointAttempt{{}}}
		parts, err := views.Parts("endpoint", web.Page{Data: view}, "content")
		require.NoError(t, err)
		return string(parts["content"])
	}
	testkit.Shown(t, page, map[string]string{
		"Signature": "an endpoint with v1a has a public key",
		"Headers":   "they often have passwords; HeaderNames are shown",
	},
		func(e *client.Endpoint) { e.State, e.Format = client.EndpointStateFailing, "" },
		func(e *client.Endpoint) { e.State, e.Format = client.EndpointStateDisabled, client.FormatMail })
}
