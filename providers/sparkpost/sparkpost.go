// Package sparkpost is the adapter for SparkPost: transmissions, webhooks, the log of events and the suppression list.
//
// A call is one transmission, whose template the values of each recipient fill in. An answer says how many recipients
// were refused, and not which. Webhooks are not signed: a secret in their header proves who sent them. No idempotency
// key is sent, because such keys are new here, and there are no reports on them. The campaign of a transmission is its
// chunk, so that its events can be looked up.
package sparkpost

import (
	"context"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
	"github.com/safedelivr/safedelivr/providers/internal/transport"
)

// The sizes that SparkPost takes ("Create a Transmission", "Recipient Object"), in bytes. None is documented for a
// request.
const (
	maxContent = 20_000_000 // bodies and files
	maxValues  = 100_000    // of a recipient
	maxRequest = 30_000_000
)

// Spec describes SparkPost.
var Spec = kind.Spec[string]{
	Name:       "sparkpost",
	Short:      "sp",
	Title:      "SparkPost",
	URL:        "https://api.sparkpost.com",
	Recipients: models.MaxChunkRecipients, // no limit is documented
	Webhook:    8 << 20,
	Events:     events,
	Suppress:   lists,
	Lag:        10 * time.Minute, // none is documented
	Repeat:     8 * time.Hour,
	Key:        kind.SecretKey,
	Header:     kind.Secret,
	Verify:     verify,
	Authorize:  func(h http.Header, key string) { h.Set("Authorization", key) },
	Carries: models.Capabilities{
		Tags:        10,
		Attachments: true,
		Inline:      true,
		Size:        maxContent,
		Base64:      true,
		Copies:      true,
		Tracking:    true,
		Names:       true,
		NameMarks:   true,
		Variables:   true,
		Metadata:    true,
		Headers:     true,
	},
}

// An Adapter is one provider of the kind SparkPost.
type Adapter struct{ kind.Base[string] }

// New returns the adapter for a provider. The error names all mistakes in its settings.
var New = kind.New[string, Adapter](&Spec)

// Send implements models.Adapter.
func (p *Adapter) Send(ctx context.Context, c *models.Call) []models.Part {
	do := func(ctx context.Context, r models.Request) error { return p.Post(ctx, r, nil) }
	return kind.Send(ctx, &p.Base, c, p.Compose, do, p.classify)
}

// aboutTo matches errors about the address of a recipient, which is not named.
var aboutTo = regexp.MustCompile(`(?i)valid recipient|^address\.email|^invalid (email )?address`)

// statusLimit is the status when the account has reached a limit of sending.
const statusLimit = 420

// rules are the meanings of answers that accept nothing.
var rules = []kind.Rule{
	{Status: statusLimit, Class: models.AccountClass},
	{Code: "7000", Class: models.AccountClass, Reason: models.SenderNotVerified},
	{Code: "7001", Class: models.AccountClass, Reason: models.SenderNotVerified},
	{Status: http.StatusOK, Words: aboutTo, Class: models.Split},
	{Status: http.StatusOK, Class: models.RejectedHereClass},
	{Status: http.StatusBadRequest, Words: regexp.MustCompile(`(?i)valid recipient`), Class: models.Split},
}

// A fault is an error of a call, or of a recipient.
type fault struct {
	Message     parse.Str `json:"message"`
	Description parse.Str `json:"description"`
	Code        parse.Str `json:"code"`
}

// classify returns what an answer means for the recipients of the call. A success says how many were accepted: if not
// all or none, it is unknown which.
func (p *Adapter) classify(c *models.Call, x transport.Answer, now time.Time) []models.Part {
	var in struct {
		Errors  []fault
		Results struct {
			ID         parse.Str
			Accepted   parse.Str `json:"total_accepted_recipients"`
			Rejected   parse.Str `json:"total_rejected_recipients"`
			Recipients []fault   `json:"rcpt_to_errors"`
		}
	}
	parse.Into(x.Body, &in)
	first := append(append(in.Results.Recipients, in.Errors...), fault{})[0]
	a := p.Answer(c, x, strings.Trim(string(first.Message+": "+first.Description), ": "), now)
	a.Code = string(first.Code)
	n, r := parse.Str(strconv.Itoa(len(c.Recipients))), &in.Results
	switch {
	case !a.OK():
		return a.By(rules)
	case r.Accepted == n && r.Rejected == "0" && r.ID != "":
		return []models.Part{a.Accepted(c.Numbers(), r.ID)}
	case r.Accepted == "0" && r.Rejected == n:
		return a.By(rules)
	}
	return a.Whole(models.Unknown, "")
}

// batchID matches the ID of a webhook, which its repeats have, too.
var batchID = regexp.MustCompile(`^[A-Za-z0-9_-]{8,100}$`)

// verify returns the ID of a webhook whose secret fits. It is not signed, and the secret protects it.
func verify(_ context.Context, _ []string, w *models.Webhook) (v models.Verified, err error) {
	if id := w.Header.Get("X-MessageSystems-Batch-ID"); batchID.MatchString(id) {
		v.Replay = id
	}
	return v, nil
}
