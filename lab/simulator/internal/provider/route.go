package provider

import (
	"encoding/base64"
	"net/http"
	"strings"
	"time"
)

// A Route is a path of a provider's API.
type Route struct {
	Path   string // method (* is any) and path; {name} is any one element
	Access Access
	Answer func(r *http.Request) Answer
	Static string // JSON in place of Answer; it may have the holes of answers
	Send   *Send  // in place of Access and Answer: the requests send mail
}

// A Send says how requests to send mail are read.
type Send struct {
	Limit int  // bytes of the body
	GZIP  bool // the body may be compressed
	// Parse reads a request. The Call is never nil. problem is the answer to a request that is not valid.
	Parse func(r *http.Request, body string) (c *Call, problem *Answer)
}

// Access says what a request needs besides a path.
type Access uint8

// The kinds of Access.
const (
	Keyed     Access = iota // the key of the account
	Open                    // nothing
	Counts                  // the key; the limit of look-ups applies, too
	UsesLogs                // as Counts, and the key may use the logs
	UsesLists               // as Counts, and the key may use the suppression lists
)

// Find returns the route of a request, whose path begins after the account's name, or nil and the status of the answer.
func (p *Provider) Find(r *http.Request, path []string) (found *Route, status int) {
	status = http.StatusNotFound
	for i := range p.Routes {
		method, pattern, _ := strings.Cut(p.Routes[i].Path, " ")
		switch {
		case !matches(r, strings.Split(pattern, "/"), path):
		case method == r.Method || method == "*":
			return &p.Routes[i], 0
		default:
			status = http.StatusMethodNotAllowed
		}
	}
	if _, ok := p.Statuses[status]; !ok {
		status = http.StatusNotFound
	}
	return nil, status
}

// Key returns what Provider.Unauthorized of a key in a header is: the status without the header, or with another value.
func Key(header, value string, missing, wrong int) func(*http.Request) int {
	return func(r *http.Request) int {
		switch r.Header.Get(header) {
		case value:
			return 0
		case "":
			return missing
		}
		return wrong
	}
}

// Basic returns the header field of credentials, user:password.
func Basic(credentials string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(credentials))
}

// matches reports whether a path has the pattern, and sets the values of the request's path.
func matches(r *http.Request, pattern, path []string) bool {
	if len(pattern) != len(path) {
		return false
	}
	for i, element := range pattern {
		if name, ok := strings.CutPrefix(element, "{"); ok {
			r.SetPathValue(strings.TrimSuffix(name, "}"), path[i])
		} else if element != path[i] {
			return false
		}
	}
	return true
}

// Serve answers a request to a route that sends no mail.
func (p *Provider) Serve(r *http.Request, route *Route) Answer {
	if status := p.Unauthorized(r); status != 0 && route.Access != Open {
		return p.Say(status)
	}
	if route.Access == UsesLogs && p.Options.NoLogs || route.Access == UsesLists && p.Options.NoLists {
		return p.Say(http.StatusForbidden)
	}
	if now := time.Now(); route.Access > Open {
		if reset, ok := p.lookups.allow(p.Options.LookupsPerSecond, now); !ok {
			return p.Refused(Condition{Kind: LookedUpTooOften, RetryAfter: reset.Sub(now)})
		}
	}
	if route.Static != "" {
		return p.Static(route.Static)
	}
	return route.Answer(r)
}
