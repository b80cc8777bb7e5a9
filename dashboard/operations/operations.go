// Package operations has the pages of operators: waiting mail and workers, held mail, block rules, users with their
// keys and limits, and the logs of commands and logins.
package operations

import (
	"cmp"
	"context"
	"embed"
	"net/http"
	"net/url"
	"strings"
	"text/template"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/dashboard/attention"
	"github.com/safedelivr/safedelivr/dashboard/providers"
	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/backlog"
	"github.com/safedelivr/safedelivr/service/mail"
	"github.com/safedelivr/safedelivr/service/stats"
)

// views are the templates of this room.
var views = web.NewTemplates(files, template.FuncMap{
	"waitWords": func(code models.WaitCode) string { return cmp.Or(waitWords[code], string(code)) },
	"blocked":   func(b models.Block) string { return blockWords(&b) },
})

//go:embed *.html
var files embed.FS

// Pages are the pages of operators.
type Pages struct {
	web       *web.Frame
	service   *service.Service
	providers *providers.Pages
	attention *attention.Reader
}

// New returns the pages.
func New(frame *web.Frame, svc *service.Service, of *providers.Pages, troubles *attention.Reader) *Pages {
	return &Pages{web: frame, service: svc, providers: of, attention: troubles}
}

// Routes returns the routes of the pages.
func (p *Pages) Routes() web.Routes {
	routes := map[string]web.Handler{
		"GET /live/operations":                         p.operationsEvents,
		"GET /operations/users/{id}":                   web.Show(p.showUser).Page,
		"GET /operations/keys":                         p.keysPage,
		"GET /operations/users/{id}/limits":            web.Show(p.showLimits).Page,
		"GET /operations/users/{id}/keys/{key}/limits": web.Show(p.showLimits).Page,
		"GET /operations/holds/lift":                   p.askHolds,
	}
	for _, page := range operationsPages {
		routes["GET "+operationsPath(page.name)] = p.show(page.name).Page
	}
	return web.Routes{
		Templates: views,
		Entries:   []web.Entry{{Group: web.NavRun, To: "/operations", Icon: "gauge", Text: "Operations"}},
		Operators: routes,
		OperatorCalls: map[string]web.Call{
			"POST /operations/blocks": {
				Operation: "addBlock", To: "/operations/blocks", Refused: p.show("blocks"),
			},
			"POST /operations/blocks/{id}/remove": {Operation: "removeBlock", To: "/operations/blocks"},
			"POST /operations/users": {
				Verbs: "users", Others: userForms, Own: []string{"do", "senders", "why"},
				Then: p.controlled, Refused: p.show("users"),
			},
			"POST /operations/users/{id}": {
				Verbs: "users", Others: userForms, Own: []string{"do"}, To: "/operations/users/{id}", Refused: p.showUser,
			},
			"POST /operations/users/{id}/limits": {
				Operation: "setUserLimits", To: "/operations/users/{id}/limits", Refused: p.showLimits,
			},
			"POST /operations/users/{id}/keys/{key}/limits": {
				Operation: "setKeyLimits", To: "/operations/users/{id}/keys/{key}/limits", Refused: p.showLimits,
			},
			"POST /operations/users/{id}/keys/{key}/revoke": {Operation: "revokeKey", To: "/operations/users/{id}#keys"},
			"POST /operations/keys/{id}/{key}/revoke":       {Operation: "revokeKey", To: "/operations/keys"},
			"POST /operations/holds/lift":                   {Operation: "liftHolds", To: "/operations/parked"},
			"POST /operations/parked/{id}/requeue":          {Operation: "requeueParked", To: "/operations/parked"},
			"POST /operations/parked/{id}/discard":          {Operation: "discardParked", To: "/operations/parked"},
		},
	}
}

// waitWords say what mail waits for, as the heading of a row.
var waitWords = map[models.WaitCode]string{
	models.WaitRestore:          "Hold after a restore",
	models.WaitUserPaused:       "User is paused",
	models.WaitBatchStopped:     "Batch is stopped",
	models.WaitBatchCancelled:   "A worker records its end",
	models.WaitExpiry:           "A worker records its end",
	models.WaitEnding:           "A worker records its end",
	models.WaitSchedule:         "Scheduled",
	models.WaitBlockRule:        "Block rule",
	models.WaitProviderOffline:  "Provider is offline",
	models.WaitProviderSuspend:  "Provider is suspended",
	models.WaitNoWorker:         "No worker",
	models.WaitRateLimit:        "Rate limit",
	models.WaitConcurrencyLimit: "Calls at once",
	models.WaitTurn:             "Its turn",
	models.WaitRetry:            "Retry",
	models.WaitEvidence:         "Outcome unknown: evidence",
	models.WaitFinalEvent:       "Report of the provider",
}

// operationsView has what one of the pages of Operations shows.
type operationsView struct {
	Page    string // one of operationsPages
	Title   string
	Tabs    []web.Tab
	Waiting backlog.Backlog       // the mail that waits here
	Wrong   []attention.Attention // with the installation
	Check   *telemetry.Recount    // the newest consistency check; nil: there is no recent one
	Unknown stats.Unknown
	// UnknownList is the address of the list of the messages that Unknown counts.
	UnknownList string
	// Unmatched counts the events, since the workers started, whose log was not found.
	Unmatched int64
	Events    client.UnmatchedPage   // the events themselves
	Event     *client.UnmatchedEvent // the one whose post is shown; nil: none
	Holds     []client.RestoreHold
	Queues    []client.Queue
	Parked    client.ParkedPage
	Workers   []client.Worker
	Blocks    []models.Block
	Users     []client.User
	Others    int // number of users that are not listed
	Audit     []auditRow
	Access    accessView
	Filter    auditForm
	Older     string   // path of the next page of the audit trail
	Names     []string // names of the providers
	Form      *web.Form
	Problem   string // why the broker could not be read, or ""
}

const (
	auditPage    = 25
	usersListed  = 100
	parkedListed = 100
)

// operationsPages are the pages of Operations by the last part of their paths, with the parts that update by
// themselves.
var operationsPages = []struct {
	name, title string
	parts       []string
}{
	{"", "Waiting mail and workers", []string{"wrong", "waiting", "sums", "queues", "workers"}},
	{"parked", "Held and parked", []string{"holds", "parked"}},
	{"events", "Unmatched events", []string{"events"}},
	{"blocks", "Rules", []string{"blocks"}},
	{"users", "Users and keys", []string{"users"}},
	{"audit", "Audit log", []string{"audit"}},
}

func operationsPath(page string) string { return strings.TrimSuffix("/operations/"+page, "/") }

// show returns a page of Operations.
func (p *Pages) show(name string) web.Show {
	return func(w http.ResponseWriter, r *http.Request, v *web.Visitor, status int, form *web.Form) error {
		filter := auditFormOf(r)
		view, err := p.readOperations(r.Context(), v.Caller(), name, filter)
		if err != nil {
			return err
		}
		if name == "audit" {
			if view.Access, err = p.readAccess(r, v.Caller()); err != nil {
				return err
			}
		}
		at := r.URL.Query()
		if name == "events" {
			page := service.Page{Cursor: at.Get("cursor")}
			if view.Events, err = p.service.Operate.Unmatched(r.Context(), v.Caller(), page); err != nil {
				return err
			}
			if id := at.Get("event"); id != "" {
				e, err := p.service.Operate.UnmatchedEvent(r.Context(), v.Caller(), id)
				if err != nil {
					return err
				}
				view.Event = &e
			}
		}
		view.Form = form
		page := web.Page{Title: view.Title, Data: view}
		if filter.empty() && status == http.StatusOK && at.Get("cursor") == "" {
			page.Live = "/live/operations?page=" + name
		}
		return p.web.Render(w, r, v, status, "operations", page)
	}
}

// operationsEvents is GET /live/operations, for operators.
func (p *Pages) operationsEvents(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	who, name := v.Caller(), r.URL.Query().Get("page")
	for _, page := range operationsPages {
		if page.name != name {
			continue
		}
		return p.web.Stream(w, r, v, web.EventsKey("operations ", name), func() web.Source {
			return web.Source{
				Read:   func(ctx context.Context) (any, error) { return p.readOperations(ctx, who, name, auditForm{}) },
				Render: func(now any) (web.Parts, error) { return p.web.Parts("operations", now, page.parts...) },
			}
		})
	}
	return web.ErrNoPage
}

// readOperations reads what a page of Operations shows.
func (p *Pages) readOperations(
	ctx context.Context, who service.Caller, name string, audit auditForm,
) (*operationsView, error) {
	v := &operationsView{Page: name}
	for _, p := range operationsPages {
		here := p.name == name
		v.Tabs = append(v.Tabs, web.Tab{To: operationsPath(p.name), Text: p.title, Here: here})
		if here {
			v.Title = p.title
		}
	}
	var err error
	switch name {
	case "":
		if err = p.readBroker(ctx, who, v); err == nil {
			err = p.addSums(ctx, who, v)
		}
		if err == nil {
			v.Workers, err = p.service.Operate.Workers(ctx, who)
		}
		if err == nil {
			v.Waiting, err = p.service.Mail.Backlog(ctx, who)
		}
		if err == nil {
			v.Wrong, err = p.attention.Installation(ctx, who)
		}
	case "parked":
		if err = p.readBroker(ctx, who, v); err == nil {
			err = p.readHolds(ctx, who, v)
		}
	case "events":
		v.Events, err = p.service.Operate.Unmatched(ctx, who, service.Page{})
	case "blocks":
		v.Names = p.web.Providers.Names()
		v.Blocks, err = p.service.Operate.Blocks(ctx, who)
	case "users":
		var users []client.User
		var all int
		users, all, err = p.service.People.Users(ctx, who)
		v.Users = users[:min(len(users), usersListed)]
		v.Others = all - len(v.Users)
	case "audit":
		err = p.readAudit(ctx, who, v, audit)
	}
	return v, err
}

// readBroker reads the queues and the parked messages. The page says if the broker cannot be read.
func (p *Pages) readBroker(ctx context.Context, who service.Caller, v *operationsView) (err error) {
	if v.Queues, err = p.service.Operate.Queues(ctx, who); err == nil {
		v.Parked, err = p.service.Operate.Parked(ctx, who, service.Page{Limit: parkedListed})
	}
	if e := web.Refused(err); e != nil && e.Code == "broker_unavailable" {
		v.Problem, err = e.Detail, nil
	}
	return err
}

func (p *Pages) readHolds(ctx context.Context, who service.Caller, v *operationsView) (err error) {
	v.Holds, err = p.service.Operate.Holds(ctx, who)
	for i := range v.Holds {
		v.Holds[i].By = p.web.NameOf(ctx, v.Holds[i].By)
	}
	return err
}

// addSums reads the consistency check, the unknown outcomes, the unmatched events and the holds.
func (p *Pages) addSums(ctx context.Context, who service.Caller, v *operationsView) error {
	check, err := p.service.Operate.LastCheck(ctx, who)
	switch e := web.Refused(err); {
	case err == nil:
		v.Check = &check
	case e == nil || e.Kind != service.NotFound:
		return err
	}
	if v.Unknown, err = p.service.Stats.UnknownOutcomes(ctx, who); err != nil {
		return err
	}
	today := models.DayOf(time.Now())
	v.UnknownList = web.Address("/logs", url.Values{
		"everyone": {"yes"}, "result": {string(mail.ResultUnknown)},
		"from": {today.AddDate(0, 0, -1).Format(time.DateOnly)}, "to": {today.Format(time.DateOnly)},
	})
	providers, err := p.providers.Now()
	if err != nil {
		return err
	}
	for i := range providers {
		if w := providers[i].Worker; w != nil {
			v.Unmatched += w.Unmatched
		}
	}
	return p.readHolds(ctx, who, v)
}

// blockWords says which mail a block rule matches.
func blockWords(b *models.Block) string {
	var out []string
	for _, p := range [][2]string{{"through", b.Provider}, {"from user", b.User}, {"from", b.Sender}, {"to", b.Domain}} {
		if p[1] != "" {
			out = append(out, p[0]+" "+p[1])
		}
	}
	return "mail " + strings.Join(out, " ")
}

// askHolds is GET /operations/holds/lift, for operators.
func (p *Pages) askHolds(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	holds, err := p.service.Operate.Holds(r.Context(), v.Caller())
	if err != nil {
		return err
	}
	if len(holds) == 0 {
		return service.Fail(service.Conflict, "nothing_held", "No mail is on hold.")
	}
	before := holds[len(holds)-1].Before.UTC().Format(time.RFC3339)
	return p.web.Ask(w, r, v, &web.Question{
		Title: "Release the mail on hold since the restore?",
		Do:    "Release held mail",
		Grave: true,
		Back:  "/operations/parked",
		Text: []string{
			"All unfinished mail that was accepted before " + before + " is sent.",
			"Mail that was sent after the backup was made may arrive twice, because the backup does not know of it. " +
				"First cancel the batches that must not be sent.",
		},
	})
}
