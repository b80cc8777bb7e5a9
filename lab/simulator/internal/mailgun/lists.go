package mailgun

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

const maxListed = 1000 // entries of a page

// The suppression lists, by their names in paths.
const (
	bounces      = "bounces"
	complaints   = "complaints"
	unsubscribes = "unsubscribes"
)

var listNames = []string{bounces, complaints, unsubscribes}

// listing has the lists that outcomes put an address on. Mailgun lists no soft bounces.
var listing = map[message.Outcome]provider.Listing{
	message.HardBounce: {List: bounces, Drops: message.SuppressedBounce, Status: "550",
		Text: "5.1.1 The email account that you tried to reach does not exist"},
	message.Async: {List: bounces, Drops: message.SuppressedBounce, Status: "550",
		Text: "5.1.1 User unknown (reported after delivery)"},
	message.Invalid: {List: bounces, Drops: message.SuppressedBounce, Status: "501",
		Text: "5.1.3 Bad destination mailbox address syntax"},
	message.SuppressedBounce: {List: bounces, Drops: message.SuppressedBounce, Status: "550", Text: "5.1.1 User unknown"},
	message.SuppressedSpam:   {List: complaints, Drops: message.SuppressedSpam},
	message.SuppressedUnsub:  {List: unsubscribes, Drops: message.SuppressedUnsub},
	message.Complain:         {List: complaints, Drops: message.SuppressedSpam},
	message.Unsubscribe:      {List: unsubscribes, Drops: message.SuppressedUnsub},
}

// serveList answers GET /v3/{domain}/{list}, and DELETE of one of its addresses.
func (g *Mailgun) serveList(w http.ResponseWriter, r *http.Request, list string, rest []string) {
	now := time.Now()
	switch {
	case g.account.Options.NoLists:
		g.reply(w, statuses[http.StatusForbidden])
	case !g.allowed(w):
	case len(rest) == 0 && r.Method == http.MethodGet:
		g.showList(w, r, list, now)
	case len(rest) == 1 && r.Method == http.MethodDelete:
		if !g.account.Lists.Remove(list, rest[0], now) {
			g.reply(w, say(404, "Address not found in %s table", list))
			return
		}
		g.reply(w, jsonAnswer(map[string]any{"address": rest[0], "message": "Bounced address has been removed"}))
	default:
		g.reply(w, notFound)
	}
}

// showList answers with a page of a list, which begins after an address.
func (g *Mailgun) showList(w http.ResponseWriter, r *http.Request, list string, now time.Time) {
	form := r.URL.Query()
	limit := defaultLimit
	if text := form.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxListed {
			g.reply(w, say(400, "limit must be between 1 and %d", maxListed))
			return
		}
		limit = n
	}
	entries := g.account.Lists.All(list, now)
	after := form.Get("address")
	entries = slices.DeleteFunc(entries, func(e provider.Listed) bool { return e.Address <= after })
	entries = entries[:min(limit, len(entries))]
	items := make([]map[string]any, 0, len(entries))
	for _, e := range entries {
		item := map[string]any{"address": e.Address, "created_at": e.At.UTC().Format(time.RFC1123)}
		switch list {
		case bounces:
			item["code"], item["error"] = e.Status, e.Text
		case complaints:
			item["count"] = 1
		case unsubscribes:
			item["tags"] = tagsOf(e.Text)
		}
		items = append(items, item)
		after = e.Address
	}
	base := "http://" + r.Host + "/" + g.account.Name + "/v3/" + g.domain + "/" + list
	if r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https" {
		base = "https" + strings.TrimPrefix(base, "http")
	}
	next := url.Values{"page": {"next"}, "limit": {strconv.Itoa(limit)}, "address": {after}}
	g.reply(w, jsonAnswer(map[string]any{
		"items":  items,
		"paging": map[string]string{"first": base + "?limit=" + strconv.Itoa(limit), "next": base + "?" + next.Encode()},
	}))
}

// tagsOf returns the tags of an unsubscription; an empty text means all.
func tagsOf(text string) []string {
	if text == "" {
		return []string{"*"}
	}
	return strings.Fields(text)
}
