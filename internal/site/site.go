package main

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
)

//go:embed page.html
var pageHTML string

//go:embed search.js
var searchJS []byte

// groups are the parts of the navigation, after https://diataxis.fr, with their pages in order. The last group has the
// pages that no other has.
var groups = []struct {
	title string
	pages []string
}{
	{"Start", []string{"README.md", "docs/tutorial.md", "docs/newsletter.md", "docs/simulator.md"}},
	{"How to", []string{
		"docs/operating.md", "docs/runbook.md", "docs/troubleshooting.md", "docs/sizing.md", "docs/continuity.md",
		"docs/proxy.md",
		"docs/webhooks.md", "docs/smtp.md", "docs/switch.md", "docs/clients.md", "docs/migrate.md", "docs/recipes/curl.md",
		"docs/recipes/django.md", "docs/recipes/laravel.md", "docs/recipes/rails.md", "docs/recipes/supabase.md",
	}},
	{"Reference", []string{
		"docs/api.md", "docs/errors.md", "docs/templates.md", "docs/updates.md", "docs/endpoints.md", "docs/configuration.md",
		"docs/commands.md", "docs/metrics.md", "docs/capabilities.md", "client/typescript/README.md",
		"client/python/README.md",
	}},
	{"Explanation", []string{
		"docs/how-it-works.md", "ARCHITECTURE.md", "docs/reliability.md", "docs/benchmarks.md", "docs/comparison.md",
	}},
	{"For those who change it", nil},
}

// groupOf returns the group of a document, and its place there.
func groupOf(source string) (group, place int) {
	for i, g := range groups {
		if place = slices.Index(g.pages, source); place >= 0 {
			return i, place
		}
	}
	return len(groups) - 1, 0
}

// A page is a document.
type page struct {
	Source string // path of the Markdown file in the project
	Path   string // of the page in the site
	Title  string
	Body   template.HTML

	Contents []heading // of the page

	text  string          // for the search
	ids   map[string]bool // anchors of headings
	links []string        // as written
}

// A heading of the second level.
type heading struct{ ID, Title string }

// A site has all documents.
type site struct {
	root  string
	pages []*page
}

// build reads the documents below root: all Markdown files of the project's folder and of docs.
func build(root string) (*site, error) {
	s := &site{root: root}
	var sources []string
	for _, folder := range []string{".", "docs", "docs/adr", "docs/recipes", "client/typescript", "client/python"} {
		entries, err := os.ReadDir(filepath.Join(root, folder))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), ".md") {
				sources = append(sources, path.Join(folder, e.Name()))
			}
		}
	}
	slices.SortStableFunc(sources, func(a, b string) int {
		g, at := groupOf(a)
		h, other := groupOf(b)
		return cmp.Or(g-h, at-other)
	})
	for _, source := range sources {
		p, err := s.read(source)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", source, err)
		}
		s.pages = append(s.pages, p)
	}
	return s, nil
}

// pathOf returns where the page of a document is.
func pathOf(source string) string {
	if source == "README.md" {
		return "index.html"
	}
	return strings.TrimSuffix(source, ".md") + ".html"
}

var markdown = goldmark.New(
	goldmark.WithExtensions(extension.GFM),
	goldmark.WithParserOptions(parser.WithAutoHeadingID()),
)

func (s *site) read(source string) (*page, error) {
	raw, err := os.ReadFile(filepath.Join(s.root, source))
	if err != nil {
		return nil, err
	}
	p := &page{
		text:   strings.ToLower(string(raw)),
		Source: source,
		Path:   pathOf(source),
		Title:  source,
		ids:    map[string]bool{},
	}
	doc := markdown.Parser().Parse(text.NewReader(raw))
	err = ast.Walk(doc, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Heading:
			title := string(n.Lines().Value(raw))
			id, _ := n.AttributeString("id")
			anchor, _ := id.([]byte) // goldmark sets bytes
			p.ids[string(anchor)] = true
			switch plain := strings.ReplaceAll(title, "`", ""); n.Level {
			case 1:
				p.Title = plain
			case 2:
				p.Contents = append(p.Contents, heading{string(anchor), plain})
			}
		case *ast.Link:
			p.links = append(p.links, string(n.Destination))
			n.Destination = []byte(s.href(source, string(n.Destination)))
		case *ast.Image:
			p.links = append(p.links, string(n.Destination))
		}
		return ast.WalkContinue, nil
	})
	if err != nil {
		return nil, err
	}
	var body bytes.Buffer
	if err := markdown.Renderer().Render(&body, raw, doc); err != nil {
		return nil, err
	}
	p.Body = template.HTML(body.String()) //nolint:gosec // the project's own documents
	return p, nil
}

// href returns where a link of a document leads in the site.
func (s *site) href(source, link string) string {
	target, anchor, _ := strings.Cut(link, "#")
	if target == "" || strings.Contains(target, ":") {
		return link
	}
	to := path.Join(path.Dir(source), target)
	switch {
	case strings.HasSuffix(to, ".md"):
		to = pathOf(to)
	case !strings.HasPrefix(to, "docs/"):
		return "https://github.com/safedelivr/safedelivr/blob/main/" + to // a file that is no page
	}
	out, err := filepath.Rel(path.Dir(pathOf(source)), to)
	if err != nil {
		return link
	}
	if anchor != "" {
		out += "#" + anchor
	}
	return filepath.ToSlash(out)
}

// web is the form of an address outside of the project. It is not fetched.
var web = regexp.MustCompile(`^(https?://[a-zA-Z0-9.-]+(:\d+)?(/\S*)?|mailto:\S+@\S+)$`)

// broken returns an error for each link that leads to a file, page or heading that does not exist.
func (s *site) broken() []error {
	pages := map[string]*page{}
	for _, p := range s.pages {
		pages[p.Source] = p
	}
	var out []error
	for _, p := range s.pages {
		for _, link := range p.links {
			target, anchor, hasAnchor := strings.Cut(link, "#")
			if strings.Contains(target, ":") {
				if !web.MatchString(link) {
					out = append(out, fmt.Errorf("%s: %q is no address", p.Source, link))
				}
				continue
			}
			to := p.Source
			if target != "" {
				to = path.Join(path.Dir(p.Source), target)
			}
			other := pages[to]
			if _, err := os.Stat(filepath.Join(s.root, to)); err != nil && other == nil {
				out = append(out, fmt.Errorf("%s: there is no file %s", p.Source, to))
			} else if hasAnchor && other != nil && !other.ids[anchor] {
				out = append(out, fmt.Errorf("%s: there is no heading #%s in %s", p.Source, anchor, to))
			}
		}
	}
	return out
}

// A link of the navigation.
type link struct {
	Href, Title string
	Current     bool
}

// A part of the navigation.
type part struct {
	Title string
	Open  bool // the page is in it
	Links []link
}

// nav returns the navigation as a page shows it.
func (s *site) nav(p *page) ([]part, error) {
	parts := make([]part, len(groups))
	for i := range groups {
		parts[i].Title = groups[i].title
		parts[i].Open = i < len(groups)-1
	}
	for _, other := range s.pages {
		href, err := filepath.Rel(path.Dir(p.Path), other.Path)
		if err != nil {
			return nil, err
		}
		g, _ := groupOf(other.Source)
		parts[g].Open = parts[g].Open || other == p
		parts[g].Links = append(parts[g].Links, link{filepath.ToSlash(href), other.Title, other == p})
	}
	return parts, nil
}

// index returns the script that has the words of all pages.
func (s *site) index() ([]byte, error) {
	type entry struct {
		Path  string `json:"path"`
		Title string `json:"title"`
		Text  string `json:"text"`
	}
	var all []entry
	for _, p := range s.pages {
		all = append(all, entry{p.Path, p.Title, p.text})
	}
	raw, err := json.Marshal(all)
	return append(append([]byte("const pages = "), raw...), ";\n"...), err
}

// write writes the pages, the index of the search, and the pictures that the pages show.
func (s *site) write(folder string) error {
	tmpl, err := template.New("page").Parse(pageHTML)
	if err != nil {
		return err
	}
	for _, p := range s.pages {
		nav, err := s.nav(p)
		if err != nil {
			return err
		}
		root := strings.Repeat("../", strings.Count(p.Path, "/"))
		var out bytes.Buffer
		if err := tmpl.Execute(&out, struct {
			*page
			Nav  []part
			Root string
		}{p, nav, root}); err != nil {
			return err
		}
		if err := writeFile(filepath.Join(folder, p.Path), out.Bytes()); err != nil {
			return err
		}
	}
	index, err := s.index()
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{"index.js": index, "search.js": searchJS} {
		if err := writeFile(filepath.Join(folder, name), content); err != nil {
			return err
		}
	}
	pictures := filepath.Join(folder, "docs", "screenshots")
	if err := os.RemoveAll(pictures); err != nil { // CopyFS replaces nothing
		return err
	}
	return os.CopyFS(pictures, os.DirFS(filepath.Join(s.root, "docs", "screenshots")))
}

// writeFile writes a file of the site, which is public.
func writeFile(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // see above
		return err
	}
	return os.WriteFile(path, content, 0o644) //nolint:gosec // see above
}
