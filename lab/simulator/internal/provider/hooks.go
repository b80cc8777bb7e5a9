package provider

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
)

// Hooks say how the events of a kind are collected, signed and repeated.
type Hooks struct {
	Batching
	// Sign returns body and header of the request that makes the post.
	Sign func(p Post) (body []byte, header http.Header, err error)
	// Resigns says that a repeated post has a time and a signature of its own.
	Resigns bool
	// Only200 says that another 2xx is no success.
	Only200 bool
	// Final is a status after which a post is not repeated.
	Final int
	// ClientErrorsEnd says that a post is not repeated after any 4xx.
	ClientErrorsEnd bool
	// OnlyAfter is the only status after which a post is repeated; 0 means that there are others. A post without an
	// answer is always repeated.
	OnlyAfter int
	// Gaps are the times after which a post is repeated, in simulated time.
	Gaps func(s *Stage) []time.Duration
	// For is how long the last gap goes on, from the event. 0 means that a post is repeated once after each gap.
	For time.Duration
}

// Batching is how events are collected into webhook requests.
type Batching struct {
	Single     bool          // each request has one event; otherwise a list of them
	Events     int           // the most events in a request
	Every      time.Duration // how long events are collected, simulated time; 0 = not at all
	Bytes      int           // the largest body; 0 = no limit
	EventBytes int           // the usual size of an event

	Open, Separator, Close string // frame the events in the body
}

// A Post is one webhook request to be signed.
type Post struct {
	Body   []byte         // the events in their frame
	Event  *message.Event // of the first event
	Copy   uint32         // index of the first copy
	Time   int64          // of the signature, Unix seconds
	Nonce  uint64         // differs between requests that are not repeats of each other
	Forged bool           // the signature must not fit
}

// URLs returns where an event of the stage is posted. It may be nowhere.
func (p *Provider) URLs(s *Stage) []string {
	if s.Hidden {
		return nil
	}
	return p.Webhooks.URLs(s.Kind)
}

// Acknowledged reports whether the status ends a post with success.
func (h *Hooks) Acknowledged(status int) bool {
	return status == http.StatusOK || !h.Only200 && status > 200 && status < 300
}

// Retry returns how long after a failed post the next one follows. Age is the time since the event. Both are simulated
// time. The status is 0 if there was no answer. Retry returns false if the post is not repeated.
func (h *Hooks) Retry(s *Stage, status, tries int, age time.Duration) (gap time.Duration, ok bool) {
	gaps := h.Gaps(s)
	ended := status == h.Final || h.ClientErrorsEnd && status/100 == 4 || h.OnlyAfter != 0 && status != h.OnlyAfter
	if status != 0 && ended || len(gaps) == 0 || h.For == 0 && tries > len(gaps) {
		return 0, false
	}
	gap = gaps[min(tries, len(gaps))-1]
	return gap, h.For == 0 || age+gap <= h.For
}

// Minutes returns gaps.
func Minutes(list ...time.Duration) []time.Duration {
	for i := range list {
		list[i] *= time.Minute
	}
	return list
}

// Token returns an id of a post, the same for its repeats.
func (a *Account) Token(p Post, digits int) string {
	e := p.Event
	return a.IDs.Hex(digits, ForToken, e.Batch.Serial, uint64(p.Copy), uint64(e.Outcome), uint64(e.Stage), p.Nonce)
}

// HMAC returns the HMAC-SHA256 of texts.
func (p Post) HMAC(key []byte, texts ...[]byte) []byte {
	mac := hmac.New(sha256.New, key)
	for _, text := range texts {
		mac.Write(text)
	}
	return p.Forge(mac.Sum(nil))
}

// Forge returns a signature, which it falsifies if it must not fit.
func (p Post) Forge(signature []byte) []byte {
	if p.Forged {
		signature[len(signature)-1] ^= 1
	}
	return signature
}

// Secret returns the post and its header, with a secret in place of a signature: user:password, a token, or none.
func (p Post) Secret(agent, secret string) ([]byte, http.Header, error) {
	header := http.Header{"User-Agent": {agent}}
	if p.Forged {
		secret += "x"
	}
	switch {
	case strings.Contains(secret, ":"):
		header.Set("Authorization", Basic(secret))
	case secret != "":
		header.Set("Authorization", "Bearer "+secret)
	}
	return p.Body, header, nil
}

// ECDSA returns the ECDSA P-256 private key of the text: PEM, or base64 of PKCS#8 or SEC 1. It generates one if the
// text is empty. private and public are base64 of PKCS#8 and of a SubjectPublicKeyInfo.
func ECDSA(text string) (key *ecdsa.PrivateKey, private, public string, err error) {
	if text == "" {
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	} else {
		key, err = parseECDSA(text)
	}
	if err != nil {
		return nil, "", "", err
	}
	der, err1 := x509.MarshalPKCS8PrivateKey(key)
	pub, err2 := x509.MarshalPKIXPublicKey(&key.PublicKey)
	return key, base64.StdEncoding.EncodeToString(der), base64.StdEncoding.EncodeToString(pub), errors.Join(err1, err2)
}

func parseECDSA(text string) (*ecdsa.PrivateKey, error) {
	der, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
	if block, _ := pem.Decode([]byte(text)); block != nil {
		der, err = block.Bytes, nil
	}
	if err != nil {
		return nil, errors.New("neither PEM nor base64")
	}
	key, err := x509.ParseECPrivateKey(der)
	if err != nil {
		other, err := x509.ParsePKCS8PrivateKey(der)
		if err != nil {
			return nil, err
		}
		var ok bool
		if key, ok = other.(*ecdsa.PrivateKey); !ok {
			return nil, fmt.Errorf("want an ECDSA key, have %T", other)
		}
	}
	if key.Curve != elliptic.P256() {
		return nil, errors.New("want curve P-256")
	}
	return key, nil
}
