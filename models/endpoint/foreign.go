package endpoint

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/safedelivr/safedelivr/client"
)

// sendGridPrefix begins the names of the header fields of SendGrid's signatures.
const sendGridPrefix = "X-Twilio-Email-Event-Webhook-"

// mailgunBody returns the body of an attempt to post an event of Mailgun. Its signature is about the token and the time.
// The key is the text of the secret.
func (e *Endpoint) mailgunBody(at time.Time, event []byte) []byte {
	body := struct {
		Signature map[string]string `json:"signature,omitempty"`
		Event     json.RawMessage   `json:"event-data"`
	}{Event: event}
	if len(e.Secrets) > 0 && e.Secrets[0].Signature == client.SignatureHMAC {
		random := make([]byte, 25)
		_, _ = rand.Read(random) // it never fails
		stamp, token := strconv.FormatInt(at.Unix(), 10), hex.EncodeToString(random)
		mac := hmac.New(sha256.New, []byte(e.Secrets[0].String()))
		_, _ = mac.Write([]byte(stamp + token)) // a hash never fails
		body.Signature = map[string]string{
			"token": token, "timestamp": stamp, "signature": hex.EncodeToString(mac.Sum(nil)),
		}
	}
	raw, _ := json.Marshal(body) // it is texts, and JSON already
	return raw
}

// keyP256 returns the private key of the curve P-256 that belongs to the secret. It is the first output of HKDF-SHA256
// that is a number below the order of the curve. Nearly every one is.
func (s *Secret) keyP256() *ecdsa.PrivateKey {
	for n := 0; ; n++ {
		raw, err := hkdf.Key(sha256.New, s.Key, nil, fmt.Sprintf("safedelivr endpoint P-256 %d", n), 32)
		if err != nil {
			panic(err) // 32 bytes are never too many
		}
		if key, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), raw); err == nil {
			return key
		}
	}
}

// publicP256 returns the public key of the curve P-256 as receivers of SendGrid know it: in base64.
func (s *Secret) publicP256() string {
	raw, _ := x509.MarshalPKIXPublicKey(&s.keyP256().PublicKey) // it knows this curve
	return base64.StdEncoding.EncodeToString(raw)
}

// signP256 returns the signature of a content by ECDSA with SHA-256, in base64.
func (s *Secret) signP256(content []byte) string {
	sum := sha256.Sum256(content)
	raw, _ := ecdsa.SignASN1(rand.Reader, s.keyP256(), sum[:]) // it never fails with this key
	return base64.StdEncoding.EncodeToString(raw)
}
