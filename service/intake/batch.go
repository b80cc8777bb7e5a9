package intake

import (
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/safedelivr/safedelivr/models"
)

// Batch has the fields of a batch as a request gives them, without the recipients and the attachments. The decoders
// of all formats read its names and limits: max of the elements, enum of the values. The decoder of JSON refuses an
// empty text in a field that is filled; elsewhere an empty text counts as absent.
type Batch struct {
	From      string            `json:"from"`
	ReplyTo   []string          `json:"reply_to"  max:"10"`
	OneText   bool              // ReplyTo was given as one text, and not as a list
	Subject   string            `json:"subject"`
	Text      string            `json:"text"      lines:"any"`
	HTML      string            `json:"html"      lines:"any"`
	Body      string            `json:"body"`     // another name for HTML
	Template  string            `json:"template"` // a name, or a name and a version like welcome@3
	Language  string            `json:"language"`
	Category  string            `json:"category"`
	Tags      []string          `json:"tags"      max:"10"`
	Headers   []models.Header   `json:"headers"   max:"20"`
	Metadata  map[string]string `json:"metadata"  max:"50"`
	CC        []string          `json:"cc"`
	BCC       []string          `json:"bcc"`
	Providers []string          `json:"providers"` // empty, but not nil, is a mistake
	Lane      string            `json:"lane"       enum:"urgent,bulk" filled:"true"`
	OnUnknown string            `json:"on_unknown" enum:"hold,resend" filled:"true"`
	Times

	AllowDuplicates bool  `json:"allow_duplicates"` // keep repeated addresses
	TrackOpens      bool  `json:"track_opens"`
	TrackClicks     bool  `json:"track_clicks"`
	Unsubscribe     *bool `json:"unsubscribe"` // nil: true for bulk mail with a category, if there is a page for it
}

// Times are those of a batch, or of a recipient in place of those of the batch, as a request gives them. An empty one
// is not given.
type Times struct {
	DeliverAt string  `json:"deliver_at"  filled:"true"`
	ExpiresAt string  `json:"expires_at"  filled:"true"`
	TimeZone  string  `json:"time_zone"`
	Window    *Window `json:"send_window"`
}

// Window is a send window as a request gives it.
type Window struct {
	From     string   `json:"from"`
	To       string   `json:"to"`
	Zone     string   `json:"time_zone"`
	Weekdays []string `json:"weekdays"`
	Strict   bool     `json:"strict"`
	None     bool     // mail may leave at any time, whatever the default is
}

// Names of fields.
const (
	Template    = "template"
	Language    = "language"
	Unsubscribe = "unsubscribe"
	DeliverAt   = "deliver_at"
	ExpiresAt   = "expires_at"
	TimeZone    = "time_zone"
	SendWindow  = "send_window"
)

// Field is the declaration of a field of a Batch.
type Field struct {
	Name   string
	Filled bool // a text in JSON must not be empty

	max   int      // elements; 0: another check limits them
	enum  []string // values; nil: any
	index []int
}

// maxElements is the number of elements that are read of a list without a limit of its own.
const maxElements = 1000

// Most returns how many elements of a list are read: one more than it may have.
func (f *Field) Most() int {
	if f.max == 0 {
		return maxElements
	}
	return f.max + 1
}

// fields are those of a Batch.
var fields = func() (out []Field) {
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Batch]()) {
		if name := f.Tag.Get("json"); name != "" {
			field := Field{Name: name, Filled: f.Tag.Get("filled") != "", index: f.Index}
			field.max, _ = strconv.Atoi(f.Tag.Get("max")) // 0: there is none
			if values := f.Tag.Get("enum"); values != "" {
				field.enum = strings.Split(values, ",")
			}
			out = append(out, field)
		}
	}
	return out
}()

// FieldNames are the names of all fields of a request.
var FieldNames = func() []string {
	names := []string{"to", "attachments"}
	for i := range fields {
		names = append(names, fields[i].Name)
	}
	return names
}()

// Field returns a pointer to the value of a field, and its declaration. It returns nil if a Batch has no such field.
func (b *Batch) Field(name string) (value any, f *Field) {
	for i := range fields {
		if f := &fields[i]; f.Name == name {
			return reflect.ValueOf(b).Elem().FieldByIndex(f.index).Addr().Interface(), f
		}
	}
	return nil, nil
}

// checkTags reports the fields that are not as their tags say, and have no mistake yet.
func (b *Batch) checkTags(m *Mistakes) {
	all := reflect.ValueOf(b).Elem()
	for i := range fields {
		f := &fields[i]
		v := all.FieldByIndex(f.index)
		many := f.max > 0 && v.Len() > f.max
		other := f.enum != nil && v.String() != "" && !slices.Contains(f.enum, v.String())
		switch {
		case !many && !other, m.At("/" + f.Name):
		case many:
			m.Wrong("/"+f.Name, "too_many", "%s may have at most %d values.", f.Name, f.max)
		default:
			m.Wrong("/"+f.Name, "invalid_value", "%s must be %s.", f.Name, strings.Join(f.enum, " or "))
		}
	}
}

// html returns the HTML, and the field that has it.
func (b *Batch) html() (text, field string) {
	if b.Body != "" {
		return b.Body, "body"
	}
	return b.HTML, "html"
}

// Time returns a pointer to the time that is a text and has a name; nil: there is none.
func (t *Times) Time(name string) *string {
	switch name {
	case DeliverAt:
		return &t.DeliverAt
	case ExpiresAt:
		return &t.ExpiresAt
	case TimeZone:
		return &t.TimeZone
	}
	return nil
}

// names returns the names of the times that are given.
func (t *Times) names() (out []string) {
	for _, name := range []string{DeliverAt, ExpiresAt, TimeZone} {
		if *t.Time(name) != "" {
			out = append(out, name)
		}
	}
	if t.Window != nil {
		out = append(out, SendWindow)
	}
	return out
}

// WindowOf returns a window as a request gives it.
func WindowOf(w *models.SendWindow) *Window {
	if w == nil {
		return nil
	}
	text := func(t models.TimeOfDay) string {
		raw, _ := t.MarshalText() // never an error
		return string(raw)
	}
	out := &Window{From: text(w.From), To: text(w.To), Zone: w.Zone, Strict: w.Strict}
	for _, d := range w.Days {
		raw, _ := d.MarshalText() // never an error
		out.Weekdays = append(out.Weekdays, string(raw))
	}
	return out
}
