package api

import (
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/safedelivr/safedelivr/models"
)

// Bounds of single fields, in bytes.
const (
	maxSubject  = 998 // RFC 5322, 2.1.1: a line
	maxVars     = 100
	maxVarValue = 64 << 10
	maxNameLen  = 256
)

// intake gathers a request, whatever its form, and everything wrong with it.
type intake struct {
	mistakes
	cfg   *Config
	known map[string]bool
	spool *spool

	from, replyTo, subject, text, html, body string
	providers                                []named
	lane, onUnknown                          string
	allowDuplicates                          bool

	seen map[string]bool // fields that stand in the request
	set  map[string]bool // fields that were given a value
	bad  map[string]bool // fields whose value could not be read, and is listed as wrong

	index   int // of the next recipient in the request
	content int64
}

// named is the name of an account and its place in the request.
type named struct {
	index int
	name  string
}

func newIntake(cfg *Config, known map[string]bool) *intake {
	return &intake{cfg: cfg, known: known, spool: newSpool(cfg.SpoolDir), seen: map[string]bool{}, set: map[string]bool{}, bad: map[string]bool{}}
}

// texts are the fields that hold one string.
func (in *intake) texts() map[string]*string {
	return map[string]*string{"from": &in.from, "reply_to": &in.replyTo, "subject": &in.subject, "text": &in.text,
		"html": &in.html, "body": &in.body, "lane": &in.lane, "on_unknown": &in.onUnknown}
}

// isField reports whether a request may have a field of this name.
func (in *intake) isField(name string) bool {
	return in.texts()[name] != nil || name == "to" || name == "providers" || name == "allow_duplicates"
}

// addContent counts n bytes more of content.
func (in *intake) addContent(n int) *Problem {
	if in.content += int64(n); in.content > in.cfg.MaxContent {
		return in.contentTooLarge()
	}
	return nil
}

// errTooManyRecipients ends reading at once: what follows is of no use.
var errTooManyRecipients = errors.New("too many recipients")

// recipient is one recipient as the request has it.
type recipient struct {
	email, name string
	vars        map[string]string
	pointer     string // of the address, below the recipient's own
	flawed      bool   // mistakes in it are listed already
}

// recipient takes the next recipient of the request.
func (in *intake) recipient(r *recipient) error {
	at := in.index
	in.index++
	if in.index > in.cfg.MaxRecipients {
		return errTooManyRecipients
	}
	here, before := "/to/"+strconv.Itoa(at), in.total
	var a models.Address
	if r.email != "" || !r.flawed {
		var err error
		if a, err = parseAddress(r.email); err != nil {
			in.wrong(here+r.pointer, "invalid_address", "%s %s", quoted(r.email), err)
		}
	}
	if r.name != "" {
		var err error
		if a.Name, err = cleanName(r.name); err != nil {
			in.wrong(here+"/name", "invalid_header", "The name %s", err)
		}
	}
	if len(a.Name) > maxNameLen {
		in.wrong(here+"/name", "too_long", "The name is longer than %d bytes.", maxNameLen)
	}
	in.checkVars(here, r.vars)
	if r.flawed || in.total > before {
		return nil
	}
	return in.spool.add(at, &models.Recipient{Email: a.Email, Name: a.Name, Vars: r.vars})
}

func (in *intake) checkVars(here string, vars map[string]string) {
	if len(vars) > maxVars {
		in.wrong(here+"/vars", "too_many", "At most %d variables per recipient.", maxVars)
		return
	}
	for k, v := range vars {
		if models.ValidVar(k) && len(v) <= maxVarValue {
			continue
		}
		for _, k := range slices.Sorted(maps.Keys(vars)) { // the same request always gets the same answer
			if !models.ValidVar(k) {
				in.wrong(here+pointer("vars", k), "invalid_name", "A variable's name is a letter or _ followed by letters, digits, _ - or ., at most 64.")
			}
			if len(vars[k]) > maxVarValue {
				in.wrong(here+pointer("vars", k), "too_long", "A value has at most %d bytes.", maxVarValue)
			}
		}
		return
	}
}

// taken turns an error of in.recipient into an answer.
func (in *intake) taken(err error) *Problem {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errTooManyRecipients):
		return problem(http.StatusRequestEntityTooLarge, "too_many_recipients", "A batch has at most %d recipients.", in.cfg.MaxRecipients)
	}
	p := problem(http.StatusServiceUnavailable, "spool_unavailable", "The request could not be kept while it was checked. Nothing was stored; repeat it.").after(10)
	p.cause = err
	return p
}

// quoted shows a short piece of what was sent.
func quoted(s string) string {
	if r := []rune(s); len(r) > 60 {
		s = string(r[:60]) + "…"
	}
	return strconv.Quote(s)
}

// batch checks everything but the recipients' placeholders and returns the batch
// without its id. Mistakes are in in.errors.
func (in *intake) batch() models.Batch {
	in.spool.repeats = in.allowDuplicates
	cut := in.spool.cut()
	b := models.Batch{Lane: models.Lane(in.lane), OnUnknown: models.UnknownPolicy(in.onUnknown),
		Recipients: cut.count, Duplicates: in.spool.all.count - cut.count, Chunks: len(cut.sizes), Sizes: in.spool.irregular()}
	b.Content.From = in.address("from", in.from, true)
	b.Content.ReplyTo = in.address("reply_to", in.replyTo, false)
	b.Content.Subject = in.checkSubject()
	b.Content.Text = in.text
	b.Content.HTML = in.html
	if in.set["body"] {
		if in.set["html"] {
			in.wrong("/body", "conflict", "body and html are the same thing; give one of them.")
		}
		b.Content.HTML = in.body
	}
	if strings.TrimSpace(b.Content.Text) == "" && strings.TrimSpace(b.Content.HTML) == "" && !in.bad["text"] && !in.bad["html"] && !in.bad["body"] {
		in.wrong("/html", "required", "Give text, html (or body), or both.")
	}
	if in.index == 0 && !in.bad["to"] {
		in.wrong("/to", "required", "Give at least one recipient.")
	}
	b.Accounts = in.accounts()
	switch {
	case in.bad["lane"]:
	case !in.set["lane"] && cut.count <= in.cfg.UrgentUpTo:
		b.Lane = models.Urgent
	case !in.set["lane"]:
		b.Lane = models.Bulk
	case !b.Lane.Valid():
		in.wrong("/lane", "invalid_value", "lane is urgent or bulk.")
	}
	if !in.set["on_unknown"] && !in.bad["on_unknown"] {
		b.OnUnknown = models.Hold
	} else if !in.bad["on_unknown"] && !b.OnUnknown.Valid() {
		in.wrong("/on_unknown", "invalid_value", "on_unknown is hold or resend.")
	}
	return b
}

// accounts checks the accounts that the request names.
func (in *intake) accounts() []string {
	if in.set["providers"] && len(in.providers) == 0 && !in.bad["providers"] {
		in.wrong("/providers", "required", "Name at least one account, or leave providers out.")
	}
	var out []string
	for _, p := range in.providers {
		at := "/providers/" + strconv.Itoa(p.index)
		if !in.known[p.name] {
			in.wrong(at, "unknown_account", "No provider account is called %s.", quoted(p.name))
		}
		if slices.Contains(out, p.name) {
			in.wrong(at, "repeated", "%s is named twice.", quoted(p.name))
		} else {
			out = append(out, p.name)
		}
	}
	return out
}

func (in *intake) address(field, value string, required bool) models.Address {
	if strings.TrimSpace(value) == "" {
		if required && !in.bad[field] {
			in.wrong("/"+field, "required", "Give the sender's address.")
		}
		return models.Address{}
	}
	a, err := parseAddress(value)
	if err != nil {
		in.wrong("/"+field, "invalid_address", "%s %s", quoted(value), err)
	} else if len(a.Name) > maxNameLen {
		in.wrong("/"+field, "too_long", "The name is longer than %d bytes.", maxNameLen)
	}
	return a
}

func (in *intake) checkSubject() string {
	s := strings.TrimSpace(in.subject)
	switch {
	case in.bad["subject"]:
	case s == "":
		in.wrong("/subject", "required", "Give a subject.")
	case hasControls(s):
		in.wrong("/subject", "invalid_header", "A subject is one line without control characters.")
	case len(s) > maxSubject:
		in.wrong("/subject", "too_long", "A subject has at most %d bytes.", maxSubject)
	}
	return s
}

// placeholders checks that every recipient has a value for every placeholder of
// the content, and that what goes into the subject is fit for a header.
func (in *intake) placeholders(c *models.Content) error {
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
			in.wrong("/"+first[n], "unknown_placeholder", "{{%s}} has no value at any recipient; give it in vars.", n)
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
				in.wrong(here+pointer("vars", n), "unknown_placeholder", "{{%s}} in %s has no value here.", n, first[n])
			}
		}
		for _, n := range lines {
			if hasControls(r.Vars[n]) {
				in.wrong(here+pointer("vars", n), "invalid_header", "{{%s}} stands in the subject, which is one line without control characters.", n)
			}
		}
		return nil
	})
}
