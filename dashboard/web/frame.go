// Package web is the frame of all pages: templates and assets, visitors and their sessions, forms, and the parts of
// pages that update by themselves. Each room of pages brings its routes and its templates.
//
// A handler gets the visitor who is logged in. An error that it returns is shown as a page. Only POST requests change
// anything.
package web

import (
	"context"
	"embed"
	"fmt"
	"html/template"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/semaphore"

	"github.com/safedelivr/safedelivr/service/people"
)

// Config has what a Frame needs.
type Config struct {
	Store      Store
	People     *people.People
	Limits     *people.Limits
	Accounts   Accounts
	Public     *url.URL // URL for browsers; cookies are Secure if its scheme is https
	Providers  *Providers
	Templates  []*Templates // of the rooms
	Operations Operations
	// Refuse answers a program that asks for a path of no page, or for one that has only these methods.
	Refuse func(w http.ResponseWriter, r *http.Request, methods []string)
	Log    *slog.Logger
}

// Frame serves the pages of all rooms.
type Frame struct {
	Config
	Sessions *Sessions

	sets    parsers
	assets  *assets
	live    *hub
	keeping keptBudget // of the forms that are kept
	names   sync.Map   // names of users by ID; they never change
	mux     *http.ServeMux
}

// New returns a frame.
func New(c Config) (*Frame, error) {
	assets, err := loadAssets()
	if err != nil {
		return nil, err
	}
	f := &Frame{
		Config:   c,
		Sessions: &Sessions{store: c.Store},
		sets:     parsers{},
		assets:   assets,
		live:     newHub(c.Log),
		keeping:  keptBudget{all: semaphore.NewWeighted(keptBytes)},
		mux:      http.NewServeMux(),
	}
	for _, t := range append(c.Templates, frameTemplates) {
		sets, err := t.load()
		if err != nil {
			return nil, err
		}
		maps.Copy(f.sets, sets)
	}
	return f, nil
}

// Close ends all live connections, and waits for what Go started. Open pages say that the connection is lost, and
// reconnect.
func (f *Frame) Close() { f.live.close() }

// Go runs a function until Close.
func (f *Frame) Go(run func(ctx context.Context)) { f.live.wg.Go(func() { run(f.live.ctx) }) }

// Routes are the handlers of a room by their patterns.
type Routes struct {
	Open      map[string]Handler // need no session, and get no visitor
	Users     map[string]Handler
	Operators map[string]Handler // other users do not see that they exist
}

// Serve returns the handler of the pages of all rooms.
func (f *Frame) Serve(rooms ...Routes) http.Handler {
	f.mux.Handle("GET /assets/{name...}", f.assets)
	f.mux.HandleFunc("/", f.noRoute)
	for _, room := range rooms {
		for pattern, h := range room.Open {
			f.mux.Handle(pattern, f.forAll(h))
		}
		for pattern, h := range room.Users {
			f.mux.Handle(pattern, f.forUsers(h))
		}
		for pattern, h := range room.Operators {
			f.mux.Handle(pattern, f.forUsers(operatorsOnly(h)))
		}
	}
	return f.secured(f.mux)
}

// Routes returns the routes of the frame itself.
func (f *Frame) Routes() Routes {
	return Routes{
		Open:  map[string]Handler{"POST /theme": f.setTheme},
		Users: map[string]Handler{"POST /everyone": f.setEveryone},
	}
}

// NameOf returns the name of a user, or the ID if there is no such user.
func (f *Frame) NameOf(ctx context.Context, id string) string {
	if name, ok := f.names.Load(id); ok {
		return name.(string)
	}
	u, err := f.Store.User(ctx, id)
	if err != nil {
		return id
	}
	f.names.Store(id, u.Name)
	return u.Name
}

//go:embed *.html shared/*.html
var files embed.FS

// frameTemplates are the pages of the frame itself.
var frameTemplates = NewTemplates(files, nil)

// parse returns the template of a page, with the layout. It parses the files at its first call: all pages together take
// megabytes, and most processes show few.
type parse func() (*template.Template, error)

// parsers are the pages by name.
type parsers map[string]parse

// page returns the template of a page.
func (p parsers) page(name string) (*template.Template, error) {
	parse := p[name]
	if parse == nil {
		return nil, fmt.Errorf("there is no page %s", name)
	}
	return parse()
}

// Templates are the pages of a room, over the parts that all rooms share.
type Templates struct {
	load func() (parsers, error)
}

// NewTemplates returns the pages of a room: its files *.html, in which its functions can be used besides those of all
// rooms. parts.html has parts that its pages share.
func NewTemplates(room fs.FS, funcs template.FuncMap) *Templates {
	return &Templates{load: sync.OnceValues(func() (parsers, error) {
		names, err := fs.Glob(room, "*.html")
		if err != nil {
			return nil, err
		}
		parts := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name != "parts.html" })
		sets := parsers{}
		for _, name := range names {
			sets[strings.TrimSuffix(name, ".html")] = sync.OnceValues(func() (*template.Template, error) {
				set, err := sharedParts()
				if err == nil {
					set, err = set.Clone()
				}
				if err == nil {
					_, err = set.Funcs(funcs).ParseFS(room, append(slices.Clone(parts), name)...)
				}
				if err != nil {
					return nil, fmt.Errorf("template %s: %w", name, err)
				}
				return set, nil
			})
		}
		return sets, nil
	})}
}

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
