package dashboard

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/safedelivr/safedelivr/service"
)

// foundView is mail that was found by its recipient's address.
type foundView struct {
	Search string
	Logs   []foundRow
	Older  string
	First  bool
	None   string // why there is nothing
}

type foundRow struct {
	service.FoundLog
	Via []via
}

// find looks for an address, or goes to the batch or the log of an id.
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
		None: "There is no batch or log with this id, or it is not yours. Ids and addresses are found whole only."})
}

// findAddress lists the mail to an address, newest first.
func (d *Dashboard) findAddress(w http.ResponseWriter, r *http.Request, v *visitor, address string) error {
	cursor := r.URL.Query().Get("cursor")
	found, err := d.service.Search(r.Context(), v.caller(), address, service.Page{Limit: logsPage, Cursor: cursor})
	if err != nil {
		return err
	}
	view := &foundView{
		Search: address,
		First:  cursor == "",
		None:   "No mail of yours to this address was found. Mail is found from its first attempt on, until its address is removed.",
	}
	for i := range found.Logs {
		view.Logs = append(view.Logs, foundRow{found.Logs[i], viaOf(&found.Logs[i].LogView)})
	}
	if found.Next != "" {
		view.Older = "/batches?" + url.Values{"q": {address}, "cursor": {found.Next}}.Encode()
		view.None = "Nothing in the newest part of your mail. There is more to look through."
	}
	return d.showFound(w, r, v, http.StatusOK, view)
}

func (d *Dashboard) showFound(w http.ResponseWriter, r *http.Request, v *visitor, status int, view *foundView) error {
	d.render(w, r, v, status, "found", page{Title: "Search", Active: "batches", Data: view})
	return nil
}
