// Package intake reads and checks the batches that users send. It stores nothing: a
// Builder collects the fields of a request and every mistake in them, keeps recipients
// and attachments in memory or files, and returns the checked batch.
package intake

import (
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/nearest"
	"github.com/safedelivr/safedelivr/service/problem"
	"github.com/safedelivr/safedelivr/service/templates"
)

// Limits of single fields, in bytes unless stated otherwise.
const (
	maxLine     = 998 // a line (RFC 5322, 2.1.1)
	maxVarValue = 64 << 10
	maxNameLen  = 256
)

// MaxVars is the number of variables that a recipient may have, and of placeholders that
// need a value.
const MaxVars = 100

// maxNamed is the number of names of providers that are looked at.
const maxNamed = 1000

// yieldAfter is the number of recipients after which the Builder yields the processor and
// asks whether the client is still there.
const yieldAfter = 250

// Config holds the limits and the defaults of batches.
type Config struct {
	MaxRecipients int           // recipients of a batch
	MaxContent    int64         // bytes of everything but the recipients
	UrgentUpTo    int           // batches of at most this many recipients are urgent by default
	Kept          time.Duration // how long a batch is kept; a scheduled one must expire before; 0: no limit
	ExpireAfter   time.Duration // time after which a batch expires, if the request names none
	SpoolDir      string        // directory for the recipients and attachments of large requests
	// Enter waits until a long request may be computed for; see priority.Scheduler. It may be
	// nil.
	Enter func() (leave func(), err error)
	// Spooling is called before n bytes are written to the spool, and with the negative
	// number of them when the request is done. It may be nil.
	Spooling  func(n int64) error
	Providers map[string]bool // names of the configured providers
	// Defaults returns what a batch has if its request names nothing else. It may be nil.
	Defaults func() (models.SendDefaults, error)
	// UnsubscribeURL is the page at which recipients unsubscribe, without their token; empty:
	// there is none.
	UnsubscribeURL string
}

// Builder builds a batch from the fields of a request in any form, and collects the
// mistakes in them. It is not safe for concurrent use.
type Builder struct {
	problem.Mistakes
	AllowDuplicates bool // keep repeated addresses

	ctx   context.Context //nolint:containedctx // a Builder belongs to one request
	cfg   *Config
	spool *spool
	files buffer // the bytes of attachments

	complete time.Time // when the request was read

	window   *Window // nil: the request has none
	defaults models.SendDefaults
	own      ownTimes

	ownHeaders ownHeaders

	texts map[string]string
	options
	providers []string        // configured ones, without repeated names
	chosen    map[string]bool // the same providers
	named     int             // names in the list of providers
	set       map[string]bool // fields that have a value
	bad       map[string]bool // fields whose value could not be read; the mistake is listed

	template *templates.Filler // nil: the request has the content
	structs  int               // variables that need a template
	structAt []string          // pointers of some of them

	rejected *rejected         // nil: a recipient with mistakes refuses the batch
	row      int               // line of the file that the next recipient is in; 0: none
	columns  map[string]string // its headings, by the names of variables
	mapping  map[string]string // what columns of files are, by their headings
	mapped   map[string]bool   // the names in mapping

	pace    pace
	index   int // of the next recipient in the request
	content int64
}

// New returns an empty Builder for a request. When ctx ends, the methods of the Builder
// that take long return its error. The caller must close the Builder.
func New(ctx context.Context, cfg *Config) *Builder {
	return &Builder{
		ctx:    ctx,
		cfg:    cfg,
		spool:  newSpool(cfg.SpoolDir, cfg.Spooling),
		files:  buffer{dir: cfg.SpoolDir, grow: cfg.Spooling},
		texts:  map[string]string{},
		chosen: map[string]bool{},

		options: options{contentIDs: map[string]bool{}},

		set:  map[string]bool{},
		bad:  map[string]bool{},
		pace: pace{enter: cfg.Enter},
	}
}

// Close releases the resources of the builder.
func (b *Builder) Close() {
	b.spool.close()
	b.files.close()
	if b.rejected != nil {
		for _, run := range b.rejected.runs {
			run.close()
		}
	}
}

// IsText reports whether a batch has a field with this name that holds one string.
func (b *Builder) IsText(name string) bool {
	switch name {
	case "from",
		"reply_to",
		"subject",
		"text",
		"html",
		"body",
		"category",
		"lane",
		"on_unknown",
		DeliverAt,
		ExpiresAt,
		TimeZone,
		Template,
		Language:
		return true
	}
	return false
}

// IsField reports whether a batch has a field with this name.
func (b *Builder) IsField(name string) bool {
	return b.IsText(name) || b.IsList(name) || b.IsTexts(name) || b.IsFlag(name) || name == "to" ||
		name == "attachments" || name == SendWindow
}

// SetText sets a field that holds one string.
func (b *Builder) SetText(name, value string) {
	b.set[name] = true
	b.texts[name] = value
}

// Text returns the value of a field that holds one string, as SetText got it.
func (b *Builder) Text(name string) string { return b.texts[name] }

// meantProvider says which provider a name may have meant, or which there are.
func meantProvider(name string, known map[string]bool) string {
	names := slices.Sorted(maps.Keys(known))
	if meant := nearest.Meant(name, names).String(); meant != "" || len(names) == 0 || len(names) > 10 {
		return meant
	}
	return " There are " + strings.Join(names, ", ") + "."
}

// setProviders sets the providers that the batch may use. It keeps each configured provider
// once.
func (b *Builder) setProviders(names iter.Seq2[int, string]) {
	for i, name := range names {
		if b.named++; b.named > maxNamed {
			return // Check reports that there are too many
		}
		at := "/providers/" + strconv.Itoa(i)
		switch {
		case !b.cfg.Providers[name]:
			b.Wrong(at, "unknown_provider", "No provider is called %s.%s", problem.Quote(name),
				meantProvider(name, b.cfg.Providers))
		case b.chosen[name]:
			b.Wrong(at, "repeated", "%s is listed twice.", problem.Quote(name))
		default:
			b.chosen[name] = true
			b.providers = append(b.providers, name)
		}
	}
}

// Unreadable marks a field as present but unreadable, so that it is not reported as
// missing. The caller reports the mistake.
func (b *Builder) Unreadable(name string) { b.bad[name] = true }

// Count returns the number of recipients added, which is the index of the next one in
// the request.
func (b *Builder) Count() int { return b.index }

// ContentLeft returns how many bytes of content the request may still have.
func (b *Builder) ContentLeft() int64 { return b.cfg.MaxContent - b.content }

// AddContent counts n bytes of content. It returns an error if the content exceeds its
// limit.
func (b *Builder) AddContent(n int) error {
	if b.content += int64(n); b.content > b.cfg.MaxContent {
		return b.ContentTooLarge()
	}
	return nil
}

// ContentTooLarge returns the error for content that exceeds its limit.
func (b *Builder) ContentTooLarge() *problem.Error {
	return problem.New(problem.TooLarge, "content_too_large",
		"Subject, text, HTML and all other fields except to may have at most %d bytes together.", b.cfg.MaxContent)
}

// Size returns how many bytes of the checked batch are stored at most.
func (b *Builder) Size(batch *models.Batch) int64 {
	n := max(b.content, batch.Content.Size()-batch.Content.AttachmentSize()) + b.files.size + b.spool.size
	if b.rejected != nil {
		for _, run := range b.rejected.runs {
			n += run.size
		}
	}
	return n
}

// Err returns the error that lists the mistakes found so far, or nil if there are none.
func (b *Builder) Err() error {
	return b.In(problem.New(problem.Invalid, "invalid_request",
		"The batch was not accepted and nothing was stored: see errors."))
}

// Recipient is one recipient of a request.
type Recipient struct {
	Email, Name string // Email may contain a name
	Vars        map[string]string
	JSON        []string // names of variables whose value is JSON that is not a string
	Metadata    map[string]string
	Headers     iter.Seq2[string, string] // nil: it has none of its own
	ClientID    string                    // of the message
	Times       *Times                    // nil: those of the batch
	Pointer     string                    // JSON pointer of the address, relative to the recipient
	Flawed      bool                      // the caller has reported mistakes in it
}

// Add adds the next recipient of the request. It reports mistakes in the recipient and
// returns nil; an error means that the rest of the request need not be read.
func (b *Builder) Add(r *Recipient) error {
	at := b.index
	if at%yieldAfter == yieldAfter-1 {
		if err := b.pace.yield(); err != nil { // a large batch takes seconds to read
			return err
		}
		if err := b.ctx.Err(); err != nil {
			return err
		}
	}
	b.index++
	if b.index > b.cfg.MaxRecipients {
		return problem.New(problem.TooLarge, "too_many_recipients",
			"A batch may have at most %d recipients.", b.cfg.MaxRecipients)
	}
	here, before := "/to/"+strconv.Itoa(at), b.Found()
	var a models.Address
	if r.Email != "" || !r.Flawed {
		var err error
		if a, err = ParseAddress(r.Email); err != nil {
			b.Wrong(here+r.Pointer, "invalid_address", "%s %s", problem.Quote(r.Email), err)
		}
	}
	if r.Name != "" {
		var err error
		if a.Name, err = cleanName(r.Name); err != nil {
			b.Wrong(here+"/name", "invalid_header", "The name must be one line without control characters.")
		}
	}
	if len(a.Name) > maxNameLen {
		b.Wrong(here+"/name", "too_long", "The name is longer than %d bytes.", maxNameLen)
	}
	b.checkVars(here, r.Vars)
	if r.Metadata != nil {
		b.checkMetadata(here+"/metadata", r.Metadata)
	}
	var headers []models.Header
	if r.Headers != nil {
		headers = b.checkHeaders(here+"/headers", r.Headers)
	}
	times := 0
	if r.Times != nil {
		times = b.addTimes(here, r.Times)
	}
	if r.Flawed || b.Found() > before {
		return b.checkRejected()
	}
	b.ownHeaders.note(headers)
	to := models.Recipient{
		Email:    a.Email,
		Name:     a.Name,
		Vars:     r.Vars,
		Metadata: r.Metadata,
		Headers:  headers,
		ClientID: r.ClientID,
	}
	return spoolError(b.spool.add(place{index: at, row: b.row, json: r.JSON, times: times}, &to))
}

// checkVars reports mistakes in the variables of a recipient, in the order of their
// names.
func (b *Builder) checkVars(here string, vars map[string]string) {
	if len(vars) > MaxVars {
		b.Wrong(here+"/vars", "too_many", "A recipient may have at most %d variables.", MaxVars)
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
		at := here + problem.Pointer("vars", k)
		if models.IsSlot(k) {
			b.Wrong(at, "invalid_name", "Names that begin with _slot. belong to templates.")
		}
		if !models.ValidVar(k) {
			b.Wrong(at, "invalid_name",
				"A variable's name has at most 64 characters: a letter or _, then letters, digits, _, - or a dot.")
		}
		if len(vars[k]) > maxVarValue {
			b.Wrong(at, "too_long", "The value has more than %d bytes.", maxVarValue)
		}
	}
}

// Each calls f for each recipient in order, with its index in the request. It leaves
// out repeated addresses unless AllowDuplicates is set. Add must not be called after it.
func (b *Builder) Each(f func(index int, r models.Recipient) error) error {
	b.keepRepeats()
	return b.each(f)
}

// Chunks calls f for each chunk of the checked batch. n counts from 0. The chunks of recipients with the same times
// come in order.
func (b *Builder) Chunks(f func(n int, recipients []models.Recipient) error) error {
	runs := b.spool.cut().runs
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
	return spoolError(b.spool.each(b.paced(func(at place, r models.Recipient) error {
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
	})))
}

// each calls f for each recipient of the spool until the context ends.
func (b *Builder) each(f func(index int, r models.Recipient) error) error {
	return spoolError(b.spool.each(b.paced(func(at place, r models.Recipient) error { return f(at.index, r) })))
}

// keepRepeats tells the spool whether repeated addresses are kept. It frees the hashes
// of addresses, which only Add needs.
func (b *Builder) keepRepeats() {
	b.spool.repeats = b.AllowDuplicates
	b.spool.seen = nil
}

// spoolError returns the problem for an error of the spool. It returns other errors as
// they are.
func spoolError(err error) error {
	if !errors.Is(err, errSpool) {
		return err
	}
	return problem.New(problem.Unavailable, "spool_unavailable",
		"The request could not be buffered while it was checked. Nothing was stored; repeat the request.",
	).After(10).Because(err)
}
