// Package suppressions has the pages of suppression lists: those of users, and everyone's.
package suppressions

import (
	"cmp"
	"embed"
	"encoding/csv"
	"errors"
	"html/template"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/suppressions"
	"github.com/safedelivr/safedelivr/service/table"
)

// views are the templates of this room.
var views = web.NewTemplates(files, template.FuncMap{"suppressed": reasonWords})

//go:embed *.html
var files embed.FS

// Pages are the pages of suppression lists.
type Pages struct {
	web   *web.Frame
	lists *suppressions.Lists
}

// New returns the pages.
func New(frame *web.Frame, lists *suppressions.Lists) *Pages {
	return &Pages{web: frame, lists: lists}
}

// Routes returns the routes of the pages.
func (p *Pages) Routes() web.Routes {
	return web.Routes{
		Templates: views,
		Entries:   []web.Entry{{Group: web.NavWatch, To: "/suppressions", Icon: "stop", Text: "Suppressions"}},
		Users: map[string]web.Handler{
			"GET /suppressions":                p.suppressions,
			"GET /suppressions/export.csv":     p.exportSuppressions,
			"GET /suppressions/{email}/remove": p.askSuppression,
			"POST /selected/suppress":          p.suppressSelected,
		},
		Calls: map[string]web.Call{
			"POST /suppressions": {
				Operation: "addSuppression", Own: []string{"file"}, To: "/suppressions?did=added", Handler: p.addSuppression,
				Done: "The address was added. No call to a provider contains it any more.",
			},
			"POST /suppressions/{email}/remove": {
				Operation: "removeSuppressions", As: asListed, To: "/suppressions?did=removed",
				Done: "The address was removed. Mail may be sent to it again.",
			},
		},
	}
}

// suppressionsView is a page of a suppression list, and the form that adds an address.
type suppressionsView struct {
	Everyone bool // the list for the mail of all users
	List     []client.Suppression
	Filter   suppressions.Filter
	Next     string // URL of the next page, or ""
	Reasons  []string
	Tabs     []web.Tab // by reason, with counts; none: the list is too long to be counted
	Total    int       // entries of the list, if there are Tabs
	Export   string    // URL of the list as a file

	Form *web.Form
	Done string
	Left []string // rows of a file that were left out, with their mistakes
}

// everyonesList names the list for the mail of all users in addresses of the page. It is no list of mail, so that the
// switch between the own mail and everyone's does not choose it.
const everyonesList = "everyone"

// suppressionListOf returns the caller and the parameters of the suppression list that a request is about.
func suppressionListOf(r *http.Request, v *web.Visitor) (who service.Caller, list url.Values) {
	who, list = v.Caller(), url.Values{}
	if who.Everyone = v.Operator && r.URL.Query().Get("list") == everyonesList; who.Everyone {
		list.Set("list", everyonesList)
	}
	return who, list
}

// asListed returns the caller for the suppression list that a form is about.
func asListed(r *http.Request, v *web.Visitor, _ *web.Form) service.Caller {
	who, _ := suppressionListOf(r, v)
	return who
}

// suppressions is GET /suppressions.
func (p *Pages) suppressions(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	view := &suppressionsView{Form: web.NewForm(url.Values{"reason": {string(models.Manual)}})}
	return p.showSuppressions(w, r, v, http.StatusOK, view)
}

func (p *Pages) showSuppressions(
	w http.ResponseWriter, r *http.Request, v *web.Visitor, status int, view *suppressionsView,
) error {
	query := r.URL.Query()
	who, of := suppressionListOf(r, v)
	view.Everyone = who.Everyone
	for _, r := range models.SuppressionReasons {
		view.Reasons = append(view.Reasons, string(r))
	}
	view.Filter = suppressions.Filter{Text: strings.TrimSpace(query.Get("q")), Reason: query.Get("reason")}
	view.Export = web.Address("/suppressions/export.csv", of)
	sorted, err := view.readSorted(r, p.lists, who, of)
	if err != nil {
		return err
	}
	if !sorted {
		at := service.Page{Cursor: query.Get("cursor")}
		list, err := p.lists.List(r.Context(), who, view.Filter, at)
		if err != nil {
			return err
		}
		view.List = list.Suppressions
		view.next(of, "cursor", list.Next)
	}
	for i := range view.List {
		if e := &view.List[i]; p.web.Providers.Has(e.By) {
			e.By = p.web.Providers.Named(e.By)
		} else if e.By != "" {
			e.By = p.web.NameOf(r.Context(), e.By)
		}
	}
	return p.web.Render(w, r, v, status, "suppressions",
		web.Page{Title: "Suppressions", Done: view.Done, Data: view})
}

// sortedSuppressions is the length up to which a list is counted and sorted. The store keeps no order of time.
const sortedSuppressions = 5000

// errTooLong ends the reading of a list that is not sorted.
var errTooLong = errors.New("the list is too long")

// readSorted reads a page of a list, the newest entries first, and counts the list by reasons. It reports false if the
// list is too long for that.
func (s *suppressionsView) readSorted(
	r *http.Request, lists *suppressions.Lists, who service.Caller, of url.Values,
) (bool, error) {
	text, counts := strings.ToLower(s.Filter.Text), map[string]int64{}
	var found []client.Suppression
	err := lists.Each(r.Context(), who, func(e client.Suppression) error {
		if s.Total++; s.Total > sortedSuppressions {
			return errTooLong
		}
		if !strings.Contains(e.Email, text) {
			return nil
		}
		if counts[e.Reason]++; s.Filter.Reason == "" || e.Reason == s.Filter.Reason {
			found = append(found, e)
		}
		return nil
	})
	if errors.Is(err, errTooLong) {
		s.Total = 0
		return false, nil
	}
	if err != nil || s.Filter.Reason != "" && !models.SuppressionReason(s.Filter.Reason).Valid() {
		return false, err
	}
	slices.SortStableFunc(found, func(a, b client.Suppression) int {
		return cmp.Or(b.At.Compare(a.At), strings.Compare(a.Email, b.Email))
	})
	s.setTabs(of, counts)
	from, _ := strconv.Atoi(r.URL.Query().Get("from")) // 0: the newest
	from = max(0, min(from, len(found)))
	s.List = found[from:min(len(found), from+shownSuppressions)]
	if end := from + len(s.List); end < len(found) {
		s.next(of, "from", strconv.Itoa(end))
	}
	return true, nil
}

const shownSuppressions = 50

// setTabs sets the links to the entries of each reason.
func (s *suppressionsView) setTabs(of url.Values, counts map[string]int64) {
	all := int64(0)
	for _, n := range counts {
		all += n
	}
	for _, reason := range append([]string{""}, s.Reasons...) {
		q, n := maps.Clone(of), counts[reason]
		if q.Set("reason", reason); reason == "" {
			n = all
		}
		if s.Filter.Text != "" {
			q.Set("q", s.Filter.Text)
		}
		s.Tabs = append(s.Tabs, web.Tab{
			To: web.Address("/suppressions", q), Text: reasonWords(reason), Here: reason == s.Filter.Reason, Count: n,
		})
	}
}

// next sets the link to the next page, whose beginning is in a parameter.
func (s *suppressionsView) next(of url.Values, name, value string) {
	if value == "" {
		return
	}
	q := maps.Clone(of)
	q.Set("q", s.Filter.Text)
	q.Set("reason", s.Filter.Reason)
	q.Set(name, value)
	s.Next = web.Address("/suppressions", q)
}

// badges are the reasons as a badge shows them.
var badges = map[models.SuppressionReason]string{
	"":                 "All",
	models.Complaint:   "Complaint",
	models.HardBounce:  "Hard bounce",
	models.SoftBounce:  "Soft bounces",
	models.Manual:      "Added manually",
	models.Unsubscribe: "Unsubscribed",
}

func reasonWords(r string) string { return cmp.Or(badges[models.SuppressionReason(r)], r) }

// exportSuppressions is GET /suppressions/export.csv: a list as a file that can be imported.
func (p *Pages) exportSuppressions(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	who, _ := suppressionListOf(r, v)
	out, begun := csv.NewWriter(w), false
	err := p.lists.Export(r.Context(), who, func(row []string) error {
		if !begun {
			begun = true
			w.Header().Set("Content-Type", "text/csv; charset=utf-8")
			w.Header().Set("Content-Disposition", `attachment; filename="suppressions.csv"`)
		}
		return out.Write(table.HarmlessRow(row))
	})
	if err != nil && begun {
		p.web.Log.Warn("export of suppressions aborted", "err", err)
		panic(http.ErrAbortHandler) // the browser must not take half a file for all of it
	}
	out.Flush() // the browser may be gone
	return err
}

// addSuppression is POST /suppressions: an address, or a file of them.
func (p *Pages) addSuppression(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	who, _ := suppressionListOf(r, v)
	form, err := web.ReadForm(w, r, web.MaxContent)
	if err != nil {
		return err
	}
	view := &suppressionsView{Form: form}
	file, _, err := r.FormFile("file")
	if err != nil {
		_, err = p.web.Do(r, who, form)
	} else {
		defer func() { _ = file.Close() }()
		err = p.importFile(r, who, file, view)
	}
	show := func(status int) error { return p.showSuppressions(w, r, v, status, view) }
	switch {
	case err != nil:
		return form.Refused(err, show)
	case view.Done != "":
		return show(http.StatusOK)
	}
	return p.web.Next(w, r)
}

// importFile adds the rows of a file, and says what it did.
func (p *Pages) importFile(r *http.Request, who service.Caller, file io.Reader, view *suppressionsView) error {
	done, err := p.lists.Import(r.Context(), who, file, models.FromImport)
	if err != nil {
		return err
	}
	view.Done = web.Num(done.Rows) + " " + web.Plural(int64(done.Rows), "row", "rows") + " read, " +
		web.Num(done.Added) + " added, " + web.Num(done.Rejected) + " left out because of mistakes."
	for _, e := range done.Errors {
		view.Left = append(view.Left, "Row "+strings.TrimPrefix(e.Pointer, "/")+": "+e.Detail)
	}
	return nil
}

// askSuppression is GET /suppressions/{email}/remove.
func (p *Pages) askSuppression(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	email := r.PathValue("email")
	_, of := suppressionListOf(r, v)
	q := &web.Question{Title: "Send mail to " + email + " again?", Do: "Remove", Back: web.Address("/suppressions", of),
		Text: []string{
			"Every entry of the address is removed from this list. Mail that failed meanwhile is not sent again by itself.",
			"After a complaint or a bounce that was final, say why.",
		}}
	return p.web.Ask(w, r, v, q)
}

// suppressSelected is POST /selected/suppress: it suppresses the recipients of the selected messages when that was
// confirmed.
func (p *Pages) suppressSelected(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	form, ids, err := web.ReadSelected(w, r)
	if err != nil {
		return err
	}
	if form.Repeat(r).Key != "" { // a repeat changes nothing
		if err := p.lists.SuppressSelected(r.Context(), v.Caller(), ids, models.FromPage, form.Text("why")); err != nil {
			return err
		}
		return web.SeeOther(w, r, web.LocalPath(form.Get("back")))
	}
	if len(ids) == 0 {
		return service.Fail(service.Conflict, "nothing_selected", "Select messages first.")
	}
	whose := "yours"
	if v.Everyone {
		whose = "the same senders"
	}
	n := int64(len(ids))
	return p.web.Ask(w, r, v, &web.Question{
		Entry: "/logs",
		Title: "Suppress the " + web.Plural(n, "recipient", "recipients") + " of " + web.Messages(n) + "?",
		Do:    "Suppress",
		Back:  web.BackFrom(r),
		IDs:   form.Values["id"],
		Text: []string{
			"No provider gets mail of " + whose + " to these addresses any more. Messages to them that are still " +
				"queued fail. The page Suppressions lists them, and takes them off again.",
		},
	})
}
