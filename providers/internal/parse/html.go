package parse

import (
	"strings"

	"golang.org/x/net/html"
)

// plain returns the visible text of an HTML page, like the error pages of proxies, and any other
// text as it is.
func plain(s string) string {
	if !isHTML(s) {
		return s
	}
	var out []string
	hidden := ""
	for z := html.NewTokenizer(strings.NewReader(s)); ; {
		switch z.Next() {
		case html.ErrorToken: // the end
			return strings.Join(out, " ")
		case html.StartTagToken:
			if name, _ := z.TagName(); string(name) == "script" || string(name) == "style" {
				hidden = string(name)
			}
		case html.EndTagToken:
			if name, _ := z.TagName(); string(name) == hidden {
				hidden = ""
			}
		case html.TextToken:
			text := strings.Join(strings.Fields(string(z.Text())), " ")
			if hidden != "" || text == "" || len(out) > 0 && out[len(out)-1] == text { // the title, and again as heading
				continue
			}
			out = append(out, text)
		case html.SelfClosingTagToken, html.CommentToken, html.DoctypeToken:
		}
	}
}

// isHTML reports whether s begins as a page does.
func isHTML(s string) bool {
	s = strings.ToLower(strings.TrimSpace(s[:min(len(s), 200)]))
	for _, begin := range []string{"<!doctype html", "<html", "<head", "<body", "<title", "<h1", "<?xml"} {
		if strings.HasPrefix(s, begin) {
			return true
		}
	}
	return false
}
