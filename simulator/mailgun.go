package simulator

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// mailgun is an account at Mailgun with one sending domain: messages, events and
// webhooks of the v3 API.
type mailgun struct {
	a          *account
	domain     string
	signingKey string
}

const (
	mgMaxBody = 54_945_382 // 52.4 MiB
	mgJSON    = "application/json"
	mgText    = "text/plain; charset=utf-8"
	mgHTML    = "text/html"
)

func newMailgun(a *account, c Account) (provider, error) {
	if c.Domain == "" || strings.ContainsAny(c.Domain, "/ ") {
		return nil, fmt.Errorf("domain %q: want a host name", c.Domain)
	}
	if c.SigningKey == "" {
		if c.WebhookURL != "" {
			return nil, errors.New("signing key is empty, webhooks cannot be signed")
		}
		// The vendor has a key for every account, shown or not.
		c.SigningKey = a.s.randomHex(32, saltToken, a.salt)
	}
	return &mailgun{a: a, domain: strings.ToLower(c.Domain), signingKey: c.SigningKey}, nil
}

func (g *mailgun) describe(c *Account)      { c.Domain, c.SigningKey = g.domain, g.signingKey }
func (g *mailgun) publicKey() string        { return "" }
func (g *mailgun) looksUp() bool            { return true }
func (g *mailgun) reserved(string) bool     { return false }
func (g *mailgun) stages(o outcome) []stage { return mailgunStages[o] }

// id returns the message id with angle brackets, as the API answers it. Events
// carry it without.
func (g *mailgun) id(m *mailing) string { return "<" + g.messageID(m) + ">" }

func (g *mailgun) messageID(m *mailing) string {
	return m.accepted().UTC().Format("20060102150405") + "." + strconv.FormatUint(m.serial, 10) + "." +
		strings.ToUpper(g.a.s.randomHex(16, saltMessage, g.a.salt, m.serial)) + "@" + g.domain
}

func (g *mailgun) authorized(r *http.Request) bool {
	user, key, ok := r.BasicAuth()
	return ok && user == "api" && key == g.a.key
}

func mgMessage(status int, format string, args ...any) answer {
	body := appendQuoted([]byte(`{"message":`), fmt.Sprintf(format, args...))
	return answer{status: status, kind: mgJSON, body: string(append(body, '}'))}
}

var (
	mgForbidden   = answer{status: 401, kind: mgText, body: "Forbidden"}
	mgMagnificent = answer{status: 200, kind: mgText, body: "Mailgun Magnificent API"}
	mgNotFound    = answer{status: 404, kind: mgText, body: "404 page not found\n"}
	mgBodyLimit   = mgMessage(413, "request size exceeds 52.4MiB limit")
)

func mgDress(h http.Header) { h.Set("Server", "openresty") }

func (g *mailgun) serve(w http.ResponseWriter, r *http.Request, path []string) {
	if len(path) < 2 || path[0] != "v3" {
		g.reply(w, mgNotFound)
		return
	}
	path = path[1:]
	last := path[len(path)-1]
	switch {
	case r.Method == http.MethodPost && len(path) == 2 && (last == "messages" || last == "messages.mime"):
		g.a.exchange(w, r, g.vendor(path[0], last == "messages.mime"))
	case r.Method == http.MethodPost && last == "messages":
		// A slash within the domain leads to another service of the vendor.
		g.reply(w, mgMagnificent)
	case !g.authorized(r):
		g.reply(w, mgForbidden)
	case path[0] == "domains" && !strings.EqualFold(path[1], g.domain):
		g.reply(w, mgMessage(404, "Domain not found: %s", path[1]))
	case path[0] == "domains" && len(path) == 2 && r.Method == http.MethodGet:
		g.reply(w, answer{status: 200, kind: mgJSON, body: fmt.Sprintf(
			`{"domain":{"name":%q,"state":"active","type":"custom","created_at":"Thu, 01 Jan 2026 00:00:00 GMT"},"receiving_dns_records":[],"sending_dns_records":[]}`, g.domain)})
	case path[0] == "domains" && len(path) <= 4 && path[2] == "webhooks":
		g.serveWebhooks(w, r, path[3:])
	case r.Method == http.MethodGet && path[1] == "events" && len(path) <= 3:
		if !strings.EqualFold(path[0], g.domain) {
			g.reply(w, mgMessage(404, "Domain not found: %s", path[0]))
			return
		}
		g.serveEvents(w, r, path[2:])
	default:
		g.reply(w, mgNotFound)
	}
}

func (g *mailgun) reply(w http.ResponseWriter, ans answer) {
	mgDress(w.Header())
	ans.write(w)
}

func (g *mailgun) vendor(domain string, raw bool) *vendor {
	return &vendor{
		limit:        mgMaxBody,
		authorized:   g.authorized,
		unauthorized: mgForbidden,
		tooLarge:     mgBodyLimit,
		dress:        mgDress,
		parse: func(r *http.Request, body []byte) (letter, *answer) {
			l, problem := mgParse(r, body, raw)
			if !strings.EqualFold(domain, g.domain) {
				ans := mgMessage(404, "Domain not found: %s", domain)
				problem = &ans
			}
			return l, problem
		},
	}
}

func (g *mailgun) accepted(m *mailing) answer {
	body := appendQuoted([]byte(`{"id":`), g.id(m))
	return answer{status: 200, kind: mgJSON, body: string(append(body, `,"message":"Queued. Thank you."}`...))}
}

// mgBodies are the bodies that Mailgun has for a status.
var mgBodies = map[int]answer{
	200: mgMagnificent,
	400: mgMessage(400, "Bad Request"),
	401: mgForbidden,
	402: mgMessage(402, "Request Failed"),
	403: mgMessage(403, "Forbidden"),
	404: mgNotFound,
	413: mgBodyLimit,
	500: mgMessage(500, "Internal Server Error"),
	502: {status: 502, kind: mgHTML, body: "<html><head><title>502 Bad Gateway</title></head><body><h1>502 Bad Gateway</h1></body></html>"},
	503: {status: 503, kind: mgHTML, body: "<html><head><title>503 Service Temporarily Unavailable</title></head><body><h1>503 Service Temporarily Unavailable</h1></body></html>"},
	504: {status: 504, kind: mgHTML},
}

func (g *mailgun) answer(f *fault) answer {
	ans := mgBodies[f.Status]
	switch f.Mode {
	case ModeStatus:
		if f.Status == 429 {
			ans = g.limited(f)
		} else if _, ok := mgBodies[f.Status]; !ok {
			ans = mgMessage(f.Status, "%s", http.StatusText(f.Status))
		}
	case ModeRate:
		ans = g.limited(f)
	case ModeCredits:
		ans = mgMessage(402, "Payment Required")
	case ModeUnverified:
		ans = mgMessage(400, "Domain %s is not allowed to send: The domain is unverified and requires DNS configuration. Log in to your control panel to view required DNS records.", g.domain)
	case ModeNotAllowed:
		ans = mgMessage(400, "Domain %s is not allowed to send: Please activate your Mailgun account. Check your inbox or log in to your control panel to resend the activation email.", g.domain)
	case ModeBlocked:
		ans = mgMessage(403, "Rejected: IP 203.0.113.25 can't be used to send the message")
	case ModeLargeBatch:
		ans = mgMessage(403, "Domain %s is not allowed to send large batches yet", g.domain)
	case ModeTooLarge:
		ans = mgBodyLimit
	case ModeGarbage:
		ans = mgMagnificent
	}
	return ans.adapt(f, nil)
}

// limited names the time of the next try in the text, to the second, rounded up.
func (g *mailgun) limited(f *fault) answer {
	wait := f.RetryAfter
	if wait == 0 {
		wait = g.a.s.scaled(time.Minute)
	}
	at := time.Now().Add(wait + time.Second - 1).UTC().Truncate(time.Second)
	return mgMessage(429, "Domain %s is not allowed to send: request limit exceeded, try again after %s", g.domain, at.Format(time.RFC1123))
}
