package simulator

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/match"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

// Modes of a Fault. Some take a value after a colon: status:503, delay:2s,
// events-delay:1m, outcome:blocked.
const (
	// The answer instead of an acceptance. Nothing is stored, unless Fault.Store is
	// set.

	ModeStatus      = "status"
	ModeGarbage     = "garbage-200"
	ModeHang        = "hang"
	ModeRefuse      = "refuse"
	ModeCredits     = "credits"
	ModeUnverified  = "unverified"
	ModeBlocked     = "blocked"
	ModeRate        = "rate"
	ModeNotAllowed  = "not-allowed"
	ModeFull        = "full"
	ModeLargeBatch  = "large-batch"
	ModeTooLarge    = "too-large"
	ModeCloseUnread = "close-before-read"
	ModeDelay       = "delay"

	// Faults of the answer to stored mail.

	ModeHangAfterBody   = "hang-after-body"
	ModeAcceptThenClose = "accept-then-close"
	ModeTruncate        = "truncate"

	// What happens to mail that is accepted while the fault is in force.

	ModeSuspend     = "suspend"
	ModeEventsOff   = "events-off"
	ModeEventsDelay = "events-delay"
	ModeAsyncBounce = "async-bounce"
	ModeOutcome     = "outcome"

	// How webhooks go wrong. Times counts webhook requests.

	ModeEventsDuplicate = "events-duplicate"
	ModeEventsShuffle   = "events-shuffle"
	ModeBadSignature    = "bad-signature"
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

// A Mode is a way in which an account misbehaves.
type Mode struct {
	Example string // of a Fault's Mode, with a value if it takes one
	Effect  string // what the account does, in Markdown
}

// Modes returns the modes in the order of documents.
func Modes() []Mode {
	out := make([]Mode, len(modes))
	for i, m := range modes {
		out[i] = Mode{m.name + m.value, m.effect}
	}
	return out
}

// A modeRow is a mode with an example of the value that follows it, what the account does, and the condition that it
// puts an account in.
type modeRow struct {
	name, value, effect string
	class               modeClass
	condition           provider.ConditionKind
}

// modes has each mode once.
var modes = []modeRow{
	{ModeStatus, ":503", "answers with this status, `body` and `header`", classAnswer, provider.HasStatus},
	{ModeGarbage, "", "answers 200 with a body that is not the provider's, SMTP without a code", classAnswer,
		provider.Garbage},
	{ModeHang, "", "reads the request and never answers", classAnswer, 0},
	{ModeRefuse, "",
		"refuses the matching addresses as not valid: the call, or their messages of a batch", classAnswer, 0},
	{ModeCredits, "",
		"the account has no credits: Amazon SES 400, SendGrid 401, Mailgun, Brevo and SMTP2GO 402, Mailjet and Mailtrap " +
			"403, SparkPost 420, Postmark 422, Resend 429", classAnswer, provider.NoCredits},
	{ModeUnverified, "",
		"the sender is not verified: Mailgun, Brevo, SparkPost, SMTP2GO and Amazon SES 400, Postmark 422, the others 403",
		classAnswer, provider.Unverified},
	{ModeBlocked, "", "the address of the caller is blocked: 403, Brevo 401", classAnswer, provider.Blocked},
	{ModeRate, "", "too many requests: 429, with the time of `retry_after`", classAnswer, provider.RateLimited},
	{ModeNotAllowed, "",
		"the account may not send: Mailgun and Amazon SES 400, SendGrid and Mailjet 401, Postmark 422, the others 403",
		classAnswer, provider.NotAllowed},
	{ModeFull, "",
		"the account is full until `retry_after`: Amazon SES 400, SendGrid 401, Brevo and SMTP2GO 402, Mailjet and " +
			"Mailtrap 403, Mailgun and SparkPost 420, Postmark 422, Resend 429", classAnswer, provider.Full},
	{ModeLargeBatch, "",
		"large calls are not allowed yet (see `above`): SendGrid and Mailgun 403, SparkPost 413, Postmark and Resend 422, " +
			"the others 400", classAnswer, provider.LargeBatch},
	{ModeTooLarge, "", "the message is too large: 413, Mailjet 400", classAnswer, provider.TooLarge},

	{ModeCloseUnread, "", "closes the connection before it reads the body; with a `pattern`, after it", classUnread, 0},
	{ModeDelay, ":2s", "stores the mail at once and answers later; other faults apply, too", classDelay, 0},
	{ModeHangAfterBody, "", "stores the mail and never answers", classSpoil, 0},
	{ModeAcceptThenClose, "", "stores the mail and closes the connection", classSpoil, 0},
	{ModeTruncate, "", "stores the mail, and closes after half of the answer", classSpoil, 0},

	{ModeSuspend, "", "accepts the mail and delivers none until the fault is cleared", classMail, 0},
	{ModeEventsOff, "", "delivers, and sends no webhook; look-ups show the events", classMail, 0},
	{ModeEventsDelay, ":1m", "delivers later", classMail, 0},
	{ModeAsyncBounce, "", "delivers, and reports a bounce afterwards", classMail, 0},
	{ModeOutcome, ":blocked", "the mail has the outcome after the colon", classMail, 0},

	{ModeEventsDuplicate, "", "sends each event twice", classWebhook, 0},
	{ModeEventsShuffle, "", "sends events out of order", classWebhook, 0},
	{ModeBadSignature, "", "signs webhooks with a wrong key", classWebhook, 0},
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
	c := &fault{Fault: f, left: f.Times, events: strings.Fields(strings.ReplaceAll(f.Events, ",", " "))}
	c.Mode = mode
	if i := slices.IndexFunc(modes, func(m modeRow) bool { return m.name == mode }); i >= 0 {
		c.class, c.condition = modes[i].class, modes[i].condition
	}
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
	if _, unnamed := f.Header[""]; unnamed {
		return errors.New("header without a name")
	}
	return nil
}
