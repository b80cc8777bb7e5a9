package dashboard

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"time"
)

//go:embed templates
var templateFiles embed.FS

// page is the data of every template. The handler sets the first five fields;
// render sets the rest.
type page struct {
	Title  string
	Active string // current entry of the navigation
	Live   string // URL of the page's events; "": the page is not live
	Charts bool   // it needs the scripts for charts
	Data   any

	Visitor *visitor
	Theme   string // light, dark, or "": the system's
	Path    string
	Get     string // of the answer to a form: the page to which Back and Reload lead
}

// pages holds the templates: a set per page, each with the shared layout and parts.
type pages struct {
	assets *assets
	sets   map[string]*template.Template
}

func loadPages() (*pages, error) {
	a, err := loadAssets()
	if err != nil {
		return nil, err
	}
	p := &pages{assets: a, sets: map[string]*template.Template{}}
	shared := template.New("").Funcs(funcs).Funcs(template.FuncMap{"asset": a.url})
	shared, err = shared.ParseFS(templateFiles, "templates/shared/*.html")
	if err != nil {
		return nil, fmt.Errorf("templates: %w", err)
	}
	names, err := fs.Glob(templateFiles, "templates/*.html")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		set, err := shared.Clone()
		if err == nil {
			_, err = set.ParseFS(templateFiles, name)
		}
		if err != nil {
			return nil, fmt.Errorf("template %s: %w", name, err)
		}
		p.sets[strings.TrimSuffix(path.Base(name), ".html")] = set
	}
	return p, nil
}

// parts renders named parts of a page for live events.
func (p *pages) parts(name string, data any, wanted ...string) (parts, error) {
	out := parts{}
	for _, part := range wanted {
		var b bytes.Buffer
		if err := p.sets[name].ExecuteTemplate(&b, part, data); err != nil {
			return nil, fmt.Errorf("part %s of page %s: %w", part, name, err)
		}
		out[part] = b.Bytes()
	}
	return out, nil
}

// render writes a page. It renders all of it first, so that a failing template is a
// clean 500.
func (d *Dashboard) render(w http.ResponseWriter, r *http.Request, v *visitor, status int, name string, p page) {
	p.Visitor, p.Theme, p.Path = v, theme(r), r.URL.RequestURI()
	if r.Method == http.MethodPost {
		p.Get = d.pageOf(r.URL.Path)
	}
	var b bytes.Buffer
	if err := d.pages.sets[name].ExecuteTemplate(&b, "layout", p); err != nil {
		d.log.Error("page not rendered", "page", name, "err", err)
		http.Error(w, "Something went wrong. The server's log has the details.", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // the browser may be gone
}

const themeCookie = "sd_theme"

// theme returns the theme that the visitor chose, or "".
func theme(r *http.Request) string {
	if c, err := r.Cookie(themeCookie); err == nil && (c.Value == "light" || c.Value == "dark") {
		return c.Value
	}
	return ""
}

// setTheme is POST /theme.
func (d *Dashboard) setTheme(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	chosen := r.PostFormValue("theme")
	life := 400 * 24 * time.Hour // the longest that browsers allow
	if chosen != "light" && chosen != "dark" {
		chosen, life = "", 0
	}
	d.setCookie(w, r, themeCookie, chosen, life)
	seeOther(w, r, localPath(r.PostFormValue("to")))
}
