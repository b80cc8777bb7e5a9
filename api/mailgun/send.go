package mailgun

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/mail"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/safedelivr/safedelivr/api/dialect"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/mailparse"
	"github.com/safedelivr/safedelivr/service/problem"
	"github.com/safedelivr/safedelivr/service/rawmail"
)

const (
	maxRecipients = 1000 // of a request
	maxTags       = 10
	maxTag        = 255
	maxPosted     = 4 << 10  // bytes of an address with its name
	maxShared     = 64 << 10 // bytes of variables that each recipient gets
	maxOwn        = 1 << 20  // bytes of the values of a recipient
)

// address is a recipient as it was posted.
type address struct {
	posted, email, name string
	key                 string // the address as it is compared
	vars                map[string]string
}

// message is a request for a message while it is read.
type message struct {
	*form
	*dialect.Request
	in     *intake.Intake
	files  dialect.Files
	filler filler
	to     []address
	each   bool // each recipient has a mail of its own
	id     string
	hash   string
	own    map[string]string // metadata of recipients: names of variables by key
	shared []dialect.Object  // variables of a template, for all recipients
	raw    *mailparse.Mail   // a whole message; nil: the form has the fields
}

// known reports whether a field of a message is not ignored.
func known(name string) bool {
	return fields(name) || len(name) > 2 && (name[:2] == "h:" || name[:2] == "v:")
}

var fields = dialect.Among("from to cc bcc subject text html recipient-variables template t:version t:variables " +
	"o:tag o:testmode o:deliverytime o:tracking o:tracking-opens o:tracking-clicks o:require-tls")

// send is POST /v3/{domain}/messages.
func send(r *dialect.Request) (dialect.Answer, error) {
	m := &message{Request: r, in: r.Service.NewIntake(r.Context(), r.Who)}
	defer m.in.Close()
	r.Body = io.NopCloser(m.in.Body(r.Body))
	var err error
	m.form, err = readForm(r, m.file)
	m.in.Pause()
	if err == nil {
		m.Ignore(m.names, known)
		err = m.read()
	}
	if err != nil {
		return dialect.Answer{}, err
	}
	return m.accept()
}

// kinds are the types of files from clients that send none, like mailgun-go. Mailgun goes by the name, too.
var kinds = map[string]string{
	".csv": "text/csv", ".gif": "image/gif", ".ics": "text/calendar", ".jpeg": "image/jpeg", ".jpg": "image/jpeg",
	".pdf": "application/pdf", ".png": "image/png", ".txt": "text/plain", ".webp": "image/webp", ".zip": "application/zip",
}

// file takes an attachment.
func (m *message) file(field, name, kind string, content io.Reader) error {
	id := ""
	if field == "inline" {
		id = name
	}
	if kind == "" || kind == "application/octet-stream" {
		kind = cmp.Or(kinds[strings.ToLower(path.Ext(name))], kind)
	}
	return m.files.Attach(m.in, name, kind, id, content)
}

// read turns the form into a batch.
func (m *message) read() error {
	for name, values := range m.form.values {
		for _, value := range values {
			if name == "to" || name == "recipient-variables" {
				break
			}
			if err := m.in.AddContent(len(value)); err != nil {
				return err
			}
		}
	}
	if err := m.readRecipients(); err != nil {
		return err
	}
	b := &m.in.Batch
	if from := intake.SplitAddresses(m.get("from")); len(from) != 1 {
		return wrong("from", "It must be one address.")
	}
	b.From = m.get("from")
	b.AllowDuplicates, b.Together = m.each, !m.each && len(m.to) > 1
	if !m.each {
		for name, into := range map[string]*[]string{"cc": &b.CC, "bcc": &b.BCC} {
			for _, list := range m.form.values[name] {
				*into = append(*into, intake.SplitAddresses(list)...)
			}
		}
	} else if m.get("cc")+m.get("bcc") != "" && len(m.to) > 1 {
		return wrong("cc", "With recipient-variables each recipient has a mail of its own, without cc and bcc.")
	}
	b.Subject, b.Text, b.HTML = m.filler.text(m.get("subject")), m.filler.text(m.get("text")), m.filler.text(m.get("html"))
	for _, read := range []func(*intake.Batch) error{m.readTemplate, m.readHeaders, m.readOptions, m.readMetadata} {
		if err := read(b); err != nil {
			return err
		}
	}
	if m.filler.unsubscribe {
		b.Unsubscribe = &m.filler.unsubscribe
	}
	if b.Text == "" && b.HTML == "" && b.Template == "" {
		if !m.files.Any() {
			return malformed("Need at least one of 'text' or 'html' parameters specified")
		}
		b.HTML = intake.Nothing
	}
	if len(m.filler.names) > intake.MaxVars {
		return wrong("recipient-variables", "A message may have %d different variables.", intake.MaxVars)
	}
	m.hash = m.sum()
	return m.checkValues()
}

// checkValues refuses values that are too large. Those of an address count as often as it is named.
func (m *message) checkValues() error {
	all := 0
	for i := range m.to {
		r, size := m.recipient(i), 0
		for _, value := range r.Raw {
			size += len(value)
		}
		for key, value := range r.Vars {
			size += len(key) + len(value)
		}
		if all += size; size > maxOwn || all > maxText {
			return wrong("recipient-variables", "A recipient may have %d bytes of values, and all of them %d.", maxOwn, maxText)
		}
	}
	return nil
}

// readRecipients reads the addresses in to, and their variables.
func (m *message) readRecipients() error {
	vars, err := m.variables()
	if err != nil {
		return err
	}
	m.each = len(vars) > 0
	folded := make(map[string]map[string]string, len(vars))
	for email, values := range vars {
		folded[strings.ToLower(email)] = values
	}
	for _, list := range m.form.values["to"] {
		if len(m.to) > maxRecipients || len(list) > maxRecipients*maxPosted {
			return malformed("Too many recipients, max is %d", maxRecipients)
		}
		for _, posted := range intake.SplitAddresses(list) {
			a, err := intake.ParseAddress(posted)
			if err != nil {
				return malformed("to parameter is not a valid address. %s %s.", problem.Quote(posted), err)
			}
			one := address{posted: posted, email: posted, name: a.Name, key: strings.ToLower(a.Email)}
			if at := strings.LastIndexByte(posted, '<'); at >= 0 {
				one.email = strings.TrimSuffix(strings.TrimSpace(posted[at+1:]), ">")
			}
			if one.vars = vars[one.email]; one.vars == nil {
				one.vars = folded[strings.ToLower(one.email)]
			}
			m.to = append(m.to, one)
		}
	}
	switch {
	case len(m.to) == 0:
		return malformed("to parameter is missing")
	case len(m.to) > maxRecipients:
		return malformed("Too many recipients, max is %d", maxRecipients)
	case m.each && len(m.to) == 1 && m.get("cc")+m.get("bcc") != "":
		m.each = false
	}
	return nil
}

// readTemplate takes the name of a template. Its values are variables of all recipients.
func (m *message) readTemplate(b *intake.Batch) error {
	if b.Template = m.get("template"); b.Template == "" {
		return nil
	}
	if version := m.get("t:version"); version != "" {
		b.Template += "@" + version
	}
	b.Subject, b.Text, b.HTML = "", "", "" // those of the template count
	for _, name := range []string{"h:X-Mailgun-Variables", "t:variables"} {
		var values dialect.Object
		if text := m.get(name); len(text) > maxShared || text != "" && json.Unmarshal([]byte(text), &values) != nil {
			return wrong(name, "It must be a JSON object of at most %d bytes.", maxShared)
		}
		m.shared = append(m.shared, values)
	}
	return nil
}

// noAddress are macros of Mailgun for addresses that unsubscribe by mail, of which there are none here.
var noAddress = regexp.MustCompile(`<(?:mailto:)?%(?:tag_|mailing_list_)?unsubscribe_email%>\s*,?`)

// readHeaders takes the header fields. Those that belong to the gateway are left out.
func (m *message) readHeaders(b *intake.Batch) error {
	for _, field := range m.names {
		name, ok := strings.CutPrefix(field, "h:")
		if !ok {
			continue
		}
		value := strings.TrimSpace(models.OneLine(m.get(field)))
		switch lower := strings.ToLower(name); {
		case lower == "message-id":
			value = strings.TrimSpace(strings.TrimPrefix(strings.TrimPrefix(value, "Message-ID:"), "Message-Id:"))
			m.id = strings.Trim(value, "<>")
		case lower == "reply-to":
			if value != "" && value != "undefined" {
				b.ReplyTo = intake.SplitAddresses(value)
			}
		case lower == "list-unsubscribe":
			dialect.AddHeader(b, name, strings.Trim(noAddress.ReplaceAllString(value, ""), ", "), m.filler.text)
		default:
			dialect.AddHeader(b, name, value, m.filler.text)
		}
	}
	if models.FindHeader(b.Headers, "List-Unsubscribe") < 0 {
		b.Headers = slices.DeleteFunc(b.Headers, func(h models.Header) bool {
			return strings.EqualFold(h.Name, "List-Unsubscribe-Post")
		})
	}
	return nil
}

// readOptions takes the tags, the time and the tracking.
func (m *message) readOptions(b *intake.Batch) error {
	for _, tag := range m.form.values["o:tag"] {
		tag = strings.TrimSpace(models.OneLine(tag))
		if tag = strings.ToValidUTF8(tag[:min(len(tag), maxTag)], ""); len(b.Tags) < maxTags {
			dialect.AddTag(b, tag)
		}
	}
	for _, name := range []string{"o:deliverytime-optimize-period", "o:time-zone-localize"} { //nolint:misspell // theirs
		if m.get(name) != "" {
			return wrong(name, "Safedelivr does not choose times of delivery.")
		}
	}
	if m.yes("o:require-tls", false) {
		return wrong("o:require-tls", "Safedelivr cannot promise that all servers on the way use TLS.")
	}
	if text := m.get("o:deliverytime"); text != "" {
		at, err := parseTime(text)
		if err != nil {
			return wrong("o:deliverytime", "It must be a date like Fri, 25 Dec 2026 18:00:00 +0100.")
		}
		if at.After(time.Now()) {
			b.DeliverAt = at.UTC().Format(time.RFC3339)
		}
	}
	b.TrackOpens = m.yes("o:tracking-opens", m.yes("o:tracking", b.TrackOpens))
	b.TrackClicks = m.yes("o:tracking-clicks", m.yes("o:tracking", b.TrackClicks))
	return nil
}

// parseTime parses a date of RFC 2822. Names of zones say nothing, but for those of UTC.
func parseTime(text string) (time.Time, error) {
	at, err := mail.ParseDate(text)
	name, offset := at.Zone()
	if err == nil && offset == 0 && !slices.Contains([]string{"", "UTC", "GMT", "UT", "Z"}, name) {
		return at, fmt.Errorf("unknown time zone %q", name)
	}
	return at, err
}

// whole matches metadata that is a variable of the recipient.
var whole = regexp.MustCompile(`^%recipient\.([^%\s]{1,128})%$`)

// readMetadata takes the user variables.
func (m *message) readMetadata(b *intake.Batch) error {
	if m.own = map[string]string{}; b.Metadata == nil {
		b.Metadata = map[string]string{}
	}
	for _, field := range m.names {
		key, ok := strings.CutPrefix(field, "v:")
		if !ok || key == "" {
			continue
		}
		if of := whole.FindStringSubmatch(m.get(field)); of != nil && m.each {
			m.own[key] = of[1]
		} else {
			b.Metadata[key] = m.get(field)
		}
	}
	return nil
}

// recipient returns the recipient with an index.
func (m *message) recipient(i int) *intake.Recipient {
	to := &m.to[i]
	r := &intake.Recipient{Email: to.posted}
	if i > 0 && !m.each {
		return r // the mail has the values of the first
	}
	if r.Raw = m.filler.values(to); m.in.Batch.Template != "" {
		r.Vars = map[string]string{}
		for _, values := range m.shared {
			values.Fill(r)
		}
		for key, value := range to.vars {
			r.Vars[key] = value
		}
	}
	for key, name := range m.own {
		if value, ok := to.vars[name]; ok {
			if r.Metadata == nil {
				r.Metadata = map[string]string{}
			}
			r.Metadata[key] = value
		}
	}
	return r
}

// sum returns a hash of the request. The time is no part of it, because clients that repeat a request write it anew.
func (m *message) sum() string {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(m.form.values)) {
		if name != "o:deliverytime" {
			fmt.Fprintf(h, "%q %q\n", name, m.form.values[name])
		}
	}
	fmt.Fprintf(h, "%q %s", m.Param("domain"), m.files.Sum())
	return hex.EncodeToString(h.Sum(nil))
}

// accept stores the message.
func (m *message) accept() (dialect.Answer, error) {
	if email := m.newsletter(); email != "" {
		return m.acceptNewsletter(email)
	}
	var batch models.ID
	err := m.Once(m.hash, func(repeat service.Repeat) (err error) {
		m.setID(repeat.Key)
		batch, err = m.store(repeat)
		return err
	})
	return m.answer(batch), err
}

func (m *message) store(repeat service.Repeat) (models.ID, error) {
	if err := m.readTo(); err != nil {
		return models.ID{}, err
	}
	if m.yes("o:testmode", m.raw != nil && m.raw.TestMode) {
		return models.ID{}, m.Service.NewTrial(m.Who).Check(m.Context(), m.in)
	}
	a, _, err := m.Service.Accept(m.Context(), m.Who, m.in, repeat)
	return a.ID, err
}

// readTo reads the recipients.
func (m *message) readTo() error {
	if m.raw != nil {
		emails := make([]string, len(m.to))
		for i := range m.to {
			emails[i] = m.to[i].email
		}
		return rawmail.Recipients(m.in, m.raw, emails)
	}
	return m.in.Read(func(yield func(*intake.Recipient, error) bool) {
		for i := range m.to {
			if !yield(m.recipient(i), nil) {
				return
			}
		}
	})
}

// setID sets the Message-ID of the mail: that of the request, or one made from a key, so that a repeat has the same.
func (m *message) setID(key string) {
	if m.id == "" {
		m.id = uuid.NewSHA1(uuid.Nil, []byte(m.Who.User+" "+key)).String() + "@" + strings.ToLower(m.Param("domain"))
	}
	m.in.Batch.Headers = append(m.in.Batch.Headers,
		models.Header{Name: models.MessageIDField, Value: "<" + m.filler.text(m.id) + ">"})
}

func (m *message) answer(batch models.ID) dialect.Answer {
	return dialect.Answer{Body: reply{ID: "<" + m.id + ">", Message: "Queued. Thank you."}, Batch: batch}
}
