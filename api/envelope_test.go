package api

import (
	"fmt"
	"mime/multipart"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

// carryCopies lets the providers of the fixture carry cc and bcc.
func (f *fixture) carryCopies() {
	for i := range f.deps.Providers {
		f.deps.Providers[i].Carries.Copies = true
	}
	f.serve(Config{})
}

// TestEnvelope: cc and bcc make one mail, in JSON and in forms. An address that is named twice counts once, where it is
// named first.
func TestEnvelope(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.carryCopies()
	var parts strings.Builder
	form := multipart.NewWriter(&parts)
	for name, value := range map[string]string{
		"from": "shop@example.com", "subject": "s", "text": "t", "to": "ann@example.com",
		"cc":  `"Lee, Bob" <bob@example.com>, eve@example.com`,
		"bcc": "lou@example.com, ANN@example.com,Eve@example.com",
	} {
		require.NoError(t, form.WriteField(name, value))
	}
	require.NoError(t, form.Close())
	for name, r := range map[string]*reply{
		"json": f.post(`{"bcc": ["lou@example.com", "ANN@example.com", "Eve@example.com"],
			"cc": ["\"Lee, Bob\" <bob@example.com>", "eve@example.com"],
			"from": "shop@example.com", "subject": "s", "text": "t", "to": ["ann@example.com"]}`),
		"multipart": f.do(http.MethodPost, "/v1/batches", form.FormDataContentType(),
			strings.NewReader(parts.String())),
		"form": f.do(http.MethodPost, "/v1/batches", "application/x-www-form-urlencoded", strings.NewReader(
			"from=shop@example.com&subject=s&text=t&to=ann@example.com"+
				"&cc=%22Lee,+Bob%22+%3Cbob@example.com%3E,eve@example.com&bcc=lou@example.com,ANN@example.com,Eve@example.com")),
	} {
		t.Run(name, func(t *testing.T) {
			a, b, rs := f.with(t).accepted(r)
			require.Equal(t, &models.Envelope{CC: 2, BCC: 1}, b.Envelope)
			require.Equal(t, []models.Recipient{
				{Email: "ann@example.com"}, {Email: "bob@example.com", Name: "Lee, Bob"},
				{Email: "eve@example.com"}, {Email: "lou@example.com"},
			}, rs)
			require.Equal(t, []int{4, 2}, []int{a.Recipients, a.Duplicates})
		})
	}
	for _, body := range []string{
		`{"to": ["ann@example.com"], "cc": ["ANN@example.com"], "bcc": []}`,
		`{"to": ["ann@example.com", "ANN@example.com"], "together": true}`, `{"to": ["ann@example.com"], "together": true}`,
	} {
		_, b, rs := f.accepted(f.post(batchOf(t, body)))
		require.Nil(t, b.Envelope, "there is only one address")
		require.Len(t, rs, 1, body)
	}
}

// TestTogether: several recipients in to have one mail with the values of the first, if the batch says so. A large value
// of the first does not part them, and a template is filled with it.
func TestTogether(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.carryCopies()
	large := strings.Repeat("x", 60_000)
	values := `"word": "<a>"`
	for i := range 17 {
		values += fmt.Sprintf(`, "v%d": %q`, i, large)
	}
	a, b, rs := f.accepted(f.post(batchOf(t, `{"to": [{"email": "ann@example.com", "name": "Ann", "vars": {`+values+`}},
		"Bob <bob@example.com>", "ANN@example.com", "eve@example.com"], "cc": ["lou@example.com", "bob@example.com"],
		"bcc": ["sam@example.com"], "text": "{{word}} for {{name}}", "together": true}`)))
	require.Equal(t, &models.Envelope{To: 3, CC: 1, BCC: 1}, b.Envelope)
	require.Equal(t, []int{5, 2, 1}, []int{a.Recipients, a.Duplicates, b.Chunks})
	require.Len(t, rs[0].Vars, 18)
	rs[0].Vars = nil
	require.Equal(t, []models.Recipient{
		{Email: "ann@example.com", Name: "Ann"}, {Email: "bob@example.com", Name: "Bob"}, {Email: "eve@example.com"},
		{Email: "lou@example.com"}, {Email: "sam@example.com"},
	}, rs)
	v := f.get("/v1/batches/" + b.ID.String()).object(t)
	require.Equal(t, []any{3.0, 1.0, 1.0}, []any{v["to"], v["cc"], v["bcc"]})
	require.Equal(t, "to", f.get("/v1/logs/" + b.ID.Log(3).String()).object(t)["role"])

	f.template(`{"name": "welcome", "subject": "Hi {{name}}", "text": "{{ word | upcase }}", "publish": true}`)
	_, b, rs = f.accepted(f.post(`{"template": "welcome", "from": "shop@example.com", "together": true, "to": [
		{"email": "ann@example.com", "vars": {"word": "yes"}}, {"email": "bob@example.com", "vars": {"word": "yes"}}]}`))
	require.Equal(t, &models.Envelope{To: 2}, b.Envelope)
	require.Empty(t, rs[1].Vars)
}

// TestEnvelopeMistakes: one mail refuses what its addresses cannot share. Several recipients in to must be meant.
func TestEnvelopeMistakes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.carryCopies()
	for body, want := range map[string][]string{
		`{"to": ["a@b.de", "c@b.de"], "bcc": ["d@b.de"]}`: {"/bcc conflict"},
		`{"to": ["a@b.de", {"email": "c@b.de", "vars": {"a": "1"}}, {"email": "d@b.de", "metadata": {"a": "1"}},
			{"email": "e@b.de", "headers": {"X-A": "1"}}], "together": true}`: {"/to/1 conflict", "/to/2 conflict", "/to/3 conflict"},
		`{"to": ["a@b.de", {"email": "c@b.de", "deliver_at": "2099-01-01T00:00:00Z"}], "together": true}`: {
			"/to/1/deliver_at conflict", "/to/1/deliver_at invalid_value"},
		`{"to": [` + list(51, `"c%d@b.de"`) + `], "together": true}`:                                    {"/to too_many"},
		`{"to": [` + list(49, `"c%d@b.de"`) + `], "cc": ["x@b.de", "y@b.de"], "together": true}`:        {"/cc too_many"},
		`{"to": ["a@b.de", "c@b.de"], "together": true, "allow_duplicates": true, "unsubscribe": true}`: {"/allow_duplicates conflict", "/unsubscribe conflict"},
		`{"to": [], "cc": ["d@b.de"]}`:                                        {"/to required"},
		`{"to": ["a@b.de"], "cc": ["x", 1, "y@b.de"], "bcc": "z@b.de"}`:       {"/bcc wrong_type", "/cc/0 invalid_address", "/cc/1 wrong_type"},
		`{"to": ["a@b.de"], "cc": ["d@b.de"], "allow_duplicates": true}`:      {"/allow_duplicates conflict"},
		`{"to": ["a@b.de"], "cc": ["d@b.de"], "unsubscribe": true}`:           {"/unsubscribe conflict"},
		`{"to": ["a@b.de"], "cc": ["d@b.de"], "text": "{{unsubscribe_url}}"}`: {"/text unknown_placeholder"},
		`{"to": ["a@b.de"], "cc": [` + list(30, `"c%d@b.de"`) + `], "bcc": [` + list(20, `"b%d@b.de"`) + `]}`: {
			"/bcc too_many", // cc comes first
		},
	} {
		r := f.post(batchOf(t, body))
		require.Equal(t, http.StatusUnprocessableEntity, r.Status, "%s: %s", body, r.Body)
		p := r.problem(t)
		got := p.pointers()
		slices.Sort(got)
		require.Equal(t, want, got, body)
	}
	f.deps.Providers[0].ChunkLimit, f.deps.Providers[0].Rate = 1, 0
	f.deps.Providers[1].Rate = 1
	f.serve(Config{})
	r := f.post(batchOf(t, `{"to": ["a@b.de"], "cc": ["d@b.de"]}`))
	p := r.problem(t)
	require.Equal(t, []string{"/cc no_provider"}, p.pointers(), string(r.Body))
	require.Contains(t, string(r.Body), "a call has at most 1")
	require.Contains(t, string(r.Body), "its rate is 1 a second")
}

// TestEnvelopeLog: the log of each address says its role, and shows the mail with the values of the address in to.
func TestEnvelopeLog(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.carryCopies()
	_, b, _ := f.accepted(
		f.post(batchOf(t, `{"subject": "For {{name}}", "bcc": ["lou@example.com"], "cc": ["eve@example.com"],
		"to": [{"email": "ann@example.com", "name": "Ann"}]}`)),
	)
	for n, want := range map[int]string{1: "to For Ann", 2: "cc For Ann", 3: "bcc For Ann"} {
		l := f.get("/v1/logs/" + b.ID.Log(n).String()).object(t)
		require.Equal(t, want, l["role"].(string)+" "+l["subject"].(string))
	}
	v := f.get("/v1/batches/" + b.ID.String()).object(t)
	require.Equal(t, []any{1.0, 1.0}, []any{v["cc"], v["bcc"]})
	_, b, _ = f.accepted(f.post(batchOf(t, `{}`)))
	require.Nil(t, f.get("/v1/logs/" + b.ID.Log(1).String()).object(t)["role"])
}

// TestDryRunOfEnvelope: a dry run says that none gets the mail if the only address in to is suppressed, and that
// another suppressed address is left out.
func TestDryRunOfEnvelope(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.carryCopies()
	r := f.do("POST", "/v1/suppressions", "application/json", strings.NewReader(`{"email": "s@x.example"}`))
	require.Equal(t, http.StatusCreated, r.Status, "%s", r.Body)
	reasons := func(v service.DryRun) map[models.Reason]int {
		out := map[models.Reason]int{}
		for _, route := range v.Routes {
			out[route.Reason] += route.Recipients
		}
		return out
	}
	require.Equal(t, map[models.Reason]int{models.Suppressed: 1, models.ToFailed: 2},
		reasons(f.plan(`{"to": ["s@x.example"], "cc": ["a@x.example", "b@x.example"]}`)))
	require.Equal(t, map[models.Reason]int{models.Suppressed: 1, "": 2},
		reasons(f.plan(`{"to": ["a@x.example"], "cc": ["s@x.example", "b@x.example"]}`)))
	require.Equal(t, map[models.Reason]int{models.Suppressed: 1, "": 2},
		reasons(f.plan(`{"to": ["s@x.example", "a@x.example"], "cc": ["b@x.example"], "together": true}`)))
}
