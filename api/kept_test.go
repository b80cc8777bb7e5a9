package api

import (
	"bytes"
	"cmp"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/service/operation"
)

// filled returns a value of a field that its tags allow, as JSON has it, and that is not its zero value.
func filled(t testing.TB, of reflect.Type, tag reflect.StructTag) any {
	t.Helper()
	switch {
	case of == reflect.TypeFor[time.Time]():
		return "2099-01-02T03:04:05Z"
	case of == reflect.TypeFor[json.RawMessage]():
		return map[string]any{"type": "object"}
	}
	switch of.Kind() { //nolint:exhaustive // others fail
	case reflect.Bool:
		return true
	case reflect.String:
		value, _, _ := strings.Cut(tag.Get("enum"), ",")
		return cmp.Or(value, "x")
	case reflect.Int, reflect.Int64:
		return json.Number(cmp.Or(tag.Get("max"), "7"))
	case reflect.Interface:
		return "x"
	case reflect.Pointer:
		return filled(t, of.Elem(), tag)
	case reflect.Slice:
		return []any{filled(t, of.Elem(), "")}
	case reflect.Map:
		return map[string]any{"x": filled(t, of.Elem(), "")}
	case reflect.Struct:
		out := map[string]any{}
		for _, f := range operation.Fields(of) {
			out[f.Name] = filled(t, f.Field.Type, f.Field.Tag)
		}
		return out
	}
	t.Fatalf("no sample of the type %s", of)
	return nil
}

// item returns the only item of a list in an answer.
func item(list string) func(answer map[string]any) map[string]any {
	return func(answer map[string]any) map[string]any {
		return answer[list].([]any)[0].(map[string]any) //nolint:forcetypeassert // a list of objects
	}
}

// limitsByName returns the limits of an answer by their names.
func limitsByName(answer map[string]any) map[string]any {
	out := map[string]any{}
	for _, v := range answer["limits"].([]any) { //nolint:forcetypeassert // a list of objects
		limit := v.(map[string]any)                   //nolint:forcetypeassert // as above
		out[limit["limit"].(string)] = limit["value"] //nolint:forcetypeassert // a name
	}
	return out
}

// with are members of a body in place of the samples; nil: it has none.
type with map[string]any

var anEndpoint = reflect.TypeFor[client.EndpointSettings]()

// setting is a request that sets something, with one that returns it. ID is that of what was created, and USER that of
// the user ann.
type setting struct {
	set, get string
	body     reflect.Type
	with     with
	of       func(answer map[string]any) map[string]any // what was set; nil: the answer
}

// make carries out the request. It returns its body, the answer, and the ID of what was created.
func (c *setting) make(f *fixture) (body []byte, r *reply, id string) {
	f.Helper()
	members := filled(f, c.body, "").(map[string]any) //nolint:forcetypeassert // of a struct
	for name, v := range c.with {
		require.Contains(f, members, name, c.set)
		if members[name] = v; v == nil {
			delete(members, name)
		}
	}
	body, err := json.Marshal(members)
	require.NoError(f, err)
	method, path, _ := strings.Cut(c.set, " ")
	body = bytes.ReplaceAll(body, []byte("USER"), []byte(f.user))
	r = f.do(method, path, "application/json", bytes.NewReader(body))
	var created struct{ ID string }
	require.NoError(f, json.Unmarshal(r.Body, &created))
	return body, r, created.ID
}

// kept are the settings that are tested. Those that create something make it for other tests, too: see ids.
var kept = []setting{
	{"POST /v1/endpoints", "/v1/endpoints/ID", anEndpoint, with{
		"url": "https://x.test/hook", "events": []any{"log.failed"}, "ordered": nil,
		"format": nil, "everyone": nil, "user": nil, "sender": nil, // of the installation
	}, nil},
	{"POST /v1/endpoints?installation=true", "/v1/endpoints/ID?installation=true", anEndpoint, with{
		"url": "https://x.test/hook", "events": []any{"log.failed"}, "at_once": 1, "signature": "v1a",
		"format": nil, "user": nil, "sender": nil, // of mail
	}, nil},
	{"POST /v1/endpoints?installation=true", "/v1/endpoints/ID?installation=true", anEndpoint, with{
		"url": "mailto:x@x.test", "events": []any{"failover.ended"}, "format": "mail", "user": "ann", "sender": "x@x.test",
		"at_once": 1, "batch": nil, "tags": nil, "categories": nil, "everyone": nil, "signature": nil, "headers": nil,
	}, nil},
	{"POST /v1/templates", "/v1/templates/x", reflect.TypeFor[client.NewTemplate](), with{
		"sender": "x@x.test", "languages": map[string]any{"de": map[string]any{"subject": "x", "html": "x", "text": "x"}},
	}, nil},
	{"POST /v1/users/ann/keys", "/v1/users/ann/keys", reflect.TypeFor[client.NewKey](), with{
		"scopes": []any{"read"}, "networks": []any{"192.0.2.0/24"},
	}, func(answer map[string]any) map[string]any {
		keys := answer["keys"].([]any)            //nolint:forcetypeassert // a list of objects
		return keys[len(keys)-1].(map[string]any) //nolint:forcetypeassert // as above
	}},
	{"PUT /v1/users/ann/limits", "/v1/users/ann/limits", reflect.TypeFor[client.NewLimits](), nil, limitsByName},
	{"PUT /v1/users/ann/senders", "/v1/users/ann/senders", reflect.TypeFor[client.SetSenders](), with{
		"senders": []any{"x@x.test"},
	}, nil},
	{"PUT /v1/users/ann/defaults", "/v1/users/ann/defaults", reflect.TypeFor[client.SetDefaults](), with{
		"time_zone": "Europe/Vienna", "send_window": map[string]any{
			"from": "09:00", "to": "17:00", "weekdays": []any{"monday"}, "time_zone": "Europe/Vienna", "strict": true,
		},
	}, nil},
	{"POST /v1/blocks", "/v1/blocks", reflect.TypeFor[client.NewBlock](), with{
		"provider": "sg", "user": "USER", "sender": "x@x.test", "domain": "x.test",
	}, item("blocks")},
	{"POST /v1/suppressions", "/v1/suppressions/x@x.test", reflect.TypeFor[client.NewSuppression](), with{
		"email": "x@x.test", "reason": "unsubscribe",
	}, item("suppressions")},
}

// unread are members that no answer has: they are in the audit trail, or are done at once.
var unread = []string{"NewTemplate.publish", "NewLimits.why", "SetSenders.why", "SetDefaults.why"}

// TestSettingsAreKept: what a request sets is what later answers have, each member of it. A new field of a struct is
// tested without a line here, unless it needs a value of its own.
func TestSettingsAreKept(t *testing.T) {
	t.Parallel()
	f := newFixture(t).operator()
	tested := map[string]bool{}
	for _, c := range kept {
		raw, r, id := c.make(f)
		require.Less(t, r.Status, 300, "%s %s: %s", c.set, raw, r.Body)
		got := read[map[string]any](f, strings.ReplaceAll(c.get, "ID", id))
		if c.of != nil {
			got = c.of(got)
		}
		var want map[string]any
		require.NoError(t, json.Unmarshal(raw, &want))
		for _, field := range operation.Fields(c.body) {
			value, set := want[field.Name]
			name := c.body.Name() + "." + field.Name
			if !set || slices.Contains(unread, name) {
				continue
			}
			tested[name] = true
			if field.Field.Tag.Get("only") != "request" {
				require.Equal(t, value, got[field.Name], "%s: %s", c.set, field.Name)
			} else {
				require.NotContains(t, got, field.Name, c.set)
			}
		}
	}
	for _, c := range kept {
		for _, field := range operation.Fields(c.body) {
			name := c.body.Name() + "." + field.Name
			require.True(t, slices.Contains(unread, name) || tested[name], "nothing sets %s", name)
		}
	}
}
