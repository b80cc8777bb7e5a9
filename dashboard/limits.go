package dashboard

import (
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

// limitsView is the page of a user's limits, for operators.
type limitsView struct {
	User models.User
	Rows []limitRow
	Why  string
	// Wrong has the errors of the form by field.
	Wrong map[string]string
}

// limitRow is one limit, and its field in the form.
type limitRow struct {
	service.LimitView
	Words string
	Text  string // in the form: empty for the default
}

var limitWords = map[models.Limit]string{
	models.RequestsPerSecond: "Requests per second",
	models.RequestsAtOnce:    "Requests at once",
	models.RecipientsPerHour: "Recipients per hour",
	models.RecipientsPerDay:  "Recipients per day",
	models.BatchesPerDay:     "Batches per day",
	models.SpoolBytes:        "Bytes being uploaded",
}

func limitRows(v *service.LimitsView) []limitRow {
	var out []limitRow
	for _, l := range v.Limits {
		row := limitRow{LimitView: l, Words: limitWords[l.Limit]}
		if l.Set {
			row.Text = strconv.FormatInt(l.Value, 10)
		}
		out = append(out, row)
	}
	return out
}

// limits is GET /operations/users/{id}/limits, for operators.
func (d *Dashboard) limits(w http.ResponseWriter, r *http.Request, v *visitor) error {
	return d.showLimits(w, r, v, http.StatusOK, &limitsView{}, nil)
}

// showLimits shows the limits of a user. texts are the values of the form; nil: those in
// effect.
func (d *Dashboard) showLimits(
	w http.ResponseWriter,
	r *http.Request,
	v *visitor,
	status int,
	view *limitsView,
	texts map[models.Limit]string,
) error {
	now, err := d.service.LimitsOf(r.Context(), v.caller(), r.PathValue("id"), "")
	if err != nil {
		return err
	}
	if view.User, err = d.service.User(r.Context(), v.caller(), now.User); err != nil {
		return err
	}
	view.Rows = limitRows(&now)
	for i := range view.Rows {
		if texts != nil {
			view.Rows[i].Text = texts[view.Rows[i].Limit]
		}
	}
	d.render(w, r, v, status, "limits", page{Title: "Limits of " + view.User.Name, Active: "operations", Data: view})
	return nil
}

// setLimits is POST /operations/users/{id}/limits, for operators. An empty field takes the
// default.
func (d *Dashboard) setLimits(w http.ResponseWriter, r *http.Request, v *visitor) error {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if err := r.ParseForm(); err != nil {
		return badForm(err)
	}
	view := &limitsView{Why: strings.TrimSpace(r.PostForm.Get("why")), Wrong: map[string]string{}}
	limits, texts := models.Limits{}, map[models.Limit]string{}
	for _, l := range models.AllLimits() {
		text := strings.TrimSpace(r.PostForm.Get(string(l)))
		texts[l] = text
		if text == "" {
			continue
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			view.Wrong[string(l)] = "Enter a whole number, 0 for no limit, or nothing for the default."
		}
		limits[l] = n
	}
	if len(view.Wrong) > 0 {
		return d.showLimits(w, r, v, http.StatusUnprocessableEntity, view, texts)
	}
	_, err := d.service.SetLimits(r.Context(), v.caller(), r.PathValue("id"), "", limits, view.Why)
	var refused *service.Error
	if errors.As(err, &refused) && len(refused.Fields) > 0 {
		view.Wrong = wrongFields(refused)
		return d.showLimits(w, r, v, http.StatusUnprocessableEntity, view, texts)
	}
	if err != nil {
		return err
	}
	seeOther(w, r, r.URL.Path)
	return nil
}

// requestsView is the request log of an API key.
type requestsView struct {
	service.RequestPage
	Older string // URL of the next page
	First bool
}

// requests is GET /keys/{id}/requests.
func (d *Dashboard) requests(w http.ResponseWriter, r *http.Request, v *visitor) error {
	path, cursor := "/keys/"+r.PathValue("id")+"/requests", r.URL.Query().Get("cursor")
	found, err := d.service.Requests(r.Context(), v.caller(), r.PathValue("id"), service.Page{Limit: 100, Cursor: cursor})
	if err != nil {
		return err
	}
	view := &requestsView{RequestPage: found, First: cursor == ""}
	if found.Next != "" {
		view.Older = path + "?cursor=" + found.Next
	}
	d.render(w, r, v, http.StatusOK, "requests", page{Title: "API requests", Active: "settings", Data: view})
	return nil
}
