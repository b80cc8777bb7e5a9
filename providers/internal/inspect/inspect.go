// Package inspect holds what adapters find out about their account at a provider.
package inspect

import "context"

// A State says whether something is as it should be.
type State string

// The states of a Finding.
const (
	OK      State = "ok"
	Wrong   State = "wrong"
	Warning State = "warning" // works, with a disadvantage
	Unknown State = "unknown" // could not be found out
)

// A Finding is one thing that was found out.
type Finding struct {
	State State
	About string // like key, webhooks, SPF
	Text  string // what is so
	ToDo  string // what to do about it; "" if nothing
}

// A Record is a DNS record that a provider wants.
type Record struct{ Type, Name, Value string }

// A Domain is a sender's domain at a provider, with the records that it wants.
type Domain struct {
	Name    string
	Records []Record
}

// An Account is what was found out about an account.
type Account struct {
	Findings []Finding
	Domains  []Domain
}

// Add adds a finding.
func (a *Account) Add(state State, about, text, todo string) {
	a.Findings = append(a.Findings, Finding{state, about, text, todo})
}

// Check adds a finding: fine if ok, and otherwise wrong with what to do.
func (a *Account) Check(about, fine string, ok bool, wrong, todo string) {
	if ok {
		a.Add(OK, about, fine, "")
	} else {
		a.Add(Wrong, about, wrong, todo)
	}
}

// An Inspector finds out about its account. The URL is where its webhooks must go; "" if it needs none. An error means
// that the provider could not be asked.
type Inspector interface {
	Inspect(ctx context.Context, webhookURL string) (Account, error)
}
