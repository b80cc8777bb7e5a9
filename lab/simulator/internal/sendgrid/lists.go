package sendgrid

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

const (
	pathLists  = "v3/suppression/"
	pathGlobal = "v3/asm/suppressions/global"
	maxListed  = 500 // entries of a page
)

// The suppression lists, by their names in paths.
const (
	bounces      = "bounces"
	blocks       = "blocks"
	spamReports  = "spam_reports"
	invalid      = "invalid_emails"
	unsubscribes = "unsubscribes"
)

var listNames = []string{bounces, blocks, spamReports, invalid, unsubscribes}

// listing has the lists that outcomes put an address on. Mail to addresses that were blocked is
// not dropped.
var listing = map[message.Outcome]provider.Listing{
	message.HardBounce: {List: bounces, Drops: message.SuppressedBounce, Status: "5.1.1",
		Text: "550 5.1.1 The email account that you tried to reach does not exist"},
	message.Async: {List: bounces, Drops: message.SuppressedBounce, Status: "5.1.1",
		Text: "550 5.1.1 User unknown (reported after delivery)"},
	message.MailboxFull: {List: bounces, Drops: message.SuppressedBounce, Status: "5.2.2",
		Text: "552 5.2.2 Mailbox full"},
	message.SuppressedBounce: {List: bounces, Drops: message.SuppressedBounce, Status: "5.1.1",
		Text: "550 5.1.1 User unknown"},
	message.SuppressedSpam:  {List: spamReports, Drops: message.SuppressedSpam},
	message.SuppressedUnsub: {List: unsubscribes, Drops: message.SuppressedUnsub},
	message.Complain:        {List: spamReports, Drops: message.SuppressedSpam},
	message.Unsubscribe:     {List: unsubscribes, Drops: message.SuppressedUnsub},
	message.Invalid: {List: invalid, Drops: message.Invalid,
		Text: "Mail domain mentioned in email address is unknown"},
	message.Blocked: {List: blocks, Drops: message.Deliver, Status: "5.7.1",
		Text: "550 5.7.1 Refused because of the reputation of the sending address"},
}

// serveLists answers GET /v3/suppression/{list}, and DELETE of one of its addresses.
func (g *SendGrid) serveLists(w http.ResponseWriter, r *http.Request, route string) {
	list, address, one := strings.Cut(strings.TrimPrefix(route, pathLists), "/")
	if route, ok := strings.CutPrefix(route, pathGlobal+"/"); ok {
		list, address, one = unsubscribes, route, true
	}
	now := time.Now()
	reset, ok := g.lookups.Allow(g.account.Options.LookupsPerSecond, now)
	switch {
	case !g.authorized(r):
		g.endpoint.Unauthorized.Write(w)
	case g.account.Options.NoLists:
		statuses[http.StatusForbidden].Write(w)
	case !ok:
		a := statuses[http.StatusTooManyRequests]
		a.Header = map[string]string{"X-RateLimit-Reset": strconv.FormatInt(reset.Unix(), 10)}
		a.Write(w)
	case !slices.Contains(listNames, list):
		statuses[http.StatusNotFound].Write(w)
	case !one && r.Method == http.MethodGet:
		g.showList(w, r.URL.Query(), list, now)
	case one && r.Method == http.MethodDelete:
		if !g.account.Lists.Remove(list, address, now) {
			statuses[http.StatusNotFound].Write(w)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	default:
		statuses[http.StatusMethodNotAllowed].Write(w)
	}
}

// showList answers with a page of a list, the newest entries first.
func (g *SendGrid) showList(w http.ResponseWriter, form url.Values, list string, now time.Time) {
	number := func(name string, otherwise int64) int64 {
		n, err := strconv.ParseInt(form.Get(name), 10, 64)
		if err != nil {
			return otherwise
		}
		return n
	}
	limit, offset := number("limit", maxListed), number("offset", 0)
	if limit < 1 || limit > maxListed || offset < 0 {
		statuses[http.StatusBadRequest].Write(w)
		return
	}
	from, to := number("start_time", 0), number("end_time", now.Unix())
	entries := slices.DeleteFunc(g.account.Lists.All(list, now), func(e provider.Listed) bool {
		return e.At.Unix() < from || e.At.Unix() > to
	})
	slices.SortStableFunc(entries, func(a, b provider.Listed) int { return b.At.Compare(a.At) })
	entries = entries[min(offset, int64(len(entries))):]
	entries = entries[:min(limit, int64(len(entries)))]
	out := make([]map[string]any, 0, len(entries))
	for _, e := range entries {
		item := map[string]any{"email": e.Address, "created": e.At.Unix()}
		switch list {
		case bounces, blocks:
			item["status"], item["reason"] = e.Status, e.Text
		case invalid:
			item["reason"] = e.Text
		case spamReports:
			item["ip"] = "198.51.100.7"
		}
		out = append(out, item)
	}
	body, _ := json.Marshal(out) // never an error: texts and numbers
	provider.Answer{Status: 200, Type: typeJSON, Body: string(body)}.Write(w)
}
