package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

// messages posts several messages with a key.
func (f *fixture) messages(query, key, list string) *reply {
	f.Helper()
	return f.do(http.MethodPost, "/v1/batches"+query, "application/json", strings.NewReader(`{"messages": [`+list+`]}`),
		"Idempotency-Key", key)
}

// resultsOf decodes the results of messages that were accepted.
func resultsOf(t testing.TB, r *reply) service.MessageResults {
	t.Helper()
	require.Equal(t, http.StatusAccepted, r.Status, string(r.Body))
	var v service.MessageResults
	require.NoError(t, json.Unmarshal(r.Body, &v))
	return v
}

// mails returns the subject and the address of each stored mail of the fixture's user.
func (f *fixture) mails() map[string]int {
	f.Helper()
	out := map[string]int{}
	all, err := f.store.Batches(f.Context(), f.user, models.ID{}, 5000)
	require.NoError(f, err)
	for _, b := range all {
		for n := range b.Chunks {
			rs, err := f.store.Store.Recipients(f.Context(), b.ID.Chunk(n))
			require.NoError(f, err)
			for i := range rs {
				out[rs[i].Fill(b.Content.Subject, nil)+" "+rs[i].Email]++
			}
		}
	}
	return out
}

// TestMessages: messages with equal content and options are one batch, each has its result, and a repeat changes
// nothing.
func TestMessages(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	list := `
		{"from": "shop@example.com", "subject": "Order {{n}}", "text": "t", "to": [{"email": "ann@example.com", "vars": {"n": 1}}]},
		{"from": "shop@example.com", "subject": "Other", "text": "t", "tags": ["a"], "to": ["bob@example.com", "eve@example.com"]},
		{"to": [{"email": "lou@example.com", "vars": {"n": 2}}], "text": "t", "subject":  "Order {{n}}", "from": "shop@example.com"},
		{"from": "shop@example.com", "subject": "Other", "text": "t", "tags": ["b"], "to": ["bob@example.com"]},
		{"from": "shop@example.com", "subject": "Order {{n}}", "text": "t", "to": [{"email": "ANN@example.com", "vars": {"n": 9}}]}`
	r := f.messages("", "k", list)
	v := resultsOf(t, r)
	require.Equal(t, []int{5, 0, 5}, []int{v.Accepted, v.Rejected, len(v.Results)})
	require.Equal(t, v.Results[0].Batch, v.Results[2].Batch)
	require.NotEqual(t, v.Results[1].Batch, v.Results[3].Batch)
	require.Equal(t, v.Results[0].Log, v.Results[4].Log, "a repeated address")
	require.True(t, v.Results[1].Log.IsZero(), "it has two recipients")
	require.Equal(t, "lou@example.com", read[service.LogStory](f, "/v1/logs/"+v.Results[2].Log.String()).Email)
	want := map[string]int{"Order 1 ann@example.com": 1, "Order 2 lou@example.com": 1, "Other bob@example.com": 2,
		"Other eve@example.com": 1}
	require.Equal(t, want, f.mails())
	again := f.messages("", "k", list)
	require.Equal(t, "true", again.Header.Get("Idempotency-Replayed"))
	require.JSONEq(t, string(r.Body), string(again.Body))
	require.Equal(t, want, f.mails())
	require.Equal(
		t,
		"idempotency_key_reused",
		func() string { r := f.messages("", "k", `{}`); return r.problem(t).Code }(),
	)
}

// good is a message without mistakes.
func good(subject, to string) string {
	return fmt.Sprintf(`{"from": "shop@example.com", "subject": %q, "text": "t", "to": [%q]}`, subject, to)
}

// TestBadMessages: a mistake in a message refuses all, or rejects it in permissive mode, with its place.
func TestBadMessages(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	list := good(
		"a",
		"ann@example.com",
	) + `, {"from": "shop@example.com", "subject": "a\nb", "text": "t", "to": ["x"]}, ` +
		good(
			"a",
			"bob",
		) + `, 7, ` + good(
		"a",
		"lou@example.com",
	)
	list = strings.Replace(
		list,
		" 7,",
		` {"from": "shop@example.com", "attachment": 1, "to": ["a@b.de"], "subject": "s", "text": "t"},`,
		1,
	)
	r := f.messages("", "k", list)
	require.Equal(t, http.StatusUnprocessableEntity, r.Status, string(r.Body))
	p := r.problem(t)
	require.Subset(t, p.pointers(), []string{"/messages/1/subject invalid_header", "/messages/1/to/0 invalid_address",
		"/messages/2/to/0 invalid_address", "/messages/3/attachment unknown_field"})
	all := f.messages("?mode=permissive", "k", good("a", "bob")+","+good("a\nb", "ann@example.com"))
	require.Equal(t, http.StatusUnprocessableEntity, all.Status, "none is left")
	plan := f.messages("?mode=permissive&dry_run=true", "k", list)
	require.Equal(t, http.StatusOK, plan.Status, string(plan.Body))
	var v service.MessagesPlan
	require.NoError(t, json.Unmarshal(plan.Body, &v))
	require.Equal(t, []int{2, 3, 1}, []int{v.Accepted, v.Rejected, len(v.Batches)})
	require.Equal(t, []int{0, 4}, v.Batches[0].Messages)
	require.Equal(t, 2, v.Batches[0].Plan.Recipients)
	require.Empty(t, f.store.writes(), "something was stored")

	r = f.messages("?mode=permissive", "k", list)
	got := resultsOf(t, r)
	require.Equal(t, []int{2, 3}, []int{got.Accepted, got.Rejected})
	var states []string
	for _, m := range got.Results {
		states = append(states, fmt.Sprint(m.Index, " ", m.Status, " ", m.Pointer, " ", m.Code))
	}
	require.Equal(t, []string{"0 accepted  ", "1 rejected /messages/1/to/0 invalid_address",
		"2 rejected /messages/2/to/0 invalid_address", "3 rejected /messages/3/attachment unknown_field", "4 accepted  "}, states)
	require.Contains(t, got.Results[2].Detail, `"bob"`)
	require.Equal(t, map[string]int{"a ann@example.com": 1, "a lou@example.com": 1}, f.mails())
	again := f.messages("?mode=permissive", "k", list)
	require.JSONEq(t, string(r.Body), string(again.Body))

	for body, want := range map[string]string{
		`{"messages": []}`:  "/messages required",
		`{"messages": 7}`:   "/messages wrong_type",
		`{"messages": [7]}`: "/messages/0 wrong_type",
		`{"messages": [` + list + `], "to": ["a@b.de"]}`:                                              "/to conflict",
		`{"messages": [{"messages": []}]}`:                                                            "/messages/0/messages unknown_field",
		`{"messages": [` + strings.Repeat(good("s", "a@b.de")+",", 1000) + good("s", "a@b.de") + `]}`: "/messages too_many",
	} {
		r := f.do(http.MethodPost, "/v1/batches", "application/json", strings.NewReader(body), "Idempotency-Key", "x")
		p := r.problem(t)
		require.Contains(t, p.pointers(), want, body[:min(len(body), 100)])
	}
	r = f.post(`{"messages": [` + good("s", "a@b.de") + `]}`)
	require.Equal(t, "idempotency_key_required", r.problem(t).Code)
}

// TestMessagesCutOff: a request that fails between its batches, in any place, is finished by its repeat. Nothing is
// stored twice, also if a message is not valid any more.
func TestMessagesCutOff(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"", "?mode=permissive"} {
		for _, call := range []string{"Schedule", "PutBatch", "PutAnswer"} {
			for fails := 1; fails <= 5; fails++ {
				f := newFixture(t)
				var list []string
				for i := range 3 {
					list = append(list, good(fmt.Sprint("s", i), "ann@example.com"), good(fmt.Sprint("s", i), "bob@example.com"))
				}
				body := strings.Join(list, ",")
				f.store.failing(call, func(n int) error {
					if n >= fails {
						return models.ErrUnavailable
					}
					return nil
				})
				first := f.messages(mode, "k", body)
				if call != "PutAnswer" && fails <= 3 {
					require.Equal(t, http.StatusServiceUnavailable, first.Status, string(first.Body))
				}
				f.store.failing(call, func(int) error { return nil })
				v := resultsOf(t, f.messages(mode, "k", body))
				require.Equal(t, 6, v.Accepted)
				again := resultsOf(t, f.messages(mode, "k", body))
				require.Equal(t, v, again)
				mails := f.mails()
				require.Len(t, mails, 6)
				for mail, n := range mails {
					require.Equal(t, 1, n, "%s, %s fails from call %d on", mail, call, fails)
				}
				for i, m := range v.Results {
					want := []string{"ann@example.com", "bob@example.com"}[i%2]
					require.Equal(t, want, read[service.LogStory](f, "/v1/logs/"+m.Log.String()).Email)
				}
			}
		}
	}
}

// TestMessagesOfTemplates: messages are made from templates, each with values of its own.
func TestMessagesOfTemplates(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.template(letter)
	r := f.messages("?mode=permissive", "k", `{"template": "welcome", "to": [{"email": "a@b.de", "name": "Ann"}]},
		{"template": "welcome", "to": [{"email": "b@b.de", "vars": {"vip": "x"}}]},
		{"template": "welcome", "to": [{"email": "c@b.de", "name": "Lou"}]},
		{"template": "welcome", "language": "de", "to": [{"email": "a@b.de", "name": "Ann"}]}`)
	v := resultsOf(t, r)
	require.Equal(t, []int{3, 1}, []int{v.Accepted, v.Rejected})
	require.Equal(t, "schema_mismatch", v.Results[1].Code)
	require.Equal(t, v.Results[0].Batch, v.Results[2].Batch)
	require.Equal(t, map[string]int{"Hi Ann a@b.de": 1, "Hi Lou c@b.de": 1, "Hallo Ann a@b.de": 1}, f.mails())
}

// TestMessagesAllowDuplicates: equal messages to one address are sent as often as they are given, if they allow that.
func TestMessagesAllowDuplicates(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	one := `{"from": "shop@example.com", "subject": "s", "text": "t", "allow_duplicates": true, "to": ["ann@example.com"]}`
	v := resultsOf(t, f.messages("", "k", one+","+one))
	require.NotEqual(t, v.Results[0].Log, v.Results[1].Log)
	require.Equal(t, map[string]int{"s ann@example.com": 2}, f.mails())
}

// TestMessagesOfEarlierAttempt: messages that an attempt has stored stay accepted if they would be refused now, and
// those that it has not stored are refused.
func TestMessagesOfEarlierAttempt(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"", "?mode=permissive"} {
		f := newFixture(t)
		list := good(
			"a",
			"ann@example.com",
		) + "," + strings.ReplaceAll(
			good("b", "bob@example.com"),
			"shop@",
			"other@",
		) + "," +
			good(
				"a",
				"lou@example.com",
			)
		f.store.failing("PutAnswer", func(n int) error { // none but that of the whole request
			if n > 2 {
				return models.ErrUnavailable
			}
			return nil
		})
		first := resultsOf(t, f.messages(mode, "k", list))
		require.Equal(t, 3, first.Accepted)
		svc := f.serve(Config{})
		op := service.Caller{User: f.user, By: "cli:op", Operator: true}
		_, _, err := svc.SetSenders(t.Context(), op, f.user, []string{"shop@example.com"}, "", service.Repeat{})
		require.NoError(t, err)
		require.Equal(t, http.StatusUnprocessableEntity, f.messages("", "new", list).Status)
		require.Equal(t, first, resultsOf(t, f.messages(mode, "k", list)))
		require.Len(t, f.mails(), 3)
		other := resultsOf(t, f.messages("?mode=permissive", "other", list))
		require.Equal(t, "/messages/1/from sender_not_allowed", other.Results[1].Pointer+" "+other.Results[1].Code)
		require.Equal(t, 2, other.Accepted)
	}
}

// TestMessagesAtLimit: a limit that is reached between the batches of a request refuses the others. In permissive mode
// that is the result of their messages; otherwise a repeat with the same key sends them when the limit allows it.
func TestMessagesAtLimit(t *testing.T) {
	t.Parallel()
	list := good("a", "ann@example.com") + "," + good("b", "ann@example.com") + "," + good("c", "ann@example.com")
	limited := func(n int, f *fixture) *fixture {
		t.Helper()
		r := f.operator().do("PUT", "/v1/users/ann/limits", "application/json",
			strings.NewReader(fmt.Sprintf(`{"batches_per_day": %d, "why": "a test"}`, n)))
		require.Equal(t, http.StatusOK, r.Status, string(r.Body))
		return f
	}
	f := limited(2, newFixture(t))
	r := f.messages("", "k", list)
	require.Equal(t, http.StatusTooManyRequests, r.Status, string(r.Body))
	require.Equal(t, "limit_reached", r.problem(t).Code)
	require.Len(t, f.mails(), 2)
	none := f.messages("?mode=permissive", "none", list)
	require.Equal(t, http.StatusTooManyRequests, none.Status, "none of them was accepted")
	require.Equal(t, 3, resultsOf(t, limited(10, f).messages("", "k", list)).Accepted)
	require.Len(t, f.mails(), 3)

	f = limited(2, newFixture(t))
	r = f.messages("?mode=permissive", "k", list)
	v := resultsOf(t, r)
	require.Equal(t, []int{2, 1}, []int{v.Accepted, v.Rejected})
	for _, m := range v.Results {
		if m.Status == service.MessageRejected {
			require.Equal(t, fmt.Sprintf("/messages/%d limit_reached", m.Index), m.Pointer+" "+m.Code)
			require.NotEmpty(t, m.Detail)
		}
	}
	require.JSONEq(t, string(r.Body), string(limited(10, f).messages("?mode=permissive", "k", list).Body))
	require.Len(t, f.mails(), 2)
}
