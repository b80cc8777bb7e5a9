package simulator

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Modes of a Fault. Some take a value after a colon: status:503, delay:2s,
// events-delay:1m, outcome:blocked.
const (
	// What is answered instead of taking the mail. Nothing is stored, unless
	// Fault.Store is set.

	ModeStatus      = "status"            // answer Fault.Status with Fault.Body, or the body the vendor has for it
	ModeGarbage     = "garbage-200"       // answer 200 with a body that is not the vendor's
	ModeHang        = "hang"              // read the request and never answer
	ModeRefuse      = "refuse"            // refuse the call as if the matching addresses were not valid
	ModeCredits     = "credits"           // SendGrid 401 Maximum credits exceeded; Mailgun 402
	ModeUnverified  = "unverified"        // SendGrid 403 sender identity; Mailgun 400 not allowed to send: unverified
	ModeBlocked     = "blocked"           // SendGrid 403 access forbidden; Mailgun 403 IP
	ModeRate        = "rate"              // 429; with RetryAfter SendGrid sends X-RateLimit-Reset. Mailgun always names a time
	ModeNotAllowed  = "not-allowed"       // SendGrid 401 not authorized to send mail; Mailgun 400 not allowed to send
	ModeLargeBatch  = "large-batch"       // Mailgun 403 not allowed to send large batches yet
	ModeTooLarge    = "too-large"         // 413
	ModeCloseUnread = "close-before-read" // close the connection before the body is read; with a Pattern, after it
	ModeDelay       = "delay"             // store at once, answer Fault.Delay later; other faults still apply

	// How the answer to stored mail goes wrong.

	ModeHangAfterBody   = "hang-after-body"   // store, never answer
	ModeAcceptThenClose = "accept-then-close" // store, close the connection
	ModeTruncate        = "truncate"          // store, send the header and half the body, close

	// What becomes of mail that is accepted while the fault stands.

	ModeSuspend     = "suspend"      // it is parked: no events, but see Fault.Release
	ModeSuspended   = "suspended"    // the same
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
	classHook
)

var modeClasses = map[string]modeClass{
	ModeStatus: classAnswer, ModeGarbage: classAnswer, ModeHang: classAnswer, ModeRefuse: classAnswer,
	ModeCredits: classAnswer, ModeUnverified: classAnswer, ModeBlocked: classAnswer, ModeRate: classAnswer,
	ModeNotAllowed: classAnswer, ModeLargeBatch: classAnswer, ModeTooLarge: classAnswer,
	ModeCloseUnread: classUnread, ModeDelay: classDelay,
	ModeHangAfterBody: classSpoil, ModeAcceptThenClose: classSpoil, ModeTruncate: classSpoil,
	ModeSuspend: classMail, ModeSuspended: classMail, ModeEventsOff: classMail, ModeEventsDelay: classMail,
	ModeAsyncBounce: classMail, ModeOutcome: classMail,
	ModeEventsDuplicate: classHook, ModeEventsShuffle: classHook, ModeBadSignature: classHook,
}

// compile checks f and makes it ready for use. Values after the colon of the
// mode are moved to where they belong.
func (f Fault) compile() (*fault, error) {
	mode, value, valued := strings.Cut(f.Mode, ":")
	c := &fault{Fault: f, left: f.Times, events: parseNames(f.Events)}
	c.Mode = mode
	c.class = modeClasses[mode]
	var err error
	switch {
	case c.class == 0:
		return nil, fmt.Errorf("unknown fault mode %q", f.Mode)
	case mode == ModeStatus && valued:
		c.Status, err = strconv.Atoi(value)
	case (mode == ModeDelay || mode == ModeEventsDelay) && valued:
		c.Delay, err = time.ParseDuration(value)
	case mode == ModeOutcome:
		var known bool
		if c.outcome, known = outcomes[value]; !known {
			err = fmt.Errorf("unknown outcome %q, want one of %s", value, strings.Join(Outcomes(), " "))
		}
		c.Mode = f.Mode
	case mode == ModeAsyncBounce:
		c.outcome = outAsync
	case valued:
		err = fmt.Errorf("takes no value")
	}
	if err != nil {
		return nil, fmt.Errorf("fault mode %q: %w", f.Mode, err)
	}
	if mode == ModeStatus && (c.Status < 200 || c.Status > 599) {
		return nil, fmt.Errorf("fault mode %q: status %d is not within 200 to 599", f.Mode, c.Status)
	}
	if mode == ModeCloseUnread && f.Pattern != "" {
		c.class = classAnswer
	}
	if f.Share < 0 || f.Share > 1 || f.Times < 0 || f.Delay < 0 || f.RetryAfter < 0 {
		return nil, fmt.Errorf("fault mode %q: share must be within 0 to 1, and times, delay and retry_after not negative", f.Mode)
	}
	for name := range f.Header {
		if http.CanonicalHeaderKey(name) == "" {
			return nil, fmt.Errorf("fault mode %q: header without a name", f.Mode)
		}
	}
	c.pattern, err = compilePattern(f.Pattern)
	return c, err
}
