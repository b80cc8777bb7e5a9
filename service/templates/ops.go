package templates

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/idempotency"
	"github.com/safedelivr/safedelivr/service/operation"
)

// named is a request about a template.
type named struct {
	// Name of the template.
	Name string `path:"name"`
}

type (
	creation struct{ Body client.NewTemplate }
	addition struct {
		named
		Body client.NewTemplateVersion
	}
	oneVersion struct {
		named
		// Number of the version.
		Version int `query:"version" min:"1"`
	}
	versions struct {
		named
		operation.Page
	}
	publication struct {
		named
		Body client.PublishedVersion
	}
	previewing struct {
		Body client.NewPreview `required:"true"`
	}
)

const tag = "templates"

// MaxBody is the size in bytes of the largest body with a source: one of maxSource bytes may have escaped characters.
const MaxBody = 8 << 20

// location returns the path of a version.
func location(out any) string {
	v := out.(client.Template) //nolint:forcetypeassert // the answer of each operation that has the location
	return "/v1/templates/" + url.PathEscape(v.Name) + "?version=" + strconv.Itoa(v.Version)
}

// Operations returns the calls about templates.
func Operations(library *Library, guard *idempotency.Guard) []operation.Operation {
	return append(reads(library), changes(library, guard)...)
}

func reads(library *Library) []operation.Operation {
	return []operation.Operation{
		operation.Reading(operation.Operation{
			Name: "listTemplates", Route: "GET /v1/templates", Tag: tag, Scope: models.ScopeRead,
			Title: "List your templates", Text: "By name.", Returns: "A page of templates.",
		}, func(ctx context.Context, who caller.Caller, in *operation.OnePage) (out client.TemplatePage, err error) {
			out.Templates, out.Next, err = library.List(ctx, who.User, in.Limit, in.Cursor)
			return out, err
		}),
		operation.Reading(operation.Operation{
			Name: "getTemplate", Route: "GET /v1/templates/{name}", Tag: tag, Scope: models.ScopeRead,
			Title: "Get a version of a template", Returns: "The version.",
			Text: "The published version by default, or the newest one if none is published.",
		}, func(ctx context.Context, who caller.Caller, in *oneVersion) (client.Template, error) {
			return library.Get(ctx, who.User, in.Name, in.Version)
		}),
		operation.Reading(operation.Operation{
			Name: "templateVersions", Route: "GET /v1/templates/{name}/versions", Tag: tag, Scope: models.ScopeRead,
			Title: "List the versions of a template", Text: "Newest first.", Returns: "A page of versions.",
		}, func(ctx context.Context, who caller.Caller, in *versions) (out client.TemplateVersionPage, err error) {
			out.Versions, out.Next, err = library.Versions(ctx, who.User, in.Name, in.Limit, in.Cursor)
			return out, err
		}),
		// The API decodes the recipient as that of a batch.
		operation.Declared[previewing, client.Preview](operation.Operation{
			Name: "preview", Route: "POST /v1/preview", Tag: tag, Scope: models.ScopeSend, MaxBody: MaxBody,
			Title: "Preview a message", Returns: "The message as the recipient gets it.",
			Text: "Renders a template, or a subject and bodies of the request, for a recipient as a batch would, and warns of " +
				"what may be wrong. Nothing is stored or sent.",
			Example: `{"template": "welcome@1", "language": "de-AT", ` +
				`"to": {"email": "ann@example.com", "name": "Ann", "vars": {"vip": true, "years": 3}}}`,
		}),
	}
}

func changes(library *Library, guard *idempotency.Guard) []operation.Operation {
	return []operation.Operation{
		operation.Once(guard, operation.Operation{
			Name: "createTemplate", Route: "POST /v1/templates", Tag: tag, Scope: models.ScopeSend, MaxBody: MaxBody,
			Status: http.StatusCreated, Location: location,
			Title: "Create a template", Returns: "The version is stored.",
			Text: "Stores the first version of a template, as a draft unless `publish` is true. `html`, `text` or both are " +
				"required. Subject, HTML and text are in [Liquid](https://shopify.github.io/liquid/): see " +
				"[Templates](https://github.com/safedelivr/safedelivr/blob/main/docs/templates.md). If you have this template " +
				"already and its newest version is the same, nothing changes.",
			Example: `{"name": "welcome", "subject": "Welcome, {{ name | default: 'dear customer' }}", ` +
				`"html": "<p>{% if vip %}Thank you for {{ years }} years.{% endif %} Your city: {{city}}</p>", ` +
				`"defaults": {"city": "Vienna"}, "schema": {"properties": {"years": {"type": "integer"}}}, ` +
				`"languages": {"de": {"subject": "Willkommen, {{name}}"}}, "publish": true}`,
		}, func(ctx context.Context, who caller.Caller, in *creation) (client.Template, error) {
			return library.Create(ctx, who.User, &in.Body)
		}),
		operation.Once(guard, operation.Operation{
			Name: "addTemplateVersion", Route: "POST /v1/templates/{name}/versions", Tag: tag, Scope: models.ScopeSend,
			MaxBody: MaxBody, Status: http.StatusCreated, Location: location,
			Title: "Add a version to a template", Returns: "The version is stored.",
			Text: "The new version is a draft unless `publish` is true: batches go on with the published one. A version never " +
				"changes. If the newest version is the same, none is added.",
		}, func(ctx context.Context, who caller.Caller, in *addition) (client.Template, error) {
			return library.AddVersion(ctx, who.User, in.Name, &in.Body)
		}),
		operation.Once(guard, operation.Operation{
			Name: "publishTemplate", Route: "POST /v1/templates/{name}/publish", Tag: tag, Scope: models.ScopeSend,
			Title: "Publish a version", Returns: "The template.",
			Text: "Batches that name no version use this one from now on. An older number rolls back. An archived template " +
				"can be used again.",
		}, func(ctx context.Context, who caller.Caller, in *publication) (client.TemplateInfo, error) {
			if err := operation.Valid(&in.Body); err != nil {
				return client.TemplateInfo{}, err
			}
			return library.Publish(ctx, who.User, in.Name, in.Body.Version)
		}),
		operation.Once(guard, operation.Operation{
			Name: "archiveTemplate", Route: "POST /v1/templates/{name}/archive", Tag: tag, Scope: models.ScopeSend,
			Title: "Archive a template", Text: "Batches cannot use it any more. Accepted mail goes out.",
			Returns: "The template.",
		}, func(ctx context.Context, who caller.Caller, in *named) (client.TemplateInfo, error) {
			return library.Archive(ctx, who.User, in.Name)
		}),
	}
}
