package dashboard

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/text/encoding/charmap"
	"golang.org/x/text/encoding/unicode"
	"golang.org/x/text/transform"

	"github.com/safedelivr/safedelivr/service"
)

// maxCompose is the size limit of the form in bytes. The API takes larger batches.
const maxCompose = 16 << 20

// composeView is the form as it was entered, and its errors.
type composeView struct {
	From, ReplyTo, Subject, HTML, Text, To, Test string
	Row                                          int    // number of the previewed recipient, from 1
	Part                                         string // html or text
	Once                                         string // idempotency key: submitting the form twice sends once
	Wrong                                        map[string]string
	Problem                                      string
	Batch                                        string // batch that the problem is about, or ""
	Curl                                         string
	Base                                         string
	May                                          service.AllowedSenders // senders that the visitor may use
	Note                                         string                 // about the file
	Tested                                       service.Accepted       // the test message that was just accepted
	Ask                                          *planView              // what would happen; nil if nothing is asked
	Sure                                         string                 // hash of the form that Ask is about
}

// planView is what would happen to a batch, for the question before it is sent.
type planView struct {
	Recipients int
	Text       []string
}

func planOf(p *service.DryRun) *planView {
	out := &planView{Recipients: p.Recipients}
	if n := int64(p.Duplicates); n > 0 {
		out.Text = append(out.Text, num(n)+" "+plural(n, "line repeats", "lines repeat")+
			" an address. Each address gets one message.")
	}
	for i := range p.Routes {
		out.Text = append(out.Text, are(int64(p.Routes[i].Recipients))+" "+p.Routes[i].Text+".")
	}
	if p.Seconds != nil {
		least := time.Duration(*p.Seconds * float64(time.Second))
		out.Text = append(out.Text, "At the limits of the providers this takes at least "+took(least)+".")
	}
	return out
}

// askFrom is the number of recipients from which on the form asks before it sends.
const askFrom = 11

// compose is GET /compose.
func (d *Dashboard) compose(w http.ResponseWriter, r *http.Request, v *visitor) error {
	return d.showCompose(w, r, v, http.StatusOK, &composeView{Row: 1, Part: "html", Once: newSecret()})
}

func (d *Dashboard) showCompose(
	w http.ResponseWriter,
	r *http.Request,
	v *visitor,
	status int,
	view *composeView,
) (err error) {
	if view.May, err = d.service.AllowedSenders(r.Context(), v.caller()); err != nil {
		return err
	}
	view.Base = d.public.String()
	d.render(w, r, v, status, "compose", page{Title: "Compose", Active: "compose", Data: view})
	return nil
}

// readCompose reads the form. An uploaded file replaces the recipients that were
// typed.
func readCompose(w http.ResponseWriter, r *http.Request) (*composeView, error) {
	r.Body = http.MaxBytesReader(w, r.Body, maxCompose)
	err := r.ParseMultipartForm(maxCompose) //nolint:gosec // bounded in the line above
	if err != nil && !errors.Is(err, http.ErrNotMultipart) {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			return nil, service.Fail(
				service.TooLarge,
				"too_large",
				"This form is limited to 16 MiB. Send larger batches through the API.",
			)
		}
		return nil, badForm(err)
	}
	f := r.PostFormValue
	c := &composeView{
		From:    f("from"),
		ReplyTo: f("reply_to"),
		Subject: f("subject"),
		HTML:    lines(f("html")),
		Text:    lines(f("text")),
		To:      lines(f("to")),
		Test:    strings.TrimSpace(f("test")),
		Part:    f("part"),
		Once:    f("once"),
		Wrong:   map[string]string{},
	}
	c.Row, _ = strconv.Atoi(f("row")) // 0 on error, which becomes 1 below
	c.Row = max(1, c.Row)
	if c.Part != "text" {
		c.Part = "html"
	}
	if len(c.Once) != secretLength {
		c.Once = newSecret()
	}
	if file, _, err := r.FormFile("file"); err == nil {
		defer func() { _ = file.Close() }()
		var b bytes.Buffer
		if _, err := b.ReadFrom(file); err != nil {
			return nil, service.Fail(service.Malformed, "bad_form", "The file could not be read. Choose it again.").Because(err)
		}
		if b.Len() > 0 {
			text, guessed := decodeText(b.Bytes())
			c.To = lines(text)
			if guessed {
				c.Note = "The file is not UTF-8 and was read as Windows-1252. Look whether letters like é and ü are right."
			}
		}
	}
	return c, nil
}

// badForm is the error for a form that cannot be parsed.
func badForm(err error) error {
	return service.Fail(service.Malformed, "bad_form", "The form could not be read. Go back and try again.").Because(err)
}

// decodeText returns the text of a file in UTF-8 or, with a byte order mark, in UTF-16. It takes all others to be in
// Windows-1252, as spreadsheets save them, and reports that this is a guess.
func decodeText(b []byte) (text string, guessed bool) {
	decoder := unicode.BOMOverride(unicode.UTF8.NewDecoder())
	if guessed = !utf8.Valid(b) && !marked(b); guessed {
		decoder = charmap.Windows1252.NewDecoder()
	}
	out, _, err := transform.Bytes(decoder, b)
	if err != nil { // no decoder has one: what cannot be read becomes U+FFFD
		return string(b), guessed
	}
	return string(out), guessed
}

// marked reports whether a text begins with the byte order mark of UTF-16.
func marked(b []byte) bool {
	return bytes.HasPrefix(b, []byte{0xff, 0xfe}) || bytes.HasPrefix(b, []byte{0xfe, 0xff})
}

// lines normalises line ends to \n, and replaces NUL and invalid UTF-8. It is
// idempotent.
func lines(s string) string {
	return strings.NewReplacer("\r\n", "\n", "\r", "\n", "\x00", "\ufffd").Replace(strings.ToValidUTF8(s, "\ufffd"))
}

// send is POST /compose. The button that was pressed says what to do.
func (d *Dashboard) send(w http.ResponseWriter, r *http.Request, v *visitor) error {
	c, err := readCompose(w, r)
	if err != nil {
		return err
	}
	list, do := parseList(c.To), r.PostFormValue("do")
	switch do {
	case "curl":
		c.Curl = curlOf(d.public.String(), c, list)
		return d.showCompose(w, r, v, http.StatusOK, c)
	case "test":
		if c.Test == "" {
			c.Wrong["test"] = "Enter the address for the test message."
			return d.showCompose(w, r, v, http.StatusUnprocessableEntity, c)
		}
		one := listed{Email: c.Test}
		if row := list.at(c.Row); row != nil {
			one.Vars = row.Vars
		}
		list = list.only(one)
	}
	hash := c.hash(do)
	accepted, err := d.accept(r, v, c, list, hash)
	var refused *service.Error
	switch {
	case errors.As(err, &refused) && refused.Kind != service.Internal:
		c.Problem, c.Batch = refused.Detail, refused.BatchID
		if len(refused.Fields) > 0 {
			c.Problem = "Not sent. Fix the highlighted fields and try again."
			c.wrong(refused, list, do == "test")
		}
		// The form keeps its key. If the outcome of this request is unknown, the same
		// content submitted again is a repeat; corrected content has another hash.
		return d.showCompose(w, r, v, refused.Kind.Status(), c)
	case err != nil:
		return err
	case c.Ask != nil:
		c.Sure = hash
		return d.showCompose(w, r, v, http.StatusOK, c)
	case do == "test":
		c.Tested, c.Once = accepted, newSecret()
		return d.showCompose(w, r, v, http.StatusOK, c)
	}
	seeOther(w, r, "/batches/"+accepted.ID.String())
	return nil
}

// hash returns the hash of all that decides what is sent.
func (c *composeView) hash(do string) string {
	row := ""
	if do == "test" {
		row = strconv.Itoa(c.Row) // its variables fill the message
	}
	return hashOf(strings.Join([]string{do, row, c.From, c.ReplyTo, c.Subject, c.HTML, c.Text, c.To, c.Test}, "\x00"))
}

// accept hands the form to the service. The same form with the same content is
// sent once, no matter how often it is submitted. A form with many recipients is sent
// when it comes a second time with the hash of the first; before that, c.Ask says what would happen.
func (d *Dashboard) accept(
	r *http.Request, v *visitor, c *composeView, list *addressList, hash string,
) (a service.Accepted, err error) {
	in := d.service.NewIntake(r.Context(), v.caller())
	defer in.Close()
	for name, value := range map[string]string{
		"from":     c.From,
		"reply_to": c.ReplyTo,
		"subject":  c.Subject,
		"html":     c.HTML,
		"text":     c.Text,
	} {
		if value == "" {
			continue
		}
		in.SetText(name, value)
		if err := in.AddContent(len(value)); err != nil {
			return service.Accepted{}, err
		}
	}
	if list.Problem != "" {
		in.Unreadable("to")
		in.Wrong("/to", "bad_list", "%s", list.Problem)
	}
	for i := range list.Rows {
		row := &list.Rows[i]
		if err := in.Add(&service.Recipient{Email: row.Email, Name: row.Name, Vars: row.Vars}); err != nil {
			return service.Accepted{}, err
		}
	}
	if len(list.Rows) >= askFrom && r.PostFormValue("sure") != hash {
		plan, err := d.service.TryBatch(r.Context(), v.caller(), in)
		c.Ask = planOf(&plan)
		return service.Accepted{}, err
	}
	a, _, err = d.service.Accept(
		r.Context(),
		v.caller(),
		in,
		service.Repeat{Key: c.Once + hash, Route: "compose", Hash: hash},
	)
	return a, err
}

// wrong assigns the service's errors to the fields of the form. Errors about
// recipients name their lines.
func (c *composeView) wrong(e *service.Error, list *addressList, test bool) {
	to := "to"
	if test {
		to = "test"
	}
	shown := 0
	for _, f := range e.Fields {
		parts := strings.Split(strings.TrimPrefix(f.Pointer, "/"), "/")
		text := fieldText(&f)
		field := parts[0]
		if field == "to" {
			field = to
			if shown++; shown > 10 {
				continue
			}
			if len(parts) > 1 && !test {
				if n, err := strconv.Atoi(parts[1]); err == nil && n < len(list.Rows) {
					text = "Line " + strconv.Itoa(list.Rows[n].Line) + ": " + text
				}
			}
		}
		if c.Wrong[field] != "" {
			c.Wrong[field] += " "
		}
		c.Wrong[field] += text
	}
	if shown > 10 {
		c.Wrong[to] += " There are more errors like these."
	}
}

// placeholderName finds the placeholder that no recipient has a value for.
var placeholderName = regexp.MustCompile(`^No recipient has a value for \{\{([^{}]+)\}\}`)

// fieldText returns the text of an error for the form. The service's texts name fields of
// the API.
func fieldText(f *service.FieldError) string {
	switch name := placeholderName.FindStringSubmatch(f.Detail); {
	case f.Code == "required" && f.Pointer == "/html":
		return "Enter an HTML or text body."
	case f.Code == "unknown_placeholder" && name != nil:
		return fmt.Sprintf("No recipient has a value for {{%s}}. Add a column %q.", name[1], name[1])
	}
	return sentence(f.Detail)
}

// curlRecipients is the maximum number of recipients in the curl command.
const curlRecipients = 20

// curlOf returns a curl command that sends the same batch.
func curlOf(base string, c *composeView, list *addressList) string {
	type to struct {
		Email string            `json:"email"`
		Name  string            `json:"name,omitempty"`
		Vars  map[string]string `json:"vars,omitempty"`
	}
	body := struct {
		From    string `json:"from"`
		ReplyTo string `json:"reply_to,omitempty"`
		Subject string `json:"subject"`
		HTML    string `json:"html,omitempty"`
		Text    string `json:"text,omitempty"`
		To      []to   `json:"to"`
	}{From: c.From, ReplyTo: c.ReplyTo, Subject: c.Subject, HTML: c.HTML, Text: c.Text, To: []to{}}
	for _, row := range list.Rows[:min(len(list.Rows), curlRecipients)] {
		body.To = append(body.To, to{row.Email, row.Name, row.Vars})
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	_ = e.Encode(body) // strings and maps of strings always encode
	return "curl " + base + "/v1/batches \\\n" +
		"  -H \"Authorization: Bearer $KEY\" \\\n" +
		"  -H 'Content-Type: application/json' \\\n" +
		"  --data-binary @- <<'JSON'\n" + b.String() + "JSON"
}
