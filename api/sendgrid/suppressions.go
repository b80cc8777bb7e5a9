package sendgrid

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/api/dialect"
	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/problem"
	"github.com/safedelivr/safedelivr/service/suppressions"
)

// A list is one of SendGrid's suppression lists.
type list struct {
	name string
	of   dialect.List
}

// unsubscribes has those who unsubscribed from all mail, and with a category those of a group.
var unsubscribes = list{"unsubscribes", dialect.List{models.Unsubscribe, models.Manual}}

var lists = []list{
	{"bounces", dialect.List{models.HardBounce, models.SoftBounce}},
	{"spam_reports", dialect.List{models.Complaint}},
	unsubscribes,
}

const (
	maxPage   = 500     // entries of an answer
	maxOffset = 100_000 // entries before those of an answer, which are read, too
)

// suppressionRoutes returns the calls about suppression lists.
func suppressionRoutes() (out []dialect.Route) {
	add := func(method, path string, scope models.Scope, handle func(*dialect.Request) (dialect.Answer, error)) {
		out = append(out, dialect.Route{Method: method, Path: path, Scope: scope, Handle: handle})
	}
	for _, l := range lists {
		path := "/v3/suppression/" + l.name
		add(http.MethodGet, path, models.ScopeRead, l.read)
		add(http.MethodGet, path+"/*email", models.ScopeRead, l.get)
		add(http.MethodDelete, path+"/*email", models.ScopeSend, l.remove)
	}
	for _, path := range []string{"/v3/asm/suppressions/global", "/v3/asm/groups/:group/suppressions"} {
		add(http.MethodPost, path, models.ScopeSend, unsubscribe)
		add(http.MethodDelete, path+"/*email", models.ScopeSend, unsubscribes.remove)
	}
	add(http.MethodGet, "/v3/asm/suppressions/global/*email", models.ScopeRead, global)
	add(http.MethodGet, "/v3/asm/groups/:group/suppressions", models.ScopeRead, group)
	return out
}

// entry is an entry of a list as SendGrid writes it.
type entry struct {
	Created int64   `json:"created"`
	Email   string  `json:"email"`
	Reason  *string `json:"reason,omitempty"`
	Status  *string `json:"status,omitempty"`
	IP      *string `json:"ip,omitempty"`
}

func (l list) entryOf(e *client.Suppression) entry {
	out, none := entry{Created: e.At.Unix(), Email: e.Email}, ""
	switch l.name {
	case "bounces":
		out.Reason, out.Status = &e.ReasonText, &none
	case "spam_reports":
		out.IP = &none
	}
	return out
}

// categoryOf returns the category of the path's group, as mail to it has; empty: all mail.
func categoryOf(r *dialect.Request) string {
	if id := r.Param("group"); id != "" {
		return groupPrefix + id
	}
	return ""
}

// addressIn returns the address at the end of the path. A router that decodes the path makes a space of a plus.
func addressIn(r *dialect.Request) string {
	return strings.ReplaceAll(strings.TrimPrefix(r.Param("email"), "/"), " ", "+")
}

// read is GET /v3/suppression/{list}: some entries after an offset, in an order that means nothing.
func (l list) read(r *dialect.Request) (dialect.Answer, error) {
	values, numbers := r.URL.Query(), map[string]int64{"limit": maxPage, "offset": 0, "start_time": 0, "end_time": 1 << 40}
	for name := range numbers {
		if text := values.Get(name); text != "" {
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil || n < 0 {
				return dialect.Answer{}, invalid(name, "It must be a number from 0.")
			}
			numbers[name] = n
		}
	}
	if numbers["offset"] > maxOffset {
		return dialect.Answer{}, invalid("offset", "It may be up to 100000. GET /v1/suppressions reads longer lists.")
	}
	from, to := time.Unix(numbers["start_time"], 0), time.Unix(numbers["end_time"], 0)
	out, skip, limit := []entry{}, numbers["offset"], int(min(numbers["limit"], maxPage))
	err := l.of.Each(r, func(e *client.Suppression) bool {
		at := e.At.Truncate(time.Second)
		switch {
		case !l.has(e), at.Before(from), at.After(to):
		case skip > 0:
			skip--
		case len(out) < limit:
			out = append(out, l.entryOf(e))
		}
		return len(out) < limit
	})
	return dialect.Answer{Body: out}, err
}

// find returns the entries of the path's address.
func (l list) find(r *dialect.Request) ([]client.Suppression, error) {
	found, err := l.of.Of(r, addressIn(r))
	return slices.DeleteFunc(found, func(e client.Suppression) bool { return !l.has(&e) }), err
}

// has reports whether an entry is about all mail, as those of groups are not.
func (l list) has(e *client.Suppression) bool { return l.name != unsubscribes.name || e.Category == "" }

// get is GET /v3/suppression/{list}/{email}: a list of one entry, or of none.
func (l list) get(r *dialect.Request) (dialect.Answer, error) {
	found, err := l.find(r)
	out := []entry{}
	if len(found) > 0 {
		out = append(out, l.entryOf(&found[0]))
	}
	return dialect.Answer{Body: out}, err
}

// remove is DELETE /v3/suppression/{list}/{email}, and of a group.
func (l list) remove(r *dialect.Request) (dialect.Answer, error) {
	f := suppressions.Filter{Category: categoryOf(r)}
	f.AllMail = f.Category == "" && l.name == unsubscribes.name
	removed, err := l.of.Remove(r, addressIn(r), f)
	if err == nil && !removed {
		err = problem.NoSuch("address")
	}
	return dialect.Answer{Status: http.StatusNoContent}, err
}

// unsubscribe is POST /v3/asm/suppressions/global, and of a group.
func unsubscribe(r *dialect.Request) (dialect.Answer, error) {
	var in struct {
		Emails []string `json:"recipient_emails"`
	}
	if err := dialect.ReadJSON(r, 1<<20, &in); err != nil {
		return dialect.Answer{}, err
	}
	if len(in.Emails) == 0 || len(in.Emails) > maxMail {
		return dialect.Answer{}, invalid("recipient_emails", "It must be a list of 1 to 1000 addresses.")
	}
	for _, email := range in.Emails {
		if err := unsubscribes.of.Add(r, client.NewSuppression{Email: email, Category: categoryOf(r)}); err != nil {
			return dialect.Answer{}, err
		}
	}
	return dialect.Answer{Status: http.StatusCreated, Body: map[string]any{"recipient_emails": in.Emails}}, nil
}

// global is GET /v3/asm/suppressions/global/{email}. The answer has no address if it may get mail.
func global(r *dialect.Request) (dialect.Answer, error) {
	found, err := unsubscribes.find(r)
	out := map[string]string{}
	if len(found) > 0 {
		out["recipient_email"] = found[0].Email
	}
	return dialect.Answer{Body: out}, err
}

// group is GET /v3/asm/groups/{group}/suppressions: all addresses.
func group(r *dialect.Request) (dialect.Answer, error) {
	out := []string{}
	err := unsubscribes.of.Each(r, func(e *client.Suppression) bool {
		if e.Category == categoryOf(r) {
			out = append(out, e.Email)
		}
		return len(out) <= maxOffset
	})
	if len(out) > maxOffset {
		err = problem.New(problem.TooLarge, "list_too_long",
			"The group has more than %d addresses. GET /v1/suppressions reads it page by page.", maxOffset)
	}
	return dialect.Answer{Body: out}, err
}
