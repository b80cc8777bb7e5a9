package client

import (
	"bytes"
	"encoding/json"
	"time"
)

// TemplateContent is what a message says, in Liquid.
type TemplateContent struct {
	// One line.
	Subject string `json:"subject,omitempty" lines:"any"`
	// Values are escaped in HTML.
	HTML string `json:"html,omitempty" lines:"any"`
	Text string `json:"text,omitempty" lines:"any"`
}

// Values are values of variables by their names. Numbers that are read from JSON are of the type [json.Number].
type Values map[string]any

// UnmarshalJSON implements [json.Unmarshaler].
func (v *Values) UnmarshalJSON(raw []byte) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	return d.Decode((*map[string]any)(v))
}

// TemplateSource is what a version of a template is made from.
type TemplateSource struct {
	TemplateContent
	// Sender of batches that have no `from`.
	Sender string `json:"sender,omitempty"`
	// Category of batches that have none.
	Category string `json:"category,omitempty" pattern:"^[A-Za-z0-9_.:-]{1,64}$"`
	// Values of variables that a recipient lacks.
	Defaults Values `json:"defaults,omitempty"`
	// JSON Schema (draft 2020-12 by default) of the variables of a recipient, with the defaults. References (`$ref`) are
	// refused.
	Schema json.RawMessage `json:"schema,omitempty"`
	// What other languages say, by tag (BCP 47). `de-AT` falls back to `de`, and that to the default.
	Languages map[string]TemplateContent `json:"languages,omitempty" max:"50"`
	// Allow the filter `raw`, which puts a value into HTML without escaping it.
	AllowRaw bool `json:"allow_raw,omitempty"`
}

// NewTemplateVersion is a version of a template to be stored.
type NewTemplateVersion struct {
	TemplateSource `required:"subject"`
	// Publish the version at once.
	Publish bool `json:"publish,omitempty"`
}

// NewTemplate is a template to be stored, with its first version.
type NewTemplate struct {
	Name string `json:"name" required:"true" pattern:"^[A-Za-z0-9_.-]{1,64}$"`
	NewTemplateVersion
}

// TemplateState is the state of a template.
type TemplateState string

// The states of a template.
const (
	TemplateDraft     TemplateState = "draft" // no version is published
	TemplatePublished TemplateState = "published"
	TemplateArchived  TemplateState = "archived" // batches cannot use it
)

// TemplateInfo is a template without its contents.
type TemplateInfo struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	// `draft`: no version is published. `archived`: batches cannot use it.
	State TemplateState `json:"state" enum:"draft,published,archived"`
	// Number of the published version. Absent if there is none.
	Published int `json:"published,omitempty"`
	// Number of the newest version.
	Newest    int       `json:"newest"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
}

// TemplatePage is a page of the list of templates.
type TemplatePage struct {
	Templates []TemplateInfo `json:"templates"`
	// Empty on the last page.
	Next string `json:"next_cursor"`
}

// Template is a version of a template.
type Template struct {
	TemplateInfo
	Version int `json:"version"`
	TemplateSource
}

// TemplateVersion is a version without its contents.
type TemplateVersion struct {
	Version   int       `json:"version"`
	CreatedAt time.Time `json:"created_at"`
	Published bool      `json:"published"`
}

// TemplateVersionPage is a page of the versions of a template, newest first.
type TemplateVersionPage struct {
	Versions []TemplateVersion `json:"versions"`
	// Empty on the last page.
	Next string `json:"next_cursor"`
}

// PublishedVersion selects the version of a template that batches use.
type PublishedVersion struct {
	Version int `json:"version" required:"true" min:"1"`
}

// TemplateUse is the template that a batch was made from.
type TemplateUse struct {
	Name     string `json:"name"`
	Version  int    `json:"version"`
	Language string `json:"language,omitempty"` // Absent for the default.
}

// NewPreview is a message, and the recipient that it is shown for.
type NewPreview struct {
	// A name for the published version, or a name and a number like `welcome@3`. Absent: the message has the fields below.
	Template string `json:"template,omitempty"`
	Language string `json:"language,omitempty"`
	TemplateSource
	// Default: a sample.
	To *Recipient `json:"to,omitempty" schema:"Recipient"`
}

// Preview is a message as a recipient gets it.
type Preview struct {
	Template *TemplateUse     `json:"template,omitempty" schema:"TemplateUse"`
	Subject  string           `json:"subject"`
	HTML     string           `json:"html"`
	Text     string           `json:"text"`
	Headers  []PreviewHeader  `json:"headers"`
	Warnings []PreviewWarning `json:"warnings"`
}

// PreviewHeader is a header field of a preview.
type PreviewHeader struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// PreviewWarning is what may be wrong with a message. It is sent all the same.
type PreviewWarning struct {
	Code   string `json:"code" schema:"PreviewWarningCode"`
	Detail string `json:"detail"`
}
