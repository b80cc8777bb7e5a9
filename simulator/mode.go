package simulator

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/simulator/internal/match"
	"github.com/safedelivr/safedelivr/simulator/internal/message"
	"github.com/safedelivr/safedelivr/simulator/internal/provider"
)

// Modes of a Fault. Some take a value after a colon: status:503, delay:2s,
// events-delay:1m, outcome:blocked.
const (
	// The answer instead of an acceptance. Nothing is stored, unless Fault.Store is
	// set.

	ModeStatus      = "status"            // answer Fault.Status with Fault.Body, or the body the provider has for it
	ModeGarbage     = "garbage-200"       // answer 200 with a body that is not the provider's
	ModeHang        = "hang"              // read the request and never answer
	ModeRefuse      = "refuse"            // refuse the call as if the matching addresses were not valid
	ModeCredits     = "credits"           // SendGrid 401 Maximum credits exceeded; Mailgun 402
	ModeUnverified  = "unverified"        // SendGrid 403 sender identity; Mailgun 400 not allowed to send: unverified
	ModeBlocked     = "blocked"           // SendGrid 403 access forbidden; Mailgun 403 IP
	ModeRate        = "rate"              // 429; SendGrid sends X-RateLimit-Reset if there is a RetryAfter
	ModeNotAllowed  = "not-allowed"       // SendGrid 401 not authorized to send mail; Mailgun 400 not allowed to send
	ModeFull        = "full"              // SendGrid 401 Maximum credits exceeded; Mailgun 420; see Fault.RetryAfter
	ModeLargeBatch  = "large-batch"       // Mailgun 403 not allowed to send large batches yet; see Fault.Above
	ModeTooLarge    = "too-large"         // 413
	ModeCloseUnread = "close-before-read" // close the connection before the body is read; with a Pattern, after it
	ModeDelay       = "delay"             // store at once, answer Fault.Delay later; other faults apply too

	// Faults of the answer to stored mail.

	ModeHangAfterBody   = "hang-after-body"   // store, never answer
	ModeAcceptThenClose = "accept-then-close" // store, close the connection
	ModeTruncate        = "truncate"          // store, send the header and half the body, close

	// What happens to mail that is accepted while the fault is in force.

	ModeSuspend     = "suspend"      // it is parked: no events, but see Fault.Release
	ModeEventsOff   = "events-off"   // its events happen, and look-ups show them, but no webhook is sent
	ModeEventsDelay = "events-delay" // its events happen Fault.Delay later (real time)
	ModeAsyncBounce = "async-bounce" // it is delivered and bounces afterwards
	ModeOutcome     = "outcome"      // it has the outcome that is named after the colon

	// How webhooks go wrong. Times counts webhook requests.

	ModeEventsDuplicate = "events-duplicate" // each event is sent twice
	ModeEventsShuffle   = "events-shuffle"   // events are sent out of order
	ModeBadSignature    = "bad-signature"    // the signature does not fit
)

// A modeClass says at which point a mode takes effect.
type modeClass uint8

const (
	classAnswer modeClass = iota + 1 // replaces the whole exchange
	classSpoil                       // spoils the answer to a stored mail
	classDelay
	classUnread
	classMail
	classWebhook
)

// modes holds the class of each mode, and the condition that it puts an account in.
var modes = map[string]struct {
	class     modeClass
	condition provider.ConditionKind
}{
	ModeStatus:     {classAnswer, provider.HasStatus},
	ModeGarbage:    {classAnswer, provider.Garbage},
	ModeHang:       {class: classAnswer},
	ModeRefuse:     {class: classAnswer},
	ModeCredits:    {classAnswer, provider.NoCredits},
	ModeUnverified: {classAnswer, provider.Unverified},
	ModeBlocked:    {classAnswer, provider.Blocked},
	ModeRate:       {classAnswer, provider.RateLimited},
	ModeNotAllowed: {classAnswer, provider.NotAllowed},
	ModeFull:       {classAnswer, provider.Full},
	ModeLargeBatch: {classAnswer, provider.LargeBatch},
	ModeTooLarge:   {classAnswer, provider.TooLarge},

	ModeCloseUnread: {class: classUnread},
	ModeDelay:       {class: classDelay},

	ModeHangAfterBody:   {class: classSpoil},
	ModeAcceptThenClose: {class: classSpoil},
	ModeTruncate:        {class: classSpoil},

	ModeSuspend:     {class: classMail},
	ModeEventsOff:   {class: classMail},
	ModeEventsDelay: {class: classMail},
	ModeAsyncBounce: {class: classMail},
	ModeOutcome:     {class: classMail},

	ModeEventsDuplicate: {class: classWebhook},
	ModeEventsShuffle:   {class: classWebhook},
	ModeBadSignature:    {class: classWebhook},
}

// Outcomes returns the local parts that choose the outcome of a copy, at any
// domain whose name ends in .test, sorted. A suffix that begins with + or . is
// ignored (hardbounce+17@sim.test). The suffix -<account> restricts the outcome to
// that account: blocked-sg+17@sim.test bounces as blocked at the account sg and is
// delivered by all others. With the outcome refused the provider refuses the whole
// call because of that address. With silent the copy is delivered without any
// webhook, with lostevent without that of the last event.
func Outcomes() []string { return message.OutcomeNames() }

// compile checks f and makes it ready for use. It moves the value after the colon
// of the mode to its field.
func (f Fault) compile() (*fault, error) {
	mode, value, valued := strings.Cut(f.Mode, ":")
	c := &fault{Fault: f, left: f.Times, events: match.ParseNames(f.Events)}
	c.Mode = mode
	c.class, c.condition = modes[mode].class, modes[mode].condition
	if c.class == 0 {
		return nil, fmt.Errorf("unknown fault mode %q", f.Mode)
	}
	fail := func(err error) (*fault, error) { return nil, fmt.Errorf("fault mode %q: %w", f.Mode, err) }
	if mode == ModeAsyncBounce {
		c.outcome = message.Async
	}
	if valued || mode == ModeOutcome {
		if err := c.setValue(value); err != nil {
			return fail(err)
		}
		if mode == ModeOutcome {
			c.Mode = f.Mode
		}
	}
	if mode == ModeCloseUnread && f.Pattern != "" {
		c.class = classAnswer
	}
	if err := c.check(); err != nil {
		return fail(err)
	}
	var err error
	c.pattern, err = match.Compile(f.Pattern)
	return c, err
}

// setValue reads what follows the colon of the mode.
func (f *fault) setValue(value string) (err error) {
	switch f.Mode {
	case ModeStatus:
		f.Status, err = strconv.Atoi(value)
	case ModeDelay, ModeEventsDelay:
		f.Delay, err = time.ParseDuration(value)
	case ModeOutcome:
		var known bool
		if f.outcome, known = message.OutcomeNamed(value); !known {
			err = fmt.Errorf("unknown outcome %q, want one of %s", value, strings.Join(Outcomes(), " "))
		}
	default:
		err = errors.New("takes no value")
	}
	return err
}

func (f *fault) check() error {
	if f.Mode == ModeStatus && (f.Status < 200 || f.Status > 599) {
		return fmt.Errorf("status %d is not within 200 to 599", f.Status)
	}
	if f.Above < 0 || f.Above > 0 && f.class == classWebhook {
		return errors.New("above must not be negative, and is about the recipients of calls")
	}
	if f.Share < 0 || f.Share > 1 || f.After < 0 || f.Times < 0 || f.Delay < 0 || f.RetryAfter < 0 {
		return errors.New("share must be within 0 to 1, and after, times, delay and retry_after not negative")
	}
	for name := range f.Header {
		if name == "" {
			return errors.New("header without a name")
		}
	}
	return nil
}
