package main

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/simulator"
)

// defaultRetries is how often a recipient is tried again where nobody says
// otherwise.
const defaultRetries = 10

// explained reports whether a log says that it failed for a reason to which the
// faults lead that its mail met: in its calls, as the providers know them, or after
// these were accepted.
func explained(d *drill, l *drillLog, story []models.Moment, f *fate) bool {
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
		case mode == simulator.ModeStatus && m.Status == http.StatusBadRequest:
			request = true
		case mode == simulator.ModeRefuse:
			recipient = true
		case mode != "" && m.Status == http.StatusRequestEntityTooLarge, mode == simulator.ModeLargeBatch && m.Provider == "mg":
			ended[m.Provider] = true
		}
	}
	for i := range f.copies {
		switch c := &f.copies[i]; c.Outcome {
		case "blocked":
			ended[c.Account] = true
		case bouncedAfter:
			recipient = true
		}
	}
	switch l.Reason { //nolint:exhaustive // nothing leads to the others
	case models.InvalidRequest:
		return request
	case models.MailboxInvalid:
		return recipient
	case models.NoProviderLeft:
		return len(ended) == len(drillProviders)
	case models.RetriesUsedUp:
		return attempts > defaultRetries
	}
	return false
}

// TestExplained: a mail may have failed only for a reason to which a fault leads
// that it met itself.
func TestExplained(t *testing.T) {
	d := &drill{scenario: &scenario{}, sim: simulator.New(simulator.Options{})}
	defer d.sim.Close()
	for _, a := range drillProviders {
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
		f := fate{copies: c.copies}
		refused := []models.Moment{{What: "attempt", Attempt: 1, Provider: "sg"}, {What: "answer", Attempt: 1, Provider: "sg", Status: http.StatusBadRequest, At: time.Now()}}
		require.Equal(t, c.want, explained(d, &drillLog{Reason: c.reason}, refused, &f), "%s %v: no provider answered so", c.reason, c.copies)
	}
}
