package simulator

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// sendgrid is an account at SendGrid: POST /v3/mail/send, and the settings of
// its event webhook.
type sendgrid struct {
	a       *account
	vendor  vendor
	sign    *ecdsa.PrivateKey
	private string // base64 PKCS#8
	public  string // base64 SubjectPublicKeyInfo
	number  string // of the account, within event ids
}

const (
	sgMaxBody = 30 << 20
	sgJSON    = "application/json"
	sgText    = "text/plain; charset=utf-8"
)

func newSendgrid(a *account, c Account) (provider, error) {
	g := &sendgrid{a: a, number: strconv.FormatUint(10_000_000+a.salt%90_000_000, 10)}
	var err error
	if c.SigningKey == "" {
		g.sign, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	} else {
		g.sign, err = parseKey(c.SigningKey)
	}
	if err != nil {
		return nil, fmt.Errorf("signing key: %w", err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(g.sign)
	if err != nil {
		return nil, fmt.Errorf("signing key: %w", err)
	}
	public, err := x509.MarshalPKIXPublicKey(&g.sign.PublicKey)
	if err != nil {
		return nil, fmt.Errorf("signing key: %w", err)
	}
	g.private = base64.StdEncoding.EncodeToString(private)
	g.public = base64.StdEncoding.EncodeToString(public)
	g.vendor = vendor{
		limit: sgMaxBody, gzip: true,
		authorized:   g.authorized,
		unauthorized: sgErrors(401, sgError{message: sgBadKey}),
		tooLarge:     sgErrors(413, sgError{message: "The request body exceeds 30 MB"}),
		dryAnswer:    answer{status: 200, kind: sgText},
		parse:        g.parse,
		dress: func(h http.Header) {
			h.Set("Server", "nginx")
			h.Set("Connection", "keep-alive")
			h.Set("X-Frame-Options", "DENY")
		},
	}
	return g, nil
}

// parseKey reads an ECDSA P-256 private key: PEM, or base64 of PKCS#8 or SEC 1.
func parseKey(text string) (*ecdsa.PrivateKey, error) {
	var der []byte
	if block, _ := pem.Decode([]byte(text)); block != nil {
		der = block.Bytes
	} else {
		var err error
		if der, err = base64.StdEncoding.DecodeString(strings.TrimSpace(text)); err != nil {
			return nil, errors.New("neither PEM nor base64")
		}
	}
	key, err := x509.ParseECPrivateKey(der)
	if err != nil {
		any, err := x509.ParsePKCS8PrivateKey(der)
		if err != nil {
			return nil, err
		}
		var ok bool
		if key, ok = any.(*ecdsa.PrivateKey); !ok {
			return nil, fmt.Errorf("want an ECDSA key, have %T", any)
		}
	}
	if key.Curve != elliptic.P256() {
		return nil, errors.New("want curve P-256")
	}
	return key, nil
}

func (g *sendgrid) describe(c *Account)      { c.SigningKey = g.private }
func (g *sendgrid) publicKey() string        { return g.public }
func (g *sendgrid) id(m *mailing) string     { return g.a.s.randomID(saltMessage, g.a.salt, m.serial) }
func (g *sendgrid) looksUp() bool            { return false }
func (g *sendgrid) stages(o outcome) []stage { return sendgridStages[o] }

func (g *sendgrid) authorized(r *http.Request) bool {
	return r.Header.Get("Authorization") == "Bearer "+g.a.key
}

func (g *sendgrid) serve(w http.ResponseWriter, r *http.Request, path []string) {
	route := strings.Join(path, "/")
	want := http.MethodGet
	if route == "v3/mail/send" {
		want = http.MethodPost
	}
	body := ""
	switch route {
	case "v3/mail/send":
		if r.Method == want {
			g.a.exchange(w, r, &g.vendor)
			return
		}
	case "v3/user/webhooks/event/settings/signed":
		body = fmt.Sprintf(`{"public_key":%q}`, g.public)
	case "v3/user/webhooks/event/settings":
		url := g.a.hookURL()
		body = fmt.Sprintf(`{"enabled":%t,"url":%q,"processed":true,"delivered":true,"deferred":true,"bounce":true,"dropped":true,"open":true,"click":true,"spam_report":true,"unsubscribe":true,"group_unsubscribe":true,"group_resubscribe":true}`, url != "", url)
	case "v3/scopes":
		body = `{"scopes":["mail.send","user.webhooks.event.settings.read"]}`
	}
	g.vendor.dress(w.Header())
	switch {
	case body == "" && want == http.MethodGet:
		sgErrors(404, sgError{message: "not found"}).write(w)
	case r.Method != want:
		sgErrors(405, sgError{message: "POST method allowed only"}).write(w)
	case !g.authorized(r):
		g.vendor.unauthorized.write(w)
	default:
		answer{status: 200, kind: sgJSON, body: body}.write(w)
	}
}

func (g *sendgrid) accepted(m *mailing) answer {
	return answer{status: 202, kind: sgText, header: map[string]string{"X-Message-Id": g.id(m)}}
}

// A sgError is one entry of SendGrid's list of errors. Empty field and help are
// null.
type sgError struct{ message, field, help string }

func sgErrors(status int, list ...sgError) answer {
	body := []byte(`{"errors":[`)
	for i, e := range list {
		if i > 0 {
			body = append(body, ',')
		}
		body = appendQuoted(append(body, `{"message":`...), e.message)
		for _, member := range []struct{ name, value string }{{"field", e.field}, {"help", e.help}} {
			if member.value == "" {
				body = append(body, `,"`+member.name+`":null`...)
			} else {
				body = appendField(body, member.name, member.value)
			}
		}
		body = append(body, '}')
	}
	return answer{status: status, kind: sgJSON, body: string(append(body, ']', '}'))}
}

const (
	sgBadKey   = "The provided authorization grant is invalid, expired, or revoked"
	sgIdentity = "The from address does not match a verified Sender Identity. Mail cannot be sent until this error is resolved. Visit https://sendgrid.com/docs/for-developers/sending-email/sender-identity/ to see the Sender Identity requirements"
)

// sgModes are SendGrid's answers to the modes that stand for a state of the
// account or a limit.
var sgModes = map[string]answer{
	ModeCredits:    sgErrors(401, sgError{message: "Maximum credits exceeded"}),
	ModeUnverified: sgErrors(403, sgError{message: sgIdentity, field: "from", help: "http://sendgrid.com/docs/API_Reference/Web_API_v3/Mail/errors.html#message.from"}),
	ModeBlocked:    sgErrors(403, sgError{message: "access forbidden"}),
	ModeNotAllowed: sgErrors(401, sgError{message: "Authenticated user is not authorized to send mail"}),
	ModeLargeBatch: sgErrors(403, sgError{message: "access forbidden"}),
	ModeTooLarge:   sgErrors(413, sgError{message: "The request body exceeds 30 MB"}),
	ModeGarbage:    {status: 200, kind: "text/html", body: "<html><body>It works!</body></html>"},
}

// sgBodies are the bodies that SendGrid has for a status.
var sgBodies = map[int]answer{
	202: {status: 202, kind: sgText},
	400: sgErrors(400, sgError{message: "Bad Request"}),
	401: sgErrors(401, sgError{message: sgBadKey}),
	403: sgErrors(403, sgError{message: "access forbidden"}),
	404: sgErrors(404, sgError{message: "not found"}),
	405: sgErrors(405, sgError{message: "POST method allowed only"}),
	406: sgErrors(406, sgError{message: "Missing Accept header"}),
	413: sgErrors(413, sgError{message: "The request body exceeds 30 MB"}),
	415: sgErrors(415, sgError{message: "Content-Type should be application/json."}),
	429: {status: 429, kind: sgJSON, body: `{"errors":[{"field":null,"message":"too many requests"}]}`},
	451: sgErrors(451, sgError{message: "unavailable for legal reasons"}),
	500: {status: 500, kind: sgJSON, body: `{"errors":[{"message":"Internal Server Error"}]}`},
	502: {status: 502, kind: "text/html", body: "<html><head><title>502 Bad Gateway</title></head><body><h1>502 Bad Gateway</h1></body></html>"},
	503: {status: 503, kind: sgText, body: "Service Unavailable"},
	504: {status: 504, kind: "text/html", body: "<html><head><title>504 Gateway Time-out</title></head><body><h1>504 Gateway Time-out</h1></body></html>"},
}

func (g *sendgrid) answer(f *fault) answer {
	ans := sgModes[f.Mode]
	var header map[string]string
	if f.Mode == ModeRate {
		ans = sgBodies[429]
		if f.RetryAfter > 0 {
			header = map[string]string{
				"X-RateLimit-Limit": "600", "X-RateLimit-Remaining": "0",
				"X-RateLimit-Reset": strconv.FormatInt(time.Now().Add(f.RetryAfter).Unix(), 10),
			}
		}
	}
	if f.Mode == ModeStatus {
		var ok bool
		if ans, ok = sgBodies[f.Status]; !ok {
			ans = answer{status: f.Status, kind: sgText, body: http.StatusText(f.Status)}
		}
	}
	return ans.adapt(f, header)
}

// adapt lets the fault override body and headers.
func (ans answer) adapt(f *fault, header map[string]string) answer {
	if f.Body != "" {
		ans.body = f.Body
	}
	ans.header = header
	for name, value := range f.Header {
		if ans.header == nil {
			ans.header = map[string]string{}
		}
		ans.header[name] = value
	}
	return ans
}
