package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// A block is a block of commands in a document.
type block struct {
	Line   int
	Part   string // the heading of the part of the document (##)
	Text   string
	NotRun string // why it is not run, as the text before it says; "" if it is run
	Serves bool   // the text before it says that it runs in another terminal
}

// The texts before a block that change what is done with it.
const (
	notRun        = "<!-- Not run by scripts/test"
	otherTerminal = "in another terminal"
)

// blocks returns the blocks of commands of a document.
func blocks(source string) ([]block, error) {
	raw, err := os.ReadFile(filepath.FromSlash(source))
	if err != nil {
		return nil, err
	}
	var out []block
	var before []string // the lines since the last block or heading
	var now *block
	fenced, part := false, ""
	for i, line := range strings.Split(string(raw), "\n") {
		fence, isFence := strings.CutPrefix(line, "```")
		switch {
		case isFence && !fenced:
			fenced = true
			if fence == "sh" {
				text := strings.Join(before, " ")
				now = &block{Line: i + 1, Part: part, Serves: strings.Contains(strings.ToLower(text), otherTerminal)}
				if _, why, ok := strings.Cut(text, notRun); ok {
					now.NotRun, _, _ = strings.Cut(strings.TrimLeft(why, ":, "), "-->")
				}
			}
		case isFence:
			fenced = false
			if now != nil {
				out, now = append(out, *now), nil
			}
			before = nil
		case now != nil:
			now.Text += line + "\n"
		case strings.HasPrefix(line, "#"):
			before = nil
			if heading, ok := strings.CutPrefix(line, "## "); ok {
				part = heading
			}
		default:
			before = append(before, line)
		}
	}
	if fenced {
		return nil, fmt.Errorf("%s: a block does not end", source)
	}
	return out, nil
}
