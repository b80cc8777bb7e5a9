package operations

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/accesslog"
	"github.com/safedelivr/safedelivr/service/audit"
)

// auditRow is one command in words.
type auditRow struct {
	audit.Entry
	Who   string
	Words string
	On    string // path of the page of its object
	About string
}

// accessView is a page of the access log.
type accessView struct {
	Kind  accesslog.Kind // empty: all
	Kinds []choice[accesslog.Kind]
	Rows  []accessRow
	Older string // cursor of the next page
	First bool
}

// choice is a choice of a filter.
type choice[T ~string] struct {
	Kind  T
	Words string
}

var accessKinds = []choice[accesslog.Kind]{
	{"", "All"},
	{accesslog.Login, "Logins"},
	{accesslog.FailedLogin, "Refused logins"},
	{accesslog.FailedKey, "Refused keys"},
}

// accessRow is an entry of the access log in words.
type accessRow struct {
	client.AccessEntry
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

// readAccess returns the page of the access log that a request selects.
func (p *Pages) readAccess(r *http.Request, who service.Caller) (accessView, error) {
	q := r.URL.Query()
	v := accessView{Kind: accesslog.Kind(q.Get("access")), Kinds: accessKinds, First: q.Get("older") == ""}
	log, err := p.service.People.AccessLog(r.Context(), who, v.Kind,
		service.Page{Limit: auditPage, Cursor: q.Get("older")})
	if err != nil {
		return v, err
	}
	v.Older = log.Next
	for i := range log.Entries {
		e := &log.Entries[i]
		row := accessRow{AccessEntry: *e, Who: e.GitHubLogin, Words: cmp.Or(accessWords[e.Reason], e.Reason)}
		if e.User != "" {
			row.Who = p.web.NameOf(r.Context(), e.User)
		}
		v.Rows = append(v.Rows, row)
	}
	return v, nil
}

// commandWords describes commands in words.
var commandWords = maps.Collect(models.CommandKinds())

func auditRowOf(e *audit.Entry, who string) auditRow {
	row := auditRow{
		Entry: *e, Who: who, Words: commandWords[e.Command],
		About: strings.TrimSpace(e.Provider + " " + e.User + " " + e.Subject),
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
	case e.Command == models.SetLimits && e.Subject != "":
		row.Words = "set the limits of a key"
	}
	return row
}

// auditForm is the filter of the audit trail, as it was entered.
type auditForm struct {
	Who, What, Day string
	Cursor         string
	Kinds          []choice[models.CommandKind]
	Form           *web.Form
}

func auditFormOf(r *http.Request) auditForm {
	q := r.URL.Query()
	return auditForm{
		Who: strings.TrimSpace(q.Get("who")), What: q.Get("what"), Day: q.Get("day"), Cursor: q.Get("cursor"),
		Form: web.NewForm(q),
	}
}

func (f *auditForm) empty() bool { return f.Who == "" && f.What == "" && f.Day == "" && f.Cursor == "" }

// path returns the path of a page of the entries that the filter selects.
func (f *auditForm) path(cursor string) string {
	q := url.Values{}
	for name, value := range map[string]string{"who": f.Who, "what": f.What, "day": f.Day, "cursor": cursor} {
		if value != "" {
			q.Set(name, value)
		}
	}
	return strings.TrimSuffix("/operations/audit?"+q.Encode(), "?")
}

// Newest is the path of the first page.
func (f *auditForm) Newest() string { return f.path("") }

// readAudit reads the entries of the audit trail that a filter selects.
func (p *Pages) readAudit(ctx context.Context, who service.Caller, v *operationsView, f auditForm) error {
	f.Kinds = []choice[models.CommandKind]{{"", "everything"}}
	for _, kind := range slices.SortedFunc(maps.Keys(commandWords), func(a, b models.CommandKind) int {
		return cmp.Compare(commandWords[a], commandWords[b])
	}) {
		f.Kinds = append(f.Kinds, choice[models.CommandKind]{kind, commandWords[kind]})
	}
	v.Filter = f
	filter := audit.Filter{Command: models.CommandKind(f.What), Day: f.Day}
	if f.Who != "" {
		filter.By = func(by string) bool {
			return by == f.Who || strings.EqualFold(strings.TrimPrefix(p.web.NameOf(ctx, by), "cli:"), f.Who)
		}
	}
	audit, err := p.service.Audit.Find(ctx, who, filter, service.Page{Limit: auditPage, Cursor: f.Cursor})
	if err != nil {
		return err
	}
	if audit.Next != "" {
		v.Older = f.path(audit.Next)
	}
	for i := range audit.Commands {
		v.Audit = append(v.Audit, auditRowOf(&audit.Commands[i], p.web.NameOf(ctx, audit.Commands[i].By)))
	}
	return nil
}
