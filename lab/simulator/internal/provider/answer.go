package provider

import (
	"encoding/json"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// The content types of answers.
const (
	TypeJSON = "application/json"
	TypeText = "text/plain; charset=utf-8"
	TypeHTML = "text/html"
)

// An Answer is a whole HTTP response. In the tables of a Provider, body and header may have these holes: <domain>,
// <public> (key), <webhook> (URL) and <enabled> (whether there is one) of the account; <status> is the status's text;
// <date> and <seconds> (rounded up) and <reset> (Unix time) say when the next call is allowed.
type Answer struct {
	Status int
	Type   string // content type
	Header map[string]string
	Body   string
}

// JSON returns an answer. Its value must be one that can be marshalled.
func JSON(status int, v any) Answer {
	body, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return Answer{Status: status, Type: TypeJSON, Body: string(body)}
}

// page returns the answer of a proxy.
func page(status int, title string) Answer {
	body := "<html><head><title>" + title + "</title></head><body><h1>" + title + "</h1></body></html>"
	return Answer{Status: status, Type: TypeHTML, Body: body}
}

// otherwise has the conditions whose answers replace missing ones.
var otherwise = map[ConditionKind]ConditionKind{
	LookedUpTooOften: RateUntil, RateUntil: RateLimited, FullUntil: Full,
}

// usual are the answers of conditions and of statuses that most providers have in common.
var (
	usualConditions = map[ConditionKind]Answer{
		HasStatus: {Type: TypeText, Body: "<status>"},
		Garbage:   {Status: 200, Type: TypeHTML, Body: "<html><body>It works!</body></html>"},
	}
	usualStatuses = map[int]Answer{502: page(502, "502 Bad Gateway"), 504: page(504, "504 Gateway Time-out")}
)

// Refused returns the answer to a call under the condition.
func (p *Provider) Refused(c Condition) Answer {
	kind := c.Kind
	if kind == HasStatus && c.Status == http.StatusTooManyRequests {
		kind = RateLimited
	}
	if c.RetryAfter > 0 && (kind == RateLimited || kind == Full) {
		kind++
	}
	a, ok := p.Conditions[kind]
	for ; !ok && otherwise[kind] != 0; a, ok = p.Conditions[kind] {
		kind = otherwise[kind]
	}
	if !ok {
		a = usualConditions[kind]
	}
	if kind == HasStatus {
		a.Status = c.Status
		if known, ok := p.Statuses[c.Status]; ok {
			a = known
		} else if known, ok := usualStatuses[c.Status]; ok {
			a = known
		}
	}
	return p.fill(a, c.RetryAfter)
}

// Say returns the answer of a status.
func (p *Provider) Say(status int) Answer { return p.fill(p.Statuses[status], 0) }

// Static returns an answer of JSON, whose holes it fills.
func (p *Provider) Static(body string) Answer {
	return p.fill(Answer{Status: 200, Type: TypeJSON, Body: body}, 0)
}

// fill fills the holes of an answer. A time that is not given is in a minute of simulated time.
func (p *Provider) fill(a Answer, wait time.Duration) Answer {
	if wait == 0 {
		wait = p.Scale(time.Minute)
	}
	at := time.Now().Add(wait)
	up := at.Add(time.Second - 1).UTC().Truncate(time.Second)
	holes := strings.NewReplacer("<domain>", p.Domain, "<public>", p.PublicKey,
		"<webhook>", p.Webhooks.URL(), "<enabled>", strconv.FormatBool(p.Webhooks.URL() != ""),
		"<status>", http.StatusText(a.Status), "<date>", up.Format(time.RFC1123), "<reset>", strconv.FormatInt(at.Unix(), 10),
		"<seconds>", strconv.Itoa(int(math.Ceil(wait.Seconds()))))
	header := map[string]string{}
	for name, value := range a.Header {
		header[name] = holes.Replace(value)
	}
	a.Body, a.Header = holes.Replace(a.Body), header
	return a
}

// Write sends the answer.
func (p *Provider) Write(w http.ResponseWriter, a Answer) {
	p.writeHeader(w, a, len(a.Body))
	io.WriteString(w, a.Body)
}

func (p *Provider) writeHeader(w http.ResponseWriter, a Answer, size int) {
	h := w.Header()
	for name, value := range p.Header {
		h.Set(name, value)
	}
	if a.Type != "" {
		h.Set("Content-Type", a.Type)
	}
	for name, value := range a.Header {
		h.Set(name, value)
	}
	if a.Status != http.StatusNoContent {
		h.Set("Content-Length", strconv.Itoa(size))
	}
	w.WriteHeader(a.Status)
}

// Truncate sends half of the body that it announces and closes the connection.
func (p *Provider) Truncate(w http.ResponseWriter, a Answer) {
	body := a.Body
	if len(body) < 2 {
		body = "this answer ends in the middle of the body"
	}
	p.writeHeader(w, a, len(body))
	io.WriteString(w, body[:len(body)/2])
	http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}
