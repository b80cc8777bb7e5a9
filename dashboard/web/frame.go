// Package web is the frame of all pages: templates and assets, visitors and their sessions, forms, and the parts of
// pages that update by themselves. Each room of pages brings its routes and its templates.
//
// A handler gets the visitor who is logged in. An error that it returns is shown as a page. Only POST requests change
// anything.
package web

import (
	"bytes"
	"cmp"
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
	Operations Operations
	// Refuse answers a program that asks for a path of no page, or for one that has only these methods.
	Refuse func(w http.ResponseWriter, r *http.Request, methods []string)
	Log    *slog.Logger
}

// Frame serves the pages of all rooms.
type Frame struct {
	Config
	Sessions *Sessions
	*calls

	views   Templates // of all rooms
	assets  *assets
	live    *hub
	keeping keptBudget // of the forms that are kept
	names   sync.Map   // names of users by ID; they never change
	mux     *http.ServeMux

	nav     [len(groupNames)]navGroup
	entries map[string]string // the To of the entry of a page, by pattern
}

// New returns a frame.
func New(c Config) (*Frame, error) {
	assets, err := loadAssets()
	if err != nil {
		return nil, err
	}
	return &Frame{
		Config:   c,
		Sessions: &Sessions{store: c.Store},
		views:    maps.Clone(frameViews),
		assets:   assets,
		live:     newHub(c.Log),
		keeping:  keptBudget{all: semaphore.NewWeighted(keptBytes)},
		mux:      http.NewServeMux(),
		entries:  map[string]string{},
		calls:    &calls{c.Operations, map[string]Call{}, map[string]string{}},
	}, nil
}

// Close ends all live connections, and waits for what Go started. Open pages say that the connection is lost, and
// reconnect.
func (f *Frame) Close() { f.live.close() }

// Go runs a function until Close.
func (f *Frame) Go(run func(ctx context.Context)) { f.live.wg.Go(func() { run(f.live.ctx) }) }

// Routes are the pages of a room: their templates, their entries of the navigation, and the handlers by their patterns.
// Serve adds the handlers of the forms that carry out operations.
type Routes struct {
	Templates Templates
	Entries   []Entry
	Open      map[string]Handler // need no session, and get no visitor
	Users     map[string]Handler
	Operators map[string]Handler // other users do not see that they exist

	Calls, OperatorCalls map[string]Call
}

// Entry is an entry of the navigation. Only operators see it if its page is for operators. It is marked on its own page.
// The first entry of a room is marked on all other pages of the room, unless a Page says otherwise.
type Entry struct {
	Group          Group
	To, Icon, Text string
}

// Group is a group of entries of the navigation.
type Group int

// The groups, in their order on the page.
const (
	NavTop Group = iota // without a heading
	NavSend
	NavWatch
	NavRun
)

var groupNames = [...]string{NavTop: "", NavSend: "Send", NavWatch: "Watch", NavRun: "Run"}

// navGroup is a group as the layout shows it.
type navGroup struct {
	Name    string
	Entries []navEntry
}

type navEntry struct {
	Entry
	Operators bool // only operators see it
}

// Serve returns the handler of the pages of all rooms. The entries of a group are in the order of the rooms.
func (f *Frame) Serve(rooms ...Routes) http.Handler {
	f.mux.Handle("GET /assets/{name...}", f.assets)
	f.mux.HandleFunc("/", f.noRoute)
	for _, room := range rooms {
		maps.Copy(f.views, room.Templates)
		for _, e := range room.Entries {
			_, operators := room.Operators["GET "+e.To]
			group := &f.nav[e.Group]
			group.Name, group.Entries = groupNames[e.Group], append(group.Entries, navEntry{e, operators})
		}
		for pattern, c := range room.Calls {
			room.Users[pattern] = f.add(pattern, c)
		}
		for pattern, c := range room.OperatorCalls {
			room.Operators[pattern] = f.add(pattern, c)
		}
		handle := func(pattern string, h http.HandlerFunc) {
			f.mux.HandleFunc(pattern, h)
			f.entries[pattern] = room.entryOf(pattern)
		}
		for pattern, h := range room.Open {
			handle(pattern, f.forAll(h))
		}
		for pattern, h := range room.Users {
			handle(pattern, f.forUsers(h))
		}
		for pattern, h := range room.Operators {
			handle(pattern, f.forUsers(operatorsOnly(h)))
		}
	}
	return f.secured(f.mux)
}

// entryOf returns the To of the entry that is marked on the page of a pattern, or "".
func (r *Routes) entryOf(pattern string) (to string) {
	for _, e := range r.Entries {
		if strings.HasSuffix(pattern, " "+e.To) {
			return e.To
		}
		to = cmp.Or(to, e.To)
	}
	return to
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

// frameViews are the pages of the frame itself.
var frameViews = NewTemplates(files, nil)

// Templates are the pages of a room by name, over the parts that all rooms share. The first call of a function parses
// the files: all pages together take megabytes, and most processes show few.
type Templates map[string]func() (*template.Template, error)

// NewTemplates returns the pages of a room: its files *.html, in which its functions can be used besides those of all
// rooms. parts.html has parts that its pages share.
func NewTemplates(room fs.FS, funcs template.FuncMap) Templates {
	names, _ := fs.Glob(room, "*.html") // an error means a wrong pattern
	parts := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name != "parts.html" })
	out := Templates{}
	for _, name := range names {
		out[strings.TrimSuffix(name, ".html")] = sync.OnceValues(func() (*template.Template, error) {
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
	return out
}

// page returns the template of a page, with the layout.
func (t Templates) page(name string) (*template.Template, error) {
	parse := t[name]
	if parse == nil {
		return nil, fmt.Errorf("there is no page %s", name)
	}
	return parse()
}

// Parts renders named parts of a page for live events.
func (t Templates) Parts(name string, data any, wanted ...string) (Parts, error) {
	page, err := t.page(name)
	if err != nil {
		return nil, err
	}
	out := Parts{}
	for _, part := range wanted {
		var b bytes.Buffer
		if err := page.ExecuteTemplate(&b, part, data); err != nil {
			return nil, fmt.Errorf("part %s of page %s: %w", part, name, err)
		}
		out[part] = b.Bytes()
	}
	return out, nil
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
