package provider

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
)

// A View is what the holes of a form read. Without an event, it is of a mail.
type View struct {
	*Account
	Batch *message.Batch
	Copy  *message.Copy
	Event *message.Event
	Stage *Stage
	ID    string // of the batch, as the API answers it
	Tries int    // posts of the event that failed before

	Status string // of the copy in look-ups, without an event
}

// A Hole appends what a form has in its place.
type Hole func(dst []byte, v *View) []byte

// Holes are the holes of forms by name.
type Holes struct {
	Event map[string]Hole // the same for all copies of an event
	Copy  map[string]Hole
}

// shared are the holes that every kind has. Texts are quoted.
var shared = Holes{
	Event: map[string]Hole{
		"unix":   func(dst []byte, v *View) []byte { return strconv.AppendInt(dst, v.at().Unix(), 10) },
		"micros": func(dst []byte, v *View) []byte { return appendMicros(dst, v.at()) },
		"time":   func(dst []byte, v *View) []byte { return v.at().UTC().AppendFormat(dst, "2006-01-02T15:04:05.000Z") },
		"sent":   func(dst []byte, v *View) []byte { return v.Batch.Accepted().UTC().AppendFormat(dst, time.RFC3339) },
		"from":   func(dst []byte, v *View) []byte { return Quote(dst, v.Batch.From) },
		"tags":   func(dst []byte, v *View) []byte { return AppendList(dst, v.Batch.Tags) },
		"stream": func(dst []byte, v *View) []byte { return Quote(dst, v.Batch.Stream) },
		"tag":    func(dst []byte, v *View) []byte { return Quote(dst, strings.Join(v.Batch.Tags, " ")) },
		"to":     func(dst []byte, v *View) []byte { return AppendList(dst, v.Batch.Addresses(0)) },
		"id":     func(dst []byte, v *View) []byte { return append(dst, strings.Trim(v.ID, "<>")...) },
	},
	Copy: map[string]Hole{
		"address":  func(dst []byte, v *View) []byte { return Quote(dst, v.Copy.Address) },
		"index":    func(dst []byte, v *View) []byte { return strconv.AppendUint(dst, uint64(v.Copy.Index), 16) },
		"metadata": AppendMetadata,
		"state":    func(dst []byte, v *View) []byte { return Quote(dst, v.Status) },
		"subject":  func(dst []byte, v *View) []byte { return Quote(dst, v.Subject()) },
	},
}

// at returns when the event happened, or when the mail was accepted.
func (v *View) at() time.Time {
	if v.Event == nil {
		return v.Batch.Accepted()
	}
	return v.Event.At()
}

// Subject returns the subject of the copy. Unless content is kept, it is its template.
func (v *View) Subject() string {
	if v.Copy.Content != nil {
		return v.Copy.Content.Subject
	}
	return v.Batch.Subject
}

// appendMicros appends the Unix time of t in seconds with six decimals.
func appendMicros(dst []byte, t time.Time) []byte {
	micros := t.UnixMicro()
	dst = strconv.AppendInt(dst, micros/1e6, 10)
	fraction := strconv.AppendInt(nil, 1e6+micros%1e6, 10)
	return append(append(dst, '.'), fraction[1:]...)
}

// AppendList appends texts as a list.
func AppendList(dst []byte, list []string) []byte {
	dst = append(dst, '[')
	for i, text := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = Quote(dst, text)
	}
	return append(dst, ']')
}

// AppendMetadata appends the metadata of the copy as an object.
func AppendMetadata(dst []byte, v *View) []byte {
	dst = append(dst, '{')
	first := len(dst)
	for key, value := range v.Batch.Metadata(v.Copy) {
		if len(dst) > first {
			dst = append(dst, ',')
		}
		dst = Quote(append(Quote(dst, key), ':'), value)
	}
	return append(dst, '}')
}

// Quote appends text as a JSON string. With json.Marshal alone it takes four times as long for an address.
func Quote(dst []byte, text string) []byte {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			quoted, _ := json.Marshal(text) // never an error
			return append(dst, quoted...)
		}
	}
	return append(append(append(dst, '"'), text...), '"')
}

// A Form is a text with holes: <name> is where the hole of that name writes.
type Form []piece

// A piece is a text, or a hole.
type piece struct {
	text        string
	event, copy Hole
}

// NewForm returns a form whose holes are those that every kind has, and those of the kind.
func NewForm(text string, own Holes) (f Form) {
	for begin := 0; ; {
		end := strings.IndexByte(text[begin:], '>')
		if end < 0 {
			return append(f, piece{text: text})
		}
		end += begin
		open := strings.LastIndexByte(text[:end], '<')
		var p piece
		if open >= 0 {
			name := text[open+1 : end]
			p = piece{event: own.Event[name], copy: own.Copy[name]}
			if p.event == nil && p.copy == nil {
				p = piece{event: shared.Event[name], copy: shared.Copy[name]}
			}
		}
		if p.event == nil && p.copy == nil {
			begin = end + 1 // it is part of the text
			continue
		}
		f = append(f, piece{text: text[:open]}, p)
		text, begin = text[end+1:], 0
	}
}

// Writer returns a function that appends the form for copies. What copies have in common is written once.
func (f Form) Writer(v View) func(dst []byte, c *message.Copy) []byte {
	type part struct {
		end  int // of the text before the hole
		hole Hole
	}
	var text []byte
	var parts []part
	for _, p := range f {
		switch {
		case p.copy != nil:
			parts = append(parts, part{len(text), p.copy})
		case p.event != nil:
			text = p.event(text, &v)
		default:
			text = append(text, p.text...)
		}
	}
	return func(dst []byte, c *message.Copy) []byte {
		v.Copy = c
		at := 0
		for _, p := range parts {
			dst = p.hole(append(dst, text[at:p.end]...), &v)
			at = p.end
		}
		return append(dst, text[at:]...)
	}
}

// Append appends the form for the copy of the view.
func (f Form) Append(dst []byte, v View) []byte { return f.Writer(v)(dst, v.Copy) }
