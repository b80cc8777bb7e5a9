// Package docs has the page with examples of API calls.
package docs

import (
	"bytes"
	"embed"
	"fmt"
	"net/http"
	"strings"
	"text/template"

	"github.com/safedelivr/safedelivr/dashboard/web"
)

// views are the templates of this room.
var views = web.NewTemplates(files, nil)

//go:embed *.html
var files embed.FS

// Routes returns the routes of the pages.
func Routes(frame *web.Frame) web.Routes {
	return web.Routes{
		Templates: views,
		Entries:   []web.Entry{{Group: web.NavRun, To: "/docs", Icon: "book", Text: "Docs"}},
		Users:     map[string]web.Handler{"GET /docs": pages{frame}.docs},
	}
}

// pages are the pages about the API.
type pages struct{ web *web.Frame }

// docsView is the page with examples of API calls.
type docsView struct {
	Base     string
	Examples []example
}

// example is one call, in several languages.
type example struct {
	ID, Title, Text string
	Code            []snippet
}

type snippet struct{ Language, Code string }

// call is what an example does.
type call struct {
	id, title, text string
	method, path    string
	body            string
}

var calls = []call{
	{"send", "Send a batch",
		"Returns 202 with the batch's ID as soon as everything is stored. " +
			"You can repeat the request with the same Idempotency-Key: the batch is sent once.",
		http.MethodPost, "/v1/batches", `{
  "from": "Shop <shop@example.com>",
  "subject": "Your order, {{first}}",
  "text": "Dear {{first}}, it is on its way.",
  "to": [{"email": "ann@example.com", "vars": {"first": "Ann"}}]
}`},
	{"batch", "Get a batch",
		"Returns its state and its counts by state, reason and provider. The counts always add up.",
		http.MethodGet, "/v1/batches/BATCH_ID", ""},
	{"logs", "List the logs of a batch",
		"Returns one log per recipient, with its state and reason. For the next page, pass next_cursor as cursor.",
		http.MethodGet, "/v1/batches/BATCH_ID/logs?state=failed", ""},
	{"log", "Get the timeline of one recipient",
		"Returns each attempt, answer, event and decision, in order.",
		http.MethodGet, "/v1/logs/LOG_ID", ""},
	{"stats", "Count by day",
		"Returns delivered, failed and queued counts per UTC day.",
		http.MethodGet, "/v1/stats?from=2026-01-01&to=2026-01-31", ""},
}

// languages are how examples are written. They are text, not HTML: the page
// escapes them.
var languages = []struct {
	name string
	code *template.Template
}{
	{"curl", template.Must(template.New("curl").Parse(`curl {{if .Query}}'{{.URL}}'{{else}}{{.URL}}{{end}} \
  -H "Authorization: Bearer $KEY"{{if .Body}} \
  -H "Idempotency-Key: order-4711" \
  -H "Content-Type: application/json" \
  -d '{{.Body}}'{{end}}`))},
	{"Go", template.Must(template.New("go").Parse("{{if .Body}}body := strings.NewReader(`{{.Body}}`)\n{{end}}" +
		`req, err := http.NewRequest("{{.Method}}", "{{.URL}}", {{if .Body}}body{{else}}nil{{end}})
if err != nil {
	return err
}
req.Header.Set("Authorization", "Bearer "+os.Getenv("KEY")){{if .Body}}
req.Header.Set("Idempotency-Key", "order-4711")
req.Header.Set("Content-Type", "application/json"){{end}}
resp, err := http.DefaultClient.Do(req)
if err != nil {
	return err
}
defer resp.Body.Close()
answer, err := io.ReadAll(resp.Body)`))},
	{"Python", template.Must(template.New("python").Parse(`import os, requests

answer = requests.{{.Lower}}(
    "{{.URL}}",
    headers={
        "Authorization": f"Bearer {os.environ['KEY']}",{{if .Body}}
        "Idempotency-Key": "order-4711",{{end}}
    },{{if .Body}}
    json={{.Python}},{{end}}
    timeout=30,
)
answer.raise_for_status()
print(answer.json())`))},
	{"JavaScript", template.Must(template.New("javascript").Parse(`const answer = await fetch("{{.URL}}", {
  method: "{{.Method}}",
  headers: {
    Authorization: ` + "`Bearer ${process.env.KEY}`" + `,{{if .Body}}
    "Idempotency-Key": "order-4711",
    "Content-Type": "application/json",{{end}}
  },{{if .Body}}
  body: JSON.stringify({{.Script}}),{{end}}
});
if (!answer.ok) throw new Error(await answer.text());
console.log(await answer.json());`))},
}

// docs is GET /docs.
func (p pages) docs(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	view := &docsView{Base: p.web.PublicURL()}
	for _, c := range calls {
		e := example{ID: c.id, Title: c.title, Text: c.text}
		for _, l := range languages {
			var b bytes.Buffer
			indented := strings.ReplaceAll(c.body, "\n", "\n    ")
			err := l.code.Execute(&b, map[string]any{
				"URL":    view.Base + c.path,
				"Query":  strings.Contains(c.path, "?"),
				"Method": c.method,
				"Lower":  strings.ToLower(c.method),
				"Body":   c.body,
				"Python": indented,
				"Script": strings.ReplaceAll(c.body, "\n", "\n  "),
			})
			if err != nil {
				return fmt.Errorf("example %s in %s: %w", c.id, l.name, err)
			}
			e.Code = append(e.Code, snippet{l.name, b.String()})
		}
		view.Examples = append(view.Examples, e)
	}
	return p.web.Render(w, r, v, http.StatusOK, "docs", web.Page{Title: "Docs", Data: view})
}
