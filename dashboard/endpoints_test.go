package dashboard

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/internal/outbound"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/endpoint"
	updates "github.com/safedelivr/safedelivr/models/feed"
	"github.com/safedelivr/safedelivr/service"
)

// endpointRig returns a rig whose endpoints may be on this machine, and an application that answers with a status.
func endpointRig(t *testing.T, status int) (f *rig, app string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
	t.Cleanup(server.Close)
	allowed := outbound.New([]netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")})
	return newRigOf(t, service.Config{EndpointClient: allowed}, nil), server.URL
}

// attempted stores attempts to post to an endpoint, as a worker does.
func (f *rig) attempted(owner, id string, attempts ...endpoint.Attempt) {
	f.Helper()
	e, err := endpoint.In(f.store).Get(f.Context(), owner, id)
	require.NoError(f, err)
	s := endpoint.State{Generation: e.Generation, Posted: 3, Failures: 1, FailingSince: time.Now(), Attempts: attempts,
		Retries: []endpoint.Retry{{Part: attempts[0].Part, Tried: 1, At: time.Now().Add(time.Hour)}}}
	require.NoError(f, endpoint.PutState(f.Context(), f.store, &e, &s, 0))
}

// TestEndpointPages adds an endpoint, whose secret is shown once, makes a test post, and gives each command.
func TestEndpointPages(t *testing.T) {
	t.Parallel()
	f, app := endpointRig(t, http.StatusTeapot)
	b := f.byLink(login.LocalUser())
	require.Contains(t, b.get("/endpoints").text, "No endpoint yet.")
	bad := b.post("/endpoints", url.Values{
		"url": {"example.com"}, "description": {"shop"}, "events": {"log.failed"}, "rate": {"few"},
	})
	require.Equal(t, http.StatusUnprocessableEntity, bad.StatusCode)
	require.Contains(t, bad.text, `id="rate-wrong">rate must be a whole number.`)
	require.Contains(t, bad.text, `name="rate" value="few"`)
	bad = b.post("/endpoints", url.Values{"url": {"example.com"}, "description": {"shop"}, "events": {"log.failed"}})
	require.Contains(t, bad.text, `id="url-wrong"`)
	require.Contains(t, bad.text, `value="shop"`)
	require.Contains(t, bad.text, `value="log.failed" checked`)

	once := regexp.MustCompile(`name="once" value="([^"]+)"`).FindStringSubmatch(b.get("/endpoints").text)[1]
	form := url.Values{"url": {app}, "description": {"shop"}, "events": {"log.failed"}, "tags": {"receipt, news"},
		"rate": {"20"}, "at_once": {" 3 "}, "batch": {"yes"}, "once": {once}}
	made := b.post("/endpoints", form)
	require.Regexp(t, `id="new-secret">whsec_`, made.text)
	require.Contains(t, made.text, "of mail tagged receipt or news")
	require.Contains(t, made.text, "at most 20 a second, at most 3 at once")
	again := b.post("/endpoints", form).text
	require.Contains(t, again, "This endpoint exists already.")
	require.NotContains(t, again, "whsec_")
	list, err := f.service.Endpoints(service.Caller{}).List(t.Context(), login.LocalUser().ID)
	require.NoError(t, err)
	require.Len(t, list, 1)
	page := "/endpoints/" + list[0].ID
	require.NotContains(t, b.get(page).text, "whsec_")

	require.Contains(t, b.post(page+"/test", nil).text, "</b> It answered 418: the endpoint refused the post. It took ")
	require.Regexp(t, `id="new-secret">whsec_`, b.post(page+"/rotate", nil).text)
	added := []models.FeedSuppression{{}, {}}
	require.NoError(t, updates.PublishSuppressions(t.Context(), f.store, login.LocalUser().ID, added))
	_, err = endpoint.In(f.store).Change(t.Context(), login.LocalUser().ID, list[0].ID, func(e *endpoint.Endpoint) error {
		e.Events, e.Tags = []string{string(updates.All)}, nil
		return nil
	})
	require.NoError(t, err)
	f.attempted(login.LocalUser().ID, list[0].ID, endpoint.Attempt{At: time.Now(), Post: "msg_1", Updates: 1, Type: updates.Failed,
		Part: endpoint.Part{To: updates.Position{Skip: 1}}, Log: "01937b5a-8c4e-7a31-9f00-1b2c00000001", Status: 503,
		Answer: "<b>busy</b>"})
	shown := b.get(page).text
	require.Regexp(t, `Posts have been failing since .*: it answered 503: the endpoint is not available\.</b>`, shown)
	require.Contains(t, textOf(shown), "It answered 503: the endpoint is not available Next attempt "+
		time.Now().Add(time.Hour).UTC().Format("2 Jan, 15:"))
	require.Contains(t, shown, "&lt;b&gt;busy&lt;/b&gt;")
	require.Contains(t, shown, "100 %</span> of the newest 1")
	const failing = `<span class="state is-failed">Failing</span>`
	require.Contains(t, shown, failing)
	require.Contains(t, b.get("/endpoints").text, failing)
	require.Contains(t, b.get("/endpoints").text, "1 to be repeated · it answered 503: the endpoint is not available")
	require.NotContains(t, shown, `"request-title"`)
	sent := b.get(page + "?post=msg_1").text
	require.Contains(t, sent, `id="request-title"`)
	require.Contains(t, sent, "Webhook-Id: msg_1")
	require.Contains(t, sent, "suppression.added")
	require.NotContains(t, sent, "Webhook-Signature")
	require.Equal(t, http.StatusNotFound, b.get(page+"?post=msg_2").StatusCode)
	require.Contains(t, b.post(page+"/repeat", url.Values{"post": {"msg_1"}}).text, "The post is made again.")
	require.Contains(t, b.get("/endpoints").text, "3 posts · 1 to be repeated")
	disabled := b.post(page+"/disable", url.Values{"why": {"by its user"}}).text
	require.Contains(t, disabled, "Nothing is posted until you enable the endpoint.")
	require.Contains(t, disabled, "Disabled: by its user.")
	require.Contains(t, b.post(page+"/enable", nil).text, "Posts go on where they were.")
	require.Contains(t, b.post(page+"/replay", url.Values{"from": {"-24h"}}).text, "is posted again")
	require.Equal(t, http.StatusNotFound, b.post(page+"/explode", nil).StatusCode)
	require.Contains(t, b.post(page+"/remove", nil).text, "No endpoint yet.")
	require.Equal(t, http.StatusNotFound, b.get(page).StatusCode)
	once = regexp.MustCompile(`name="once" value="([^"]+)"`).FindStringSubmatch(b.get("/endpoints").text)[1]
	pair := b.post("/endpoints", url.Values{"url": {app}, "signature": {"v1a"}, "once": {once}}).text
	require.Regexp(t, `id="public-key">whpk_`, pair)
	require.NotContains(t, pair, "new-secret")
	require.Contains(t, pair, "<dd>one update each</dd>")
	bad = b.post("/endpoints", url.Values{"url": {app}, "shape": {"resend"}, "batch": {"yes"}})
	require.Contains(t, bad.text, `<option value="resend" selected>`)
	require.Contains(t, bad.text, `id="batch-wrong">In the shape of resend each post has one update.`)
	once = regexp.MustCompile(`name="once" value="([^"]+)"`).FindStringSubmatch(b.get("/endpoints").text)[1]
	shaped := b.post("/endpoints", url.Values{"url": {app}, "shape": {"sendgrid"}, "batch": {"yes"}, "once": {once}}).text
	require.Contains(t, shaped, "like the webhooks of sendgrid, up to 1,000 updates each")
	require.Regexp(t, `id="public-key">MFkw`, shaped)
	audit := b.get("/operations/audit").text
	for _, words := range []string{"added an endpoint", "gave an endpoint a new secret", "disabled an endpoint",
		"enabled an endpoint", "had updates posted to an endpoint again", "removed an endpoint"} {
		require.Regexp(t, words+`(?s).{0,300}`+list[0].ID, audit)
	}
}

// TestInstallationEndpointPages: operators have endpoints of the installation, with types of their own, apart from
// those of their mail; no other user gets to them.
func TestInstallationEndpointPages(t *testing.T) {
	t.Parallel()
	f, app := endpointRig(t, http.StatusTeapot)
	b := f.byLink(login.LocalUser())
	require.Contains(t, b.get("/endpoints").text, `href="/installation/endpoints"`)
	list := b.get("/installation/endpoints").text
	require.Contains(t, list, `name="events" value="failover.started"`)
	require.Regexp(t, `(?s)Or updates of everyone's mail.*name="events" value="log.failed"`, list)
	once := regexp.MustCompile(`name="once" value="([^"]+)"`).FindStringSubmatch(list)[1]
	made := b.post("/installation/endpoints", url.Values{"url": {app}, "format": {"slack"}, "once": {once}})
	require.Contains(t, made.text, "in the format of Slack, not signed")
	of, err := f.service.Endpoints(service.Caller{}).List(t.Context(), updates.Installation)
	require.NoError(t, err)
	require.Len(t, of, 1)
	page := "/installation/endpoints/" + of[0].ID
	require.Contains(t, made.text, `formaction="`+page+`/test"`)
	require.Contains(t, b.post(page+"/test", nil).text, "</b> It answered 418: the endpoint refused the post. It took ")
	require.Equal(t, http.StatusNotFound, b.get("/endpoints/"+of[0].ID).StatusCode)
	require.Contains(t, b.get("/endpoints").text, "No endpoint yet.")
	require.Contains(t, b.post(page+"/disable", nil).text, "Nothing is posted until you enable the endpoint.")
	require.Contains(t, b.post(page+"/remove", nil).text, "operators hear of outages")
	require.Regexp(t, `added an endpoint(?s).{0,300}`+of[0].ID, b.get("/operations/audit").text)

	add := func(form url.Values) string {
		t.Helper()
		page := b.get("/installation/endpoints").text
		form.Set("once", regexp.MustCompile(`name="once" value="([^"]+)"`).FindStringSubmatch(page)[1])
		return b.post("/installation/endpoints", form).text
	}
	require.Contains(t, add(url.Values{"url": {app}, "everyone": {"yes"}, "events": {"log.failed"}}),
		"of all users: failed")
	require.Contains(t, add(url.Values{"url": {"mailto:ops@x.example"}, "sender": {"a@x.example"}}),
		"mail from a@x.example")
	require.Contains(t, add(url.Values{"url": {"mailto:ops@x.example"}}), `id="sender-wrong"`)
}

// TestEventGroupsInForm: the box of a group chooses all of its types, and stays chosen if the form is shown again.
func TestEventGroupsInForm(t *testing.T) {
	t.Parallel()
	f, app := endpointRig(t, http.StatusOK)
	b := f.byLink(login.LocalUser())
	page := b.get("/endpoints").text
	require.Contains(t, page, `value="batch.done,suppression.added,endpoint.disabled"><b>`)
	form := url.Values{"url": {"x"}, "events": {"log.failed", "batch.done,suppression.added,endpoint.disabled"}}
	page = b.post("/endpoints", form).text
	require.Contains(t, page, `value="batch.done,suppression.added,endpoint.disabled" checked><b>`)
	require.Regexp(t, `name="events" value="log[a-z.,]+"><b>Messages</b>`, page)
	require.Contains(t, page, `name="events" value="log.failed" checked>`)
	form.Set("url", app)
	require.Contains(t, textOf(b.post("/endpoints", form).text),
		"Updates failed, batch done, address suppressed, endpoint disabled")
}
