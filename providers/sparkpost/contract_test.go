package sparkpost

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/mail"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/providertest"
	"github.com/safedelivr/safedelivr/providers/internal/kindtest"
	"github.com/safedelivr/safedelivr/providers/internal/settings"
)

const (
	hookKey = "hook:a long password"
	oldKey  = "an-old-bearer-token"
)

func testSettings(base string) settings.Settings {
	return settings.Settings{
		Name:          "sp",
		Kind:          "sparkpost",
		APIKey:        "sp-key",
		BaseURL:       base,
		WebhookKey:    hookKey,
		WebhookKeyOld: oldKey,
	}
}

func adapter(t testing.TB, base string) *Adapter {
	t.Helper()
	p, err := New(testSettings(base))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestContract(t *testing.T) {
	const ours = `"rcpt_meta":{"sd_log":"01930000-0000-7000-8abc-def000000001","sd_attempt":"1"}`
	providertest.Run(t, providertest.Suite{
		New:         func(t testing.TB, base string) models.Adapter { return adapter(t, base) },
		Carries:     Spec.Carries,
		ManyBytes:   90_000,
		ManyContent: 16_800_000,
		Read:        read,
		Accept:      func(w http.ResponseWriter, n int) { _, _ = io.WriteString(w, acceptance(n)) },
		PerMail:     true, // it counts the recipients that are accepted
		Recipients:  true,
		Answers:     answers(),
		Secret:      true,
		Sign:        kindtest.Authorized(kindtest.Basic(hookKey)),
		SignOld:     kindtest.Authorized("Bearer " + oldKey),
		Forge:       kindtest.Authorized(kindtest.Basic("hook:another password")),
		Post: func(log models.ID, attempt int) []byte {
			return fmt.Appendf(nil, `[{"msys":{"message_event":{"type":"delivery","event_id":"92356927693813856",`+
				`"timestamp":"1795262400","transmission_id":"65832150921904138","rcpt_to":"a@b.test","raw_rcpt_to":"a@b.test",`+
				`"rcpt_meta":{"sd_log":"%s","sd_attempt":"%d"}}}}]`, log, attempt)
		},
		Mixed: []byte(`[{"msys":{}},{"msys":{"relay_message":{"rcpt_to":"x@y.test"}}},7,null,{"msys":7},` +
			`{"msys":{"message_event":{"type":"bounce","event_id":{},"timestamp":[],"raw_rcpt_to":7,"bounce_class":10,` +
			`"error_code":"550","raw_reason":"550 5.1.1 a@b.test unknown",` + ours + `}}},` +
			`{"msys":{"message_event":{"type":"delivery","timestamp":"1795262400","rcpt_meta":{"other":"x"}}}},` +
			`{"msys":{"track_event":{"type":"open","timestamp":"1795262400","event_id":"1","rcpt_to":"a@b.test",` + ours +
			`}}}]`),
		MixedGood: 2,
		Removed: func(r *http.Request, _ []byte) string { // it is read, and then only what is there is removed
			return r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
		},
		Lists: listPages(),
	})
}

func listPages() (out []providertest.List) {
	page := func(list, kind, more string, reason models.SuppressionReason, category, text string) {
		out = append(out, providertest.List{
			List: list,
			Body: `{"results":[{"recipient":"ann@rcpt.test","type":"` + kind + `","source":"` + list + `","description":"` +
				text +
				`","created":"2015-01-01T12:00:00+00:00","updated":"2026-11-21T12:00:00+00:00"` + more + `},` +
				`{"recipient":"bob@rcpt.test"}],"links":[],"total_count":2}`,
			Want: []models.Listed{{Email: "ann@rcpt.test", Reason: reason, Category: category, Text: text,
				At: time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)}},
		})
	}
	page("Bounce Rule", "non_transactional", "", models.HardBounce, "", "550: 5.1.1 no such user")
	page("Bounce Rule", "transactional", "", "", "", "552: 5.2.2 mailbox full")
	page("Spam Complaint", "non_transactional", "", models.Complaint, "", "")
	page("List Unsubscribe", "non_transactional", "", models.Unsubscribe, "non_transactional", "")
	page("List Unsubscribe", "transactional", "", models.Unsubscribe, "", "")
	page("Unsubscribe Link", "non_transactional", `,"list_id":"weekly"`, models.Unsubscribe, "weekly", "")
	page("Manually Added", "transactional", "", "", "", "")
	page("Compliance", "transactional", "", "", "", "")
	return out
}

// acceptance is the answer to a call with n recipients.
func acceptance(n int) string {
	return fmt.Sprintf(`{"results":{"total_rejected_recipients":0,"total_accepted_recipients":%d,`+
		`"id":"11668787484950529"}}`, n)
}

type file struct {
	Name, Type string
	Data       []byte
}

type request struct {
	Campaign string `json:"campaign_id"`
	Options  struct {
		Opens         bool `json:"open_tracking"`
		InitialOpen   bool `json:"initial_open"`
		Clicks        bool `json:"click_tracking"`
		Transactional bool
	}
	Values     map[string]string `json:"substitution_data"`
	Recipients []struct {
		Address struct {
			Email, Name string
			HeaderTo    string `json:"header_to"`
		}
		Tags     []string
		Metadata map[string]string
		Values   map[string]string `json:"substitution_data"`
	}
	Content struct {
		From                struct{ Email, Name string }
		Subject, Text, HTML string
		ReplyTo             string `json:"reply_to"`
		Headers             map[string]string
		Attachments         []file
		Images              []file `json:"inline_images"`
	}
}

var (
	inBodies  = regexp.MustCompile(`\{\{\{([A-Za-z_][A-Za-z0-9_]*)\}\}\}`)
	inFields  = regexp.MustCompile(`\{\{([A-Za-z_][A-Za-z0-9_]*)\}\}`)
	campaigns = regexp.MustCompile(`^[0-9a-f]{32}$`)
)

// render fills in a template, and fails if SparkPost would read anything but values in it.
func render(expression *regexp.Regexp, template string, values ...map[string]string) (string, error) {
	rest := expression.ReplaceAllString(template, "\x00")
	for _, odd := range []string{"{{", "}}", "{\x00", "\x00}"} {
		if strings.Contains(rest, odd) {
			return "", fmt.Errorf("the template %q has code", template)
		}
	}
	var err error
	return expression.ReplaceAllStringFunc(template, func(e string) string {
		for _, m := range values {
			if v, ok := m[strings.Trim(e, "{}")]; ok {
				return v
			}
		}
		err = fmt.Errorf("no value for %s", e)
		return ""
	}), err
}

// read checks a call as SparkPost would and returns what each recipient gets.
func read(r *http.Request, body []byte) (out []providertest.Copy, err error) {
	var in request
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	c := &in.Content
	switch err := d.Decode(&in); {
	case err != nil:
		return nil, err
	case r.Method != "POST" || r.URL.Path != "/api/v1/transmissions" || len(in.Recipients) > 1000 ||
		len(body) > 30_000_000:
		return nil, fmt.Errorf("%s %s with %d recipients", r.Method, r.URL, len(in.Recipients))
	case r.Header.Get("Authorization") != "sp-key" || r.Header.Get("Content-Type") != "application/json":
		return nil, fmt.Errorf("headers %v", r.Header)
	case !campaigns.MatchString(in.Campaign), c.Subject == "", c.Text == "" && c.HTML == "", in.Options.InitialOpen:
		return nil, fmt.Errorf("campaign %q, or no content", in.Campaign)
	}
	copies, _ := providertest.People(c.Headers["CC"])
	for i := range in.Recipients {
		to := &in.Recipients[i]
		values, _ := json.Marshal(to.Values)
		if len(to.Metadata) != 2 || len(values) > 100_000 {
			return nil, errors.New("other metadata, or values that are too long")
		}
		m := providertest.Copy{To: to.Address.Email, Name: to.Address.Name, Tags: to.Tags, Log: to.Metadata["sd_log"],
			Attempt: to.Metadata["sd_attempt"], Opens: in.Options.Opens, Clicks: in.Options.Clicks, Headers: map[string]string{}}
		var errs error
		filler := func(expression *regexp.Regexp) func(template string) string {
			return func(template string) string {
				text, err := render(expression, template, to.Values, in.Values)
				errs = errors.Join(errs, err)
				return text
			}
		}
		fill, body := filler(inFields), filler(inBodies)
		m.Subject, m.Text, m.HTML, m.ReplyTo = fill(c.Subject), body(c.Text), body(c.HTML), fill(c.ReplyTo)
		m.From = (&mail.Address{Name: fill(c.From.Name), Address: c.From.Email}).String()
		fill(to.Address.Name + to.Address.HeaderTo)
		for name, value := range c.Headers {
			if value = fill(value); name != "CC" {
				m.Headers[name] = mime.BEncoding.Encode("utf-8", value)
			}
		}
		for _, f := range append(c.Images, c.Attachments...) {
			m.Files = append(m.Files, providertest.File{Name: f.Name, Type: f.Type, Data: f.Data})
		}
		for i := range c.Images {
			m.Files[i].ContentID = m.Files[i].Name
		}
		if errs != nil {
			return nil, errs
		}
		out = append(out, together(m, to.Address.HeaderTo, copies))
	}
	return out, nil
}

// together adds to a copy what it shows of other recipients: those of the field To and of the field CC.
func together(m providertest.Copy, headerTo string, cc []providertest.Person) providertest.Copy {
	to, err := providertest.People(headerTo)
	if err != nil || headerTo == "" {
		return m
	}
	for _, one := range providertest.Shared(m, to, cc, []providertest.Person{{Email: "hidden"}}) {
		if one.To == m.To {
			return one
		}
	}
	m.Role = "bcc"
	for _, other := range slices.Concat(to, cc) {
		m.Visible = append(m.Visible, other.Email)
	}
	return m
}

func refusal(code, text, description string) string {
	b, _ := json.Marshal(map[string]any{"errors": []any{map[string]string{"message": text, "code": code,
		"description": description}}})
	return string(b)
}

// counted is an answer with numbers, and with errors of recipients.
func counted(accepted, rejected int, text string) string {
	return fmt.Sprintf(`{"errors":[{"message":"transmission created, but with validation `+
		`errors","code":"2000"}],"results":`+
		`{"rcpt_to_errors":[{"message":%q,"code":"1400"}],"total_rejected_recipients":%d,"total_accepted_recipients":%d,`+
		`"id":"7"}}`, text, rejected, accepted)
}

// answers returns the documented answers of SparkPost.
func answers() []providertest.Answer {
	var list []providertest.Answer
	add := func(name string, status int, body string, class models.Class, reason models.Reason) *providertest.Answer {
		list = append(
			list,
			providertest.Answer{Name: name, Status: status, Body: body, Three: class, One: class, Reason: reason},
		)
		return &list[len(list)-1]
	}
	add("accepted", 200, "", models.Accepted, "").Each = acceptance
	add("accepted fewer", 200, acceptance(2), models.Unknown, "")
	add("accepted more", 200, acceptance(4), models.Unknown, "")
	add("no id", 200, `{"results":{"total_rejected_recipients":0,"total_accepted_recipients":3}}`, models.Unknown, "")
	add("200 of another server", 200, "<html>Welcome</html>", models.Unknown, "")
	a := add("one of three", 200, counted(2, 1, "address.email is required for each recipient"), models.Unknown, "")
	a.Each = func(n int) string { return counted(n-1, 1, "address.email is required for each recipient") }
	a.One = models.RejectedRecipient
	a = add("none", 200, "", models.Split, "")
	a.Each = func(n int) string { return counted(0, n, "invalid email address") }
	a.One = models.RejectedRecipient
	a = add("none, for another reason", 200, "", models.RejectedHereClass, "")
	a.Each = func(n int) string { return counted(0, n, "metadata is too long") }
	a = add("no valid recipient", 400, refusal("5002", "no recipients", "At least one valid recipient is required."),
		models.Split, "")
	a.One = models.RejectedRecipient
	add("domain", 400, refusal("7001", "Invalid domain", "Unconfigured or unverified sending domain."),
		models.AccountClass, models.SenderNotVerified)
	add("restricted domain", 400, refusal("7000", "Restricted domain", "x"), models.AccountClass, models.SenderNotVerified)
	add("DKIM", 400, refusal("1100", "Invalid DKIM key ID", ""), models.RejectedHereClass, "")
	add("400 of a proxy", 400, "<html>", models.RejectedHereClass, "")
	add("unauthorized", 401, refusal("", "Unauthorized.", ""), models.AccountClass, "")
	add("forbidden", 403, refusal("", "Forbidden.", ""), models.AccountClass, "")
	add("not found", 404, "", models.AccountClass, "")
	add("too large", 413, "", models.RejectedHereClass, models.TooLarge)
	add("media type", 415, "", models.RejectedHereClass, "")
	add("limit", 420, refusal("2101", "Exceed Sending Limit (hourly)", ""), models.AccountClass, "")
	for _, code := range []string{"1300", "1301", "1400", "1603", "3000"} {
		add("invalid "+code, 422, refusal(code, "required field is missing", "something"), models.RejectedHereClass, "")
	}
	add("rate", 429, refusal("", "Too many requests", ""), models.Throttled, "")
	a = add("rate with seconds", 429, "", models.Throttled, "")
	a.Header, a.RetryIn = map[string]string{"Retry-After": "5"}, 5*time.Second
	add("internal", 500, refusal("", "Internal server error", ""), models.Unknown, "")
	add("outage", 503, "", models.Unavailable, "")
	return list
}
