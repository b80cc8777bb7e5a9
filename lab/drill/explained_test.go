package drill

import (
	"net/http"
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

// explained reports whether the faults that a mail met explain why its log failed: faults of its calls, by the
// providers' logs, or after it was accepted.
func explained(d *drill, l *client.Log, story []client.Moment, o *outcome) bool {
	request, recipient, ended, attempts := false, false, map[string]bool{}, 0
	for i := range story {
		m := &story[i]
		if m.What == "attempt" {
			attempts++
		}
		if m.What != "answer" {
			continue
		}
		switch mode := d.metFault(m); {
		case m.Status == http.StatusBadRequest &&
			(mode == simulator.ModeStatus || mode == simulator.ModeLargeBatch): // one mail to several cannot be divided
			request = true
		case mode == simulator.ModeRefuse:
			recipient = true
		case mode != "" && m.Status == http.StatusRequestEntityTooLarge,
			mode == simulator.ModeLargeBatch && m.Provider == "mg":
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
	d := &drill{scenario: &scenario{}, sim: simulator.New(simulator.Options{})}
	defer d.sim.Close()
	for _, a := range simulated.Usual.Names() {
		require.NoError(t, d.sim.AddAccount(simulator.Account{Name: a, Kind: simulator.SendGrid, Key: "k"}))
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
		require.Equal(t, c.want, explained(d, l, refused, &o), "%s %v: no provider answered so", c.reason, c.copies)
	}
}
