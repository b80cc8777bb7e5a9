// Package endpoints has the pages of endpoints: those of a user, and those of the installation.
package endpoints

import (
	"embed"
	"fmt"
	"html/template"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/models/endpoint"
	updates "github.com/safedelivr/safedelivr/models/feed"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/endpoints"
)

// views are the templates of this room.
var views = web.NewTemplates(files, template.FuncMap{
	"answer": answerWords,
	"shown":  func(state string) template.HTML { return states[state] },
})

//go:embed *.html
var files embed.FS

// states are the states of an endpoint, as pages show them.
var states = map[string]template.HTML{
	client.EndpointStateActive:   `<span class="state is-delivered">Active</span>`,
	client.EndpointStateFailing:  `<span class="state is-failed">Failing</span>`,
	client.EndpointStateDisabled: `<span class="state is-cancelled">Disabled</span>`,
}

// Pages are the pages of endpoints.
type Pages struct {
	web       *web.Frame
	endpoints func(service.Caller) *endpoints.Endpoints // of a caller
}

// New returns the pages.
func New(frame *web.Frame, of func(service.Caller) *endpoints.Endpoints) *Pages {
	return &Pages{web: frame, endpoints: of}
}

// Routes returns the routes of the pages.
func (p *Pages) Routes() web.Routes {
	return web.Routes{
		Templates: views,
		Entries:   []web.Entry{{Group: web.NavRun, To: "/endpoints", Icon: "bolt", Text: "Endpoints"}},
		Users: map[string]web.Handler{
			"GET /endpoints":      web.Show(p.refused).Page,
			"GET /endpoints/{id}": p.endpoint,
		},
		Operators: map[string]web.Handler{
			"GET /installation/endpoints":      web.Show(p.refused).Page,
			"GET /installation/endpoints/{id}": p.endpoint,
		},
		Calls:         p.calls("/endpoints"),
		OperatorCalls: p.calls("/installation/endpoints"),
	}
}

// calls returns the forms of the endpoints at a path.
func (p *Pages) calls(at string) map[string]web.Call {
	one := at + "/{id}"
	return map[string]web.Call{
		"POST " + at:              {Operation: "createEndpoint", As: as, Then: p.added, Refused: p.refused},
		"POST " + one + "/test":   {Operation: "testEndpoint", As: as, Then: p.tested},
		"POST " + one + "/rotate": {Operation: "rotateEndpoint", As: as, Then: p.rotated},
		"POST " + one + "/enable": {Operation: "enableEndpoint", As: as, To: one + "?did=enable",
			Done: "Posts go on where they were."},
		"POST " + one + "/disable": {Operation: "disableEndpoint", As: as, To: one + "?did=disable",
			Done: "Nothing is posted until you enable the endpoint."},
		"POST " + one + "/replay": {Operation: "replayEndpoint", As: as, To: one + "?did=replay",
			Done: "What was published in the last 24 hours is posted again."},
		"POST " + one + "/repeat": {Operation: "replayEndpoint", As: as, To: one + "?did=repeat",
			Done: "The post is made again."},
		"POST " + one + "/remove": {Operation: "removeEndpoint", As: as, To: at},
	}
}

// endpointsView is the list of a user's endpoints or of the installation's, and the form that adds one.
type endpointsView struct {
	Owned
	List   []client.Endpoint
	Form   *web.Form
	Groups []eventGroup
	// MailGroups are those of everyone's mail, which endpoints of the installation may get.
	MailGroups []eventGroup

	Again bool   // the form was submitted before, and its endpoint exists
	Once  string // of the form: submitting it twice creates one endpoint
}

// Owned says whether a page is about endpoints of the installation, which operators have, or of the visitor.
type Owned struct {
	Installation bool
	Operator     bool // the visitor may see those of the installation
}

// Path is where the endpoints are, or what is below them.
func (o Owned) Path(below ...string) string {
	at := "/endpoints"
	if o.Installation {
		at = "/installation/endpoints"
	}
	return path.Join(append([]string{at}, below...)...)
}

// ownedBy returns whose endpoints a request is about, and says it to operations. Only operators get to those of the
// installation.
func ownedBy(r *http.Request, v *web.Visitor) (o Owned, owner string) {
	o = Owned{Operator: v.Operator, Installation: strings.HasPrefix(r.URL.Path, "/installation/")}
	r.SetPathValue("installation", strconv.FormatBool(o.Installation))
	if o.Installation {
		return o, updates.Installation
	}
	return o, v.User
}

// endpointView is the page of an endpoint.
type endpointView struct {
	Owned
	client.Endpoint
	Attempts []client.EndpointAttempt
	retries  map[string]time.Time    // of posts that are made again, by their IDs
	Test     *client.EndpointTest    // the result of a test post, if one was just made
	Request  *client.EndpointRequest // of the post that was asked for, if any
}

// Next returns when the post of the n-th attempt is made again; zero: it is not known, or a later attempt says it.
func (v *endpointView) Next(n int) time.Time {
	post := v.Attempts[n].Post
	if slices.ContainsFunc(v.Attempts[:n], func(a client.EndpointAttempt) bool { return a.Post == post }) {
		return time.Time{}
	}
	return v.retries[post]
}

// Excerpt returns the beginning of the posted body.
func (v *endpointView) Excerpt() string { return web.Excerpt([]byte(v.Request.Body)) }

// refused shows the endpoints with the form that adds one.
func (p *Pages) refused(w http.ResponseWriter, r *http.Request, v *web.Visitor, status int, form *web.Form) error {
	return p.showEndpoints(w, r, v, status, &endpointsView{Form: form})
}

func (p *Pages) showEndpoints(
	w http.ResponseWriter, r *http.Request, v *web.Visitor, status int, view *endpointsView,
) error {
	o, owner := ownedBy(r, v)
	view.Owned = o
	var err error
	if view.List, err = p.endpoints(v.Caller()).List(r.Context(), owner); err != nil {
		return err
	}
	view.Groups, view.Once = eventGroups(updates.TypesOf(owner)), web.NewSecret()
	if view.Installation {
		view.MailGroups = eventGroups(updates.Types)
	}
	return p.web.Render(w, r, v, status, "endpoints", web.Page{Title: "Endpoints", Data: view})
}

// as says to operations whose endpoints a form is about, and completes the form of an endpoint that gets mail.
func as(r *http.Request, v *web.Visitor, form *web.Form) service.Caller {
	if o, _ := ownedBy(r, v); o.Installation && strings.HasPrefix(form.Text("url"), "mailto:") {
		form.Set("format", client.FormatMail)
		form.Set("user", v.User)
	}
	return v.Caller()
}

// added shows the secret of a new endpoint, once. It does not redirect, because the secret must not be in a URL.
func (p *Pages) added(w http.ResponseWriter, r *http.Request, v *web.Visitor, done *web.Result) error {
	if done.Again {
		return p.showEndpoints(w, r, v, http.StatusOK, &endpointsView{Again: true, Form: &web.Form{}})
	}
	return p.rotated(w, r, v, done)
}

// rotated shows the secret of an endpoint.
func (p *Pages) rotated(w http.ResponseWriter, r *http.Request, v *web.Visitor, done *web.Result) error {
	e := done.Out.(client.Endpoint) //nolint:forcetypeassert // the answer of both operations
	return p.showEndpoint(w, r, v, &endpointView{Endpoint: e})
}

// tested shows the answer to a test post.
func (p *Pages) tested(w http.ResponseWriter, r *http.Request, v *web.Visitor, done *web.Result) error {
	_, owner := ownedBy(r, v)
	e, err := p.endpoints(v.Caller()).Get(r.Context(), owner, r.PathValue("id"))
	if err != nil {
		return err
	}
	result := done.Out.(client.EndpointTest) //nolint:forcetypeassert // its answer
	return p.showEndpoint(w, r, v, &endpointView{Endpoint: e, Test: &result})
}

// endpoint is GET /endpoints/{id}.
func (p *Pages) endpoint(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	_, owner := ownedBy(r, v)
	e, err := p.endpoints(v.Caller()).Get(r.Context(), owner, r.PathValue("id"))
	if err != nil {
		return err
	}
	view := &endpointView{Endpoint: e}
	if post := r.URL.Query().Get("post"); post != "" {
		sent, err := p.endpoints(v.Caller()).Request(r.Context(), owner, e.ID, post)
		if err != nil {
			return err
		}
		view.Request = &sent
	}
	return p.showEndpoint(w, r, v, view)
}

func (p *Pages) showEndpoint(w http.ResponseWriter, r *http.Request, v *web.Visitor, view *endpointView) error {
	o, owner := ownedBy(r, v)
	view.Owned = o
	if view.User != "" {
		view.User = p.web.NameOf(r.Context(), view.User)
	}
	var err error
	if view.Attempts, err = p.endpoints(v.Caller()).Attempts(r.Context(), owner, view.ID); err != nil {
		return err
	}
	if view.retries, err = p.endpoints(v.Caller()).Retries(r.Context(), owner, view.ID); err != nil {
		return err
	}
	return p.web.Render(w, r, v, http.StatusOK, "endpoint", web.Page{Title: view.URL, Data: view})
}

// answerWords says how an endpoint answered a post. text is why there is no answer, if there is none.
func answerWords(status int, text string) string {
	a := endpoint.Attempt{Status: status, Answer: text}
	switch {
	case a.OK():
		return fmt.Sprintf("Accepted (%d)", status)
	case status == 0:
		return strings.TrimSuffix("No answer: "+text, ": ")
	}
	return strings.TrimSuffix(web.Sentence(a.Words()), ".")
}

// eventGroup is a group of types of updates in the form of an endpoint, with a box that chooses all of them.
type eventGroup struct {
	Title string
	Types []updates.Type
}

// All reports whether all types of the group are chosen.
func (g eventGroup) All(form *web.Form) bool {
	return !slices.ContainsFunc(g.Types, func(t updates.Type) bool { return !form.Has("events", string(t)) })
}

// Names returns the types as a list in a form.
func (g eventGroup) Names() string {
	names := make([]string, len(g.Types))
	for i, t := range g.Types {
		names[i] = string(t)
	}
	return strings.Join(names, ",")
}

// eventNoun is a group with the first parts of the names of its types.
type eventNoun struct {
	title string
	nouns []string
}

var eventNouns = []eventNoun{
	{"Messages", []string{"log"}},
	{"Providers", []string{"provider", "failover", "sending", "webhooks"}},
	{"Users", []string{"quota", "complaints"}},
	{"Installation", []string{"acceptance", "broker", "queue", "check", "outcome"}},
	{"Batches, suppression lists and endpoints", []string{"batch", "suppression", "endpoint"}},
}

// eventGroups puts types into groups. A type of no group is in the last one.
func eventGroups(types []updates.Type) (out []eventGroup) {
	of := make([][]updates.Type, len(eventNouns))
	for _, t := range types {
		noun, _, _ := strings.Cut(string(t), ".")
		at := len(eventNouns) - 1
		for i := range eventNouns {
			if slices.Contains(eventNouns[i].nouns, noun) {
				at = i
			}
		}
		of[at] = append(of[at], t)
	}
	for i, list := range of {
		if len(list) > 0 {
			out = append(out, eventGroup{eventNouns[i].title, list})
		}
	}
	return out
}
