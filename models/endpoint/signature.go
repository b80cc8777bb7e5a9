package endpoint

import (
	"bytes"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/client"
)

// Secret is a key with which posts are signed.
type Secret struct {
	Key       []byte    `json:"key"`            // of Ed25519: the seed of the private key
	Signature string    `json:"signature"`      // client.SignatureHMAC or client.SignatureEd25519
	Until     time.Time `json:"until,omitzero"` // zero: for ever
}

// NewSecret returns a secret for a signature.
func NewSecret(signature string) Secret {
	size := 24
	if signature == client.SignatureEd25519 {
		size = ed25519.SeedSize
	}
	key := make([]byte, size)
	_, _ = rand.Read(key) // it never fails
	return Secret{Key: key, Signature: signature}
}

// String returns the secret of HMAC as receivers know it, or "".
func (s *Secret) String() string {
	if s.Signature == client.SignatureEd25519 {
		return ""
	}
	return "whsec_" + base64.StdEncoding.EncodeToString(s.Key)
}

// Public returns the public key of Ed25519 as receivers know it, or "".
func (s *Secret) Public() string {
	if s.Signature != client.SignatureEd25519 {
		return ""
	}
	public, _ := ed25519.NewKeyFromSeed(s.Key).Public().(ed25519.PublicKey)
	return "whpk_" + base64.StdEncoding.EncodeToString(public)
}

// sign returns the signature of a content, with its name.
func (s *Secret) sign(content []byte) string {
	if s.Signature == client.SignatureEd25519 {
		sum := ed25519.Sign(ed25519.NewKeyFromSeed(s.Key), content)
		return client.SignatureEd25519 + "," + base64.StdEncoding.EncodeToString(sum)
	}
	mac := hmac.New(sha256.New, s.Key)
	_, _ = mac.Write(content) // a hash never fails
	return client.SignatureHMAC + "," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// Keys returns how posts are signed, and what receivers verify them with: the newest secret, or the public key of a
// private one. All are empty if nothing is signed.
func (e *Endpoint) Keys() (signature, secret, public string) {
	s := &e.Secrets[0]
	switch {
	case e.Format != "" || e.Shape == client.ShapePostmark:
		return "", "", ""
	case e.Shape == client.ShapeSendGrid:
		return "", "", s.publicP256()
	}
	return s.Signature, s.String(), s.Public()
}

// Request returns the header fields and the body of an attempt to make a post with an ID. Each attempt at a post in the
// shape of Mailgun has a token of its own.
func (e *Endpoint) Request(id string, at time.Time, content []byte) (http.Header, []byte) {
	switch {
	case e.Shape == client.ShapeMailgun:
		content = e.mailgunBody(at, content)
	case e.Shape == client.ShapeSendGrid && !bytes.HasPrefix(content, []byte("[")):
		content = slices.Concat([]byte("["), content, []byte("]"))
	}
	return e.Header(id, at, content), content
}

// Header returns the header fields of a post with an ID: its own, and those that its shape has, like the ones of
// Standard Webhooks. An endpoint without secrets signs nothing.
func (e *Endpoint) Header(id string, at time.Time, body []byte) http.Header {
	h := http.Header{}
	for name, value := range e.Headers {
		h.Set(name, value)
	}
	h.Set("Content-Type", "application/json")
	h.Set("User-Agent", "Safedelivr")
	stamp, prefix := strconv.FormatInt(at.Unix(), 10), "webhook"
	switch {
	case e.Format == client.FormatSlack || e.Shape == client.ShapeMailgun || e.Shape == client.ShapePostmark:
		return h
	case e.Shape == client.ShapeSendGrid:
		h.Set(sendGridPrefix+"Timestamp", stamp)
		if len(e.Secrets) > 0 {
			h.Set(sendGridPrefix+"Signature", e.Secrets[0].signP256(append([]byte(stamp), body...)))
		}
		return h
	case e.Shape == client.ShapeResend:
		prefix = "svix"
	}
	content := append(fmt.Appendf(make([]byte, 0, len(body)+100), "%s.%s.", id, stamp), body...)
	var signatures []string
	for i := range e.Secrets {
		if s := &e.Secrets[i]; s.Until.IsZero() || at.Before(s.Until) {
			signatures = append(signatures, s.sign(content))
		}
	}
	h.Set(prefix+"-id", id)
	h.Set(prefix+"-timestamp", stamp)
	if len(signatures) > 0 {
		h.Set(prefix+"-signature", strings.Join(signatures, " "))
	}
	return h
}

// Rotate gives the endpoint a new secret. Posts are signed with the newest of the others, too, until a time.
func (e *Endpoint) Rotate(s Secret, until time.Time) {
	old := e.Secrets[0]
	old.Until = until.UTC()
	e.Secrets = []Secret{s, old}
}
