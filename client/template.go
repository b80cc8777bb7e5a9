package client

import (
	"context"
	"encoding/json"
	"iter"
	"net/url"
	"strconv"
	"time"
)

// TemplateContent is what a message says, in Liquid.
type TemplateContent struct {
	Subject string `json:"subject,omitempty"`
	HTML    string `json:"html,omitempty"`
	Text    string `json:"text,omitempty"`
}

// TemplateSource is what a version of a template is made from.
type TemplateSource struct {
	TemplateContent
	// Sender and Category are those of batches that have none.
	Sender   string `json:"sender,omitempty"`
	Category string `json:"category,omitempty"`
	// Defaults are the values of variables that a recipient lacks.
	Defaults map[string]any `json:"defaults,omitempty"`
	// Schema is a JSON Schema of the variables.
	Schema json.RawMessage `json:"schema,omitempty"`
	// Languages has what other languages say, by tag: "de-AT" falls back to "de", and that to the default.
	Languages map[string]TemplateContent `json:"languages,omitempty"`
	// AllowRaw allows the filter raw, which puts values into HTML without escaping them.
	AllowRaw bool `json:"allow_raw,omitempty"`
}

// TemplateState is the state of a template.
type TemplateState string

// The states of a template.
const (
	TemplateDraft     TemplateState = "draft"
	TemplatePublished TemplateState = "published"
	TemplateArchived  TemplateState = "archived"
)

// TemplateInfo is a template without its contents.
type TemplateInfo struct {
	ID    string        `json:"id"`
	Name  string        `json:"name"`
	State TemplateState `json:"state"`
	// Published is the number of the published version, or 0. Newest is that of the newest version.
	Published int       `json:"published,omitempty"`
	Newest    int       `json:"newest"`
	Created   time.Time `json:"created_at"`
	Updated   time.Time `json:"updated_at"`
}

// Template is a version of a template.
type Template struct {
	TemplateInfo
	TemplateSource
	Version int `json:"version"`
}

// TemplateVersion is a version without its contents.
type TemplateVersion struct {
	Version   int       `json:"version"`
	Created   time.Time `json:"created_at"`
	Published bool      `json:"published"`
}

// TemplateUse is the template that a batch was made from.
type TemplateUse struct {
	Name    string `json:"name"`
	Version int    `json:"version"`
	// Language is empty for the default.
	Language string `json:"language,omitempty"`
}

// newTemplate is the request for a version.
type newTemplate struct {
	Name string `json:"name,omitempty"`
	TemplateSource
	Publish bool `json:"publish,omitempty"`
}

// CreateTemplate creates a template, and publishes its version if publish is set. It changes nothing if the caller has
// the same template already.
func (c *Client) CreateTemplate(
	ctx context.Context, name string, source TemplateSource, publish bool, options ...CallOption,
) (v Template, err error) {
	err = c.post(ctx, route("templates"), newTemplate{name, source, publish}, &v, options)
	return v, err
}

// AddTemplateVersion adds a version to a template, and publishes it if publish is set. It adds none if the newest
// version is the same.
func (c *Client) AddTemplateVersion(
	ctx context.Context, name string, source TemplateSource, publish bool, options ...CallOption,
) (v Template, err error) {
	err = c.post(ctx, route("templates", name, "versions"), newTemplate{"", source, publish}, &v, options)
	return v, err
}

// PublishTemplate makes a version the one that batches use if they name none. An older number rolls back.
func (c *Client) PublishTemplate(
	ctx context.Context, name string, version int, options ...CallOption,
) (v TemplateInfo, err error) {
	in := map[string]int{"version": version}
	err = c.post(ctx, route("templates", name, "publish"), in, &v, options)
	return v, err
}

// ArchiveTemplate keeps batches from using a template until a version of it is published.
func (c *Client) ArchiveTemplate(ctx context.Context, name string, options ...CallOption) (v TemplateInfo, err error) {
	err = c.post(ctx, route("templates", name, "archive"), struct{}{}, &v, options)
	return v, err
}

// Templates returns the caller's templates by name.
func (c *Client) Templates(ctx context.Context, o ListOptions) iter.Seq2[TemplateInfo, error] {
	return list[TemplateInfo](ctx, c, listing{path: route("templates"), name: "templates"}, o)
}

// TemplateVersions returns the versions of a template, newest first.
func (c *Client) TemplateVersions(ctx context.Context, name string, o ListOptions) iter.Seq2[TemplateVersion, error] {
	return list[TemplateVersion](ctx, c, listing{path: route("templates", name, "versions"), name: "versions"}, o)
}

// Template returns a version of a template; 0 is the published one, or the newest if none is published.
func (c *Client) Template(
	ctx context.Context, name string, version int, options ...CallOption,
) (v Template, err error) {
	query := url.Values{}
	if version > 0 {
		query.Set("version", strconv.Itoa(version))
	}
	err = c.get(ctx, route("templates", name), query, &v, options)
	return v, err
}

// NewPreview is a message and a recipient that it is shown for: either Template, as "name" or "name@version", or a
// source.
type NewPreview struct {
	Template string `json:"template,omitempty"`
	Language string `json:"language,omitempty"`
	TemplateSource
	To *Recipient `json:"to,omitempty"` // nil: a sample
}

// Preview is a message as a recipient gets it.
type Preview struct {
	Template *TemplateUse     `json:"template,omitempty"`
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

// PreviewWarning is what may be wrong with a message. Code is stable.
type PreviewWarning struct {
	Code   string `json:"code"`
	Detail string `json:"detail"`
}

// Preview renders a message for a recipient as a batch would. Nothing is sent.
func (c *Client) Preview(ctx context.Context, in NewPreview, options ...CallOption) (v Preview, err error) {
	err = c.post(ctx, route("preview"), in, &v, options)
	return v, err
}
