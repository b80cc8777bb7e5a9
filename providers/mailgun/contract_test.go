package mailgun

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/mail"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/providertest"
	"github.com/safedelivr/safedelivr/providers/internal/settings"
)

func testSettings(base string) settings.Settings {
	return settings.Settings{
		Name:          "mg",
		Kind:          "mailgun",
		APIKey:        "key-test",
		Domain:        "mg.sender.test",
		BaseURL:       base,
		WebhookKey:    "signing-key",
		WebhookKeyOld: "old-key",
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

const acceptance = `{"id":"<20260101120000.1.ABC@mg.sender.test>","message":"Queued. Thank you."}`

func TestContract(t *testing.T) {
	mixed, err := os.ReadFile("testdata/webhook/odd_types.json")
	if err != nil {
		t.Fatal(err)
	}
	providertest.Run(t, providertest.Suite{
		New:     func(t testing.TB, base string) models.Adapter { return adapter(t, base) },
		Carries: Spec.Carries,
		Read:    read,

		ManyBytes: 30_000, ManyContent: 24_000_000,
		Accept: func(w http.ResponseWriter, _ int) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, acceptance)
		},
		Answers: answers(),
		Sign:    func(body []byte, at time.Time) (http.Header, []byte) { return sign("signing-key", body, at) },
		SignOld: func(body []byte, at time.Time) (http.Header, []byte) { return sign("old-key", body, at) },
		Forge:   func(body []byte, at time.Time) (http.Header, []byte) { return sign("", body, at) },
		Shift: func(h http.Header, body []byte) (http.Header, []byte) {
			return h, regexp.MustCompile(`"timestamp":"(\d{9})(\d)","token":"`).ReplaceAll(body,
				[]byte(`"timestamp":"$1","token":"$2`))
		},
		Post: func(log models.ID, attempt int) []byte {
			return fmt.Appendf(nil, `{"event-data":{"event":"delivered","id":"hTWCTD81RtiDN-qqGCZvvw",`+
				`"timestamp":1795262400.9081,"recipient":"a@b.test","user-variables":{"sd_log":"%s","sd_attempt":"%d"},`+
				`"delivery-status":{"code":250,"message":"OK"}}}`, log, attempt)
		},
		Mixed:     mixed,
		MixedGood: 1, // a post holds one event
		Lists:     listPages(),
	})
}

// listPages returns a page of each list.
func listPages() []providertest.List {
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	page := func(list, fields string, want ...models.Listed) providertest.List {
		for i := range want {
			want[i].Email, want[i].At = "ann@rcpt.test", at
		}
		return providertest.List{List: list, Want: want, Body: `{"items":[{"address":"ann@rcpt.test",` +
			`"created_at":"Sat, 21 Nov 2026 12:00:00 UTC"` + fields + `},{"address":"bob@rcpt.test","created_at":"?"}],` +
			`"paging":{"next":"https://api.mailgun.net/v3/mg.sender.test/` + list + `?page=next"}}`}
	}
	from := func(category string) models.Listed {
		return models.Listed{Reason: models.Unsubscribe, Category: category}
	}
	return []providertest.List{
		page("bounces", `,"code":"550","error":"5.1.1 no such user"`,
			models.Listed{Reason: models.HardBounce, Text: "5.1.1 no such user"}),
		page("bounces", `,"code":"605","error":""`, models.Listed{Reason: models.HardBounce}),
		page("bounces", `,"code":"552","error":"mailbox full"`, models.Listed{Text: "mailbox full"}),
		page("complaints", `,"count":2`, models.Listed{Reason: models.Complaint}),
		page("unsubscribes", `,"tags":["*"]`, from("")),
		page("unsubscribes", `,"tags":["news","no category","weekly"]`, from("news"), from("weekly")),
		page("unsubscribes", ``, from("")),
	}
}

// sign adds the signature before the other members of body.
func sign(key string, body []byte, at time.Time) (http.Header, []byte) {
	ts, token := strconv.FormatInt(at.Unix(), 10), strings.Repeat("0a1b2c3d4e", 5)
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte(ts + token))
	signed := fmt.Appendf(nil, `{"signature":{"timestamp":"%s","token":"%s","signature":"%s"},`, ts, token,
		hex.EncodeToString(mac.Sum(nil)))
	h := http.Header{}
	h.Set("Content-Type", "application/json")
	return h, append(signed, body[1:]...)
}

var hole = regexp.MustCompile(`%recipient\.([^%\s]+)%`)

// read checks a call as Mailgun would and returns what each recipient gets.
func read(r *http.Request, body []byte) ([]providertest.Copy, error) {
	user, key, _ := r.BasicAuth()
	switch {
	case r.Method != "POST" || r.URL.Path != "/v3/mg.sender.test/messages":
		return nil, fmt.Errorf("%s %s", r.Method, r.URL)
	case user != "api" || key != "key-test":
		return nil, errors.New("wrong credentials")
	case r.Header.Get("Idempotency-Key") != "":
		return nil, errors.New("there is an Idempotency-Key")
	}
	fields, err := parts(r.Header.Get("Content-Type"), body)
	if err != nil {
		return nil, err
	}
	one, headers := map[string]string{}, map[string]string{}
	var to, cc, bcc, tags []string
	var files []providertest.File
	for _, f := range fields {
		if f.file != "" {
			file := providertest.File{Name: f.file, Type: f.kind, Data: []byte(f.value)}
			if f.name == "inline" {
				file.ContentID = f.file
			}
			files = append(files, file)
			continue
		}
		if name, ok := strings.CutPrefix(f.name, "h:"); ok && name != "Reply-To" {
			headers[name] = f.value
		}
		if list := map[string]*[]string{"to": &to, "cc": &cc, "bcc": &bcc, "o:tag": &tags}[f.name]; list != nil {
			*list = append(*list, f.value)
		} else if f.name == "text" && f.value == "" {
			return nil, errors.New("the text is empty, which mail programs that prefer it would show")
		} else if _, twice := one[f.name]; twice {
			return nil, fmt.Errorf("field %s twice", f.name)
		}
		one[f.name] = f.value
	}
	var vars map[string]map[string]string
	raw, ok := one["recipient-variables"]
	if err := json.Unmarshal([]byte(raw), &vars); ok && err != nil {
		return nil, fmt.Errorf("recipient-variables: %w", err)
	}
	if copies := len(cc) + len(bcc); len(to) > 1000 || one["from"] == "" || one["text"] == "" && one["html"] == "" ||
		copies+len(to) > 1 && copies > 0 == ok {
		return nil, errors.New("too many recipients, no sender, no content, or copies beside variables")
	}
	var out []providertest.Copy
	for _, field := range to {
		named, err := mail.ParseAddress(field)
		if err != nil {
			return nil, fmt.Errorf("to parameter %q: %w", field, err)
		}
		own, has := vars[named.Address]
		if !has && ok {
			return nil, fmt.Errorf("%s has no variables", named.Address)
		}
		fill := func(s string) string {
			return hole.ReplaceAllStringFunc(s, func(h string) string {
				if v, ok := own[h[len("%recipient."):len(h)-1]]; ok {
					return v
				}
				return h
			})
		}
		// A browser shows the entity as a percent sign.
		show := func(s string) string { return strings.ReplaceAll(s, "&#37;", "%") }
		out = append(out, providertest.Copy{
			To:      named.Address,
			Name:    named.Name,
			Log:     fill(one["v:sd_log"]),
			Attempt: one["v:sd_attempt"],
			From:    one["from"],
			ReplyTo: one["h:Reply-To"],
			Headers: filled(headers, fill),
			Tags:    tags,
			Files:   files,
			Opens:   one["o:tracking-opens"] == "yes",
			Clicks:  one["o:tracking-clicks"] == "yes",
			Subject: fill(one["subject"]),
			Text:    fill(one["text"]),
			HTML:    show(fill(one["html"])),
		})
	}
	if ok {
		return out, nil
	}
	return shared(out[0], to, cc, bcc)
}

// shared returns the copies of one mail, whose content is that of c.
func shared(c providertest.Copy, to, cc, bcc []string) ([]providertest.Copy, error) {
	if strings.Contains(c.Subject+c.Text+c.HTML, "%recipient") {
		return nil, errors.New("a placeholder would stay in the mail")
	}
	var lists [3][]providertest.Person
	for i, texts := range [3][]string{to, cc, bcc} {
		var err error
		if lists[i], err = providertest.People(texts...); err != nil {
			return nil, err
		}
	}
	return providertest.Shared(c, lists[0], lists[1], lists[2]), nil
}

// filled returns a copy of texts with their placeholders filled in.
func filled(texts map[string]string, fill func(string) string) map[string]string {
	out := map[string]string{}
	for k, v := range texts {
		out[k] = fill(v)
	}
	return out
}

type field struct{ name, value, file, kind string }

func parts(contentType string, body []byte) ([]field, error) {
	kind, params, err := mime.ParseMediaType(contentType)
	if err != nil || kind != "multipart/form-data" {
		return nil, fmt.Errorf("content type %q: %w", contentType, err)
	}
	var list []field
	for r := multipart.NewReader(strings.NewReader(string(body)), params["boundary"]); ; {
		p, err := r.NextPart()
		if errors.Is(err, io.EOF) {
			return list, nil
		}
		if err != nil {
			return nil, err
		}
		value, err := io.ReadAll(p)
		if err != nil {
			return nil, err
		}
		list = append(list, field{p.FormName(), string(value), p.FileName(), p.Header.Get("Content-Type")})
	}
}

// answers returns the documented answers of Mailgun, with times relative to now.
func answers() []providertest.Answer {
	var list []providertest.Answer
	add := func(name string, status int, body string, class models.Class, reason models.Reason) *providertest.Answer {
		list = append(list, providertest.Answer{
			Name:   name,
			Status: status,
			Body:   body,
			Three:  class,
			One:    class,
			Reason: reason,
		})
		return &list[len(list)-1]
	}
	says := func(text string) string { b, _ := json.Marshal(map[string]string{"message": text}); return string(b) }
	add("accepted", 200, acceptance, models.Accepted, "")
	add("accepted without id", 200, says("Queued. Thank you."), models.Accepted, "")
	add("magnificent", 200, "Mailgun Magnificent API", models.AccountClass, "")
	add("200 of another server", 200, "<html>Welcome</html>", models.Unknown, "")
	add("200 without a body", 200, "", models.Unknown, "")
	add("from missing", 400, says("from parameter is missing"), models.RejectedRequest, models.InvalidRequest)
	add("no content", 400, says("Need at least one of 'text' or 'html' parameters specified"), models.RejectedRequest,
		models.InvalidRequest)
	add("variables", 400, says("'recipient-variables' parameter is not a valid JSON"), models.RejectedRequest,
		models.InvalidRequest)
	add("from address", 400, says("from parameter is not a valid address. please check documentation"),
		models.RejectedRequest, models.InvalidRequest)
	for _, text := range []string{"to parameter is not a valid address. please check documentation",
		"'to' parameter is not a valid address. please check documentation"} {
		a := add("to address", 400, says(text), models.Split, "")
		a.One = models.RejectedRecipient
	}
	add("options", 400, says("Send options (parameters starting with o:, h:, or v:) are limited to 16 kB total"),
		models.RejectedHereClass, "")
	add("too many", 400, says("Too many recipients, max is 1000"), models.RejectedHereClass, "").Fewer = 2
	add("on probation", 400, says("Rejected: Only 1 recipients per request is allowed on probation."),
		models.RejectedHereClass, "").Fewer = 1
	add("on probation, more", 403, says("Rejected: Only 10 recipients per request is allowed on probation."),
		models.RejectedHereClass, "").Fewer = 2
	add("400 of a proxy", 400, "<html>Bad Request</html>", models.RejectedHereClass, "")
	add("not allowed", 400, says("Domain mg.sender.test is not allowed to send: Please activate your Mailgun account."),
		models.AccountClass, "")
	add("not allowed, named", 400,
		says("Domain mg.sender.test is not allowed to send: add a@b.test to authorized recipients"), models.AccountClass, "")
	add("key", 401, "Forbidden", models.AccountClass, "")
	add("payment", 402, says("Request failed"), models.AccountClass, "")
	add("large batch", 403, says("Domain mg.sender.test is not allowed to send large batches yet"),
		models.RejectedHereClass, "").Fewer = 2
	add("IP", 403, says("Rejected: IP 192.0.2.1 can't be used to send the message"), models.AccountClass, "")
	add("forbidden", 403, "", models.AccountClass, "")
	add("domain", 404, says("Domain not found: mg.sender.test"), models.AccountClass, "")
	add("not found", 404, "404 page not found", models.AccountClass, "")
	add("too large", 413, says("request size exceeds 52.4MiB limit"), models.RejectedHereClass, models.TooLarge)
	at := time.Now().Add(10 * time.Hour).UTC().Truncate(time.Second)
	a := add("rate", 429, says("Domain mg.sender.test is not allowed to send: recipient limit exceeded, try again after "+
		at.Format(time.RFC1123)), models.Throttled, "")
	a.RetryAt = at
	a = add("rate by header", 429, says("too many"), models.Throttled, "")
	a.Header, a.RetryIn = map[string]string{"Retry-After": "300"}, 5*time.Minute
	add("rate in the past", 429,
		says("is not allowed to send: limit exceeded, try again after Mon, 02 Jan 2006 15:04:05 UTC"), models.Throttled, "")
	full := "Domain mg.sender.test is not allowed to send: recipient limit exceeded"
	until := ", try again after " + at.Format(time.RFC1123)
	add("full until a time", 420, says(full+until), models.AccountClass, "").RetryAt = at
	add("full", 420, says(full), models.AccountClass, "")
	add("full, without words", 420, "", models.AccountClass, "")
	add("full for a month", 420, says(full+", try again after "+
		time.Now().Add(30*24*time.Hour).UTC().Format(time.RFC1123)), models.AccountClass, "").RetryIn = 24 * time.Hour
	add("not allowed until a time", 400, says(full+until), models.AccountClass, "").RetryAt = at
	add("payment until a time", 402, says("Request failed"+until), models.AccountClass, "").RetryAt = at
	a = add("an unknown refusal with a time", 425, "", models.Throttled, "")
	a.Header, a.RetryIn = map[string]string{"Retry-After": "300"}, 5*time.Minute
	add("an unknown refusal", 425, "", models.RejectedHereClass, "")
	add("internal", 500, says("Internal Server Error"), models.Unknown, "")
	add("bad gateway", 502, "<html>", models.Unknown, "")
	add("unavailable", 503, "<html>", models.Unavailable, "")
	a = add("unavailable for a while", 503, "<html>", models.Unavailable, "")
	a.Header, a.RetryIn = map[string]string{"Retry-After": "600"}, 10*time.Minute
	a = add("unavailable until a time", 503, says("Down for maintenance, try again after "+at.Format(time.RFC1123)),
		models.Unavailable, "")
	a.RetryAt = at
	a = add("time-out of the server for a while", 408, "", models.Unavailable, "")
	a.Header, a.RetryIn = map[string]string{"Retry-After": "120"}, 2*time.Minute
	add("unavailable for a year", 503, "<html>", models.Unavailable,
		"").Header = map[string]string{"Retry-After": "31536000"}
	add("bad gateway, with a time", 502, "<html>", models.Unknown, "").Header = map[string]string{"Retry-After": "600"}
	add("gateway time-out", 504, "", models.Unknown, "")
	return list
}
