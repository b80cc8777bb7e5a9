package dashboard

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/mail"
)

func TestCommands(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	batch := f.batchOf("local", nil, service.Recipient{Email: "a@example.com"}, service.Recipient{Email: "b@example.com"})
	path := "/batches/" + batch.String()
	require.Contains(t, b.get(path).text, path+"/stop")
	question := b.get(path + "/stop")
	require.Contains(t, question.text, "2 messages are not finished yet")
	require.NotContains(
		t,
		b.do(http.MethodGet, path+"/stop", nil, "HX-Request", "true").text,
		"<html",
		"the dialog must not contain a whole page",
	)
	once := onceField.FindStringSubmatch(question.text)[1]
	a := b.post(path+"/stop", url.Values{"once": {once}, "why": {"wrong price"}})
	require.Equal(t, path, a.Request.URL.Path)
	require.Contains(t, a.text, "Stopped: no new provider call")
	require.Contains(t, a.text, path+"/resume")
	require.Contains(t, b.get("/operations/audit").text, "“wrong price”")
	a = b.post(path+"/resume", nil)
	require.Contains(t, a.text, "Resumed")
	a = b.post(path+"/cancel", nil)
	require.Contains(t, a.text, "Cancelled: nothing more")
	require.NotContains(t, a.text, path+"/resume")
	require.Equal(t, http.StatusNotFound, b.post(path+"/explode", nil).StatusCode)

	require.Contains(t, b.get("/providers").text, "/providers/sg/offline")
	a = b.post("/providers/sg/offline", url.Values{"why": {"maintenance"}})
	require.Contains(t, a.text, "Taken offline")
	require.Contains(t, a.text, "/providers/mg/probe", "a provider that is down can be probed")
	require.NotContains(t, a.text, "/providers/sg/probe")
	require.Contains(t, b.get("/providers/mg/probe").text, "Test Mailgun (mg) now?")
	require.Equal(t, http.StatusConflict, b.post("/providers/sg/probe", nil).StatusCode)
	require.Equal(t, "/providers", b.post("/providers/mg/probe", url.Values{"why": {"new key"}}).Request.URL.Path)
	require.Contains(t, b.get("/operations/audit").text, "probed a provider")
	require.Contains(t, a.text, "maintenance")
	a = b.post("/operations/blocks", url.Values{"domain": {"no domain"}, "why": {"typed"}})
	require.Equal(t, http.StatusUnprocessableEntity, a.StatusCode)
	require.Contains(t, a.text, `id="domain-wrong"`)
	require.Contains(t, a.text, `value="typed"`)
	a = b.post("/operations/users", url.Values{"do": {"senders"}, "id": {"local"}, "senders": {"nothing"}})
	require.Contains(t, a.text, `id="senders-wrong"`)
	a = b.post("/operations/users", url.Values{"do": {"pause"}, "id": {"unknown"}})
	require.Contains(t, a.text, "There is no such user.")
	b.post(
		"/operations/users",
		url.Values{"do": {"senders"}, "id": {"local"}, "senders": {"@example.org shop@example.com"}},
	)
	require.Contains(t, b.get("/operations/audit").text, "set the senders of a user")
	require.Contains(t, b.get("/compose").text, "You may send as @example.org, shop@example.com")
	a = b.post("/operations/blocks", url.Values{"domain": {"example.org"}})
	require.Contains(t, a.text, "mail to example.org")
}

// TestStoppedByOperator checks that a batch's page says who stopped it, offers its user
// no Resume after an operator's stop, and says that a retry waits.
func TestStoppedByOperator(t *testing.T) {
	t.Parallel()
	f := newRig(t, &login.GitHub{Logins: []string{"Ann"}, Operators: []string{"bob"}}, ann, bob)
	owner, boss := f.browser(), f.browser()
	owner.byGitHub("Ann")
	boss.byGitHub("bob")
	to := []service.Recipient{{Email: "a@example.com"}, {Email: "b@example.com"}}
	id := f.batchOf("gh7", nil, to...)
	require.NoError(t, f.store.Append(t.Context(), id, models.Entry{
		Number:     1,
		Token:      models.NewToken(),
		Kind:       models.Ending,
		At:         time.Now(),
		Recipients: models.SetOf(2),
		Reason:     models.RetriesUsedUp,
	}))
	path := "/batches/" + id.String()
	require.Contains(t, owner.post(path+"/stop", nil).text, "1 message waits.")
	require.Contains(t, owner.get(path).text, ">by ann, <time")
	require.Contains(t, owner.get(path).text, path+"/resume", "a user can undo their own stop")
	require.Contains(t, boss.post(path+"/stop", url.Values{"why": {"spam"}}).text, "by bob")
	a := owner.get(path)
	require.Regexp(t, `>by bob, <time [^>]*>[^<]*</time>: “spam” · only an operator can resume it<`, a.text)
	require.Contains(t, a.text, ">stopped by bob: “spam”<", "in the list of recipients")
	require.Contains(t, owner.get("/logs/"+id.Log(1).String()).text, ">stopped by bob: “spam”<")
	require.NotContains(t, a.text, path+"/resume")
	require.Contains(t, a.text, path+"/cancel")
	require.Equal(t, http.StatusForbidden, owner.get(path+"/resume").StatusCode)
	require.Equal(t, http.StatusForbidden, owner.post(path+"/resume", nil).StatusCode)
	require.Contains(t, owner.get(path+"/retry").text, "Nothing is sent until this is resolved: stopped by bob")
	require.Contains(
		t,
		owner.post(path+"/retry", nil).text,
		"1 failed message is queued again. Nothing is sent yet: stopped by bob",
	)
	require.Contains(t, owner.post(path+"/retry", nil).text, "Nothing changed: there is no message to send again.")
	a = boss.get(path)
	require.Contains(t, a.text, path+"/resume")
	require.NotContains(t, a.text, "only an operator")
	require.Contains(t, boss.post(path+"/resume", nil).text, "Resumed.")
}

func TestKeys(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	a := b.post("/settings/keys", url.Values{"name": {""}, "networks": {"nowhere"}})
	require.Equal(t, http.StatusUnprocessableEntity, a.StatusCode)
	require.Contains(t, a.text, `id="scopes-wrong">The scope must be send, read, operate or pass_unsubscribes.`)
	require.Contains(t, a.text, `value="nowhere"`)
	a = b.post("/settings/keys", url.Values{"name": {"shop"}, "scopes": {"send"}, "networks": {"nowhere"}})
	require.Contains(t, a.text, `id="networks-wrong"`)
	a = b.post(
		"/settings/keys",
		url.Values{"name": {"shop"}, "scopes": {"send"}, "networks": {"203.0.113.0/24"}, "expires": {"720h"}},
	)
	secret := regexp.MustCompile(`sd_[0-9a-f]{12}_[A-Za-z0-9_-]{43}`).FindString(a.text)
	require.NotEmpty(t, secret)
	list := b.get("/settings/keys").text
	require.NotContains(t, list, secret, "the key is shown more than once")
	require.Contains(t, list, secret[:len("sd_")+12+len("_")]+"…", "the list says how the key begins")
	keys, err := f.store.Keys(t.Context(), "local")
	require.NoError(t, err)
	require.Equal(t, []string{"203.0.113.0/24"}, keys[0].Networks)
	require.WithinDuration(t, time.Now().Add(30*24*time.Hour), keys[0].Expires, time.Minute)
	a = b.post("/settings/keys/"+keys[0].ID+"/revoke", nil)
	require.Contains(t, a.text, "1 revoked key is not listed")
}

func TestLogOutEverywhere(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	one, two := f.byLink(login.LocalUser()), f.byLink(login.LocalUser())
	require.Contains(t, one.get("/settings/account").text, "this browser")
	require.Equal(t, "/login", one.post("/settings/account/sessions/all/end", nil).Request.URL.Path)
	require.Equal(t, "/login", two.get("/").Request.URL.Path)
}

// TestOperations checks that an operator sees problems, opens batches of other users,
// pauses users and lifts the hold after a restore.
func TestOperations(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newBubbleRig(t, nil)
		require.NoError(
			t,
			f.store.CreateUser(t.Context(), models.User{ID: "0123456789abcdef", Name: "ann", Created: time.Now()}),
		)
		id := f.batchOf(
			"0123456789abcdef",
			map[string]string{"subject": "Ann's own"},
			service.Recipient{Email: "a@example.com"},
		)
		b := f.byLink(login.LocalUser())

		a := b.get("/operations")
		for _, want := range []string{
			"1 sum is wrong",
			"safedelivr check --repair",
		} {
			require.Contains(t, a.text, want)
		}
		a = b.get("/operations/users")
		require.Contains(t, a.text, "may send as anyone")
		require.Contains(t, a.text, `href="/batches?user=0123456789abcdef"`)
		b.post("/everyone", url.Values{"everyone": {""}}) // operators begin with everyone's mail
		require.NotContains(t, b.get("/batches").text, "Ann&#39;s own")
		a = b.get("/batches?user=0123456789abcdef")
		require.Contains(t, a.text, "Batches of ann")
		require.Contains(t, a.text, "Ann&#39;s own")
		require.Contains(t, b.get("/batches/"+id.String()).text, "Batches of ann")
		require.Contains(t, b.get("/logs/"+id.Log(1).String()).text, "a@example.com")

		b.post("/operations/users", url.Values{"id": {"0123456789abcdef"}, "do": {"pause"}})
		require.Contains(t, b.get("/operations/users").text, "Paused")
		require.Contains(t, b.get("/batches/"+id.String()).text, "the user is paused")

		require.Equal(t, http.StatusConflict, b.get("/operations/holds/lift").StatusCode)
		command := models.Command{Kind: models.HoldOld, By: "cli:root", Before: time.Now().Add(time.Minute), Why: "restored"}
		_, err := control.NewFollower(f.store).Append(t.Context(), &command, nil)
		require.NoError(t, err)
		time.Sleep(time.Second)
		require.Contains(t, b.get("/operations").text, "Mail is on hold")
		a = b.get("/operations/holds/lift")
		require.Contains(t, a.text, "Mail that was sent after the backup was made may arrive twice")
		b.post("/operations/holds/lift", url.Values{"once": {onceField.FindStringSubmatch(a.text)[1]}, "why": {"looked at"}})
		require.NotContains(t, b.get("/operations/parked").text, "is on hold")
	})
}

// TestLimits checks that an operator sets the limits of a user, and the user sees them.
func TestLimits(t *testing.T) {
	t.Parallel()
	testkit.WithinHour()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	require.Contains(t, b.get("/settings/limits").text, "Recipients per hour")
	require.Contains(t, b.get("/settings/limits").text, "Urgent recipients per hour")
	path := "/operations/users/" + login.LocalUser().ID + "/limits"
	require.Contains(t, b.get("/operations/users").text, `href="`+path+`"`)
	a := b.post(path, url.Values{"recipients_per_hour": {"many"}, "batches_per_day": {"7"}, "why": {"trial"}})
	require.Equal(t, http.StatusUnprocessableEntity, a.StatusCode)
	require.Contains(t, a.text, "must be a whole number")
	require.Contains(t, a.text, `value="7"`, "what was entered is kept")
	a = b.post(path, url.Values{"recipients_per_hour": {"-1"}})
	require.Contains(t, a.text, "must be from 0")
	b.post(path, url.Values{
		"recipients_per_hour":        {"1234"},
		"urgent_recipients_per_hour": {"1"},
		"why":                        {"trial"},
	})
	require.Contains(t, b.get(path).text, `value="1234"`)
	require.Regexp(
		t,
		`Recipients per hour</th><td class="n">0</td><td class="n">1\x{202f}234</td>`,
		b.get("/settings/limits").text,
	)
	require.Contains(t, b.get("/operations/audit").text, "set the limits of a user")
	for _, want := range []string{"urgent: sent ahead", "the limit of urgent recipients per hour was reached"} {
		id := f.batchOf("local", nil, service.Recipient{Email: "a@example.com"})
		require.Contains(t, b.get("/batches/"+id.String()).text, want)
	}
	used := b.get("/settings/limits").text
	require.Regexp(t, `Urgent recipients per hour</th><td class="n">1</td><td class="n">1</td>`, used)
	require.Equal(t, http.StatusNotFound, b.get("/operations/users/eve/limits").StatusCode)
}

// TestLimitsOfKey checks that an operator sets, sees and clears the limits of a key.
func TestLimitsOfKey(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	require.NoError(t, f.store.CreateUser(t.Context(), models.User{ID: "ann", Name: "ann", Created: time.Now()}))
	key, _, err := f.service.People.CreateKey(t.Context(), service.Caller{User: "ann"}, "shop", models.KeyOptions{})
	require.NoError(t, err)
	path := "/operations/users/ann/keys/" + key.ID + "/limits"
	for _, page := range []string{"/operations/users/ann", "/operations/keys"} {
		require.Contains(t, b.get(page).text, `href="`+path+`"`)
	}
	require.Contains(t, b.get(path).text, "Limits of the API key")
	a := b.post(path, url.Values{"requests_at_once": {"many"}, "recipients_per_hour": {"77"}})
	require.Equal(t, http.StatusUnprocessableEntity, a.StatusCode)
	require.Contains(t, a.text, "must be a whole number")
	require.Contains(t, a.text, `value="77"`, "what was entered is kept")
	a = b.post(path, url.Values{"requests_at_once": {"1"}, "recipients_per_hour": {"1234"}, "why": {"trial"}})
	require.Equal(t, path, a.Request.URL.Path)
	require.Contains(t, a.text, `value="1234"`)
	require.NotContains(t, b.get("/operations/users/ann/limits").text, `value="1234"`, "the user's limits are others")

	who := service.Caller{User: "ann", Key: key.ID}
	end, _, err := f.service.Limits.Admit(t.Context(), who)
	require.NoError(t, err)
	_, _, err = f.service.Limits.Admit(t.Context(), who)
	require.ErrorContains(t, err, "requests_at_once of 1 is reached")
	require.Regexp(t, `Requests at once</th><td class="n">1</td><td class="n">1</td>`, b.get(path).text)
	end()
	require.Contains(t, b.get("/operations/audit").text, "set the limits of a key")

	require.NotContains(t, b.post(path, url.Values{"why": {"trial is over"}}).text, `value="1234"`)
	for range 2 {
		_, _, err = f.service.Limits.Admit(t.Context(), who)
		require.NoError(t, err)
	}
	require.Equal(t, http.StatusNotFound, b.get("/operations/users/ann/keys/x/limits").StatusCode)
	require.Equal(t, http.StatusNotFound, b.post("/operations/users/local/keys/"+key.ID+"/limits", nil).StatusCode)
	_, err = f.service.Limits.LimitsOf(t.Context(), service.Caller{User: "ann"}, "ann", key.ID)
	require.Error(t, err, "users do not see it")
}

// TestOthersBatches checks that only an operator reads the batches of other users.
func TestOthersBatches(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	id := f.batchOf("0123456789abcdef", nil, service.Recipient{Email: "a@example.com"})
	local := service.Caller{User: "local"}
	_, err := f.service.Mail.Batch(t.Context(), local, id.String())
	require.Error(t, err, "a user read the batch of another user")
	_, err = f.service.Mail.FindBatches(t.Context(), local, mail.BatchFilter{User: "0123456789abcdef"}, service.Page{})
	require.Error(t, err)
	_, err = f.service.Mail.Batch(
		t.Context(),
		service.Caller{User: "local", Operator: true, Scopes: []models.Scope{models.ScopeRead}},
		id.String(),
	)
	require.Error(t, err, "a key without the scope operate read the batch of another user")
}

// TestPagesSayWhatMailWaitsFor: the pages of a batch and a log say what the mail waits for, and
// until when if that is known. Only a command counts as an obstacle to a retry.
func TestPagesSayWhatMailWaitsFor(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	id := f.batchOf("local", nil, service.Recipient{Email: "ann@example.com"}, service.Recipient{Email: "bob@example.com"})
	path := "/batches/" + id.String()
	for _, page := range []string{path, "/logs/" + id.Log(1).String()} {
		require.Contains(t, b.get(page).text, "waiting to be handed to a provider")
	}
	require.NotContains(t, b.get(path+"/retry").text, "Nothing is sent until")

	at := time.Now().UTC()
	require.NoError(t, f.store.Append(t.Context(), id, models.Entry{
		Number:     1,
		Token:      models.NewToken(),
		Kind:       models.Attempt,
		At:         at,
		Recipients: models.SetTo(2),
		Provider:   "sg",
		CallEnds:   at.Add(time.Minute),
	}))
	until := at.Add(16 * time.Minute).Format("2 Jan, 15:04 UTC")
	for _, page := range []string{path, "/logs/" + id.Log(1).String()} {
		text := b.get(page).text
		require.Contains(t, text, "the outcome at sg is not known yet · until <time")
		require.Contains(t, text, until)
	}
	b.post(path+"/stop", nil)
	text := b.get(path).text
	require.Contains(t, text, ">by local, <time")
	require.NotContains(t, text, "outcome at sg is not known yet · until <time", "on the batch")
	require.Contains(t, b.get(path+"/retry").text, "Nothing is sent until this is resolved: stopped by")
}

// A provider's page follows a change of its webhook key.
func TestPageFollowsWebhookKey(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	refused := func() int {
		return strings.Count(b.get("/providers").text, "no webhook key: its webhooks are refused")
	}
	require.Equal(t, 1, refused(), "mg has none")
	f.board.SetVerified("sg", false)
	require.Equal(t, 2, refused())
	f.board.SetVerified("sg", true)
	f.board.SetVerified("mg", true)
	require.Zero(t, refused())
}

// TestTryNow: a batch and a message that wait for another attempt can be tried now, with a confirmation. If no provider
// has refused anything there is nothing to try.
func TestTryNow(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	f.providers(func(p *telemetry.ProviderState) { p.Health = telemetry.Health{State: telemetry.Failing} })
	f.board.providers.Sample(t.Context(), time.Now())
	one := f.batchOf("local", nil, service.Recipient{Email: "a@example.com"})
	two := f.batchOf("local", nil, service.Recipient{Email: "a@example.com"}, service.Recipient{Email: "b@example.com"})
	for _, id := range []models.ID{one, two} {
		require.NotContains(t, b.get("/batches/"+id.String()).text, "/try")
		f.called(id, 1, time.Now(), time.Second, "sg", models.Part{Class: models.Unavailable, Recipients: models.SetTo(2)})
		f.called(id, 2, time.Now(), time.Second, "mg", models.Part{Class: models.Unavailable, Recipients: models.SetTo(2)})
	}
	for id, want := range map[models.ID]string{one: "1 message is tried now.", two: "2 messages are tried now."} {
		path := "/batches/" + id.String()
		require.Equal(t, 1, strings.Count(b.get(path).text, ` href="`+path+`/try"`), "once")
		require.Contains(t, b.get(path+"/try").text, "Try this batch now?")
		require.Contains(t, textOf(b.post(path+"/try", url.Values{"why": {"the providers are back"}}).text), want)
	}
	require.Contains(t, b.get("/operations/audit").text, "had a batch tried at once")
	require.Contains(t, b.get("/providers").text, "/providers/sg/probe", "a failing provider can be tried")
}
