package brevo

import (
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
	"github.com/safedelivr/safedelivr/providers/internal/transport"
)

// rules are the meanings of refusals. What a repeated key is answered is not documented: an answer that could be it
// proves nothing. Of 400, only what is said of parameters is about the message.
var rules = []kind.Rule{
	{Status: http.StatusConflict, Class: models.Unknown},
	{Status: http.StatusBadRequest, Code: "duplicate_request", Class: models.Unknown},
	{Status: http.StatusBadRequest, Code: "duplicate_parameter", Class: models.Unknown},
	{Status: http.StatusBadRequest, Words: regexp.MustCompile(`(?i)idempoten`), Class: models.Unknown},
	{Status: http.StatusBadRequest, Code: "not_enough_credits", Class: models.AccountClass},
	{Status: http.StatusBadRequest, Words: regexp.MustCompile(`(?i)\bsender\b`),
		Class: models.AccountClass, Reason: models.SenderNotVerified},
	{Status: http.StatusBadRequest, Words: regexp.MustCompile(`(?i)attachment|extension|\bfile|\bsize|too large`),
		Class: models.RejectedHereClass},
	{Status: http.StatusBadRequest, Code: "invalid_parameter",
		Words: regexp.MustCompile(`(?i)valid.* (in|for) [\w.\[\]"']*\bto\b|^\W?to\b.*valid`), Class: models.Split},
	{Status: http.StatusBadRequest, Code: "invalid_parameter", Class: models.RejectedRequest,
		Reason: models.InvalidRequest},
	{Status: http.StatusBadRequest, Code: "missing_parameter", Class: models.RejectedRequest,
		Reason: models.InvalidRequest},
}

// classify returns what an answer means for the recipients of the call. Every answer says when the limit of calls
// begins anew; only after 429 that matters.
func (p *Adapter) classify(c *models.Call, x transport.Answer, now time.Time) []models.Part {
	var in struct{ Code, Message parse.Str }
	parse.Into(x.Body, &in)
	a := p.Answer(c, x, string(in.Message), now)
	a.Code = string(in.Code)
	if a.Status != http.StatusTooManyRequests {
		a.RetryAt = time.Time{}
	}
	if a.OK() {
		return accepted(a)
	}
	return a.By(rules)
}

// accepted reads a 2xx: the ids of the mails in order. 201 without ids is the answer to a call that Brevo knows, or an
// answer that lost a part. With another number of ids, it is not known which mails were accepted.
func accepted(a *kind.Answer) (parts []models.Part) {
	var in struct {
		ID  parse.Str   `json:"messageId"`
		IDs []parse.Str `json:"messageIds"`
	}
	mails := a.Mails()
	err := json.Unmarshal(a.Body, &in)
	readable := err == nil && a.Body[0] == '{' || a.Cut || len(a.Body) == 0
	if in.ID != "" && in.IDs == nil {
		in.IDs = []parse.Str{in.ID}
	}
	switch created := a.Status == http.StatusCreated || a.Status == http.StatusAccepted; {
	case created && readable && len(in.IDs) == 0:
		return a.Whole(models.Accepted, "")
	case !readable || len(in.IDs) != len(mails) || slices.Contains(in.IDs, ""):
		return a.Whole(models.Unknown, "")
	}
	for i, mail := range mails {
		part := a.Part(models.Accepted, "", mail)
		part.MessageID = messageID(in.IDs[i])
		parts = append(parts, part)
	}
	return parts
}
