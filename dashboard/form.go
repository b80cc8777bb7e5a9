package dashboard

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/drafts"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/table"
)

// maxCompose is the size limit of the form in bytes, without attachments. The API takes larger
// batches.
const maxCompose = 16 << 20

// readCompose reads the form. An uploaded file replaces the recipients that were typed. The bytes
// of attachments go into it, or are skipped if there is none.
func readCompose(w http.ResponseWriter, r *http.Request, in *intake.Intake) (*composeView, error) {
	c := &composeView{Wrong: map[string]string{}}
	fields, err := c.read(w, r, in)
	if err != nil {
		return nil, formError(err)
	}
	c.setFields(fields.Get)
	if m := mappingOf(fields["heading"], fields["column"]); m != nil {
		c.Mapping, c.Draft.Fields["columns"] = m, m.String()
	}
	c.Do, c.Sent, c.Once = fields.Get("do"), fields.Get("sure"), fields.Get("once")
	c.Row, _ = strconv.Atoi(fields.Get("row")) // 0 on error, which becomes 1 below
	c.Row = max(1, c.Row)
	if c.Part = fields.Get("part"); c.Part != "text" {
		c.Part = "html"
	}
	if len(c.Once) != secretLength {
		c.Once = newSecret()
	}
	if len(c.uploaded) > 0 {
		text, encoding := table.Decode(c.uploaded)
		c.To = lines(text)
		if encoding == table.Windows1252 {
			c.Note = "The file is not UTF-8 and was read as Windows-1252. Look whether letters like é and ü are right."
		}
	}
	return c, nil
}

// formError returns the error for a form that cannot be read.
func formError(err error) error {
	var known *service.Error
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &known):
		return err
	case errors.As(err, &large):
		return service.Fail(
			service.TooLarge,
			"too_large",
			"This form is limited to 16 MiB without attachments. Send larger batches through the API.",
		)
	}
	return badForm(err)
}

// badForm is the error for a form that cannot be parsed.
func badForm(err error) error {
	return service.Fail(service.Malformed, "bad_form", "The form could not be read. Go back and try again.").Because(err)
}

// read reads the fields and files of the form, in either encoding.
func (c *composeView) read(w http.ResponseWriter, r *http.Request, in *intake.Intake) (url.Values, error) {
	parts, err := r.MultipartReader()
	if errors.Is(err, http.ErrNotMultipart) {
		r.Body = http.MaxBytesReader(w, r.Body, maxCompose)
		err = r.ParseForm()
		return r.PostForm, err
	}
	if err != nil {
		return nil, err
	}
	fields, left := url.Values{}, int64(maxCompose)
	for {
		p, err := parts.NextPart()
		switch {
		case errors.Is(err, io.EOF):
			return fields, nil
		case err != nil:
		case p.FormName() == "attachments" && p.FileName() != "":
			err = c.readFile(p, in)
		default:
			var b bytes.Buffer
			_, err = b.ReadFrom(http.MaxBytesReader(w, p, left))
			left -= int64(b.Len())
			if p.FormName() == "file" {
				c.uploaded = b.Bytes()
			} else {
				fields.Add(p.FormName(), b.String())
			}
		}
		if err != nil {
			return nil, err
		}
	}
}

// composedFile is an attachment of the form.
type composedFile struct {
	Name string
	kind string
	sum  string // SHA-256
	file *intake.File
}

// readFile reads an attachment.
func (c *composeView) readFile(p *multipart.Part, in *intake.Intake) error {
	f := composedFile{Name: p.FileName()}
	if kind, _, err := mime.ParseMediaType(p.Header.Get("Content-Type")); err == nil {
		f.kind = kind
	}
	sum := sha256.New()
	to := io.Writer(sum)
	if in != nil {
		f.file = in.NewFile()
		to = io.MultiWriter(sum, f.file)
	}
	if _, err := io.Copy(to, p); err != nil {
		return err
	}
	f.sum = hex.EncodeToString(sum.Sum(nil))
	c.Files = append(c.Files, f)
	return nil
}

// imageRefs matches the references to inline images in HTML.
var imageRefs = regexp.MustCompile(`(?i)cid:([a-z0-9_.+@-]+)`)

// attach adds the attachments to a batch. A file that the HTML refers to by its name, like
// cid:logo.png, is shown in the message.
func (c *composeView) attach(in *intake.Intake, html string) {
	var refs []string
	for _, m := range imageRefs.FindAllStringSubmatch(html, -1) {
		refs = append(refs, m[1])
	}
	for i := range c.Files {
		f := &c.Files[i]
		a := service.Attachment{Filename: f.Name, Type: f.kind, File: f.file}
		if slices.Contains(refs, f.Name) {
			a.ContentID = f.Name
		}
		in.Attach("/attachments/"+strconv.Itoa(i), &a)
	}
}

// draftFields are the fields of the form that a draft has.
var draftFields = []string{
	"from", "reply_to", "subject", "html", "text", "to", "cc", "bcc", "test", "template", "language", "vars",
	"deliver_at", "time_zone", "category", "tags", "track_opens", "track_clicks", "lane", "skip", "columns",
}

// setFields sets the fields that a draft has, and those that identify it.
func (c *composeView) setFields(value func(name string) string) {
	c.From, c.ReplyTo, c.Subject = value("from"), value("reply_to"), value("subject")
	c.HTML, c.Text, c.To = lines(value("html")), lines(value("text")), lines(value("to"))
	c.CC, c.BCC = strings.TrimSpace(value("cc")), strings.TrimSpace(value("bcc"))
	c.Test = strings.TrimSpace(value("test"))
	c.Template, c.Language = strings.TrimSpace(value("template")), strings.TrimSpace(value("language"))
	c.Vars = lines(value("vars"))
	c.DeliverAt, c.TimeZone = strings.TrimSpace(value("deliver_at")), strings.TrimSpace(value("time_zone"))
	c.Category, c.Tags, c.Lane = strings.TrimSpace(value("category")), strings.TrimSpace(value("tags")), value("lane")
	c.TrackOpens, c.TrackClicks = value("track_opens") != "", value("track_clicks") != ""
	c.Skip, c.Mapping = value("skip") != "", nil
	_ = json.Unmarshal([]byte(value("columns")), &c.Mapping) // a draft has it, or nothing
	c.Draft = drafts.Draft{ID: value("draft"), Editor: value("editor"), Fields: map[string]string{}}
	c.Draft.Version, _ = strconv.Atoi(value("draft_version")) // 0: a new draft
	for _, name := range draftFields {
		if text := lines(value(name)); text != "" && (name != "time_zone" || c.DeliverAt != "") {
			c.Draft.Fields[name] = text
		}
	}
}

// lines normalises line ends to \n, and replaces NUL and invalid UTF-8. It is
// idempotent.
func lines(s string) string {
	return strings.NewReplacer("\r\n", "\n", "\r", "\n", "\x00", "\ufffd").Replace(strings.ToValidUTF8(s, "\ufffd"))
}

// addressList is a list of recipients that was typed, pasted or uploaded: either one
// address per line, or a table with a header row whose columns become variables.
type addressList struct {
	Table    bool
	Mapping  mapping           // of the columns whose headings do not say what they are
	Columns  []string          // of a table, without email and name
	Headings map[string]string // of the columns, by their names
	Rows     []listed
	Problem  string // why the rest could not be read, or ""
}

// listed is one recipient of the list and its line.
type listed struct {
	Line        int
	Email, Name string
	Vars        map[string]string
	Times       intake.Times // empty: the message is sent when those of all others are
	Mistake     *table.Error // of its row; nil: there is none
}

// at returns the n-th recipient, from 1, or the last one if there are fewer. It
// returns nil if the list is empty.
func (l *addressList) at(n int) *listed {
	if len(l.Rows) == 0 {
		return nil
	}
	return &l.Rows[min(n, len(l.Rows))-1]
}

func (l *addressList) only(one listed) *addressList { return &addressList{Rows: []listed{one}} }

// recipient returns the recipient as placeholders use it.
func (l *listed) recipient() models.Recipient {
	r := models.Recipient{Email: l.Email, Name: l.Name, Vars: l.Vars}
	if a, err := intake.ParseAddress(l.Email); err == nil {
		r.Email = a.Email
		if r.Name == "" {
			r.Name = a.Name
		}
	}
	return r
}

// maxRows is the limit of a list. The API takes larger batches.
const maxRows = 500_000

const tooManyRows = "The list has more than 500,000 recipients. Send larger batches through the API."

// parseList parses a list, or a table with the columns that a mapping has. If it cannot read all of it, it returns the
// part before the error and sets Problem.
func parseList(s string, chosen mapping) *addressList {
	if found, isTable := chosen.of(s); isTable {
		return parseTable(s, found)
	}
	l := &addressList{}
	i := -1
	for line := range strings.SplitSeq(s, "\n") {
		i++
		for _, one := range splitAddresses(line) {
			if len(l.Rows) == maxRows {
				l.Problem = tooManyRows
				return l
			}
			l.Rows = append(l.Rows, listed{Line: i + 1, Email: one})
		}
	}
	return l
}

// splitAddresses splits a line at commas and semicolons outside of quotes, comments and
// angle brackets.
func splitAddresses(line string) []string {
	var out []string
	begin, comments, quoted, angled := 0, 0, false, false
	add := func(end int) {
		if one := strings.TrimSpace(line[begin:end]); one != "" {
			out = append(out, one)
		}
		begin = end + 1
	}
	for i, c := range line {
		switch {
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '(':
			comments++
		case c == ')' && comments > 0:
			comments--
		case comments > 0:
		case c == '<' || c == '>':
			angled = c == '<'
		case (c == ',' || c == ';') && !angled:
			add(i)
		}
	}
	add(len(line))
	return out
}

// parseTable parses a table with a header row.
func parseTable(s string, m mapping) *addressList {
	l := &addressList{Table: true, Mapping: m}
	t, err := table.New(strings.NewReader(s), m)
	if err == nil {
		l.Headings = t.Headings
		l.Columns = slices.DeleteFunc(t.Columns, intake.IsTimeColumn)
	}
	for err == nil {
		if len(l.Rows) == maxRows {
			l.Problem = tooManyRows
			return l
		}
		var row table.Row
		row, err = t.Next()
		var mistake *table.Error
		if errors.As(err, &mistake) && mistake.Line > 0 {
			err = nil
		} else {
			mistake = nil
		}
		if err == nil {
			l.Rows = append(l.Rows, listed{row.Line, row.Email, row.Name, row.Vars, intake.TimesOf(row.Vars), mistake})
		}
	}
	if !errors.Is(err, io.EOF) {
		l.Problem = err.Error()
	}
	return l
}

// draftsView is the list of drafts.
type draftsView struct {
	Drafts []drafts.Info
	Most   int // drafts that a user may have
}

// drafts is GET /drafts.
func (d *Dashboard) drafts(w http.ResponseWriter, r *http.Request, v *visitor) error {
	list, err := d.service.Drafts.List(r.Context(), v.User)
	if err != nil {
		return err
	}
	view := draftsView{list, drafts.MaxDrafts}
	d.render(w, r, v, http.StatusOK, "drafts", page{Title: "Drafts", Active: "compose", Data: view})
	return nil
}

// savedDraft is the answer to a script that saves a draft.
type savedDraft struct {
	ID      string `json:"id,omitempty"`
	Version int    `json:"version,omitempty"`
	Code    string `json:"code,omitempty"` // of the error
	Problem string `json:"problem,omitempty"`
}

// saveDraft is POST /drafts: it stores the form of Compose without its files. A script gets JSON.
func (d *Dashboard) saveDraft(w http.ResponseWriter, r *http.Request, v *visitor) error {
	c, err := readCompose(w, r, nil)
	if err != nil {
		return err
	}
	saved, err := d.service.Drafts.Save(r.Context(), v.User, c.Draft)
	var refused *service.Error
	if err != nil && (!errors.As(err, &refused) || refused.Kind == service.Internal) {
		return err
	}
	if strings.Contains(r.Header.Get("Accept"), "application/json") {
		out, status := savedDraft{ID: saved.ID, Version: saved.Version}, http.StatusOK
		if refused != nil {
			out, status = savedDraft{Code: refused.Code, Problem: refused.Detail}, refused.Kind.Status()
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		return json.NewEncoder(w).Encode(out)
	}
	if refused != nil {
		c.Problem = "The draft was not saved. " + refused.Detail
		return d.showCompose(w, r, v, refused.Kind.Status(), c)
	}
	seeOther(w, r, "/compose?"+url.Values{"draft": {saved.ID}, "saved": {"yes"}}.Encode())
	return nil
}

// deleteDraft is POST /drafts/{id}/delete.
func (d *Dashboard) deleteDraft(w http.ResponseWriter, r *http.Request, v *visitor) error {
	id := r.PathValue("id")
	list, err := d.service.Drafts.List(r.Context(), v.User)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(list, func(i drafts.Info) bool { return i.ID == id }) {
		return errNoPage
	}
	if err := d.service.Drafts.Delete(r.Context(), v.User, id); err != nil {
		return err
	}
	seeOther(w, r, "/drafts")
	return nil
}
