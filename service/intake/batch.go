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
// empty text in a field that is filled; elsewhere an empty text counts as absent. The description of the API is made
// from it, as from the structs of operations. There the tag whole names the schema of a field, and not of its elements.
type Batch struct {
	// An RFC 5322 address with or without a name. International domains are converted to punycode. Without a template it
	// is required, like `subject`, and `text` or `html`.
	From string `json:"from" schema:"Mailbox"`
	// A mailbox, or a list of at most 10.
	ReplyTo []string `json:"reply_to" max:"10" whole:"ReplyTo"`
	OneText bool     // ReplyTo was given as one text, and not as a list
	// One line of at most 998 bytes, also with the values of each recipient. May contain placeholders.
	Subject string `json:"subject"`
	// Plain text body. Text, HTML or both are required. May contain placeholders.
	Text string `json:"text" lines:"any"`
	HTML string `json:"html" lines:"any"` // HTML body. May contain placeholders.
	Body string `json:"body"`             // Another name for `html`.
	// The template that the message is made from, instead of `subject`, `text` and `html`: a name for the published
	// version, or a name and a number like `welcome@3`. It may have the sender and the category, too.
	Template string `json:"template" schema:"TemplateChoice"`
	// Language of the template, like `de-AT`. It falls back to `de`, and that to the default.
	Language string `json:"language"`
	Category string `json:"category"` // The kind of mail, like `newsletter`: 1 to 64 characters, as in a tag.
	// Words for statistics, also at the providers: one line of 1 to 255 bytes. A provider that takes fewer gets the first
	// ones. Providers get `-` for all but letters a to z, digits, `_`, `-`, `.` and `:`, and the first 64 characters. Each
	// log says what was left out.
	Tags []string `json:"tags" max:"10" schema:"Tag" unique:"true"`
	// Header fields of your own, like `List-Id` or `In-Reply-To`. A value is one line of at most 998 bytes, also with the
	// values of each recipient, and may contain placeholders. Characters beyond ASCII are encoded (RFC 2047). Fields that
	// a batch has a field for (`From`, `Subject`, …), or that belong to Safedelivr, the providers or mail servers (`Date`,
	// `Content-…`, `Received`, `DKIM-Signature`, …), are refused: `reserved_header`. `References` is cut to the first and
	// the newest ids that fit into a line. `Message-ID` is that of the mail at providers that keep it; at others it is
	// added to `References`. Logs and updates show it as `rfc_message_id`.
	Headers  []models.Header   `json:"headers" max:"100" whole:"NewHeaders"`
	Metadata map[string]string `json:"metadata" max:"100" whole:"NewMetadata"`
	// Send one mail to all addresses in `to`, `cc` and `bcc`, at most 50, instead of one to each in `to`. Each recipient
	// sees those in `to` and `cc`. The placeholders have the values of the first in `to`, and the others have none.
	Together bool `json:"together"`
	// Addresses in Cc. With `cc` or `bcc` the batch is one mail to all addresses, as with `together`, which several
	// recipients in `to` need. An address that is named several times counts where it is first: in `to`, `cc`, `bcc`. See
	// docs/api.md.
	CC []string `json:"cc" schema:"Mailbox"`
	// Addresses that get the mail of `cc`, and that no other recipient sees.
	BCC []string `json:"bcc" schema:"Mailbox"`
	// Providers that the batch may use, tried in this order. Default: all providers, by weight.
	Providers []string `json:"providers" min:"1" unique:"true"` // empty, but not nil, is a mistake
	Lane      string   `json:"lane" enum:"urgent,bulk" filled:"true" schema:"Lane"`
	OnUnknown string   `json:"on_unknown" enum:"hold,resend" filled:"true" schema:"OnUnknown"`
	Times

	// Send one mail for each repetition of an address. Default: repeated addresses are dropped.
	AllowDuplicates bool `json:"allow_duplicates"`
	// Let the provider tell who opens the mail, by a picture that it adds to the HTML. Default: false, even if it is on at
	// the provider.
	TrackOpens bool `json:"track_opens"`
	// Let the provider tell who clicks which link, by replacing the links of the HTML. Default: false, even if it is on at
	// the provider.
	TrackClicks bool `json:"track_clicks"`
	// Add the header fields List-Unsubscribe and List-Unsubscribe-Post (RFC 8058), unless `headers` of the batch or of a
	// recipient has the first. Give `{{unsubscribe_url}}` a value: the page at which the recipient unsubscribes from the
	// `category`, or without one from all your mail. Default: true for bulk mail with a category if the server has
	// SAFEDELIVR_PUBLIC_URL.
	Unsubscribe *bool `json:"unsubscribe"`
}

// Times are those of a batch, or of a recipient in place of those of the batch, as a request gives them. An empty one
// is not given.
type Times struct {
	// When the mail is sent: an RFC 3339 time, or one without an offset like `2026-12-24T18:00` on a clock in `time_zone`,
	// at most 365 days from now. A time that the clock skips is the time of its jump, and of one that it shows twice the
	// first is meant. Default: at once.
	DeliverAt string `json:"deliver_at" filled:"true"`
	// After this time nothing is handed over to a provider; within a minute the remaining logs fail with reason `expired`.
	// It must be in the future, at most 30 days after `deliver_at`, or from now. Default: 7 days
	// (`SAFEDELIVR_TIMES_EXPIRE_AFTER`).
	ExpiresAt string `json:"expires_at" filled:"true"`
	// IANA name of a time zone, like `Europe/Vienna`: of times without an offset, and of `send_window`.
	TimeZone string `json:"time_zone"`
	// Send only while a clock in the time zone shows a time from `from` and before `to`. The mail that is left a day
	// before it expires may leave an hour earlier or later than that, within the last six hours three hours, and within
	// the last hour at any time; with `strict` it expires instead. Default: the window of the user, if there is one;
	// `none` lets the mail leave at any time.
	Window *Window `json:"send_window" schema:"WindowOrNone"`
}

// Window is a send window as a request gives it.
type Window struct {
	From     string   `json:"from"`
	To       string   `json:"to"`
	Zone     string   `json:"time_zone"`
	Weekdays []string `json:"weekdays"`
	Strict   bool     `json:"strict"`
	None     bool     // mail may leave at any time, in spite of the default
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
