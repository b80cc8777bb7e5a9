// Package sns verifies webhooks that come through Amazon SNS: their topic, their signature and its certificate.
package sns

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
	"github.com/safedelivr/safedelivr/providers/internal/settings"
)

// The statuses of refusals. SNS repeats a post after 503, and never after 4xx.
const (
	final = http.StatusForbidden
	again = http.StatusServiceUnavailable
)

// confirmation is the type of a post that asks whether a subscription is wanted.
const confirmation = "SubscriptionConfirmation"

// signed are the members of a post that its signature covers, by its type. A post of any other type is refused: its
// type could be the end of a text that Amazon has signed for another topic.
var signed = map[string][]string{
	"Notification":            {"Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"},
	confirmation:              {"Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"},
	"UnsubscribeConfirmation": {"Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"},
}

// algorithms are those of the versions of signatures.
var algorithms = map[string]x509.SignatureAlgorithm{"1": x509.SHA1WithRSA, "2": x509.SHA256WithRSA}

// A Post is what SNS posts. Its signature covers the values of some members, and not the text of the JSON.
type Post struct {
	Type, MessageID, TopicArn, Message, Timestamp string
	SignatureVersion, Signature, SigningCertURL   string
	Token, SubscribeURL                           string
	Subject                                       *string
}

// Header verifies what the header of a post shows. Anyone can subscribe our URL to a topic of his own, which Amazon
// signs as well, so that only known topics count.
func Header(topics []string, w *models.Webhook) error {
	switch {
	case strings.EqualFold(w.Header.Get("X-Amz-Sns-Rawdelivery"), "true"):
		return kind.Refuse(final, "bad_signature", "raw message delivery is on, which leaves out the signature; turn it off")
	case !slices.Contains(topics, w.Header.Get("X-Amz-Sns-Topic-Arn")):
		return kind.Refuse(final, "bad_signature", "the post is not from one of the topics of this provider")
	}
	return nil
}

// Verify verifies a post whose header was verified. It confirms a subscription.
func (t *Verifier) Verify(ctx context.Context, w *models.Webhook) (v models.Verified, err error) {
	var post Post
	algorithm := x509.UnknownSignatureAlgorithm
	if json.Unmarshal(w.Body, &post) == nil {
		algorithm = algorithms[post.SignatureVersion]
	}
	signature, wrong := base64.StdEncoding.Strict().DecodeString(post.Signature)
	for name, value := range map[string]string{"Topic-Arn": post.TopicArn, "Message-Id": post.MessageID,
		"Message-Type": post.Type} {
		if said := w.Header.Get("X-Amz-Sns-" + name); said != "" && said != value {
			return v, kind.Refuse(final, "bad_signature", "header and body name another topic, message or type")
		}
	}
	if algorithm == x509.UnknownSignatureAlgorithm || wrong != nil || signed[post.Type] == nil ||
		!messageID.MatchString(post.MessageID) {
		return v, kind.Refuse(final, "bad_signature", "the post is not signed, or in a way that is not known")
	}
	cert, err := t.certificate(ctx, post.SigningCertURL, w.At)
	switch {
	case errors.Is(err, errNotAmazon):
		return v, kind.Refuse(final, "bad_signature", err.Error())
	case err != nil:
		return v, kind.Refuse(again, "bad_signature", err.Error())
	case cert.CheckSignature(algorithm, post.text(), signature) != nil:
		return v, kind.Refuse(final, "bad_signature", "the signature does not fit")
	}
	at, _ := parse.Time(parse.Str(post.Timestamp)) // the zero time is too old
	if parse.Fresh(strconv.FormatInt(at.Unix(), 10), w.At) != nil {
		return v, kind.Refuse(again, "stale", "the post is too old, or the clock of this machine is wrong")
	}
	if post.Type == confirmation {
		if err := t.confirm(ctx, &post); err != nil {
			return v, kind.Refuse(again, "malformed", err.Error())
		}
		return models.Verified{Status: http.StatusOK, ContentType: "text/plain", Answer: []byte("confirmed\n")}, nil
	}
	return models.Verified{Replay: post.MessageID}, nil
}

// text returns what is signed: names and values, a line each.
func (e *Post) text() []byte {
	values := map[string]string{"Message": e.Message, "MessageId": e.MessageID, "SubscribeURL": e.SubscribeURL,
		"Timestamp": e.Timestamp, "Token": e.Token, "TopicArn": e.TopicArn, "Type": e.Type}
	var b []byte
	for _, name := range signed[e.Type] {
		value := values[name]
		if name == "Subject" {
			if e.Subject == nil {
				continue
			}
			value = *e.Subject
		}
		b = append(append(append(append(b, name...), '\n'), value...), '\n')
	}
	return b
}

// The bounds of the calls to Amazon that a post may cause, which may be a stranger's.
const (
	callsPerMinute = 10
	callTime       = 5 * time.Second
	maxAnswer      = 16 << 10
	maxKept        = 16 // certificates
)

var (
	// amazonHost has the name of a region: sns.s3-eu-west-1 would be the bucket of a stranger.
	amazonHost = regexp.MustCompile(`^sns\.[a-z]{2,4}(-[a-z]+)+-[0-9]{1,2}\.amazonaws\.com(\.cn)?$`)
	messageID  = regexp.MustCompile(`^[A-Za-z0-9-]{1,64}$`) // on one line: its end is signed as a line break
	certPath   = regexp.MustCompile(`^/SimpleNotificationService-[0-9a-f]+\.pem$`)

	errNotAmazon = errors.New("the certificate is not one of Amazon SNS")
)

// A Verifier verifies the posts of a provider. It keeps the certificates that signed them.
type Verifier struct {
	Client *http.Client   // of calls to Amazon SNS
	Roots  *x509.CertPool // nil: those of the system
	stand  bool           // a stand-in for Amazon on this machine signs with a certificate of its own

	kept *lru.Cache[string, *x509.Certificate] // by URL

	mu     sync.Mutex // of a call
	minute time.Time  // in which calls are counted
	calls  int
}

// New returns the verifier of a provider whose API is at root. If that is on this machine, it is a stand-in for all of
// Amazon: what Amazon SNS would answer is then asked of it.
func New(root string) *Verifier {
	kept, _ := lru.New[string, *x509.Certificate](maxKept) // it fails only for sizes below 1
	t := &Verifier{kept: kept, Client: &http.Client{
		Timeout:       callTime,
		Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	if u, err := url.Parse(root); err == nil && settings.Loopback(u.Hostname()) {
		t.stand, t.Client.Transport = true, &standIn{u, t.Client.Transport}
	}
	return t
}

// A standIn sends requests for Amazon SNS to a stand-in on this machine.
type standIn struct {
	root *url.URL
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (s *standIn) RoundTrip(req *http.Request) (*http.Response, error) {
	r := req.Clone(req.Context())
	r.Host = r.URL.Host // the header still names Amazon SNS
	r.URL.Scheme, r.URL.Host, r.URL.Path = s.root.Scheme, s.root.Host, s.root.Path+r.URL.Path
	return s.next.RoundTrip(r)
}

// certificate returns the certificate at a URL, which must be one of Amazon SNS. Errors: errNotAmazon; all others may
// pass.
func (t *Verifier) certificate(ctx context.Context, text string, now time.Time) (*x509.Certificate, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" || u.User != nil || !amazonHost.MatchString(u.Host) ||
		!certPath.MatchString(u.EscapedPath()) || u.String() != "https://"+u.Host+u.Path {
		return nil, errNotAmazon
	}
	if cert, ok := t.kept.Get(text); ok && now.Before(cert.NotAfter) {
		return cert, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if cert, ok := t.kept.Get(text); ok && now.Before(cert.NotAfter) {
		return cert, nil // by another post
	}
	raw, err := t.get(ctx, text)
	if err != nil {
		return nil, fmt.Errorf("the certificate of Amazon SNS cannot be read: %w", err)
	}
	cert, err := t.trusted(raw, now)
	if err != nil {
		return nil, fmt.Errorf("the certificate of Amazon SNS is not valid: %w", err)
	}
	t.kept.Add(text, cert)
	return cert, nil
}

// trusted returns the first certificate of a PEM file, if it is valid and the others lead from it to a root. A file may
// have only that one: then it is trusted because it came from Amazon by HTTPS.
func (t *Verifier) trusted(raw []byte, now time.Time) (cert *x509.Certificate, err error) {
	others := x509.NewCertPool()
	n := 0
	for block, rest := pem.Decode(raw); block != nil; block, rest = pem.Decode(rest) {
		one, err := x509.ParseCertificate(block.Bytes)
		switch {
		case err != nil:
			return nil, err
		case cert == nil:
			cert = one
		default:
			others.AddCert(one)
		}
		n++
	}
	switch {
	case cert == nil:
		return nil, errors.New("it is no PEM file")
	case now.Before(cert.NotBefore) || now.After(cert.NotAfter):
		return nil, errors.New("it is not valid now")
	case t.stand || n == 1:
		return cert, nil
	}
	_, err = cert.Verify(x509.VerifyOptions{Roots: t.Roots, Intermediates: others, CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	return cert, err
}

// confirm confirms a subscription that Amazon has signed.
func (t *Verifier) confirm(ctx context.Context, post *Post) error {
	u, err := url.Parse(post.SubscribeURL)
	if err != nil || u.Scheme != "https" || u.User != nil || !amazonHost.MatchString(u.Host) ||
		strings.Trim(u.Path, "/") != "" || u.Query().Get("Action") != "ConfirmSubscription" ||
		u.Query().Get("TopicArn") != post.TopicArn {
		return errors.New("the URL for the confirmation of the subscription is not one of Amazon SNS")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, err := t.get(ctx, u.String()); err != nil {
		return fmt.Errorf("the subscription could not be confirmed: %w", err)
	}
	return nil
}

// get returns the answer of Amazon SNS, if that is 200 and not too many were asked for.
func (t *Verifier) get(ctx context.Context, url string) ([]byte, error) {
	if now := time.Now(); now.Sub(t.minute) > time.Minute {
		t.minute, t.calls = now, 0
	}
	if t.calls++; t.calls > callsPerMinute {
		return nil, errors.New("too many calls within a minute")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := t.Client.Do(req)
	if err != nil {
		return nil, errors.New("it cannot be reached")
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("answered %d", resp.StatusCode)
	case err == nil && len(raw) > maxAnswer:
		err = errors.New("the answer is too long")
	}
	return raw, err
}
