package web

import (
	"embed"
	"fmt"
	"html/template"
	"io/fs"
	"slices"
	"strings"
	"sync"
)

//go:embed *.html shared/*.html
var files embed.FS

// frameTemplates are the pages of the frame itself.
var frameTemplates = NewTemplates(files, nil)

// Templates are the pages of a room, over the parts that all rooms share.
type Templates struct {
	load func() (map[string]*template.Template, error) // by name; each has the layout
}

// NewTemplates returns the pages of a room: its files *.html, in which its functions can be used besides those of all
// rooms. parts.html has parts that its pages share. The files are parsed once, when they are first needed.
func NewTemplates(room fs.FS, funcs template.FuncMap) *Templates {
	return &Templates{load: sync.OnceValues(func() (map[string]*template.Template, error) {
		shared, err := sharedParts()
		if err != nil {
			return nil, err
		}
		if shared, err = shared.Clone(); err != nil {
			return nil, err
		}
		shared.Funcs(funcs)
		names, err := fs.Glob(room, "*.html")
		if err != nil {
			return nil, err
		}
		if slices.Contains(names, roomParts) {
			if _, err := shared.ParseFS(room, roomParts); err != nil {
				return nil, fmt.Errorf("template %s: %w", roomParts, err)
			}
		}
		sets := map[string]*template.Template{}
		for _, name := range names {
			set, err := shared.Clone()
			if err == nil {
				_, err = set.ParseFS(room, name)
			}
			if err != nil {
				return nil, fmt.Errorf("template %s: %w", name, err)
			}
			sets[strings.TrimSuffix(name, ".html")] = set
		}
		return sets, nil
	})}
}

// roomParts is the file with the parts that the pages of a room share.
const roomParts = "parts.html"

// sharedParts returns the layout and the parts that all rooms share.
var sharedParts = sync.OnceValues(func() (*template.Template, error) {
	a, err := loadAssets()
	if err != nil {
		return nil, err
	}
	shared := template.New("").Funcs(funcs).Funcs(template.FuncMap{"asset": a.url})
	if shared, err = shared.ParseFS(files, "shared/*.html"); err != nil {
		return nil, fmt.Errorf("templates: %w", err)
	}
	return shared, nil
})
