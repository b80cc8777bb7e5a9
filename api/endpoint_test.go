package api

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/internal/outbound"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/endpoint"
	"github.com/safedelivr/safedelivr/models/feed"
)

// checkEndpoints checks the calls about endpoints.
func (c *contract) checkEndpoints() {
	c.Helper()
	const js = "application/json"
	const hook = `{"url": "http://127.0.0.1:1/x", "events": ["log.failed"], "tags": ["a"], "rate": 5, "at_once": 2, ` +
		`"headers": {"X-A": "b"}}`
	c.check("POST", "/v1/endpoints", js, hook, 201, "Idempotency-Key", "e")
	c.check("POST", "/v1/endpoints", js, hook, 201, "Idempotency-Key", "e")
	c.check("POST", "/v1/endpoints", js, `{"url": "mail.example.com"}`, 422)
	id := c.endpoint(hook).ID
	path := "/v1/endpoints/" + id
	c.check("GET", "/v1/endpoints", "", "", 200)
	c.check("GET", path, "", "", 200)
	c.check("GET", path, "", "", 404, "Authorization", "Bearer "+c.foreign)
	c.check("GET", path+"/attempts", "", "", 200)
	c.check("PUT", path, js, `{"url": "http://127.0.0.1:1/y", "batch": true}`, 200)
	c.check("PUT", path, js, `{"url": ""}`, 422)
	c.check("POST", path+"/rotate", js, "", 200)
	c.check("POST", path+"/disable", js, `{"why": "no more"}`, 200)
	c.check("POST", path+"/disable", js, `{"why": "`+strings.Repeat("y", 501)+`"}`, 422)
	c.check("POST", path+"/disable", js, `{"why": "two\nlines"}`, 422)
	c.check("POST", path+"/enable", js, "", 200)
	c.check("POST", path+"/replay", js, `{"from": "2026-01-01T00:00:00Z"}`, 200)
	c.check("POST", path+"/replay", js, `{"from": "2999-01-01T00:00:00Z"}`, 422)
	c.check("POST", path+"/replay", js, `{"post": "msg_9"}`, 422)
	c.posted(id, 1)
	c.check("POST", path+"/replay", js, `{"post": "msg_0"}`, 200)
	c.check("GET", path+"/posts/msg_9", "", "", 404)
	c.check("GET", path+"/posts/msg_0", "", "", 200)
	c.check("PUT", path, js, `{"url": "http://127.0.0.1:1/y", "events": ["log.opened"]}`, 200)
	c.check("GET", path+"/posts/msg_0", "", "", 410)
	c.check("POST", "/v1/endpoints/none/rotate", js, "", 404)
	c.check("POST", path+"/test", js, "", 200) // the address cannot be reached, and the answer says so
	c.check("DELETE", path, "", "", 204)
	c.check("DELETE", path, "", "", 204)
	c.checkInstallation()
}

// checkInstallation checks the calls about the installation's endpoints and updates.
func (c *contract) checkInstallation() {
	c.Helper()
	const js, of = "application/json", "?installation=true"
	by := []string{"Authorization", "Bearer " + c.operator().secret}
	notices := make([]models.Notice, len(feed.NoticeTypes))
	for i, kind := range feed.NoticeTypes {
		notices[i] = models.Notice{Kind: models.NoticeKind(kind), Provider: "sg", Since: time.Now(), Count: 1}
	}
	require.NoError(c, feed.Announce(c.Context(), c.store, func(*feed.Status) []models.Notice { return notices }))
	c.check("GET", "/v1/notices", "", "", 200, by...)
	c.check("GET", "/v1/notices?events=failover.started", "", "", 200, by...)
	c.check("GET", "/v1/notices?events=log.failed", "", "", 400, by...)
	c.check("GET", "/v1/notices?tag=a", "", "", 400, by...)
	c.check("GET", "/v1/notices", "", "", 403)
	c.check("POST", "/v1/endpoints"+of, js, `{"url": "http://127.0.0.1:1/x"}`, 403)
	made := c.check("POST", "/v1/endpoints"+of, js,
		`{"url": "http://127.0.0.1:1/x", "events": ["all"], "format": "slack"}`, 201, by...)
	path := made.Header.Get("Location")
	require.Contains(c, path, of)
	c.check("GET", "/v1/endpoints"+of, "", "", 200, by...)
	c.check("GET", path, "", "", 200, by...)
	c.check("GET", strings.TrimSuffix(path, of), "", "", 404, by...)
	c.check("PUT", path, js, `{"url": "http://127.0.0.1:1/x", "format": "slack", "batch": true}`, 422, by...)
	c.check("DELETE", path, "", "", 204, by...)
}

// endpoint creates an endpoint.
func (f *fixture) endpoint(body string) (v client.Endpoint) {
	f.Helper()
	r := f.do(http.MethodPost, "/v1/endpoints", "application/json", strings.NewReader(body))
	require.Equal(f, http.StatusCreated, r.Status, "%s", r.Body)
	require.NoError(f, json.Unmarshal(r.Body, &v))
	return v
}

// TestEndpointSecret: the secret of an endpoint is reported when it is made and when it is rotated, and never again.
// The values of its header fields are never reported.
func TestEndpointSecret(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	v := f.endpoint(`{"url": "https://example.com/x", "headers": {"Authorization": "Bearer of bad news"}}`)
	require.Regexp(t, "^whsec_[A-Za-z0-9+/]{32}$", v.Secret)
	path := "/v1/endpoints/" + v.ID
	for _, r := range []*reply{f.get(path), f.get("/v1/endpoints")} {
		require.NotContains(t, string(r.Body), "whsec_")
		require.NotContains(t, string(r.Body), "bad news")
		require.Contains(t, string(r.Body), "Authorization")
	}
	rotated := f.do(http.MethodPost, path+"/rotate", "", nil).object(t)
	require.NotEqual(t, v.Secret, rotated["secret"])
	e, err := endpoint.In(f.store).Get(t.Context(), f.user, v.ID)
	require.NoError(t, err)
	require.Len(t, e.Secrets, 2)
	require.Equal(t, v.Secret, e.Secrets[1].String())
	require.WithinDuration(t, time.Now().Add(24*time.Hour), e.Secrets[1].Until, time.Minute)
	f.do(http.MethodPost, path+"/rotate", "", nil)
	e, err = endpoint.In(f.store).Get(t.Context(), f.user, v.ID)
	require.NoError(t, err)
	require.Len(t, e.Secrets, 2, "the oldest has ended")
}

// TestEndpointKeyPair: an endpoint whose posts are signed with a private key shows its public one, and no secret. It
// can be changed from a secret and back, and the old one is valid for a day.
func TestEndpointKeyPair(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	v := f.endpoint(`{"url": "https://example.com/x", "signature": "v1a"}`)
	path := "/v1/endpoints/" + v.ID
	require.Regexp(t, "^whpk_[A-Za-z0-9+/]{43}=$", v.PublicKey)
	require.Empty(t, v.Secret)
	require.Equal(t, v.PublicKey, f.get(path).object(t)["public_key"])
	rotated := f.do(http.MethodPost, path+"/rotate", "", nil).object(t)
	require.Regexp(t, "^whpk_", rotated["public_key"])
	require.NotEqual(t, v.PublicKey, rotated["public_key"])
	require.NotContains(t, rotated, "secret")
	change := func(body string) map[string]any {
		t.Helper()
		return f.do(http.MethodPut, path, "application/json", strings.NewReader(body)).object(t)
	}
	same := change(`{"url": "https://example.com/y"}`)
	require.Equal(t, rotated["public_key"], same["public_key"])
	require.Equal(t, "v1a", same["signature"])
	require.Equal(t, rotated["public_key"], change(`{"url": "https://example.com/y", "signature": "v1a"}`)["public_key"])
	changed := change(`{"url": "https://example.com/y", "signature": "v1"}`)
	require.Regexp(t, "^whsec_", changed["secret"])
	require.Equal(t, "v1", changed["signature"])
	require.NotContains(t, changed, "public_key")
	e, err := endpoint.In(f.store).Get(t.Context(), f.user, v.ID)
	require.NoError(t, err)
	require.Len(t, e.Secrets, 2)
	require.Equal(t, rotated["public_key"], e.Secrets[1].Public())
	require.WithinDuration(t, time.Now().Add(24*time.Hour), e.Secrets[1].Until, time.Minute)
	require.NotContains(t, string(f.get(path).Body), "whsec_")
}

// TestEveryonesEndpoint: only an endpoint of the installation gets everyone's updates. It has the types and filters of
// updates, and stays what it is.
func TestEveryonesEndpoint(t *testing.T) {
	t.Parallel()
	f := newFixture(t).operator()
	const path = "/v1/endpoints"
	send := func(method, path, body string) *reply {
		t.Helper()
		return f.do(method, path, "application/json", strings.NewReader(body))
	}
	for body, want := range map[string]string{
		`{"url": "https://x.y", "everyone": true, "events": ["quota.near"]}`: "/events/0 invalid_value",
		`{"url": "https://x.y", "everyone": true, "format": "slack"}`:        "/format invalid_value",
	} {
		p := send("POST", path+"?installation=true", body).problem(t)
		require.Equal(t, []string{want}, p.pointers(), body)
	}
	p := send("POST", path, `{"url": "https://x.y", "everyone": true}`).problem(t)
	require.Equal(t, []string{"/everyone invalid_value"}, p.pointers())

	body := `{"url": "https://x.y", "everyone": true, "events": ["log.failed"], "tags": ["a"]}`
	made := send("POST", path+"?installation=true", body).object(t)
	require.Equal(t, true, made["everyone"])
	id, _ := made["id"].(string)
	at := path + "/" + id + "?installation=true"
	require.Equal(t, http.StatusOK, send("PUT", at, body).Status)
	p = send("PUT", at, `{"url": "https://x.y"}`).problem(t)
	require.Equal(t, []string{"/everyone invalid_value"}, p.pointers())
	get := func() endpoint.Endpoint {
		t.Helper()
		e, err := endpoint.In(f.store).Get(t.Context(), feed.Installation, id)
		require.NoError(t, err)
		return e
	}
	begun := get().Start
	require.WithinDuration(t, time.Now(), begun.At, time.Minute)
	command := func(do, body string) {
		t.Helper()
		require.Equal(t, http.StatusOK, send("POST", path+"/"+id+"/"+do+"?installation=true", body).Status)
	}
	command("enable", "")
	require.Equal(t, begun, get().Start)
	command("replay", `{"from": "2026-01-01T00:00:00Z"}`)
	require.Equal(t, endpoint.Start{At: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), Generation: 3}, get().Start)
	require.Equal(t, http.StatusNoContent, send("DELETE", at, "").Status)
}

// TestMailEndpoint: a post of the format mail is an urgent batch of the endpoint's user, to each of its addresses,
// through providers other than the one that it is about. However often it is repeated, it is one batch.
func TestMailEndpoint(t *testing.T) {
	t.Parallel()
	f := newFixture(t).operator()
	const path = "/v1/endpoints?installation=true"
	post := func(body string) *reply {
		t.Helper()
		return f.do(http.MethodPost, path, "application/json", strings.NewReader(body))
	}
	for body, want := range map[string]string{
		`{"format": "mail", "url": "https://x.y", "user": "u", "sender": "a@b.example"}`:                       "/url invalid_value",
		`{"format": "mail", "url": "mailto:Ann <a@b.example>", "user": "u", "sender": "a@b.example"}`:          "/url invalid_value",
		`{"format": "mail", "url": "mailto:a@b.example", "sender": "a@b.example"}`:                             "/user required",
		`{"format": "mail", "url": "mailto:a@b.example", "user": "u"}`:                                         "/sender invalid_address",
		`{"format": "mail", "url": "mailto:a@b.example", "user": "u", "sender": "a@b.example", "batch": true}`: "/batch invalid_value",
		`{"url": "mailto:a@b.example"}`:       "/url invalid_value",
		`{"url": "https://x.y", "user": "u"}`: "/user invalid_value",
	} {
		p := post(body).problem(t)
		require.Equal(t, []string{want}, p.pointers(), body)
	}
	made := post(`{"format": "mail", "url": "mailto:ops@x.example,boss@x.example", "user": "` + f.user +
		`", "sender": "Alerts <alerts@example.com>"}`).object(t)
	require.NotContains(t, made, "secret")
	id, _ := made["id"].(string)
	e, err := endpoint.In(f.store).Get(t.Context(), feed.Installation, id)
	require.NoError(t, err)
	batches := func() []models.Batch {
		t.Helper()
		bs, err := f.store.Batches(t.Context(), f.user, models.ID{}, 100)
		require.NoError(t, err)
		return bs
	}
	body, err := e.Body(&endpoint.Message{Type: feed.FailoverStarted, Provider: "sg", Text: "503\n{{no_placeholder}}"})
	require.NoError(t, err)
	for range 3 {
		answer, err := f.server.svc.MailNotice(t.Context(), &e, "msg_1", body)
		require.NoError(t, err)
		require.Equal(t, "accepted as "+batches()[0].ID.String(), answer)
	}
	require.Len(t, batches(), 1)
	b := batches()[0]
	require.Equal(t, models.Urgent, b.Lane)
	require.NotEmpty(t, b.Providers)
	require.NotContains(t, b.Providers, "sg")
	require.Equal(t, "alerts@example.com", b.Content.From.Email)
	rs, err := f.store.Recipients(t.Context(), b.ID)
	require.NoError(t, err)
	require.Len(t, rs, 2)
	require.Equal(t, "boss@x.example", rs[1].Email)
	require.Equal(t, map[string]string{"subject": "Safedelivr: failover started (sg)", "text": "503\n{{no_placeholder}}"},
		rs[0].Vars)

	tested := f.do(http.MethodPost, "/v1/endpoints/"+id+"/test?installation=true", "", nil).object(t)
	require.EqualValues(t, 202, tested["http_status"])
	others := slices.DeleteFunc(batches(), func(o models.Batch) bool { return o.ID == b.ID })
	require.Len(t, others, 1)
	require.Empty(t, others[0].Providers, "it is about no provider")

	e.User = "unknown"
	_, err = f.server.svc.MailNotice(t.Context(), &e, "msg_2", body)
	require.Error(t, err)
}

// TestEndpointAudit: each change of an endpoint is in the audit trail once, and what changes nothing is not.
func TestEndpointAudit(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	path := "/v1/endpoints/" + f.endpoint(`{"url": "https://example.com/x", "events": ["all"]}`).ID
	send := func(method, path, body string, want int) {
		t.Helper()
		r := f.do(method, path, "application/json", strings.NewReader(body))
		require.Equal(t, want, r.Status, "%s", r.Body)
	}
	send("PUT", path, `{"url": "https://example.com/y"}`, 200)
	send("PUT", path, `{"url": ""}`, 422)
	send("POST", path+"/rotate", "", 200)
	send("POST", path+"/disable", `{"why": "no more"}`, 200)
	send("POST", path+"/disable", `{"why": "still"}`, 200)
	send("POST", path+"/enable", "", 200)
	send("POST", path+"/replay", `{"from": "2026-01-01T00:00:00Z"}`, 200)
	send("POST", "/v1/endpoints/none/rotate", "", 404)
	send("DELETE", path, "", 204)
	send("DELETE", path, "", 204)
	require.Equal(t, []string{"endpoint.create", "endpoint.change", "endpoint.rotate", "endpoint.disable no more",
		"endpoint.enable", "endpoint.replay", "endpoint.remove"}, f.commands())
	commands, err := f.store.Commands(t.Context(), 0, 1)
	require.NoError(t, err)
	require.Equal(t, []string{f.user, f.user, strings.TrimPrefix(path, "/v1/endpoints/")},
		[]string{commands[0].By, commands[0].User, commands[0].Subject})
}

// TestEndpointMistakes: each mistake in an endpoint is reported with its place.
func TestEndpointMistakes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for body, want := range map[string]string{
		`{}`:                   "/url required",
		`{"url": 5}`:           "/url wrong_type",
		`{"url": "ftp://x.y"}`: "/url invalid_value",
		`{"url": "https://x.y", "events": ["mail.sent"]}`:                           "/events/0 invalid_value",
		`{"url": "https://x.y", "tags": [""]}`:                                      "/tags/0 invalid_value",
		`{"url": "https://x.y", "headers": {"a b": "c"}}`:                           "/headers/a b invalid_name",
		`{"url": "https://x.y", "headers": {"webhook-id": "c"}}`:                    "/headers/webhook-id reserved_header",
		`{"url": "https://x.y", "headers": {"X": "a\r\nb"}}`:                        "/headers/X invalid_value",
		`{"url": "https://x.y", "description": "a\nb"}`:                             "/description invalid_value",
		`{"url": "https://x.y", "format": "slack"}`:                                 "/format invalid_value",
		`{"url": "https://x.y", "signature": "v2"}`:                                 "/signature invalid_value",
		`{"url": "https://x.y", "shape": "mandrill"}`:                               "/shape invalid_value",
		`{"url": "https://x.y", "shape": "mailgun", "batch": true}`:                 "/batch invalid_value",
		`{"url": "https://x.y", "shape": "postmark", "signature": "v1"}`:            "/signature invalid_value",
		`{"url": "https://x.y", "shape": "resend", "events": ["log.bounced"]}`:      "/events/0 invalid_value",
		`{"url": "https://x.y", "events": ["quota.near"]}`:                          "/events/0 invalid_value",
		`{"url": "https://x.y", "rate": -1}`:                                        "/rate invalid_value",
		`{"url": "https://x.y", "at_once": 51}`:                                     "/at_once invalid_value",
		`{"url": "https://x.y", "ordered": true, "at_once": 2}`:                     "/at_once invalid_value",
		`{"url": "https://x.y", "secret": "whsec_x"}`:                               "/secret unknown_field",
		`{"url": "https://x.y/` + strings.Repeat("a", 2000) + `"}`:                  "/url too_long",
		`{"url": "https://x.y", "categories": ["` + strings.Repeat("a", 65) + `"]}`: "/categories/0 too_long",
	} {
		p := f.do(http.MethodPost, "/v1/endpoints", "application/json", strings.NewReader(body)).problem(t)
		require.Equal(t, []string{want}, p.pointers(), body)
	}
	for range 20 {
		f.endpoint(`{"url": "https://example.com/x"}`)
	}
	p := f.do(http.MethodPost, "/v1/endpoints", "application/json", strings.NewReader(`{"url": "https://x.y"}`)).problem(t)
	require.Equal(t, "too_many_endpoints", p.Code)
}

// TestEndpointTestPost: a test post is signed, and its answer is reported. No post goes to a private network unless
// that is allowed.
func TestEndpointTestPost(t *testing.T) {
	t.Parallel()
	doc, err := openapi3.NewLoader().LoadFromData(openAPI)
	require.NoError(t, err)
	posts := doc.Webhooks
	want := []string{"batch", "test"}
	for _, kind := range slices.Concat(feed.Types, feed.NoticeTypes) {
		if !slices.Contains(want, string(kind)) {
			want = append(want, string(kind))
		}
	}
	require.ElementsMatch(t, want, slices.Collect(maps.Keys(posts)), "each type of post is described")
	bodies := make(chan error, 1)
	var secret string
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil {
			var v *standardwebhooks.Webhook
			if v, err = standardwebhooks.NewWebhook(secret); err == nil {
				err = v.Verify(body, r.Header)
			}
		}
		var post any
		if err == nil {
			err = json.Unmarshal(body, &post)
		}
		if err == nil {
			err = posts["test"].Post.RequestBody.Value.Content["application/json"].Schema.Value.VisitJSON(post)
		}
		bodies <- err
		w.WriteHeader(http.StatusTeapot)
		_, _ = fmt.Fprint(w, "short and stout")
	}))
	t.Cleanup(receiver.Close)
	allowed := newFixture(t, func(s *setup) {
		s.service.EndpointClient = outbound.New([]netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")})
	})
	v := allowed.endpoint(`{"url": "` + receiver.URL + `"}`)
	secret = v.Secret
	got := allowed.do(http.MethodPost, "/v1/endpoints/"+v.ID+"/test", "", nil).object(t)
	require.NoError(t, <-bodies)
	require.EqualValues(t, http.StatusTeapot, got["http_status"])
	require.Equal(t, "short and stout", got["answer"])

	f := newFixture(t)
	v = f.endpoint(`{"url": "` + receiver.URL + `"}`)
	got = f.do(http.MethodPost, "/v1/endpoints/"+v.ID+"/test", "", nil).object(t)
	require.Contains(t, got["answer"], "may not reach")
	require.Nil(t, got["http_status"])
	require.Empty(t, bodies)
}
