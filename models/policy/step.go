package policy

import (
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// Action is the kind of a step.
type Action int

// The actions.
const (
	Nothing Action = iota
	Call           // hand the recipients to a provider
	Wait           // decide again at a time
	End            // append an ending
)

// Option is a provider that may be tried from NotBefore on, with calls of at most Most recipients if that is not 0.
type Option struct {
	Provider  string
	NotBefore time.Time
	Most      int
}

// Step is the next step of recipients that share a history.
type Step struct {
	Do           Action
	Recipients   models.Set
	SenderDomain string

	// Call
	Options   []Option      // in order of preference
	Fixed     bool          // the batch prescribes the order of Options
	Retry     int           // number of the retry; 0 for the first attempt
	Split     int           // above 0 while the call searches for a bad recipient
	MayDouble bool          // the call may cause a second copy
	Doubt     models.Reason // why the outcome of an earlier attempt is unknown; empty if it is known
	Released  bool          // released manually: it may have expired
	Because   string        // why another attempt is made
	FromEvent bool          // a provider's event, not its answer, caused the call
	Together  bool          // one mail to all recipients, which is not divided
	Repeats   int           // number of the attempt whose call is made again; 0: the call is a new attempt

	// Wait. A repeat has Waits, too, and may not begin after Until. The wait for one has Repeats.
	Until time.Time
	Waits *models.Wait // what for

	// End
	Reason models.Reason
	Detail string
	Cancel *models.Command // the command that cancels the recipients; nil if they end otherwise
}

// Earliest returns when the first provider of the step may be tried.
func (s *Step) Earliest() time.Time {
	var first time.Time
	for i, o := range s.Options {
		if i == 0 || o.NotBefore.Before(first) {
			first = o.NotBefore
		}
	}
	return first
}

// Scheduled reports whether a step waits for a time of its batch.
func (s *Step) Scheduled() bool {
	return s.Do == Wait && s.Waits != nil && s.Waits.Code == models.WaitSchedule
}

// Unsent reports whether a step waits with mail that no provider has: for a time or for a command.
func (s *Step) Unsent() bool {
	return s.Do == Wait && s.Waits != nil && (s.Waits.Code == models.WaitSchedule || s.Waits.ByCommand())
}

// ByProvider reports whether only the consumer of a provider makes the call: a retry, a repeat, or one of the search
// for a bad recipient.
func (s *Step) ByProvider() bool { return s.Retry > 0 || s.Split > 0 || s.Repeats > 0 }

// InDoubt reports whether a step ends mail that some provider may have, or sends it again, or repeats a call.
func (s Step) InDoubt() bool {
	switch s.Do {
	case End:
		return s.Reason == models.OutcomeUnknown || s.Reason == models.NoFinalEvent
	case Call:
		return s.Doubt != "" || s.Repeats > 0
	case Nothing, Wait:
	}
	return false
}

// Calls reports whether a step hands mail to a provider. If only is not empty, the step must include one of its
// recipients.
func (s *Step) Calls(only models.Set) bool {
	return s.Do == Call && (only.Empty() || !s.Recipients.And(only).Empty())
}
