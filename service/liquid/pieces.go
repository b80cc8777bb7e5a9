package liquid

import "strings"

// Piece is a tag, an output or a comment in the source of a template.
type Piece struct {
	Start, End int
	Line       int
	Tag        string // its name; "" for an output, a comment and the ends of {% raw %}
	Output     bool
	Raw        bool // the value of the output is put into HTML as it is
}

// Pieces returns the Liquid of a source in order. The text between the pieces is what the
// template shows as it is; only {{{{ stands for two braces. The error is an *Error.
func Pieces(source string) (out []Piece, err error) {
	tokens, err := scan(source)
	if err != nil {
		return nil, err
	}
	end := 0
	for i := range tokens {
		t := &tokens[i]
		if t.start > end {
			out[len(out)-1].End = t.start // the text of a comment
		}
		end = t.end
		if t.kind == text {
			continue
		}
		p := Piece{Start: t.start, End: t.end, Line: t.line, Tag: t.name, Output: t.kind == object}
		if t.kind == object {
			parts, err := pipeline(t.source)
			if err != nil {
				return nil, &Error{t.line, err.Error()}
			}
			p.Raw = len(parts) > 1 && strings.TrimSpace(parts[len(parts)-1]) == "raw"
		}
		out = append(out, p)
	}
	return out, nil
}
