package main

import (
	"bytes"
	_ "embed"
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

// first are the pages that the navigation begins with, in this order.
var first = []string{
	"README.md", "docs/configuration.md", "docs/operating.md", "docs/proxy.md", "docs/webhooks.md", "docs/api.md",
	"docs/templates.md", "docs/updates.md", "docs/endpoints.md",
	"docs/errors.md", "docs/commands.md", "docs/metrics.md", "docs/reliability.md", "docs/benchmarks.md",
	"docs/comparison.md",
}

// A page is a document.
type page struct {
	Source string // path of the Markdown file in the project
	Path   string // of the page in the site
	Title  string
	Body   template.HTML

	ids   map[string]bool // anchors of headings
	links []string        // as written
}

// A site has all documents.
type site struct {
	root  string
	pages []*page
}

// build reads the documents below root: all Markdown files of the project's folder and of docs.
func build(root string) (*site, error) {
	s := &site{root: root}
	var sources []string
	for _, folder := range []string{".", "docs", "docs/adr", "docs/recipes"} {
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
	slices.SortStableFunc(sources, func(a, b string) int { return order(a) - order(b) })
	for _, source := range sources {
		p, err := s.read(source)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", source, err)
		}
		s.pages = append(s.pages, p)
	}
	return s, nil
}

func order(source string) int {
	if i := slices.Index(first, source); i >= 0 {
		return i
	}
	return len(first)
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
	p := &page{Source: source, Path: pathOf(source), Title: source, ids: map[string]bool{}}
	doc := markdown.Parser().Parse(text.NewReader(raw))
	err = ast.Walk(doc, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Heading:
			title := string(n.Lines().Value(raw))
			if id, ok := n.AttributeString("id"); ok {
				p.ids[string(id.([]byte))] = true //nolint:forcetypeassert // goldmark sets bytes
			}
			if n.Level == 1 {
				p.Title = strings.ReplaceAll(title, "`", "")
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

// write writes the pages, and the pictures that they show.
func (s *site) write(folder string) error {
	tmpl, err := template.New("page").Parse(pageHTML)
	if err != nil {
		return err
	}
	for _, p := range s.pages {
		var out bytes.Buffer
		type link struct {
			Href, Title string
			Current     bool
		}
		var nav []link
		for _, other := range s.pages {
			href, err := filepath.Rel(path.Dir(p.Path), other.Path)
			if err != nil {
				return err
			}
			nav = append(nav, link{filepath.ToSlash(href), other.Title, other == p})
		}
		if err := tmpl.Execute(&out, struct {
			*page
			Nav []link
		}{p, nav}); err != nil {
			return err
		}
		to := filepath.Join(folder, p.Path)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil { //nolint:gosec // pages are public
			return err
		}
		if err := os.WriteFile(to, out.Bytes(), 0o644); err != nil { //nolint:gosec // pages are public
			return err
		}
	}
	pictures := filepath.Join(folder, "docs", "screenshots")
	if err := os.RemoveAll(pictures); err != nil { // CopyFS replaces nothing
		return err
	}
	return os.CopyFS(pictures, os.DirFS(filepath.Join(s.root, "docs", "screenshots")))
}
