package drill

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/lab/simulated"
	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/models"
)

// defaultRetries is the default number of retries of a recipient.
const defaultRetries = 10

// withoutWord are the providers that have no answer of its own for a call with too many recipients: it is that for a
// message that is not valid. Amazon SES answers 400 BadRequestException, and Resend 422 validation_error.
var withoutWord = []string{"ses", "rs"}

// refusedThere are the words of servers that take mail by SMTP or LMTP and refuse it for good. Another provider gets it
// then, by docs/smtp.md. Their other replies are about the account or the time, or about the content.
var refusedThere = []string{"Access denied", "Message too big for system", "Sender is not verified",
	"Your address is blocked"}

// refusedContent are their words, with 5.6.0, for mail that is not valid.
const refusedContent = "Message content is not acceptable"

// explained reports whether the faults that a mail met explain why its log failed: faults of its calls, by the
// providers' logs, or after it was accepted.
func explained(p *providers, l *client.Log, story []client.Moment, o *outcome) bool {
	request, recipient, ended, attempts := false, false, map[string]bool{}, 0
	id, err := models.ParseLogID(l.ID)
	several := err == nil && p.isEnvelope(id.Batch())
	if several {
		for _, name := range p.pair.Single() { // by docs/capabilities.md
			ended[name] = true
		}
	}
	for i := range story {
		m := &story[i]
		if m.What == "attempt" {
			attempts++
		}
		if m.What != "answer" {
			continue
		}
		switch mode := p.metFault(m); {
		case mode == simulator.ModeRefuse:
			recipient = true
			// Amazon SES does not say which address of a mail it refuses, and neither does SMTP after DATA. Another
			// provider may take the mail.
			if several || m.Provider == "smtp" {
				ended[m.Provider] = true
			}
		case p.pair.Silent(m.Provider):
			request = request || m.Text == refusedContent
			ended[m.Provider] = ended[m.Provider] || slices.Contains(refusedThere, m.Text)
		case mode == simulator.ModeStatus && m.Status == http.StatusBadRequest:
			// It is about the mail. Without a reason that the provider documents, as at Postmark, it holds only there.
			request, ended[m.Provider] = true, true
		case mode == simulator.ModeLargeBatch && slices.Contains(withoutWord, m.Provider):
			request = true
		case mode != "" && m.Status == http.StatusRequestEntityTooLarge,
			mode == simulator.ModeTooLarge, // Mailjet answers 400
			mode == simulator.ModeLargeBatch && m.Provider != simulated.Usual[0].Name:
			ended[m.Provider] = true
		}
	}
	for i := range o.copies {
		switch c := &o.copies[i]; c.Outcome {
		case "blocked":
			ended[c.Account] = true
		case bouncedAfter:
			recipient = true
		}
	}
	switch models.Reason(l.EndedBy) { // nothing else ends attempts
	case models.NoProviderLeft:
		return len(ended) == len(simulated.Usual)
	case models.RetriesUsedUp:
		return attempts > defaultRetries
	}
	switch models.Reason(l.Reason) { // nothing leads to the others
	case models.InvalidRequest:
		return request
	case models.MailboxInvalid:
		return recipient
	}
	return false
}

// TestFailureNeedsAFault requires that only a fault that a mail met itself explains its failure.
func TestFailureNeedsAFault(t *testing.T) {
	p := &providers{Simulator: simulator.New(simulator.Options{})}
	defer p.Close()
	for _, a := range simulated.Usual.Names() {
		require.NoError(t, p.AddAccount(simulator.Account{Name: a, Kind: simulator.SendGrid, Key: "k"}))
	}
	blocked := func(provider string) simulator.Copy { return simulator.Copy{Account: provider, Outcome: "blocked"} }
	for _, c := range []struct {
		reason models.Reason
		copies []simulator.Copy
		want   bool
	}{
		{models.NoProviderLeft, nil, false},
		{models.NoProviderLeft, []simulator.Copy{blocked("sg")}, false},
		{models.NoProviderLeft, []simulator.Copy{blocked("sg"), blocked("sg")}, false},
		{models.NoProviderLeft, []simulator.Copy{blocked("sg"), blocked("mg")}, true},
		{models.MailboxInvalid, []simulator.Copy{blocked("sg"), blocked("mg")}, false},
		{models.MailboxInvalid, []simulator.Copy{{Account: "mg", Outcome: bouncedAfter}}, true},
		{models.InvalidRequest, []simulator.Copy{blocked("sg")}, false},
		{models.RetriesUsedUp, []simulator.Copy{blocked("sg"), blocked("mg")}, false},
		{models.ProviderUnavailable, []simulator.Copy{blocked("sg"), blocked("mg")}, false},
	} {
		o := outcome{copies: c.copies}
		refused := []client.Moment{
			{What: "attempt", Attempt: 1, Provider: "sg"},
			{What: "answer", Attempt: 1, Provider: "sg", Status: http.StatusBadRequest, At: time.Now()},
		}
		l := new(client.Log)
		l.Reason = string(c.reason)
		if c.reason == models.NoProviderLeft || c.reason == models.RetriesUsedUp {
			l.Reason, l.EndedBy = string(models.ProviderUnavailable), string(c.reason)
		}
		require.Equal(t, c.want, explained(p, l, refused, &o), "%s %v: no provider answered so", c.reason, c.copies)
	}
}

// TestFailureOfOneMailToSeveral requires that a provider that takes no such mail need not fail, too.
func TestFailureOfOneMailToSeveral(t *testing.T) {
	pair, err := simulated.NewPair(simulator.SES, simulator.Resend)
	require.NoError(t, err)
	batch := models.NewBatchID(time.Now())
	l := new(client.Log)
	l.ID, l.Reason = batch.Chunk(0).Log(1).String(), string(models.PolicyReputation)
	l.EndedBy = string(models.NoProviderLeft)
	for provider, want := range map[string]bool{"ses": true, "rs": false} {
		o := outcome{copies: []simulator.Copy{{Account: provider, Outcome: "blocked"}}}
		several := true
		p := &providers{pair: pair, isEnvelope: func(id models.ID) bool { return several && id == batch }}
		require.Equal(t, want, explained(p, l, nil, &o), provider)
		several = false
		require.False(t, explained(p, l, nil, &o), "mail to one")
	}
}
