package dashboard

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/dashboard/attention"
	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/backlog"
	"github.com/safedelivr/safedelivr/service/mail"
	"github.com/safedelivr/safedelivr/service/stats"
)

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
	Form      blockForm
	User      userForm
	Problem   string // why the broker could not be read, or ""
}

// blockForm is the form of a block rule and its errors.
type blockForm struct {
	Provider, User, Sender, Domain, Why string
	Fail                                bool
	Wrong                               map[string]string
}

const (
	auditPage    = 25
	usersListed  = 100
	parkedListed = 100
)

// operationsPages are the pages of Operations by the last part of their paths, with the parts that
// update by themselves.
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

// operations returns the handler of a page of Operations, for operators.
func (d *Dashboard) operations(page string) web.Handler {
	return func(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
		return d.showOperations(w, r, v, http.StatusOK, page, blockForm{}, userForm{})
	}
}

func (d *Dashboard) showOperations(
	w http.ResponseWriter,
	r *http.Request,
	v *web.Visitor,
	status int,
	name string,
	form blockForm,
	user userForm,
) error {
	filter := auditFormOf(r)
	view, err := d.readOperations(r.Context(), v.Caller(), name, filter)
	if err != nil {
		return err
	}
	if name == "audit" {
		if view.Access, err = d.readAccess(r, v.Caller()); err != nil {
			return err
		}
	}
	at := r.URL.Query()
	if name == "events" {
		page := service.Page{Cursor: at.Get("cursor")}
		if view.Events, err = d.service.Operate.Unmatched(r.Context(), v.Caller(), page); err != nil {
			return err
		}
		if id := at.Get("event"); id != "" {
			e, err := d.service.Operate.UnmatchedEvent(r.Context(), v.Caller(), id)
			if err != nil {
				return err
			}
			view.Event = &e
		}
	}
	view.Form, view.User = form, user
	page := web.Page{Title: view.Title, Active: "operations", Data: view}
	if filter.empty() && form.Wrong == nil && user.Wrong == nil && at.Get("cursor") == "" {
		page.Live = "/live/operations?page=" + name
	}
	d.web.Render(w, r, v, status, "operations", page)
	return nil
}

// operationsEvents is GET /live/operations, for operators.
func (d *Dashboard) operationsEvents(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	who, name := v.Caller(), r.URL.Query().Get("page")
	for _, p := range operationsPages {
		if p.name != name {
			continue
		}
		return d.web.Stream(w, r, v, web.EventsKey("operations ", name), func() web.Source {
			return web.Source{
				Read:   func(ctx context.Context) (any, error) { return d.readOperations(ctx, who, name, auditForm{}) },
				Render: func(now any) (web.Parts, error) { return d.web.Parts("operations", now, p.parts...) },
			}
		})
	}
	return web.ErrNoPage
}

// readOperations reads what a page of Operations shows.
func (d *Dashboard) readOperations(
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
		if err = d.readBroker(ctx, who, v); err == nil {
			err = d.addSums(ctx, who, v)
		}
		if err == nil {
			v.Workers, err = d.service.Operate.Workers(ctx, who)
		}
		if err == nil {
			v.Waiting, err = d.service.Mail.Backlog(ctx, who)
		}
		if err == nil {
			v.Wrong, err = d.attention.Installation(ctx, who)
		}
	case "parked":
		if err = d.readBroker(ctx, who, v); err == nil {
			err = d.readHolds(ctx, who, v)
		}
	case "events":
		v.Events, err = d.service.Operate.Unmatched(ctx, who, service.Page{})
	case "blocks":
		v.Names = d.web.Providers.Names()
		v.Blocks, err = d.service.Operate.Blocks(ctx, who)
	case "users":
		var users []client.User
		var all int
		users, all, err = d.service.People.Users(ctx, who)
		v.Users = users[:min(len(users), usersListed)]
		v.Others = all - len(v.Users)
	case "audit":
		err = d.readAudit(ctx, who, v, audit)
	}
	return v, err
}

// readBroker reads the queues and the parked messages. The page tells if the broker cannot be
// read.
func (d *Dashboard) readBroker(ctx context.Context, who service.Caller, v *operationsView) (err error) {
	if v.Queues, err = d.service.Operate.Queues(ctx, who); err == nil {
		v.Parked, err = d.service.Operate.Parked(ctx, who, service.Page{Limit: parkedListed})
	}
	var e *service.Error
	if errors.As(err, &e) && e.Code == "broker_unavailable" {
		v.Problem, err = e.Detail, nil
	}
	return err
}

func (d *Dashboard) readHolds(ctx context.Context, who service.Caller, v *operationsView) (err error) {
	v.Holds, err = d.service.Operate.Holds(ctx, who)
	for i := range v.Holds {
		v.Holds[i].By = d.web.NameOf(ctx, v.Holds[i].By)
	}
	return err
}

// addSums reads the consistency check, the unknown outcomes, the unmatched events and the holds.
func (d *Dashboard) addSums(ctx context.Context, who service.Caller, v *operationsView) error {
	check, err := d.service.Operate.LastCheck(ctx, who)
	var e *service.Error
	switch {
	case err == nil:
		v.Check = &check
	case !errors.As(err, &e) || e.Kind != service.NotFound:
		return err
	}
	if v.Unknown, err = d.service.Stats.UnknownOutcomes(ctx, who); err != nil {
		return err
	}
	today := models.DayOf(time.Now())
	v.UnknownList = web.Address("/logs", url.Values{
		"everyone": {"yes"}, "result": {string(mail.ResultUnknown)},
		"from": {today.AddDate(0, 0, -1).Format(time.DateOnly)}, "to": {today.Format(time.DateOnly)},
	})
	providers, err := d.providers.Now()
	if err != nil {
		return err
	}
	for i := range providers {
		if w := providers[i].Worker; w != nil {
			v.Unmatched += w.Unmatched
		}
	}
	return d.readHolds(ctx, who, v)
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

// addBlock is POST /operations/blocks, for operators.
func (d *Dashboard) addBlock(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	r.Body = http.MaxBytesReader(w, r.Body, web.MaxForm)
	f := func(name string) string { return strings.TrimSpace(r.PostFormValue(name)) }
	form := blockForm{
		Provider: f("provider"),
		User:     f("user"),
		Sender:   f("sender"),
		Domain:   f("domain"),
		Why:      f("why"),
		Fail:     f("fail") != "",
	}
	_, _, err := d.service.Operate.AddBlock(
		r.Context(),
		v.Caller(),
		models.Block{Provider: form.Provider, User: form.User, Sender: form.Sender, Domain: form.Domain, Fail: form.Fail},
		form.Why,
		service.Repeat{},
	)
	var refused *service.Error
	if errors.As(err, &refused) && len(refused.Fields) > 0 {
		form.Wrong = web.WrongFields(refused)
		return d.showOperations(w, r, v, http.StatusUnprocessableEntity, "blocks", form, userForm{})
	}
	if err != nil {
		return err
	}
	web.SeeOther(w, r, "/operations/blocks")
	return nil
}

// operate is POST /operations/{what}/{id}/{do}, for operators: the commands that
// need only an ID.
func (d *Dashboard) operate(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	id, who := r.PathValue("id"), v.Caller()
	var err error
	switch r.PathValue("what") + " " + r.PathValue("do") {
	case "blocks remove":
		_, err = d.service.Operate.RemoveBlock(r.Context(), who, id, "")
	case "parked requeue":
		_, _, err = d.service.Operate.Requeue(r.Context(), who, id, "", service.Repeat{})
	case "parked discard":
		_, err = d.service.Operate.Discard(r.Context(), who, id, "")
	default:
		return web.ErrNoPage
	}
	if err != nil {
		return err
	}
	web.SeeOther(w, r, operationsPath(r.PathValue("what")))
	return nil
}

// askHolds is GET /operations/holds/lift, for operators.
func (d *Dashboard) askHolds(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	holds, err := d.service.Operate.Holds(r.Context(), v.Caller())
	if err != nil {
		return err
	}
	if len(holds) == 0 {
		return service.Fail(service.Conflict, "nothing_held", "No mail is on hold.")
	}
	before := holds[len(holds)-1].Before.UTC().Format(time.RFC3339)
	return d.web.Ask(w, r, v, "operations", &web.Question{
		Title: "Release the mail on hold since the restore?",
		Do:    "Release held mail",
		Grave: true,
		Back:  "/operations/parked",
		Text: []string{
			"All unfinished mail that was accepted before " + before + " is sent.",
			"The backup does not contain what was sent after it was made: such mail may arrive twice. " +
				"First cancel the batches that must not be sent.",
		},
	})
}

// liftHolds is POST /operations/holds/lift, for operators.
func (d *Dashboard) liftHolds(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	why, repeat := web.Answered(w, r)
	if _, _, err := d.service.Operate.LiftHolds(r.Context(), v.Caller(), why, repeat); err != nil {
		return err
	}
	web.SeeOther(w, r, "/operations/parked")
	return nil
}
