package service

import (
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// Bounds of single fields, in bytes.
const (
	maxSubject  = 998 // RFC 5322, 2.1.1: a line
	maxVars     = 100
	maxVarValue = 64 << 10
	maxNameLen  = 256
)

// maxDeadline is how far ahead a request may set its deadline, where the default
// is not even later.
const maxDeadline = 30 * 24 * time.Hour

// yieldAfter is after how many recipients others may go first.
const yieldAfter = 250

// Intake gathers the fields of a batch, from whatever form, and everything wrong
// with them. It is not safe for concurrent use.
type Intake struct {
	Mistakes
	AllowDuplicates bool // repeated addresses stay

	cfg   *Config
	known map[string]bool
	spool *spool

	texts     map[string]string
	providers []Named
	set       map[string]bool // fields that were given a value
	bad       map[string]bool // fields whose value could not be read, and is listed as wrong

	index   int // of the next recipient in the request
	content int64
}

// Named is the name of a provider and its place in the request.
type Named struct {
	Index int
	Name  string
}

// NewIntake begins a batch. Close frees what it holds.
func (s *Service) NewIntake() *Intake {
	return &Intake{
		cfg:   &s.cfg,
		known: s.known,
		spool: newSpool(s.cfg.SpoolDir),
		texts: map[string]string{},
		set:   map[string]bool{},
		bad:   map[string]bool{},
	}
}

// Close frees what the intake holds.
func (in *Intake) Close() { in.spool.close() }

// IsText reports whether a batch has a field of this name that holds one string.
func (in *Intake) IsText(name string) bool {
	switch name {
	case "from", "reply_to", "subject", "text", "html", "body", "lane", "on_unknown", "deadline":
		return true
	}
	return false
}

// IsField reports whether a batch has a field of this name.
func (in *Intake) IsField(name string) bool {
	return in.IsText(name) || name == "to" || name == "providers" || name == "allow_duplicates"
}

// SetText gives a field of text its value.
func (in *Intake) SetText(name, value string) {
	in.set[name] = true
	in.texts[name] = value
}

// Text is the value of a field of text, as it was given.
func (in *Intake) Text(name string) string { return in.texts[name] }

// SetProviders gives the providers that may be used.
func (in *Intake) SetProviders(list []Named) {
	in.set["providers"] = true
	in.providers = list
}

// Unreadable notes that a field stands there and cannot be read, so that it is
// not said to be missing; the caller lists the mistake.
func (in *Intake) Unreadable(name string) { in.bad[name] = true }

// Count is the number of recipients taken so far, which is the place of the next
// one in the request.
func (in *Intake) Count() int { return in.index }

// ContentLeft is how many bytes of content may still come.
func (in *Intake) ContentLeft() int64 { return in.cfg.MaxContent - in.content }

// AddContent counts n bytes of content.
func (in *Intake) AddContent(n int) error {
	if in.content += int64(n); in.content > in.cfg.MaxContent {
		return in.ContentTooLarge()
	}
	return nil
}

// ContentTooLarge is the error of more content than is taken.
func (in *Intake) ContentTooLarge() *Error {
	return Fail(
		TooLarge,
		"content_too_large",
		"Subject, text, HTML and the other fields but to have at most %d bytes together.",
		in.cfg.MaxContent,
	)
}

// Err is the error that lists what was found wrong so far, or nil.
func (in *Intake) Err() error {
	return in.in(Fail(Invalid, "invalid_request", "The batch was not accepted and nothing was stored: see errors."))
}

// Recipient is one recipient as the request has it.
type Recipient struct {
	Email, Name string // Email may have a name of its own
	Vars        map[string]string
	Pointer     string // of the address, below the recipient's own
	Flawed      bool   // mistakes in it are listed already
}

// Add takes the next recipient of the request. An error ends the request: what
// follows is of no use. Mistakes in the recipient are no error, but listed.
func (in *Intake) Add(r *Recipient) error {
	at := in.index
	if at%yieldAfter == yieldAfter-1 {
		runtime.Gosched() // reading a large batch computes for seconds
	}
	in.index++
	if in.index > in.cfg.MaxRecipients {
		return Fail(TooLarge, "too_many_recipients", "A batch has at most %d recipients.", in.cfg.MaxRecipients)
	}
	here, before := "/to/"+strconv.Itoa(at), in.total
	var a models.Address
	if r.Email != "" || !r.Flawed {
		var err error
		if a, err = ParseAddress(r.Email); err != nil {
			in.Wrong(here+r.Pointer, "invalid_address", "%s %s", Quote(r.Email), err)
		}
	}
	if r.Name != "" {
		var err error
		if a.Name, err = cleanName(r.Name); err != nil {
			in.Wrong(here+"/name", "invalid_header", "The name %s", err)
		}
	}
	if len(a.Name) > maxNameLen {
		in.Wrong(here+"/name", "too_long", "The name is longer than %d bytes.", maxNameLen)
	}
	in.checkVars(here, r.Vars)
	if r.Flawed || in.total > before {
		return nil
	}
	return spoolError(in.spool.add(at, &models.Recipient{Email: a.Email, Name: a.Name, Vars: r.Vars}))
}

// Each reads back, in order, the recipients that were taken: with their places
// in the request, and without repeated addresses unless AllowDuplicates is set.
func (in *Intake) Each(f func(index int, r models.Recipient) error) error {
	in.spool.repeats = in.AllowDuplicates
	in.spool.seen = nil // everything was read
	return in.spool.each(f)
}

func (in *Intake) checkVars(here string, vars map[string]string) {
	if len(vars) > maxVars {
		in.Wrong(here+"/vars", "too_many", "At most %d variables per recipient.", maxVars)
		return
	}
	for k, v := range vars {
		if models.ValidVar(k) && len(v) <= maxVarValue {
			continue
		}
		for _, k := range slices.Sorted(maps.Keys(vars)) { // the same request always gets the same answer
			if !models.ValidVar(k) {
				in.Wrong(
					here+Pointer("vars", k),
					"invalid_name",
					"A variable's name is a letter or _ followed by letters, digits, _ - or ., at most 64.",
				)
			}
			if len(vars[k]) > maxVarValue {
				in.Wrong(here+Pointer("vars", k), "too_long", "A value has at most %d bytes.", maxVarValue)
			}
		}
		return
	}
}

// spoolError says what an error of the spool means for who asked.
func spoolError(err error) error {
	if err == nil {
		return nil
	}
	return Fail(
		Unavailable,
		"spool_unavailable",
		"The request could not be kept while it was checked. Nothing was stored; repeat it.",
	).After(
		10,
	).Because(
		err,
	)
}

// Quote shows a short piece of what was sent.
func Quote(s string) string {
	if r := []rune(s); len(r) > 60 {
		s = string(r[:60]) + "…"
	}
	return strconv.Quote(s)
}

// Check checks the whole batch and returns it without id and user, and with the
// deadline that the request asks for, if any: see Dated. It may be called once.
func (in *Intake) Check() (models.Batch, error) {
	b := in.batch()
	if err := in.placeholders(&b.Content); err != nil {
		return b, spoolError(err)
	}
	return b, in.Err()
}

// batch checks everything but the recipients' placeholders.
func (in *Intake) batch() models.Batch {
	in.spool.repeats = in.AllowDuplicates
	cut := in.spool.cut()
	b := models.Batch{Lane: models.Lane(in.texts["lane"]), OnUnknown: models.UnknownPolicy(in.texts["on_unknown"]),
		Recipients: cut.count, Duplicates: in.spool.all.count - cut.count, Chunks: len(cut.sizes), Sizes: in.spool.irregular()}
	b.Content.From = in.address("from", true)
	b.Content.ReplyTo = in.address("reply_to", false)
	b.Content.Subject = in.checkSubject()
	b.Content.Text = in.texts["text"]
	b.Content.HTML = in.texts["html"]
	if in.set["body"] {
		if in.set["html"] {
			in.Wrong("/body", "conflict", "body and html are the same thing; give one of them.")
		}
		b.Content.HTML = in.texts["body"]
	}
	if strings.TrimSpace(b.Content.Text) == "" && strings.TrimSpace(b.Content.HTML) == "" && !in.bad["text"] &&
		!in.bad["html"] &&
		!in.bad["body"] {
		in.Wrong("/html", "required", "Give text, html (or body), or both.")
	}
	if in.index == 0 && !in.bad["to"] {
		in.Wrong("/to", "required", "Give at least one recipient.")
	}
	b.Providers = in.checkedProviders()
	switch {
	case in.bad["lane"]:
	case !in.set["lane"] && cut.count <= in.cfg.UrgentUpTo:
		b.Lane = models.Urgent
	case !in.set["lane"]:
		b.Lane = models.Bulk
	case !b.Lane.Valid():
		in.Wrong("/lane", "invalid_value", "lane is urgent or bulk.")
	}
	if !in.set["on_unknown"] && !in.bad["on_unknown"] {
		b.OnUnknown = models.Hold
	} else if !in.bad["on_unknown"] && !b.OnUnknown.Valid() {
		in.Wrong("/on_unknown", "invalid_value", "on_unknown is hold or resend.")
	}
	if in.set["deadline"] {
		at, err := time.Parse(time.RFC3339, in.texts["deadline"])
		if err != nil {
			in.Wrong("/deadline", "invalid_value", "deadline is a time by RFC 3339, with its zone: 2026-01-31T12:00:00Z.")
		}
		b.Deadline = at.UTC().Truncate(time.Millisecond)
	}
	return b
}

// Dated gives a batch that was asked for at a time its deadline. Repeats of the
// request come to the same.
func (in *Intake) Dated(b *models.Batch, asked time.Time) error {
	if !in.set["deadline"] {
		b.Deadline = asked.Add(in.cfg.Deadline).UTC().Truncate(time.Millisecond)
		return nil
	}
	if most := max(maxDeadline, in.cfg.Deadline); !b.Deadline.After(asked) || b.Deadline.Sub(asked) > most {
		in.Wrong(
			"/deadline",
			"invalid_value",
			"deadline lies in the future, at most %d days from now.",
			int(most/(24*time.Hour)),
		)
	}
	return in.Err()
}

// checkedProviders returns the valid names of the providers that the request names.
func (in *Intake) checkedProviders() []string {
	if in.set["providers"] && len(in.providers) == 0 && !in.bad["providers"] {
		in.Wrong("/providers", "required", "Name at least one provider, or leave providers out.")
	}
	var out []string
	for _, p := range in.providers {
		at := "/providers/" + strconv.Itoa(p.Index)
		if !in.known[p.Name] {
			in.Wrong(at, "unknown_provider", "No provider is called %s.", Quote(p.Name))
		}
		if slices.Contains(out, p.Name) {
			in.Wrong(at, "repeated", "%s is named twice.", Quote(p.Name))
		} else {
			out = append(out, p.Name)
		}
	}
	return out
}

func (in *Intake) address(field string, required bool) models.Address {
	value := in.texts[field]
	if strings.TrimSpace(value) == "" {
		if required && !in.bad[field] {
			in.Wrong("/"+field, "required", "Give the sender's address.")
		}
		return models.Address{}
	}
	a, err := ParseAddress(value)
	if err != nil {
		in.Wrong("/"+field, "invalid_address", "%s %s", Quote(value), err)
	} else if len(a.Name) > maxNameLen {
		in.Wrong("/"+field, "too_long", "The name is longer than %d bytes.", maxNameLen)
	}
	return a
}

func (in *Intake) checkSubject() string {
	s := strings.TrimSpace(in.texts["subject"])
	switch {
	case in.bad["subject"]:
	case s == "":
		in.Wrong("/subject", "required", "Give a subject.")
	case hasControls(s):
		in.Wrong("/subject", "invalid_header", "A subject is one line without control characters.")
	case len(s) > maxSubject:
		in.Wrong("/subject", "too_long", "A subject has at most %d bytes.", maxSubject)
	}
	return s
}

// placeholders checks that every recipient has a value for every placeholder of
// the content, and that what goes into the subject is fit for a header.
func (in *Intake) placeholders(c *models.Content) error {
	fields := []struct{ name, text string }{{"subject", c.Subject}, {"text", c.Text}, {"html", c.HTML}}
	if in.set["body"] {
		fields[2].name = "body"
	}
	first := map[string]string{} // placeholder -> field
	var names []string
	for _, f := range fields {
		for _, n := range models.Placeholders(f.text) {
			if n != "email" && n != "name" && first[n] == "" {
				first[n] = f.name
				names = append(names, n)
			}
		}
	}
	missing := in.spool.missing(names)
	var some, lines []string
	for _, n := range names {
		switch missing[n] {
		case all:
			in.Wrong("/"+first[n], "unknown_placeholder", "{{%s}} has no value at any recipient; give it in vars.", n)
		case perhaps:
			some = append(some, n)
		}
	}
	for _, n := range models.Placeholders(c.Subject) {
		if in.spool.many || in.spool.broken[n] {
			lines = append(lines, n)
		}
	}
	if len(some)+len(lines) == 0 {
		return nil
	}
	return in.spool.each(func(index int, r models.Recipient) error {
		here := "/to/" + strconv.Itoa(index)
		for _, n := range some {
			if _, ok := r.Vars[n]; !ok {
				in.Wrong(here+Pointer("vars", n), "unknown_placeholder", "{{%s}} in %s has no value here.", n, first[n])
			}
		}
		for _, n := range lines {
			if hasControls(r.Vars[n]) {
				in.Wrong(
					here+Pointer("vars", n),
					"invalid_header",
					"{{%s}} is used in the subject, which is one line without control characters.",
					n,
				)
			}
		}
		return nil
	})
}
