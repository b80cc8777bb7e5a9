package dashboard

import (
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/safedelivr/safedelivr/service"
)

// foundView is a page of search results.
type foundView struct {
	Search string
	Logs   []foundRow
	Older  string
	First  bool
	None   string // text to show if there are no results
}

type foundRow struct {
	service.FoundLog
	Via []via
}

// find searches for an address, or redirects to the batch or log with an ID.
func (d *Dashboard) find(w http.ResponseWriter, r *http.Request, v *visitor, wanted string) error {
	if strings.Contains(wanted, "@") {
		return d.findAddress(w, r, v, wanted)
	}
	id := strings.TrimPrefix(strings.ToLower(wanted), "batch.")
	if b, err := d.service.Batch(r.Context(), v.caller(), id); err == nil {
		seeOther(w, r, "/batches/"+b.ID.String())
		return nil
	}
	if l, err := d.service.Log(r.Context(), v.caller(), id); err == nil {
		seeOther(w, r, "/logs/"+l.ID.String())
		return nil
	}
	return d.showFound(w, r, v, http.StatusNotFound, &foundView{Search: wanted, First: true,
		None: "No batch or log of yours has this ID. Enter a full address or ID."})
}

// findAddress lists the logs of an address, newest first.
func (d *Dashboard) findAddress(w http.ResponseWriter, r *http.Request, v *visitor, address string) error {
	cursor := r.URL.Query().Get("cursor")
	found, err := d.service.Search(r.Context(), v.caller(), address, service.Page{Limit: logsPage, Cursor: cursor})
	var wrong *service.Error
	if cursor == "" && errors.As(err, &wrong) && len(wrong.Fields) > 0 {
		return d.showFound(w, r, v, http.StatusNotFound,
			&foundView{Search: address, First: true, None: sentence(wrong.Fields[0].Detail)})
	}
	if err != nil {
		return err
	}
	view := &foundView{
		Search: address,
		First:  cursor == "",
		None: "You have sent no message to this address. " +
			"A message is found from its first attempt until its address is removed.",
	}
	for i := range found.Logs {
		view.Logs = append(view.Logs, foundRow{found.Logs[i], viaOf(&found.Logs[i].LogView)})
	}
	if found.Next != "" {
		view.Older = "/batches?" + url.Values{"q": {address}, "cursor": {found.Next}}.Encode()
		view.None = "Not found in your newest mail. Older mail can be searched, too."
	}
	return d.showFound(w, r, v, http.StatusOK, view)
}

func (d *Dashboard) showFound(w http.ResponseWriter, r *http.Request, v *visitor, status int, view *foundView) error {
	d.render(w, r, v, status, "found", page{Title: "Search", Active: "batches", Data: view})
	return nil
}
