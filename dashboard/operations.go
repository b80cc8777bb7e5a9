package dashboard

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/client"
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
	Tabs    []tab
	Waiting backlog.Backlog    // the mail that waits here
	Wrong   []attention        // with the installation
	Check   *telemetry.Recount // the newest consistency check; nil: there is no recent one
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

// userForm is the form about a user and its errors.
type userForm struct {
	Name, Senders, Why string
	Wrong              map[string]string
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
func (d *Dashboard) operations(page string) handler {
	return func(w http.ResponseWriter, r *http.Request, v *visitor) error {
		return d.showOperations(w, r, v, http.StatusOK, page, blockForm{}, userForm{})
	}
}

func (d *Dashboard) showOperations(
	w http.ResponseWriter,
	r *http.Request,
	v *visitor,
	status int,
	name string,
	form blockForm,
	user userForm,
) error {
	filter := auditFormOf(r)
	view, err := d.readOperations(r.Context(), v.caller(), name, filter)
	if err != nil {
		return err
	}
	if name == "audit" {
		if view.Access, err = d.readAccess(r, v.caller()); err != nil {
			return err
		}
	}
	at := r.URL.Query()
	if name == "events" {
		p := service.Page{Cursor: at.Get("cursor")}
		if view.Events, err = d.service.Operate.Unmatched(r.Context(), v.caller(), p); err != nil {
			return err
		}
		if id := at.Get("event"); id != "" {
			e, err := d.service.Operate.UnmatchedEvent(r.Context(), v.caller(), id)
			if err != nil {
				return err
			}
			view.Event = &e
		}
	}
	view.Form, view.User = form, user
	p := page{Title: view.Title, Active: "operations", Data: view}
	if filter.empty() && form.Wrong == nil && user.Wrong == nil && at.Get("cursor") == "" {
		p.Live = "/live/operations?page=" + name
	}
	d.render(w, r, v, status, "operations", p)
	return nil
}

// operationsEvents is GET /live/operations, for operators.
func (d *Dashboard) operationsEvents(w http.ResponseWriter, r *http.Request, v *visitor) error {
	who, name := v.caller(), r.URL.Query().Get("page")
	for _, p := range operationsPages {
		if p.name != name {
			continue
		}
		return d.stream(w, r, v, eventsKey("operations ", name), func() source {
			return source{
				read:   func(ctx context.Context) (any, error) { return d.readOperations(ctx, who, name, auditForm{}) },
				render: func(now any) (parts, error) { return d.pages.parts("operations", now, p.parts...) },
			}
		})
	}
	return errNoPage
}

// readOperations reads what a page of Operations shows.
func (d *Dashboard) readOperations(
	ctx context.Context, who service.Caller, name string, audit auditForm,
) (*operationsView, error) {
	v := &operationsView{Page: name}
	for _, p := range operationsPages {
		here := p.name == name
		v.Tabs = append(v.Tabs, tab{To: operationsPath(p.name), Text: p.title, Here: here})
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
			v.Wrong, err = d.troubles(ctx, who)
		}
	case "parked":
		if err = d.readBroker(ctx, who, v); err == nil {
			err = d.readHolds(ctx, who, v)
		}
	case "events":
		v.Events, err = d.service.Operate.Unmatched(ctx, who, service.Page{})
	case "blocks":
		for i := range d.configured {
			v.Names = append(v.Names, d.configured[i].Name)
		}
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
		v.Holds[i].By = d.nameOf(ctx, v.Holds[i].By)
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
	v.UnknownList = address("/logs", url.Values{
		"everyone": {"yes"}, "result": {string(mail.ResultUnknown)},
		"from": {today.AddDate(0, 0, -1).Format(time.DateOnly)}, "to": {today.Format(time.DateOnly)},
	})
	providers, err := d.providersNow()
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

// nameOf returns the name of a user, or the ID if there is no such user.
func (d *Dashboard) nameOf(ctx context.Context, id string) string {
	if name, ok := d.names.Load(id); ok {
		return name.(string)
	}
	u, err := d.store.User(ctx, id)
	if err != nil {
		return id
	}
	d.names.Store(id, u.Name)
	return u.Name
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
func (d *Dashboard) addBlock(w http.ResponseWriter, r *http.Request, v *visitor) error {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
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
		v.caller(),
		models.Block{Provider: form.Provider, User: form.User, Sender: form.Sender, Domain: form.Domain, Fail: form.Fail},
		form.Why,
		service.Repeat{},
	)
	var refused *service.Error
	if errors.As(err, &refused) && len(refused.Fields) > 0 {
		form.Wrong = wrongFields(refused)
		return d.showOperations(w, r, v, http.StatusUnprocessableEntity, "blocks", form, userForm{})
	}
	if err != nil {
		return err
	}
	seeOther(w, r, "/operations/blocks")
	return nil
}

// controlUser is POST /operations/users, for operators: it sets the senders of a user, or
// pauses, resumes, disables, enables or logs out the user, or opens the user's page.
func (d *Dashboard) controlUser(w http.ResponseWriter, r *http.Request, v *visitor) error {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	f := func(name string) string { return strings.TrimSpace(r.PostFormValue(name)) }
	form, who := userForm{Name: f("name"), Senders: f("senders"), Why: f("reason")}, v.caller()
	var err error
	page := f("page") == "user" // the form is on the user's page, or leads there
	switch f("do") {
	case "open":
		page = true
		_, err = d.service.People.User(r.Context(), who, form.Name)
	case "senders":
		senders := strings.FieldsFunc(form.Senders, func(c rune) bool { return strings.ContainsRune(" ,;\r\n\t", c) })
		_, _, err = d.service.People.SetSenders(r.Context(), who, form.Name, senders, form.Why, service.Repeat{})
	case "pause":
		_, _, err = d.service.People.Control(r.Context(), who, models.PauseUser, form.Name, form.Why, service.Repeat{})
	case "resume":
		_, _, err = d.service.People.Control(r.Context(), who, models.ResumeUser, form.Name, form.Why, service.Repeat{})
	case "disable":
		_, _, err = d.service.People.Switch(r.Context(), who, models.DisableUser, form.Name, form.Why, service.Repeat{})
	case "enable":
		_, _, err = d.service.People.Switch(r.Context(), who, models.EnableUser, form.Name, form.Why, service.Repeat{})
	case "end-sessions":
		_, _, err = d.service.People.EndSessions(r.Context(), who, form.Name, form.Why, service.Repeat{})
	default:
		return errNoPage
	}
	var refused *service.Error
	switch {
	case errors.As(err, &refused) && refused.Kind == service.NotFound:
		form.Wrong = map[string]string{"name": "No user has this name or ID."}
	case errors.As(err, &refused) && len(refused.Fields) > 0:
		form.Wrong = wrongFields(refused)
		form.Wrong["reason"] = form.Wrong["why"] // its name in the form
	case err != nil:
		return err
	case page:
		seeOther(w, r, "/operations/users/"+url.PathEscape(form.Name))
		return nil
	default:
		seeOther(w, r, "/operations/users")
		return nil
	}
	if f("page") == "user" {
		return d.showUser(w, r, v, http.StatusUnprocessableEntity, form.Name, form)
	}
	return d.showOperations(w, r, v, http.StatusUnprocessableEntity, "users", blockForm{}, form)
}

// operate is POST /operations/{what}/{id}/{do}, for operators: the commands that
// need only an ID.
func (d *Dashboard) operate(w http.ResponseWriter, r *http.Request, v *visitor) error {
	id, who := r.PathValue("id"), v.caller()
	var err error
	switch r.PathValue("what") + " " + r.PathValue("do") {
	case "blocks remove":
		_, err = d.service.Operate.RemoveBlock(r.Context(), who, id, "")
	case "parked requeue":
		_, _, err = d.service.Operate.Requeue(r.Context(), who, id, "", service.Repeat{})
	case "parked discard":
		_, err = d.service.Operate.Discard(r.Context(), who, id, "")
	default:
		return errNoPage
	}
	if err != nil {
		return err
	}
	seeOther(w, r, operationsPath(r.PathValue("what")))
	return nil
}

// askHolds is GET /operations/holds/lift, for operators.
func (d *Dashboard) askHolds(w http.ResponseWriter, r *http.Request, v *visitor) error {
	holds, err := d.service.Operate.Holds(r.Context(), v.caller())
	if err != nil {
		return err
	}
	if len(holds) == 0 {
		return service.Fail(service.Conflict, "nothing_held", "No mail is on hold.")
	}
	before := holds[len(holds)-1].Before.UTC().Format(time.RFC3339)
	return d.ask(w, r, v, "operations", &askView{
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
func (d *Dashboard) liftHolds(w http.ResponseWriter, r *http.Request, v *visitor) error {
	why, repeat := answered(w, r)
	if _, _, err := d.service.Operate.LiftHolds(r.Context(), v.caller(), why, repeat); err != nil {
		return err
	}
	seeOther(w, r, "/operations/parked")
	return nil
}
