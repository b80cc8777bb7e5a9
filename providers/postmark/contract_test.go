package postmark

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
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
		Name:          "pm",
		Kind:          "postmark",
		APIKey:        "server-token",
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
		Read:        read,
		Accept:      func(w http.ResponseWriter, n int) { _, _ = io.WriteString(w, acceptance(n)) },
		PerMail:     true,
		Answers:     answers(),
		Secret:      true,
		Sign:        kindtest.Authorized(kindtest.Basic("hook:a long password")),
		SignOld:     kindtest.Authorized("Bearer old-bearer-token"),
		Forge:       kindtest.Authorized(kindtest.Basic("hook:another password")),
		Post: func(log models.ID, attempt int) []byte {
			return fmt.Appendf(nil, `{"RecordType":"Delivery","MessageID":"m1","Recipient":"a@b.test",`+
				`"DeliveredAt":"2026-11-21T12:00:00.1234567Z","Details":"250 OK","Metadata":{"sd_log":"%s","sd_attempt":"%d"}}`,
				log, attempt)
		},
		Mixed: []byte(`{"RecordType":"Bounce","ID":{},"Type":"HardBounce","MessageID":7,"Email":"a@b.test","Details":[],` +
			`"BouncedAt":"never","Metadata":{"sd_log":"01930000-0000-7000-8abc-def000000001","sd_attempt":1}}`),
		MixedGood: 1,
		KeyHeader: "X-Postmark-Server-Token",
		Removed: func(r *http.Request, body []byte) string {
			var in struct {
				Suppressions []struct{ EmailAddress string }
			}
			if r.Method != "POST" || r.URL.Path != "/message-streams/outbound/suppressions/delete" ||
				json.Unmarshal(body, &in) != nil || len(in.Suppressions) != 1 {
				return r.Method + " " + r.URL.Path
			}
			return in.Suppressions[0].EmailAddress
		},
		Lists: listPages(),
	})
}

func listPages() (out []providertest.List) {
	page := func(list, origin string, reason models.SuppressionReason) {
		out = append(out, providertest.List{
			List: list,
			Body: `{"Suppressions":[{"EmailAddress":"ann@rcpt.test","SuppressionReason":"` + list + `","Origin":"` + origin +
				`","CreatedAt":"2026-11-21T07:00:00-05:00"},{"EmailAddress":"bob@rcpt.test"}]}`,
			Want: []models.Listed{{Email: "ann@rcpt.test", Reason: reason, At: time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)}},
		})
	}
	page("HardBounce", "Recipient", models.HardBounce)
	page("SpamComplaint", "Recipient", models.Complaint)
	page("ManualSuppression", "Recipient", models.Unsubscribe)
	page("ManualSuppression", "Customer", "")
	page("ManualSuppression", "Admin", "")
	return out
}

// acceptance is the answer to a call with n mails.
func acceptance(n int) string {
	var list []string
	for i := range n {
		list = append(
			list,
			fmt.Sprintf(`{"To":"x","SubmittedAt":"2026-11-21T12:00:00Z","MessageID":"m%d","ErrorCode":0,"Message":"OK"}`, i),
		)
	}
	return "[" + strings.Join(list, ",") + "]"
}

type email struct {
	From, To, Cc, Bcc, ReplyTo, Subject, TextBody, HtmlBody, Tag, TrackLinks string
	TrackOpens                                                               bool
	Headers                                                                  []struct{ Name, Value string }
	Metadata                                                                 map[string]string
	Attachments                                                              []struct {
		Name, ContentType, ContentID string
		Content                      []byte
	}
}

// read checks a call as Postmark would and returns what each recipient gets.
func read(r *http.Request, body []byte) (out []providertest.Copy, err error) {
	var list []email
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	switch err := d.Decode(&list); {
	case err != nil:
		return nil, err
	case r.Method != "POST" || r.URL.Path != "/email/batch" || len(list) > 500 || len(body) > 50_000_000:
		return nil, fmt.Errorf("%s %s with %d mails", r.Method, r.URL, len(list))
	case r.Header.Get("X-Postmark-Server-Token") != "server-token" || r.Header.Get("Content-Type") != "application/json" ||
		r.Header.Get("Accept") == "" || r.Header.Get("Authorization") != "" || r.Header.Get("Idempotency-Key") != "":
		return nil, fmt.Errorf("headers %v", r.Header)
	}
	for i := range list {
		m := &list[i]
		c := providertest.Copy{Subject: m.Subject, Text: m.TextBody, HTML: m.HtmlBody, From: m.From, ReplyTo: m.ReplyTo,
			Log: m.Metadata["sd_log"], Attempt: m.Metadata["sd_attempt"], Opens: m.TrackOpens,
			Clicks: m.TrackLinks == "HtmlOnly", Headers: map[string]string{}}
		if m.TextBody == "" && m.HtmlBody == "" || max(len(m.TextBody), len(m.HtmlBody)) > 5_000_000 || len(m.Metadata) != 2 {
			return nil, errors.New("no content, too much of it, or other metadata")
		}
		for _, h := range m.Headers {
			c.Headers[h.Name] = h.Value
		}
		if m.Tag != "" {
			c.Tags = []string{m.Tag}
		}
		for _, a := range m.Attachments {
			id, ok := strings.CutPrefix(a.ContentID, "cid:")
			if a.ContentID != "" && !ok || a.Name == "" {
				return nil, fmt.Errorf("attachment %q, %q", a.Name, a.ContentID)
			}
			c.Files = append(c.Files, providertest.File{Name: a.Name, Type: a.ContentType, ContentID: id, Data: a.Content})
		}
		copies, err := copiesOf(m, c)
		if err != nil {
			return nil, err
		}
		out = append(out, copies...)
	}
	return out, nil
}

// copiesOf returns the copies of a mail for all of its recipients.
func copiesOf(m *email, c providertest.Copy) (out []providertest.Copy, err error) {
	var lists [3][]providertest.Person
	for i, text := range [3]string{m.To, m.Cc, m.Bcc} {
		if lists[i], err = providertest.People(text); err != nil {
			return nil, err
		}
	}
	return providertest.Shared(c, lists[0], lists[1], lists[2]), nil
}

func errorOf(code int, message string) string {
	b, _ := json.Marshal(map[string]any{"ErrorCode": code, "Message": message})
	return string(b)
}

// answers returns the documented answers of Postmark.
func answers() []providertest.Answer {
	var list []providertest.Answer
	add := func(name string, status int, body string, class models.Class, reason models.Reason) *providertest.Answer {
		list = append(
			list,
			providertest.Answer{Name: name, Status: status, Body: body, Three: class, One: class, Reason: reason},
		)
		return &list[len(list)-1]
	}
	one := func(name, result string, class models.Class, reason models.Reason) {
		a := add("of one mail: "+name, 200, "", class, reason)
		a.Others = models.Accepted
		a.Each = func(n int) string {
			if n == 1 {
				return "[" + result + "]"
			}
			ok := `{"ErrorCode":0,"MessageID":"m","Message":"OK"}`
			return "[" + ok + "," + result + "," + ok + "]"
		}
	}
	add("accepted", 200, "", models.Accepted, "").Each = acceptance
	add("accepted fewer", 200, acceptance(2), models.Unknown, "")
	add("accepted more", 200, acceptance(4), models.Unknown, "")
	add("200 of another server", 200, "<html>Welcome</html>", models.Unknown, "")
	one("delayed", `{"MessageID":"m","Message":"Message accepted, but delivery may be delayed."}`, models.Accepted, "")
	one("inactive ones beside it", `{"ErrorCode":0,"MessageID":"m","Message":"Message OK, but will not deliver to these `+
		`inactive addresses: a@b.test. Inactive recipients are ones that"}`, models.Accepted, "")
	one("no id and no code", `{"Message":"?"}`, models.Unknown, "")
	one("nothing", `null`, models.Unknown, "")
	for _, e := range []struct {
		code    int
		message string
		class   models.Class
		reason  models.Reason
	}{
		{10, "Bad or missing Server API token.", models.AccountClass, ""},
		{11, "Several", models.RejectedHereClass, ""},
		{100, "Maintenance", models.Unavailable, ""},
		{300, "Invalid 'To' address: 'a@b.test'.", models.RejectedRecipient, models.MailboxInvalid},
		{300, "Error parsing 'Cc': Illegal email domain.", models.RejectedRecipient, models.MailboxInvalid},
		{300, "Invalid 'From' address: 'a@b.test'.", models.AccountClass, models.SenderNotVerified},
		{300, "Error parsing 'Reply-To'", models.RejectedRequest, models.InvalidRequest},
		{400, "The 'From' address is not a Sender Signature.", models.AccountClass, models.SenderNotVerified},
		{401, "not confirmed", models.AccountClass, models.SenderNotVerified},
		{402, "Invalid JSON", models.RejectedRequest, models.InvalidRequest},
		{403, "Incompatible JSON", models.RejectedRequest, models.InvalidRequest},
		{405, "Not allowed to send: out of credits", models.AccountClass, ""},
		{406, "You tried to send to a recipient that has been marked as inactive.", models.RejectedHereClass,
			models.SuppressedBounce},
		{409, "JSON required", models.RejectedRequest, models.InvalidRequest},
		{410, "Too many batch messages", models.RejectedHereClass, ""},
		{411, "Forbidden attachment type", models.RejectedHereClass, ""},
		{412, "Account is pending approval", models.AccountClass, ""},
		{413, "Account may not send", models.AccountClass, ""},
		{429, "Too many", models.Throttled, ""},
		{777, "New", models.RejectedHereClass, ""},
	} {
		one(fmt.Sprint(e.code, " ", e.message), errorOf(e.code, e.message), e.class, e.reason)
	}
	add("no token", 401, errorOf(10, "No Account or Server API tokens were supplied"), models.AccountClass, "")
	a := add("some address", 422, errorOf(300, "Invalid 'To' address"), models.Split, "")
	a.One = models.RejectedRecipient
	add("JSON", 422, errorOf(402, "Invalid JSON"), models.RejectedRequest, models.InvalidRequest)
	add("too many", 422, errorOf(410, "Too many batch messages"), models.RejectedHereClass, "")
	add("pending", 422, errorOf(412, "pending approval"), models.AccountClass, "")
	add("422 of a proxy", 422, "<html>", models.RejectedHereClass, "")
	add("not found", 404, "", models.AccountClass, "")
	add("too large", 413, "", models.RejectedHereClass, models.TooLarge)
	add("media type", 415, "", models.RejectedHereClass, "")
	add("rate", 429, "", models.Throttled, "")
	a = add("rate with seconds", 429, "", models.Throttled, "")
	a.Header, a.RetryIn = map[string]string{"Retry-After": "30"}, 30*time.Second
	add("internal", 500, errorOf(0, "Internal Server Error"), models.Unknown, "")
	add("outage", 503, "", models.Unavailable, "")
	return list
}
