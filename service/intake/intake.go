// Package intake reads and checks the batches that users send. An Intake has the fields of a request and reads its
// recipients from any format. It keeps them and the attachments in memory or files, collects every mistake, and returns
// the checked batch. It stores nothing.
package intake

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/problem"
	"github.com/safedelivr/safedelivr/service/templates"
)

// Limits of single fields, in bytes unless stated otherwise.
const (
	maxLine     = 998 // a line (RFC 5322, 2.1.1)
	maxVarValue = 64 << 10
	maxNameLen  = 256
)

// MaxVars is the number of variables that a recipient may have, and of placeholders that need a value.
const MaxVars = 100

// yieldAfter is the number of recipients after which an Intake yields the processor and asks whether the client is
// still there.
const yieldAfter = 250

// Config holds the limits and the defaults of batches.
type Config struct {
	MaxRecipients int           // recipients of a batch
	MaxContent    int64         // bytes of everything but the recipients
	UrgentUpTo    int           // batches of at most this many recipients are urgent by default
	Kept          time.Duration // how long a batch is kept; a scheduled one must expire before; 0: no limit
	ExpireAfter   time.Duration // time after which a batch expires, if the request names none
	SpoolDir      string        // directory for the recipients and attachments of large requests
	// Enter waits until a long request may be computed for; see priority.Scheduler. It may be nil.
	Enter func() (leave func(), err error)
	// Spooling is called before n bytes are written to the spool, and with the negative number of them when the request is
	// done. It may be nil.
	Spooling  func(n int64) error
	Providers map[string]bool // names of the configured providers
	// Template returns the template of a reference in a language. It may be nil if no request names one.
	Template func(ref, language string) (*templates.Filler, error)
	// Defaults returns what a batch has if its request names nothing else. It may be nil.
	Defaults func() (models.SendDefaults, error)
	// UnsubscribeURL is the page at which recipients unsubscribe, without their token; empty: there is none.
	UnsubscribeURL string
}

// sendDefaults returns what a batch has if its request names nothing else.
func (c *Config) sendDefaults() (models.SendDefaults, error) {
	if c.Defaults == nil {
		return models.SendDefaults{}, nil
	}
	return c.Defaults()
}

// Intake is a request while it is read and checked. It is not safe for concurrent use.
type Intake struct {
	Batch  Batch     // complete when Read has returned, because the fields may follow the recipients
	PartOf models.ID // first batch of a request that is several; zero: it is that, or the only one
	Mistakes

	ctx context.Context //nolint:containedctx // an Intake belongs to one request
	cfg *Config
	attachments
	*Pace

	spool      *spool
	index      int // of the next recipient
	content    int64
	structured structured
	own        ownTimes
	ownHeaders ownHeaders

	complete time.Time // when the request was read
	defaults models.SendDefaults
	template *templates.Filler // nil: the request has the content
	together bool              // the batch is one mail to all of its addresses
	copies   []carbon
	merged   int // addresses of one mail that were named before
}

// New returns an empty Intake. When ctx ends, the methods that take long return its error. The caller must close it.
func New(ctx context.Context, cfg *Config) *Intake {
	return &Intake{
		ctx:         ctx,
		cfg:         cfg,
		spool:       newSpool(cfg),
		attachments: attachments{files: cfg.buffer()},
		Pace:        NewPace(cfg.Enter),
	}
}

// Another returns an empty Intake for another part of the request of in. What both have on disk counts together.
func Another(in *Intake) *Intake { return New(in.ctx, in.cfg) }

// buffer returns an empty buffer.
func (c *Config) buffer() buffer { return buffer{dir: c.SpoolDir, grow: c.Spooling} }

// Close releases the resources of the Intake.
func (in *Intake) Close() {
	in.spool.close()
	in.files.close()
}

// Permit lets the batch leave out the recipients that have mistakes. The caller must call it before Read.
func (in *Intake) Permit() { in.rejected = &rejected{spool: in.spool, last: -1} }

// Count returns the number of recipients that were read, which is the index of the next one.
func (in *Intake) Count() int { return in.index }

// ContentLeft returns how many bytes of content the request may still have.
func (in *Intake) ContentLeft() int64 { return in.cfg.MaxContent - in.content }

// AddContent counts n bytes of content. It returns an error if the content exceeds its limit.
func (in *Intake) AddContent(n int) error {
	if in.content += int64(n); in.content > in.cfg.MaxContent {
		return in.ContentTooLarge()
	}
	return nil
}

// ContentTooLarge returns the error for content that exceeds its limit.
func (in *Intake) ContentTooLarge() *problem.Error {
	return problem.New(problem.TooLarge, "content_too_large",
		"Subject, text, HTML and all other fields except to may have at most %d bytes together.", in.cfg.MaxContent)
}

// Size returns how many bytes of the checked batch are stored at most.
func (in *Intake) Size(batch *models.Batch) int64 {
	return max(in.content, batch.Content.Size()-batch.Content.AttachmentSize()) + in.files.size + in.spool.size
}

// Recipient is one recipient of a request.
type Recipient struct {
	Email string `json:"email" required:"true" schema:"Mailbox"` // An address, with or without a name.
	Name  string `json:"name"`
	// Values for {{placeholders}} in the subject and the bodies. They are escaped in HTML. {{name}} and {{email}} need no
	// value. Lists and objects are for templates only.
	Vars     map[string]string `json:"vars" max:"100" schema:"Variable"`
	JSON     []string          // names of variables whose value is JSON that is not a string
	Metadata map[string]string `json:"metadata" max:"100" whole:"NewMetadata"`
	// Header fields of this recipient, in place of the ones of the batch with the same names, and by their rules. The
	// placeholders in them have its values. If a recipient has a `List-Unsubscribe`, Safedelivr adds none to the batch.
	// Some kinds of provider carry them only if the mails of the batch have fields of the same names: see
	// docs/capabilities.md.
	Headers  []models.Header `json:"headers" max:"20" whole:"OwnHeaders"`
	Times                    // in place of those of the batch
	Raw      []string        // values of the placeholders Raw(0), Raw(1), …: they stand as they are, also in HTML
	ClientID string          // of the message
	Pointer  string          // JSON pointer of the address, relative to the recipient
	Flawed   bool            // the caller has reported mistakes in it
}

// Raw returns placeholder i whose values stand as they are.
func Raw(i int) string { return "{{" + models.SlotName('h', i) + "}}" }

// Literal returns a text as it is written where placeholders are possible.
func Literal(text string) string { return strings.ReplaceAll(text, "{{", "{{{{") }

// Nothing is the HTML of a mail that has nothing but a subject or files.
const Nothing = "<br>"

// Of returns recipients that are in memory as those of a request.
func Of(recipients ...Recipient) iter.Seq2[*Recipient, error] {
	return func(yield func(*Recipient, error) bool) {
		for i := range recipients {
			if !yield(&recipients[i], nil) {
				return
			}
		}
	}
}

// Read reads recipients of the request. It reports the mistakes in each of them. An error, of the recipients or of the
// limits, means that the rest of the request need not be read.
func (in *Intake) Read(recipients iter.Seq2[*Recipient, error]) error {
	for r, err := range recipients {
		if err == nil {
			err = in.add(r)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (in *Intake) add(r *Recipient) error {
	at := in.index
	if at%yieldAfter == yieldAfter-1 { // a large batch takes seconds to read
		if err := cmp.Or(in.yield(), in.ctx.Err()); err != nil {
			return err
		}
	}
	in.index++
	if in.index > in.cfg.MaxRecipients {
		return in.tooManyRecipients()
	}
	to, times, ok := in.check(at, r)
	if !ok {
		return spoolError(cmp.Or(in.lost(), in.ctx.Err()))
	}
	in.ownHeaders.note(to.Headers)
	return spoolError(in.spool.add(place{index: at, row: in.row, json: r.JSON, times: times}, &to))
}

func (in *Intake) tooManyRecipients() error {
	return problem.New(problem.TooLarge, "too_many_recipients",
		"A batch may have at most %d recipients.", in.cfg.MaxRecipients)
}

// Recipient returns a recipient that is checked, and false if it has mistakes.
func (in *Intake) Recipient(r *Recipient) (models.Recipient, bool) {
	to, _, ok := in.check(0, r)
	return to, ok
}

// check checks the recipient with an index. It returns the number of its times, and false if it has mistakes.
func (in *Intake) check(index int, r *Recipient) (to models.Recipient, times int, ok bool) {
	before := in.Found()
	wrong := func(pointer, code, detail string, args ...any) {
		in.Wrong(pointerTo(index)+pointer, code, detail, args...)
	}
	to = models.Recipient{Vars: r.Vars, Metadata: r.Metadata, ClientID: r.ClientID, Headers: r.Headers}
	if r.Email != "" || !r.Flawed {
		a, err := ParseAddress(r.Email)
		if err != nil {
			wrong(r.Pointer, "invalid_address", "%s %s", problem.Quote(r.Email), err)
		}
		to.Email, to.Name = a.Email, a.Name
	}
	if r.Name != "" {
		var err error
		if to.Name, err = cleanName(r.Name); err != nil {
			wrong("/name", "invalid_header", "The name must be one line without control characters.")
		}
	}
	if len(to.Name) > maxNameLen {
		wrong("/name", "too_long", "The name is longer than %d bytes.", maxNameLen)
	}
	in.checkVars(index, r.Vars)
	for i, value := range r.Raw {
		if to.Vars == nil {
			to.Vars = make(map[string]string, len(r.Raw))
		}
		to.Vars[models.SlotName('h', i)] = value
		if len(value) > maxVarValue {
			wrong("/vars", "too_long", "The value of a variable has more than %d bytes.", maxVarValue)
		}
	}
	in.structured.note(index, r)
	if len(r.Metadata)+len(r.Headers) > 0 {
		in.checkMetadata(pointerTo(index)+"/metadata", r.Metadata)
		in.checkHeaders(pointerTo(index)+"/headers", r.Headers, maxOwnHeaders)
	}
	times = in.own.add(&in.Mistakes, index, &r.Times)
	return to, times, !r.Flawed && in.Found() == before
}

// pointerTo returns the JSON pointer of the recipient with an index.
func pointerTo(index int) string { return "/to/" + strconv.Itoa(index) }

// checkVars reports mistakes in the variables of a recipient, in the order of their names.
func (m *Mistakes) checkVars(index int, vars map[string]string) {
	if len(vars) > MaxVars {
		m.Wrong(pointerTo(index)+"/vars", "too_many", "A recipient may have at most %d variables.", MaxVars)
		return
	}
	valid := true
	for k, v := range vars {
		valid = valid && models.ValidVar(k) && !models.IsSlot(k) && len(v) <= maxVarValue
	}
	if valid {
		return
	}
	for _, k := range slices.Sorted(maps.Keys(vars)) {
		at := pointerTo(index) + problem.Pointer("vars", k)
		if models.IsSlot(k) {
			m.Wrong(at, "invalid_name", "Names that begin with _slot. belong to templates.")
		}
		if !models.ValidVar(k) {
			m.Wrong(at, "invalid_name",
				"A variable's name has at most 64 characters: a letter or _, then letters, digits, _, - or a dot.")
		}
		if len(vars[k]) > maxVarValue {
			m.Wrong(at, "too_long", "The value has more than %d bytes.", maxVarValue)
		}
	}
}

// Chunks calls f for each chunk of the checked batch. n counts from 0. The chunks of recipients with the same times
// come in order.
func (in *Intake) Chunks(f func(n int, recipients []models.Recipient) error) error {
	runs := in.spool.cut().runs
	type collected struct {
		sizes      []int // of this chunk and the next ones
		number     int   // of this chunk
		recipients []models.Recipient
	}
	open := make([]collected, len(runs))
	first := 0
	for i := range runs {
		open[i] = collected{sizes: runs[i].sizes, number: first}
		first += len(runs[i].sizes)
	}
	return in.each(func(at place, r models.Recipient) error {
		c := &open[at.times]
		if c.recipients == nil {
			c.recipients = make([]models.Recipient, 0, c.sizes[0])
		}
		if c.recipients = append(c.recipients, r); len(c.recipients) < c.sizes[0] {
			return nil
		}
		chunk, n := c.recipients, c.number
		c.recipients, c.sizes, c.number = nil, c.sizes[1:], n+1
		return f(n, chunk)
	})
}

// each calls f for each recipient that is kept, in order, with pauses for other work, until the context ends.
func (in *Intake) each(f func(at place, r models.Recipient) error) error {
	return in.eachOf(in.spool, nil, f)
}

// eachOf is each for a spool. It calls rejected for each rejection; nil: it leaves them out.
func (in *Intake) eachOf(
	s *spool, rejected func(block []byte) error, f func(at place, r models.Recipient) error,
) error {
	n := 0
	return spoolError(s.each(rejected, func(at place, r models.Recipient) error {
		if n++; n%yieldAfter == 1 {
			if err := cmp.Or(in.yield(), in.ctx.Err()); err != nil {
				return err
			}
		}
		return f(at, r)
	}))
}

// errMoved is the error of a change for a recipient who is kept elsewhere.
var errMoved = errors.New("intake: moved")

// respool moves the recipients to a new spool, after change has changed or refused them: their sizes may change. It
// takes time linear in the request.
func (in *Intake) respool(change func(at *place, r *models.Recipient) error) error {
	old := in.spool
	in.spool = newSpool(in.cfg)
	defer old.close()
	old.repeats = true // the new spool finds them again
	if in.rejected != nil {
		in.rejected.spool, in.rejected.last = in.spool, -1
	}
	return in.eachOf(old, in.spool.writeBlock, func(at place, r models.Recipient) error {
		in.row = at.row
		before := in.Found()
		err := change(&at, &r)
		switch {
		case errors.Is(err, errMoved):
			return nil
		case err != nil:
			return err
		case in.Permissive() && in.Found() > before:
			return in.lost()
		}
		return in.spool.add(at, &r)
	})
}

// spoolError returns the problem for an error of the spool. It returns other errors as they are.
func spoolError(err error) error {
	if !errors.Is(err, errSpool) {
		return err
	}
	return problem.New(problem.Unavailable, "spool_unavailable",
		"The request could not be buffered while it was checked. Nothing was stored; repeat the request.",
	).After(10).Because(err)
}

// empty reports whether a text has nothing but space.
func empty(text string) bool { return strings.TrimSpace(text) == "" }
