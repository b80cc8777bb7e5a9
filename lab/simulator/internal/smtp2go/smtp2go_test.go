package smtp2go_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/simtest"
)

type object = map[string]any

// A client calls the account s2g.
type client struct {
	*simtest.Rig
	t *testing.T
}

func open(t *testing.T, o simulator.Options) *client {
	t.Helper()
	o.KeepContent, o.RecipientKey = true, "sd_r"
	r := simtest.New(t, o)
	hooks := strings.TrimSuffix(r.Accounts()[0].WebhookURL, "sg")
	require.NoError(t, r.AddAccount(simulator.Account{Name: "s2g", Kind: simulator.SMTP2GO, Key: "token",
		Domain: "example.com", WebhookURL: hooks + "s2g", SigningKey: "user:password"}))
	return &client{r, t}
}

// call makes a request and returns the status and the data of the answer. The status is 0 if there is no whole answer.
func (c *client) call(path string, body any, key ...string) (status int, data any) {
	c.t.Helper()
	text, err := json.Marshal(body)
	require.NoError(c.t, err)
	r, err := http.NewRequestWithContext(c.t.Context(), http.MethodPost, c.URL+"/s2g/v3"+path, bytes.NewReader(text))
	require.NoError(c.t, err)
	r.Header = http.Header{"Content-Type": {"application/json"}, "X-Smtp2go-Api-Key": append(key, "token")[:1]}
	resp, err := c.HTTP.Do(r)
	if err != nil {
		return 0, nil
	}
	defer resp.Body.Close()
	var out struct{ Data any }
	read, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, nil
	}
	_ = json.Unmarshal(read, &out)
	return resp.StatusCode, out.Data
}

// mail returns a mail with changes; nil removes a member.
func mail(to string, changes object) object {
	name, _, _ := strings.Cut(to, "@")
	m := object{"sender": "Shop <shop@example.com>", "to": []string{"Ann <" + to + ">"}, "subject": "S", "text_body": "T",
		"custom_headers": []object{{"header": "X-Sd-R", "value": name}, {"header": "X-Other", "value": "o"}}}
	for k, v := range changes {
		if m[k] = v; v == nil {
			delete(m, k)
		}
	}
	return m
}

func batch(mails ...object) object { return object{"emails": mails} }

// posted returns the webhooks as "address event", and the number of those without the secret.
func (c *client) posted() (names []string, forged int) {
	c.t.Helper()
	c.SettleAll(c.t)
	for _, r := range c.Hooks.Requests() {
		if user, password, _ := (&http.Request{Header: r.Header}).BasicAuth(); r.Account == "s2g" &&
			user+":"+password != "user:password" {
			forged++
		}
		var e struct {
			Event, Rcpt, Bounce string
			Recipients          []string
			R                   string `json:"X-Sd-R"`
		}
		require.NoError(c.t, json.Unmarshal(r.Body, &e), "%s", r.Body)
		to := append(e.Recipients, e.Rcpt)[0]
		require.Equal(c.t, strings.Split(to, "@")[0], e.R, "the header fields come back")
		names = append(names, strings.TrimSpace(to+" "+e.Event+" "+e.Bounce))
	}
	slices.Sort(names)
	return names, forged
}

func TestSendAndEvents(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{TimeScale: 1e6})
	status, data := c.call("/email/send", mail("hardbounce@sim.test", object{"inlines": []object{
		{"filename": "logo", "fileblob": "aGk=", "mimetype": "image/png"}}}))
	require.Equal(t, 200, status)
	require.EqualValues(t, 1, data.(object)["succeeded"])
	require.NotEmpty(t, data.(object)["email_id"])
	status, data = c.call("/email/batch", batch(mail("click@sim.test", nil), mail("mailboxfull@sim.test", nil)))
	require.Equal(t, 200, status)
	require.Len(t, data, 2)
	names, forged := c.posted()
	require.Zero(t, forged)
	require.Equal(t, []string{"click@sim.test click", "click@sim.test delivered", "click@sim.test open",
		"click@sim.test processed", "hardbounce@sim.test bounce hard", "hardbounce@sim.test processed",
		"mailboxfull@sim.test bounce soft", "mailboxfull@sim.test processed"}, names)
	kept := c.Copies("hardbounce")[0]
	require.Equal(t, "logo", kept.Attachments[0].ContentID)
	require.Equal(t, map[string]string{"X-Other": "o"}, kept.Headers)
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{})
	for name, test := range map[string]struct {
		path string
		body any
		want string
	}{
		"no JSON":   {"/email/send", "x", "'data'"},
		"no sender": {"/email/send", mail("a@b.test", object{"sender": nil}), "'sender'"},
		"bad address": {"/email/send", mail("a", nil), "'to' was expecting a valid RFC-822 formatted email field but found " +
			"'Ann <a>'"},
		"in a batch": {"/email/batch", batch(mail("a@b.test", nil), mail("refused@sim.test", nil)),
			"found 'refused@sim.test'"},
		"no body": {"/email/send", mail("a@b.test", object{"text_body": nil}), "'text_body'"},
		"empty":   {"/email/batch", batch(), "'data'"},
	} {
		status, data := c.call(test.path, test.body)
		require.Equal(t, 400, status, name)
		require.Equal(t, "E_ApiResponseCodes.NON_VALIDATING_IN_PAYLOAD", data.(object)["error_code"], name)
		require.Contains(t, data.(object)["field_validation_errors"].(object)["message"], test.want, name)
	}
	status, _ := c.call("/api_keys/permissions", object{}, "other")
	require.Equal(t, 401, status)
	require.Zero(t, c.Stats("s2g").Copies)
	for mode, want := range map[string]int{simulator.ModeCredits: 402, simulator.ModeUnverified: 400,
		simulator.ModeBlocked: 403, simulator.ModeRate: 429, simulator.ModeLargeBatch: 400, simulator.ModeTooLarge: 413,
		"status:503": 503, simulator.ModeAcceptThenClose: 0} {
		id := c.Inject(simulator.Fault{Account: "s2g", Mode: mode})
		status, _ := c.call("/email/send", mail("a@b.test", nil))
		require.Equal(t, want, status, mode)
		c.Clear(id)
	}
	c = open(t, simulator.Options{NoLists: true})
	status, data := c.call("/suppression/view", object{})
	require.Equal(t, 400, status)
	require.Equal(t, "E_ApiResponseCodes.ENDPOINT_PERMISSION_DENIED", data.(object)["error_code"])
}

func TestActivity(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{TimeScale: 1e6})
	_, _ = c.call("/email/batch", batch(mail("a@b.test", nil), mail("hardbounce@sim.test", nil)))
	c.SettleAll(t)
	all := object{"start_date": "2020-01-01T00:00:00Z", "end_date": "2100-01-01T00:00:00Z", "limit": 3}
	_, data := c.call("/activity/search", all)
	page := data.(object)
	require.Len(t, page["events"], 3)
	require.EqualValues(t, 4, page["total_events"])
	require.Empty(t, page["events"].([]any)[0].(object)["custom_headers"], "only those that are asked for")
	all["continue_token"], all["custom_headers"] = page["continue_token"], []string{"X-Sd-R"}
	_, data = c.call("/activity/search", all)
	require.Len(t, data.(object)["events"], 1)
	require.Nil(t, data.(object)["continue_token"])
	require.NotEmpty(t, data.(object)["events"].([]any)[0].(object)["custom_headers"])
	_, data = c.call("/activity/search", object{"start_date": "2020-01-01T00:00:00Z", "end_date": "2100-01-01T00:00:00Z",
		"limit": 10, "search_recipient": "hardbounce@"})
	require.Len(t, data.(object)["events"], 2)
	status, _ := c.call("/activity/search", object{"continue_token": "x"})
	require.Equal(t, 400, status)
}

func TestSuppressions(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{TimeScale: 1e6, Suppress: true})
	_, _ = c.call("/email/batch", batch(mail("complain@sim.test", nil), mail("hardbounce@sim.test", nil)))
	c.SettleAll(t)
	q := object{"suppression_type": "spam", "start_date": "2020-01-01T00:00:00Z", "end_date": "2100-01-01T00:00:00Z"}
	_, data := c.call("/suppression/view", q)
	require.Len(t, data.(object)["results"], 1)
	require.Equal(t, "complain@sim.test", data.(object)["results"].([]any)[0].(object)["email_address"])
	_, data = c.call("/suppression/remove", object{"email_address": "complain@sim.test",
		"reasons": []string{"spam", "manual"}})
	require.Equal(t, true, data.(object)["suppressions"].([]any)[0].(object)["removed"])
	require.Equal(t, false, data.(object)["suppressions"].([]any)[1].(object)["removed"])
	_, data = c.call("/suppression/view", q)
	require.Empty(t, data.(object)["results"])
}
