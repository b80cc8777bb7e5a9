package mailgun

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strconv"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

// webhookGaps are the times after which Mailgun repeats a webhook. Its older
// documentation has 10, 10, 15, 30 minutes, 1, 2, 4 hours.
var webhookGaps = []time.Duration{
	5 * time.Minute,
	10 * time.Minute,
	15 * time.Minute,
	time.Hour,
	2 * time.Hour,
	4 * time.Hour,
}

const (
	tokenSize  = 50   // characters
	eventBytes = 1200 // about the size of an event
)

// URLs implements provider.WebhookSender. Some events have no webhook.
func (g *Mailgun) URLs(s *message.Stage) []string {
	if s.Kind == "" {
		return nil
	}
	return g.account.Webhooks.URLs(s.Kind)
}

// Acknowledged implements provider.WebhookSender.
func (g *Mailgun) Acknowledged(status int) bool { return status == http.StatusOK }

// Retry implements provider.WebhookSender. Status 406 ends the repetition, and
// delivered is not repeated at all unless Options.RetryDelivered is set.
func (g *Mailgun) Retry(s *message.Stage, status, tries int, _ time.Duration) (gap time.Duration, ok bool) {
	if status == http.StatusNotAcceptable || tries > len(webhookGaps) ||
		s.Event == "delivered" && !g.account.Options.RetryDelivered {
		return 0, false
	}
	return webhookGaps[tries-1], true
}

// Sign implements provider.WebhookSender. The signature is the HMAC-SHA256 of
// timestamp and token.
func (g *Mailgun) Sign(p provider.Post) (body []byte, header http.Header, err error) {
	e := p.Event
	token := g.account.IDs.Hex(tokenSize, provider.ForToken,
		e.Batch.Serial, uint64(p.Copy), uint64(e.Outcome), uint64(e.Stage), p.Nonce)
	timestamp := strconv.FormatInt(p.Time, 10)
	mac := hmac.New(sha256.New, []byte(g.signingKey))
	mac.Write([]byte(timestamp + token))
	sum := mac.Sum(nil)
	if p.Forged {
		sum[len(sum)-1] ^= 1
	}
	b := make([]byte, 0, len(p.Body)+256)
	b = append(b, `{"signature":{"timestamp":"`...)
	b = append(b, timestamp...)
	b = append(b, `","token":"`...)
	b = append(b, token...)
	b = append(b, `","signature":"`...)
	b = hex.AppendEncode(b, sum)
	b = append(b, `"},"event-data":`...)
	b = append(b, p.Body...)
	return append(b, '}'), http.Header{"User-Agent": {"mailgun/treq-22.10.0"}}, nil
}
