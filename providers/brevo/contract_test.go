package brevo

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
	"strings"
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/providertest"
	"github.com/safedelivr/safedelivr/providers/internal/kindtest"
	"github.com/safedelivr/safedelivr/providers/internal/settings"
)

func testSettings(base string) settings.Settings {
	return settings.Settings{
		Name:          "br",
		Kind:          "brevo",
		APIKey:        "xkeysib-1",
		BaseURL:       base,
		WebhookKey:    "hook:a long password",
		WebhookKeyOld: "old-bearer-token",
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
	providertest.Run(t, providertest.Suite{
		New:         func(t testing.TB, base string) models.Adapter { return adapter(t, base) },
		Carries:     Spec.Carries,
		ManyBytes:   100_000,
		ManyContent: 4_800_000,
		Untyped:     true,
		Braces:      true,
		Takes:       takes,
		Read:        read,
		Accept: func(w http.ResponseWriter, n int) {
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, acceptance(n))
		},
		Answers: answers(),
		Secret:  true,
		Sign:    kindtest.Authorized(kindtest.Basic("hook:a long password")),
		SignOld: kindtest.Authorized("Bearer old-bearer-token"),
		Forge:   kindtest.Authorized(kindtest.Basic("hook:another password")),
		Post: func(log models.ID, attempt int) []byte {
			custom, _ := json.Marshal(fmt.Sprintf(`{"sd_log":"%s","sd_attempt":"%d"}`, log, attempt))
			return fmt.Appendf(nil, `{"event":"delivered","email":"a@b.test","id":1,"message-id":"<2026.1@smtp-relay.test>",`+
				`"ts_epoch":1795262400123,"tags":["news"],"X-Mailin-custom":%s}`, custom)
		},
		Tagged: func(chunk models.ID, attempt int, address string) []byte {
			return fmt.Appendf(nil, `{"event":"delivered","email":%q,"id":1,"message-id":"<2026.1@smtp-relay.test>",`+
				`"ts_epoch":1795262400123,"tags":["%s-%d","news"]}`, address, chunk, attempt)
		},
		Mixed: []byte(`[{"event":7,"email":{}},{"event":"hard_bounce","email":"a@b.test","message-id":7,"ts_epoch":"never",` +
			`"reason":[],"X-Mailin-custom":"{\"sd_log\":\"01930000-0000-7000-8abc-def000000001\",\"sd_attempt\":1}"},4,null,` +
			`{"event":"list_addition","email":"a@b.test"},{"event":"click","email":"c@d.test","tags":"x","tag":` +
			`"[\"x\",\"01930000-0000-7000-8abc-def000000000-2\"]","link":"https://x.test"}]`),
		MixedGood: 2,
		KeyHeader: "api-key",
		Idempotency: func(body []byte) string {
			var in struct{ Headers map[string]string }
			_ = json.Unmarshal(body, &in)
			return in.Headers["idempotencyKey"]
		},
		Lists: listPages(),
	})
}

// takes reports whether Brevo takes the header fields and the attachments of a call.
func takes(c *models.Call) bool {
	for _, h := range c.Content.Headers {
		if strings.Contains(h.Value, "{{") || !models.ASCII(h.Value) {
			return false
		}
	}
	for _, a := range c.Content.Attachments {
		if a.ContentID != "" || a.Filename == ".htaccess" {
			return false
		}
	}
	return true
}

func listPages() (out []providertest.List) {
	for code, want := range map[string]models.Listed{
		"hardBounce":           {Reason: models.HardBounce},
		"contactFlaggedAsSpam": {Reason: models.Complaint, Category: "shop@sender.test"},
		"unsubscribedViaEmail": {Reason: models.Unsubscribe, Category: "shop@sender.test"},
		"unsubscribedViaMA":    {Reason: models.Unsubscribe, Category: "shop@sender.test"},
		"unsubscribedViaApi":   {Category: "shop@sender.test"},
		"adminBlocked":         {Category: "shop@sender.test"},
	} {
		want.Email, want.Text = "ann@rcpt.test", "why of <address>"
		want.At = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
		out = append(out, providertest.List{
			List: "blockedContacts",
			Body: `{"count":2,"contacts":[{"email":"ann@rcpt.test","senderEmail":"shop@sender.test","reason":{"code":"` + code +
				`","message":"why of ann@rcpt.test"},"blockedAt":"2026-11-21T12:00:00Z"},{"email":"bob@rcpt.test"}]}`,
			Want: []models.Listed{want},
		})
	}
	return out
}

// acceptance is the answer to a call with n mails.
func acceptance(n int) string {
	if n == 1 {
		return `{"messageId":"<2026.0@smtp-relay.test>"}`
	}
	var ids []string
	for i := range n {
		ids = append(ids, fmt.Sprintf(`"<2026.%d@smtp-relay.test>"`, i))
	}
	return `{"messageIds":[` + strings.Join(ids, ",") + `]}`
}

type mailbox struct{ Email, Name string }

// A version is what a message version may have, and the mail of a call.
type version struct {
	To                                []mailbox
	Subject, TextContent, HTMLContent string
	Headers                           map[string]string
}

type sent struct {
	version
	Sender          mailbox
	ReplyTo         *mailbox
	Tags            []string
	MessageVersions []version
	Attachment      []struct {
		Name    string
		Content []byte
	}
}

var uuid = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

// read checks a call as Brevo would and returns what each recipient gets.
func read(r *http.Request, body []byte) (out []providertest.Copy, err error) {
	var in sent
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	switch err := d.Decode(&in); {
	case err != nil:
		return nil, err
	case r.Method != "POST" || r.URL.Path != "/v3/smtp/email" || len(in.MessageVersions) > 1000:
		return nil, fmt.Errorf("%s %s with %d mails", r.Method, r.URL, len(in.MessageVersions))
	case r.Header.Get("api-key") != "xkeysib-1" || r.Header.Get("Content-Type") != "application/json" ||
		r.Header.Get("Accept") == "" || r.Header.Get("Authorization") != "" || r.Header.Get("Idempotency-Key") != "":
		return nil, fmt.Errorf("headers %v", r.Header)
	case !uuid.MatchString(in.Headers["idempotencyKey"]), (len(in.To) == 0) == (len(in.MessageVersions) == 0),
		in.Subject == "", in.TextContent == "" && in.HTMLContent == "", len(in.Tags) == 0:
		return nil, errors.New("no key, recipients in two places, no subject, no content or no tag")
	}
	delete(in.Headers, "idempotencyKey")
	versions := in.MessageVersions
	if len(versions) == 0 {
		versions = []version{{To: in.To, Headers: map[string]string{"X-Mailin-custom": in.Headers["X-Mailin-custom"]}}}
		delete(in.Headers, "X-Mailin-custom")
	}
	for i := range versions {
		c, err := in.mail(&versions[i])
		if err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}

// mail returns the mail of a version. What it lacks is that of the call.
func (in *sent) mail(v *version) (c providertest.Copy, err error) {
	if len(v.To) != 1 || len(v.Headers) != 1 || v.TextContent != "" && in.TextContent == "" ||
		v.HTMLContent != "" && in.HTMLContent == "" {
		return c, fmt.Errorf("%d recipients, header fields %v, or content that the call does not have", len(v.To), v.Headers)
	}
	or := func(own, common string) string {
		if own == "" {
			return common
		}
		return own
	}
	c = providertest.Copy{To: v.To[0].Email, Name: v.To[0].decoded(), From: in.Sender.String(), Tags: in.Tags[1:],
		Subject: or(v.Subject, in.Subject), Text: or(v.TextContent, in.TextContent),
		HTML: or(v.HTMLContent, in.HTMLContent), Headers: in.Headers}
	if strings.Contains(c.Subject+"\n"+c.Text+"\n"+c.HTML+"\n"+v.To[0].Name, "{{") {
		return c, errors.New("template code")
	}
	c.HTML = strings.ReplaceAll(c.HTML, "&#123;", "{") // as mail programs show it
	if in.ReplyTo != nil {
		if !models.ASCII(in.ReplyTo.Name) {
			return c, errors.New("a name that is sent as it is")
		}
		c.ReplyTo = in.ReplyTo.String()
	}
	var own map[string]string
	if err := json.Unmarshal([]byte(v.Headers["X-Mailin-custom"]), &own); err != nil {
		return c, err
	}
	c.Log, c.Attempt = own["sd_log"], own["sd_attempt"]
	log, err := models.ParseLogID(c.Log)
	if want := log.ChunkID().String() + "-" + c.Attempt; err != nil || in.Tags[0] != want {
		return c, fmt.Errorf("tag %q, want %q: %w", in.Tags[0], want, err)
	}
	for _, f := range in.Attachment {
		c.Files = append(c.Files, providertest.File{Name: f.Name, Data: f.Content})
	}
	return c, nil
}

// decoded returns the name as mail programs show it.
func (p mailbox) decoded() string {
	name, err := new(mime.WordDecoder).DecodeHeader(p.Name)
	if err != nil {
		return p.Name
	}
	return name
}

func (p mailbox) String() string {
	return (&mail.Address{Name: p.decoded(), Address: p.Email}).String()
}

func refusal(code, message string) string {
	b, _ := json.Marshal(map[string]any{"code": code, "message": message})
	return string(b)
}

// answers returns the documented answers of Brevo.
func answers() []providertest.Answer {
	var list []providertest.Answer
	add := func(name string, status int, body string, class models.Class, reason models.Reason) *providertest.Answer {
		list = append(list,
			providertest.Answer{Name: name, Status: status, Body: body, Three: class, One: class, Reason: reason})
		return &list[len(list)-1]
	}
	add("accepted", 201, "", models.Accepted, "").Each = acceptance
	add("accepted for later", 202, "", models.Accepted, "").Each = acceptance
	add("accepted before", 201, "{}", models.Accepted, "")
	add("accepted without a body", 201, "", models.Accepted, "")
	add("accepted fewer", 201, acceptance(2), models.Unknown, "")
	add("accepted more", 201, acceptance(4), models.Unknown, "")
	add("accepted some", 201, "", models.Unknown, "").Each = func(n int) string {
		return `{"messageIds":["<1@x.test>"` + strings.Repeat(`,""`, n-1) + `,""]}`
	}
	add("200 of another server", 200, "<html>Welcome</html>", models.Unknown, "")
	add("201 of another server", 201, "<html>Welcome</html>", models.Unknown, "")
	add("200 without ids", 200, "{}", models.Unknown, "")
	a := add("some address", 400, refusal("invalid_parameter", "email is not valid in to"), models.Split, "")
	a.One = models.RejectedRecipient
	for _, words := range []string{"Invalid email address in messageVersions[1].to[0]",
		"to is not valid in messageVersions"} {
		add(words, 400, refusal("invalid_parameter", words), models.Split, "").One = models.RejectedRecipient
	}
	add("accepted, with an id for the call", 201, "", models.Accepted, "").Each = func(n int) string {
		ids := strings.Repeat(`,"<1@x.test>"`, n)[1:]
		return `{"messageId":"<1@x.test>","messageIds":[` + ids + `]}`
	}
	for _, e := range []struct {
		status        int
		code, message string
		class         models.Class
		reason        models.Reason
	}{
		{400, "invalid_parameter", "subject is not a string", models.RejectedRequest, models.InvalidRequest},
		{400, "invalid_parameter", "email help@go.to is not valid in replyTo", models.RejectedRequest, models.InvalidRequest},
		{400, "invalid_parameter", "an email needs a name to be sent", models.RejectedRequest, models.InvalidRequest},
		{400, "missing_parameter", "htmlContent is missing", models.RejectedRequest, models.InvalidRequest},
		{400, "invalid_parameter", "Sending has been rejected because the sender you used a@b.test is not valid. Validate " +
			"your sender or authenticate your domain", models.AccountClass, models.SenderNotVerified},
		{400, "invalid_parameter", "Unsupported file format : exe", models.RejectedHereClass, ""},
		{400, "duplicate_request", "The request was sent before", models.Unknown, ""},
		{400, "duplicate_parameter", "ID exists", models.Unknown, ""},
		{400, "invalid_parameter", "idempotencyKey was used before", models.Unknown, ""},
		{400, "bad_request", "Something", models.RejectedHereClass, ""},
		{400, "out_of_range", "Something", models.RejectedHereClass, ""},
		{400, "not_enough_credits", "No credits", models.AccountClass, ""},
		{401, "unauthorized", "Key not found", models.AccountClass, ""},
		{401, "unauthorized", "We have detected you are using an unrecognised IP address", models.AccountClass, ""},
		{402, "not_enough_credits", "No credits", models.AccountClass, ""},
		{403, "permission_denied", "Your SMTP account is not yet activated", models.AccountClass, ""},
		{403, "account_under_validation", "Wait", models.AccountClass, ""},
		{404, "document_not_found", "No", models.AccountClass, ""},
		{405, "method_not_allowed", "No", models.AccountClass, ""},
		{406, "not_acceptable", "No", models.RejectedHereClass, ""},
		{409, "duplicate_request", "The same key", models.Unknown, ""},
		{413, "", "", models.RejectedHereClass, models.TooLarge},
		{422, "unprocessable_entity", "No", models.RejectedHereClass, ""},
		{500, "internal", "No", models.Unknown, ""},
		{502, "", "", models.Unknown, ""},
		{503, "", "", models.Unavailable, ""},
	} {
		a := add(fmt.Sprint(e.status, " ", e.code, " ", e.message), e.status, refusal(e.code, e.message), e.class, e.reason)
		a.Header = map[string]string{"X-Sib-Ratelimit-Limit": "100", "X-Sib-Ratelimit-Reset": "30"}
	}
	add("400 of a proxy", 400, "<html>", models.RejectedHereClass, "")
	add("rate", 429, "", models.Throttled, "")
	a = add("rate with a reset", 429, refusal("too_many_requests", "Slow down"), models.Throttled, "")
	a.Header, a.RetryIn = map[string]string{"X-Sib-Ratelimit-Reset": "30"}, 30*time.Second
	return list
}
