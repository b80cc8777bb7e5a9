package sendgrid

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
)

// The headers of a signed post.
const (
	signatureHeader = "X-Twilio-Email-Event-Webhook-Signature"
	timestampHeader = "X-Twilio-Email-Event-Webhook-Timestamp"
)

// verifyHeader refuses posts without a fresh timestamp and a signature.
func verifyHeader(_ []*ecdsa.PublicKey, w *models.Webhook) error {
	signature, timestamp := w.Header.Get(signatureHeader), w.Header.Get(timestampHeader)
	if signature == "" || timestamp == "" || len(signature) > 128 { // of P-256 it has at most 96 bytes
		return kind.Forged("the post has no signature, or too long a one")
	}
	if _, err := base64.StdEncoding.Strict().DecodeString(signature); err != nil {
		return kind.Forged("the signature is not base64")
	}
	return parse.Fresh(timestamp, w.At)
}

// verify checks ECDSA P-256 with SHA-256 over the timestamp and the body.
//
// There is no separator between the two, so digits could be moved from one to the other.
// Therefore the timestamp must have ten digits and the body must begin with '['. Other valid signatures can be made
// from one, so that it is no replay key, and events are distinguished by their content.
func verify(_ context.Context, keys []*ecdsa.PublicKey, w *models.Webhook) (none models.Verified, err error) {
	if !bytes.HasPrefix(w.Body, []byte("[")) {
		return none, kind.Malformed("the body is not a JSON array")
	}
	der, _ := base64.StdEncoding.DecodeString(w.Header.Get(signatureHeader))
	hash := sha256.New()
	hash.Write([]byte(w.Header.Get(timestampHeader)))
	hash.Write(w.Body)
	sum := hash.Sum(nil)
	for _, key := range keys {
		if ecdsa.VerifyASN1(key, sum, der) { // it refuses bytes after the signature; the SDK's helper does not
			return none, nil
		}
	}
	return none, kind.Forged("the signature does not fit")
}

// parseKey reads the public key of a webhook as SendGrid shows it, base64 of a DER
// SubjectPublicKeyInfo, or as PEM. The SDK's helper panics for other keys, and accepts any curve.
func parseKey(text string) (*ecdsa.PublicKey, error) {
	var der []byte
	if block, _ := pem.Decode([]byte(text)); block != nil {
		der = block.Bytes
	} else {
		var err error
		if der, err = base64.StdEncoding.DecodeString(strings.Join(strings.Fields(text), "")); err != nil {
			return nil, errors.New("it is not base64; copy the public key that SendGrid shows for the signed event webhook")
		}
	}
	key, err := x509.ParsePKIXPublicKey(der)
	if err != nil {
		return nil, errors.New("it is not a public key (DER SubjectPublicKeyInfo)")
	}
	public, ok := key.(*ecdsa.PublicKey)
	if !ok || public.Curve != elliptic.P256() {
		return nil, errors.New("it is not an ECDSA key on the curve P-256")
	}
	return public, nil
}
