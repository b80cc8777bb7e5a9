package dashboard

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/accesslog"
)

// operationsView is the page for operators.
type operationsView struct {
	Check   *telemetry.Recount // the newest consistency check; nil: there is no recent one
	Unknown service.Unknown
	// Unmatched counts the events, since the workers started, whose log was not found.
	Unmatched int64
	Holds     []service.Hold
	Queues    []service.QueueView
	Parked    service.ParkedPage
	Workers   []service.Worker
	Blocks    []models.Block
	Users     []service.UserView
	Others    int // number of users that are not listed
	Audit     []auditRow
	Access    accessView
	Older     string // cursor of the next page of the audit trail
	First     bool
	Names     []string // names of the providers
	Form      blockForm
	User      userForm
	Problem   string // why the broker could not be read, or ""
}

// auditRow is one command in words.
type auditRow struct {
	service.AuditEntry
	Who   string
	Words string
	On    string // path of the page of its object
	About string
}

// accessView is a page of the access log.
type accessView struct {
	Kind  accesslog.Kind // empty: all
	Kinds []accessKind
	Rows  []accessRow
	Older string // cursor of the next page
	First bool
}

// accessKind is a choice of the filter.
type accessKind struct {
	Kind  accesslog.Kind
	Words string
}

var accessKinds = []accessKind{
	{"", "All"},
	{accesslog.Login, "Logins"},
	{accesslog.FailedLogin, "Refused logins"},
	{accesslog.FailedKey, "Refused keys"},
}

// accessRow is an entry of the access log in words.
type accessRow struct {
	service.AccessEntry
	Who   string
	Words string
}

// accessWords describes the reasons of entries in words.
var accessWords = map[string]string{
	"link":                "logged in by a one-time link",
	"github":              "logged in through GitHub",
	"links_off":           "login refused: one-time links are turned off",
	"link_not_local":      "login refused: the link works only on the machine itself",
	"link_invalid":        "login refused: the one-time link was used, has expired or is wrong",
	"wrong_state":         "login refused: it was started in another browser or took too long",
	"github_refused":      "login refused: cancelled or denied at GitHub",
	"github_unavailable":  "login failed: GitHub could not be reached",
	"login_taken":         "login refused: the name belongs to another GitHub account here",
	"not_allowed":         "login refused: the GitHub user is not listed",
	"wrong_key":           "API key refused: it does not exist",
	"revoked_key":         "API key refused: it was revoked",
	"expired_key":         "API key refused: it has expired",
	"address_not_allowed": "API key refused: it may not be used from this address",
	"owner_not_operator":  "API key refused: its owner is no longer an operator",
	"user_disabled":       "refused: the user is disabled",
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

// operations is GET /operations, for operators.
func (d *Dashboard) operations(w http.ResponseWriter, r *http.Request, v *visitor) error {
	return d.showOperations(w, r, v, http.StatusOK, blockForm{}, userForm{})
}

func (d *Dashboard) showOperations(
	w http.ResponseWriter,
	r *http.Request,
	v *visitor,
	status int,
	form blockForm,
	user userForm,
) error {
	cursor := r.URL.Query().Get("cursor")
	view, err := d.readOperations(r.Context(), v.caller(), cursor)
	if err != nil {
		return err
	}
	if view.Access, err = d.readAccess(r, v.caller()); err != nil {
		return err
	}
	view.Form, view.User = form, user
	p := page{Title: "Operations", Active: "operations", Data: view}
	if view.First && form.Wrong == nil && user.Wrong == nil {
		p.Live = "/live/operations"
	}
	d.render(w, r, v, status, "operations", p)
	return nil
}

// readAccess returns the page of the access log that a request selects.
func (d *Dashboard) readAccess(r *http.Request, who service.Caller) (accessView, error) {
	q := r.URL.Query()
	v := accessView{Kind: accesslog.Kind(q.Get("access")), Kinds: accessKinds, First: q.Get("older") == ""}
	log, err := d.service.AccessLog(r.Context(), who, v.Kind, service.Page{Limit: auditPage, Cursor: q.Get("older")})
	if err != nil {
		return v, err
	}
	v.Older = log.Next
	for i := range log.Entries {
		e := &log.Entries[i]
		row := accessRow{AccessEntry: *e, Who: e.Login, Words: cmp.Or(accessWords[e.Reason], e.Reason)}
		if e.User != "" {
			row.Who = d.nameOf(r.Context(), e.User)
		}
		v.Rows = append(v.Rows, row)
	}
	return v, nil
}

// operationsEvents is GET /live/operations, for operators.
func (d *Dashboard) operationsEvents(w http.ResponseWriter, r *http.Request, v *visitor) error {
	who := v.caller()
	return d.stream(w, r, v, eventsKey("operations"), func() source {
		return source{
			read: func(ctx context.Context) (any, error) { return d.readOperations(ctx, who, "") },
			render: func(now any) (parts, error) {
				return d.pages.parts("operations", now, "sums", "holds", "queues", "workers", "parked", "blocks", "users", "audit")
			},
		}
	})
}

func (d *Dashboard) readOperations(ctx context.Context, who service.Caller, cursor string) (*operationsView, error) {
	v := &operationsView{First: cursor == ""}
	for i := range d.configured {
		v.Names = append(v.Names, d.configured[i].Name)
	}
	var err error
	if v.Queues, err = d.service.Queues(ctx, who); err == nil {
		v.Parked, err = d.service.Parked(ctx, who, service.Page{Limit: parkedListed})
	}
	var e *service.Error
	if errors.As(err, &e) && e.Code == "broker_unavailable" {
		v.Problem, err = e.Detail, nil // show the rest of the page
	}
	if err != nil {
		return nil, err
	}
	if err := d.addSums(ctx, who, v); err != nil {
		return nil, err
	}
	if v.Workers, err = d.service.Workers(ctx, who); err != nil {
		return nil, err
	}
	if v.Blocks, err = d.service.Blocks(ctx, who); err != nil {
		return nil, err
	}
	audit, err := d.service.Audit(ctx, who, service.Page{Limit: auditPage, Cursor: cursor})
	if err != nil {
		return nil, err
	}
	v.Older = audit.Next
	for i := range audit.Commands {
		v.Audit = append(v.Audit, auditRowOf(&audit.Commands[i], d.nameOf(ctx, audit.Commands[i].By)))
	}
	return v, nil
}

// addSums reads the consistency check, the unknown outcomes, the holds and the users.
func (d *Dashboard) addSums(ctx context.Context, who service.Caller, v *operationsView) error {
	check, err := d.service.LastCheck(ctx, who)
	var e *service.Error
	switch {
	case err == nil:
		v.Check = &check
	case !errors.As(err, &e) || e.Kind != service.NotFound:
		return err
	}
	if v.Unknown, err = d.service.UnknownOutcomes(ctx, who); err != nil {
		return err
	}
	providers, err := d.providersNow()
	if err != nil {
		return err
	}
	for i := range providers {
		if w := providers[i].Worker; w != nil {
			v.Unmatched += w.Unmatched
		}
	}
	if v.Holds, err = d.service.Holds(ctx, who); err != nil {
		return err
	}
	for i := range v.Holds {
		v.Holds[i].By = d.nameOf(ctx, v.Holds[i].By)
	}
	users, all, err := d.service.Users(ctx, who)
	v.Users = users[:min(len(users), usersListed)]
	v.Others = all - len(v.Users)
	return err
}

// commandWords describes commands in words.
var commandWords = map[models.CommandKind]string{
	models.StopBatch:       "stopped a batch",
	models.ResumeBatch:     "resumed a batch",
	models.CancelBatch:     "cancelled a batch",
	models.RetryBatch:      "retried the failed messages of a batch",
	models.ReleaseBatch:    "released messages of a batch",
	models.PauseUser:       "paused a user",
	models.ResumeUser:      "resumed a user",
	models.DisableUser:     "disabled a user",
	models.EnableUser:      "enabled a user",
	models.EndSessions:     "ended the sessions of a user",
	models.SetSenders:      "set the senders of a user",
	models.SetLimits:       "set the limits of a user",
	models.ProviderOffline: "took a provider offline",
	models.ProviderDrain:   "drained a provider",
	models.ProviderOnline:  "brought a provider online",
	models.ProviderProbe:   "probed a provider",
	models.AddBlock:        "added a block rule",
	models.RemoveBlock:     "removed a block rule",
	models.HoldOld:         "put older batches on hold",
	models.LiftHolds:       "lifted all holds",
	models.EraseAddress:    "began to erase an address",
	models.AddressErased:   "erased an address",
	models.CreatedKey:      "created a key",
	models.RevokedKey:      "revoked a key",
	models.Requeued:        "requeued a parked message",
	models.Discarded:       "discarded a parked message",
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

func auditRowOf(e *service.AuditEntry, who string) auditRow {
	row := auditRow{
		AuditEntry: *e,
		Who:        who,
		Words:      commandWords[e.Command],
		About:      strings.TrimSpace(e.Provider + " " + e.User + " " + e.Subject),
	}
	if row.Words == "" {
		row.Words = string(e.Command)
	}
	switch {
	case !e.LogID.IsZero():
		row.Words = "sent a message again"
		row.About, row.On = e.LogID.String(), "/logs/"+e.LogID.String()
	case !e.BatchID.IsZero():
		row.About, row.On = e.BatchID.String(), "/batches/"+e.BatchID.String()
	case e.Block != nil:
		row.About = blockWords(e.Block)
	}
	return row
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
	_, _, err := d.service.AddBlock(
		r.Context(),
		v.caller(),
		models.Block{Provider: form.Provider, User: form.User, Sender: form.Sender, Domain: form.Domain, Fail: form.Fail},
		form.Why,
		service.Repeat{},
	)
	var refused *service.Error
	if errors.As(err, &refused) && len(refused.Fields) > 0 {
		form.Wrong = wrongFields(refused)
		return d.showOperations(w, r, v, http.StatusUnprocessableEntity, form, userForm{})
	}
	if err != nil {
		return err
	}
	seeOther(w, r, "/operations#blocks")
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
		_, err = d.service.User(r.Context(), who, form.Name)
	case "senders":
		senders := strings.FieldsFunc(form.Senders, func(c rune) bool { return strings.ContainsRune(" ,;\r\n\t", c) })
		_, _, err = d.service.SetSenders(r.Context(), who, form.Name, senders, form.Why, service.Repeat{})
	case "pause":
		_, _, err = d.service.ControlUser(r.Context(), who, models.PauseUser, form.Name, form.Why, service.Repeat{})
	case "resume":
		_, _, err = d.service.ControlUser(r.Context(), who, models.ResumeUser, form.Name, form.Why, service.Repeat{})
	case "disable":
		_, _, err = d.service.SwitchUser(r.Context(), who, models.DisableUser, form.Name, form.Why, service.Repeat{})
	case "enable":
		_, _, err = d.service.SwitchUser(r.Context(), who, models.EnableUser, form.Name, form.Why, service.Repeat{})
	case "end-sessions":
		_, _, err = d.service.EndSessions(r.Context(), who, form.Name, form.Why, service.Repeat{})
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
		seeOther(w, r, "/operations#audit")
		return nil
	}
	if f("page") == "user" {
		return d.showUser(w, r, v, http.StatusUnprocessableEntity, form.Name, form)
	}
	return d.showOperations(w, r, v, http.StatusUnprocessableEntity, blockForm{}, form)
}

// operate is POST /operations/{what}/{id}/{do}, for operators: the commands that
// need only an ID.
func (d *Dashboard) operate(w http.ResponseWriter, r *http.Request, v *visitor) error {
	id, who := r.PathValue("id"), v.caller()
	var err error
	switch r.PathValue("what") + " " + r.PathValue("do") {
	case "blocks remove":
		_, err = d.service.RemoveBlock(r.Context(), who, id, "")
	case "parked requeue":
		_, _, err = d.service.Requeue(r.Context(), who, id, "", service.Repeat{})
	case "parked discard":
		_, err = d.service.Discard(r.Context(), who, id, "")
	default:
		return errNoPage
	}
	if err != nil {
		return err
	}
	seeOther(w, r, "/operations#"+r.PathValue("what"))
	return nil
}
