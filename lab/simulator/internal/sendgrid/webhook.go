package sendgrid

import (
	"crypto"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strconv"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

const (
	maxPost    = 768 << 10 // bytes
	eventBytes = 480       // about the size of an event
	retryFor   = 24 * time.Hour
	firstGap   = time.Minute
	longestGap = time.Hour

	signatureHeader = "X-Twilio-Email-Event-Webhook-Signature"
	timestampHeader = "X-Twilio-Email-Event-Webhook-Timestamp"
)

// URLs implements provider.WebhookSender. SendGrid has one URL for all events.
func (g *SendGrid) URLs(*message.Stage) []string { return g.account.Webhooks.URLs("") }

// Acknowledged implements provider.WebhookSender.
func (g *SendGrid) Acknowledged(status int) bool { return status >= 200 && status < 300 }

// Retry implements provider.WebhookSender. SendGrid repeats at growing gaps for 24
// hours after the event, whatever the status.
func (g *SendGrid) Retry(_ *message.Stage, _, tries int, age time.Duration) (gap time.Duration, ok bool) {
	gap = longestGap
	if tries < 7 {
		gap = min(gap, firstGap<<(tries-1))
	}
	return gap, age+gap <= retryFor
}

// Sign implements provider.WebhookSender. Without a source of randomness the
// signature follows from the content, so that a repeated post carries the same
// one.
func (g *SendGrid) Sign(p provider.Post) (body []byte, header http.Header, err error) {
	timestamp := strconv.FormatInt(p.Time, 10)
	hash := sha256.New()
	hash.Write([]byte(timestamp))
	hash.Write(p.Body)
	signature, err := g.sign.Sign(nil, hash.Sum(nil), crypto.SHA256)
	if err != nil {
		return nil, nil, err
	}
	if p.Forged {
		signature[len(signature)-1] ^= 1
	}
	return p.Body, http.Header{
		"User-Agent":    {"SendGrid Event API"},
		signatureHeader: {base64.StdEncoding.EncodeToString(signature)},
		timestampHeader: {timestamp},
	}, nil
}
