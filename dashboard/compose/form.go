package compose

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

	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/drafts"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/table"
)

// readCompose reads the form. An uploaded file replaces the recipients that were typed. The bytes
// of attachments go into it, or are skipped if there is none.
func readCompose(w http.ResponseWriter, r *http.Request, in *intake.Intake) (*composeView, error) {
	c := &composeView{}
	fields, err := c.read(w, r, in)
	if err != nil {
		return nil, formError(err)
	}
	if m := mappingOf(fields["heading"], fields["column"]); m != nil {
		fields.Set("columns", m.String())
	}
	c.setFields(fields)
	c.Do, c.Sent, c.Once = fields.Get("do"), fields.Get("sure"), fields.Get("once")
	c.Row, _ = strconv.Atoi(fields.Get("row")) // 0 on error, which becomes 1 below
	c.Row = max(1, c.Row)
	if c.Part = fields.Get("part"); c.Part != "text" {
		c.Part = "html"
	}
	if len(c.Once) != web.SecretLength {
		c.Once = web.NewSecret()
	}
	if len(c.uploaded) > 0 {
		text, encoding := table.Decode(c.uploaded)
		c.To = web.Lines(text)
		c.Form.Set("to", c.To)
		if encoding == table.Windows1252 {
			c.Note = "The file is not UTF-8 and was read as Windows-1252. Look whether letters like é and ü are right."
		}
	}
	return c, nil
}

// formError returns the error for a form that cannot be read.
func formError(err error) error {
	if _, known := errors.AsType[*service.Error](err); known {
		return err
	}
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return service.Fail(service.TooLarge, "too_large",
			"This form is limited to 16 MiB without attachments. Send larger batches through the API.")
	}
	return web.BadForm(err)
}

// read reads the fields and files of the form, in either encoding.
func (c *composeView) read(w http.ResponseWriter, r *http.Request, in *intake.Intake) (url.Values, error) {
	parts, err := r.MultipartReader()
	if errors.Is(err, http.ErrNotMultipart) {
		r.Body = http.MaxBytesReader(w, r.Body, web.MaxContent)
		err = r.ParseForm()
		return r.PostForm, err
	}
	if err != nil {
		return nil, err
	}
	fields, left := url.Values{}, int64(web.MaxContent)
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
		a := intake.Attachment{Filename: f.Name, Type: f.kind, File: f.file}
		if slices.Contains(refs, f.Name) {
			a.ContentID = f.Name
		}
		in.Attach("/attachments/"+strconv.Itoa(i), &a)
	}
}

// Fields of the form that a batch lacks: what recipients are made from, and what no draft keeps.
var (
	ownFields = []string{"to", "vars", "test", "skip", "columns"}
	passing   = []string{
		"do", "sure", "once", "row", "part", "heading", "column", "attachments", "draft", "draft_version", "editor",
	}
)

// setFields sets the fields that a draft has, and those that identify it.
func (c *composeView) setFields(fields url.Values) {
	c.Form = web.NewForm(fields)
	c.Form.Own(slices.Concat(ownFields, passing)...)
	c.wrong = c.Form.Read(&c.Batch)
	if c.DeliverAt == "" {
		c.Times = intake.Times{}
	}
	c.To, c.Vars, c.Test = web.Lines(fields.Get("to")), web.Lines(fields.Get("vars")), c.Form.Text("test")
	c.Skip, c.Mapping = fields.Get("skip") != "", nil
	_ = json.Unmarshal([]byte(fields.Get("columns")), &c.Mapping) // a draft has it, or nothing
	c.Draft = drafts.Draft{ID: fields.Get("draft"), Editor: fields.Get("editor"), Fields: map[string]string{}}
	c.Draft.Version, _ = strconv.Atoi(fields.Get("draft_version")) // 0: a new draft
	for name := range fields {
		text := web.Lines(fields.Get(name))
		if text != "" && !slices.Contains(passing, name) && (name != intake.TimeZone || c.DeliverAt != "") {
			c.Draft.Fields[name] = text
		}
	}
}

// draftsView is the list of drafts.
type draftsView struct {
	Drafts []drafts.Info
	Most   int // drafts that a user may have
}

// listDrafts is GET /drafts.
func (p *Pages) listDrafts(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	list, err := p.service.Drafts.List(r.Context(), v.User)
	if err != nil {
		return err
	}
	view := draftsView{list, drafts.MaxDrafts}
	return p.web.Render(w, r, v, http.StatusOK, "drafts", web.Page{Title: "Drafts", Data: view})
}

// savedDraft is the answer to a script that saves a draft.
type savedDraft struct {
	ID      string `json:"id,omitempty"`
	Version int    `json:"version,omitempty"`
	Code    string `json:"code,omitempty"` // of the error
	Problem string `json:"problem,omitempty"`
}

// saveDraft is POST /drafts: it stores the form of Compose without its files. A script gets JSON.
func (p *Pages) saveDraft(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	c, err := readCompose(w, r, nil)
	if err != nil {
		return err
	}
	saved, err := p.service.Drafts.Save(r.Context(), v.User, c.Draft)
	refused := web.Refused(err)
	if err != nil && refused == nil {
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
		return p.showCompose(w, r, v, refused.Kind.Status(), c)
	}
	return web.SeeOther(w, r, "/compose?"+url.Values{"draft": {saved.ID}, "saved": {"yes"}}.Encode())
}

// deleteDraft is POST /drafts/{id}/delete.
func (p *Pages) deleteDraft(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	id := r.PathValue("id")
	list, err := p.service.Drafts.List(r.Context(), v.User)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(list, func(i drafts.Info) bool { return i.ID == id }) {
		return web.ErrNoPage
	}
	if err := p.service.Drafts.Delete(r.Context(), v.User, id); err != nil {
		return err
	}
	return web.SeeOther(w, r, "/drafts")
}
