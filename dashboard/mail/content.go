package mail

import (
	"html/template"
	"io"
	"mime"
	"net/http"
	"strconv"

	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/models"
)

// previewBatch is GET /batches/{id}/preview: the content, for a sandboxed frame.
func (p *Pages) previewBatch(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	c, err := p.mail.Content(r.Context(), v.Caller(), r.PathValue("id"))
	if err != nil {
		return err
	}
	showMail(w, &c, r.URL.Query().Get("part") == "text")
	return nil
}

// mailPage shows the text of a message.
var mailPage = template.Must(template.New("text").Parse(`<!doctype html><meta charset="utf-8"><title>Text</title>` +
	`<style>body{margin:1rem;font:15px/1.5 system-ui,sans-serif;white-space:pre-wrap;overflow-wrap:anywhere;` +
	`color:#1b1c1a;background:#fff}</style>{{.}}`))

// showMail writes the content of a message as a page that cannot load or run
// anything.
func showMail(w http.ResponseWriter, c *models.Content, text bool) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", web.PreviewPolicy)
	h.Set("X-Frame-Options", "SAMEORIGIN")
	h.Set("Cache-Control", "no-store")
	if !text && c.HTML != "" {
		_, _ = w.Write([]byte(c.HTML)) //nolint:gosec // the policy above keeps it from running
		return
	}
	_ = mailPage.Execute(w, c.Text) // the browser may be gone
}

// fileLink is an attachment in a list.
type fileLink struct {
	models.Attachment
	URL string
}

func fileLinks(batch models.ID, list []models.Attachment) (out []fileLink) {
	for i, a := range list {
		out = append(out, fileLink{a, "/batches/" + batch.String() + "/attachments/" + strconv.Itoa(i)})
	}
	return out
}

// attachment is GET /batches/{id}/attachments/{number}: a file to be saved. A browser shows and runs
// nothing of it.
func (p *Pages) attachment(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	number, err := strconv.Atoi(r.PathValue("number"))
	if err != nil {
		number = -1
	}
	a, in, err := p.mail.OpenAttachment(r.Context(), v.Caller(), r.PathValue("id"), number)
	if err != nil {
		return err
	}
	first := make([]byte, min(a.Size, models.PieceSize)) // an error is shown as a page
	if _, err := io.ReadFull(in, first); err != nil {
		return err
	}
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": a.Filename}))
	h.Set("Content-Length", strconv.FormatInt(a.Size, 10))
	h.Set("Content-Security-Policy", "sandbox; default-src 'none'; frame-ancestors 'none'")
	h.Set("Cache-Control", "no-store")
	if _, err := w.Write(first); err == nil { //nolint:gosec // the header keeps browsers from showing it
		_, _ = io.Copy(w, in) // the length tells the browser that bytes are missing
	}
	return nil
}
