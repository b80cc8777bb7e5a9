package dashboard

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/endpoint"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/commands"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/operation"
)

// notCarriedOut are the other forms, and why they carry out no operation.
var notCarriedOut = map[string]string{
	"POST /theme":        "the browser keeps it",
	"POST /everyone":     "the browser keeps it",
	"POST /login/link":   "there is no user yet",
	"POST /login/github": "there is no user yet",
	"POST /logout":       "it ends a session of a browser",
	"POST /settings/account/sessions/{id}/end": "a session of a browser",
	"POST /compose":                  "createBatch is a stream: the form is read into its struct",
	"POST /compose/preview":          "the same fields",
	"POST /compose/columns":          "the same fields",
	"POST /compose/summary":          "the same fields",
	"POST /drafts":                   "drafts belong to the pages",
	"POST /drafts/{id}/delete":       "drafts belong to the pages",
	"POST /templates/{name}/preview": "the fields of the template, which may have mistakes",
	"POST /templates/{name}/values":  "the fields of the template, which may have mistakes",
	"POST /settings/times":           "setDefaults is no entry of the table: the form is read into its struct",
	"POST /batches/{id}/reschedule":  "rescheduleBatch is no entry of the table: the form is read into its struct",
	"POST /selected/{do}":            "commands about many messages exist only on pages",
	"POST /selected/suppress":        "commands about many messages exist only on pages",
}

// notOffered are fields of operations that no form has, and why.
var notOffered = map[string]string{
	"addTemplateVersion languages": "the fields of each language are read into the version",
	"createEndpoint headers":       "they often have passwords; the API and the command line set them",
	"createEndpoint user":          "it is the visitor",
	"endSessions why":              "the button is all of the form",
	"requeueParked why":            "the button is all of the form",
}

// formRig returns a rig with what the pages of forms are about, and names fills that into the paths of routes.
func formRig(t *testing.T) (f *rig, b *browser, names *strings.Replacer) {
	t.Helper()
	f, app := endpointRig(t, http.StatusOK)
	b = f.byLink(login.LocalUser())
	who := service.Caller{User: "local", Operator: true}
	require.NoError(t, f.store.CreateUser(t.Context(), models.User{ID: "ann", Name: "ann", Created: time.Now()}))
	key, _, err := f.service.People.CreateKey(t.Context(), who, "shop", models.KeyOptions{})
	require.NoError(t, err)
	settings := client.EndpointSettings{URL: app}
	ids := map[string]string{}
	for _, owner := range []string{"local", "installation"} {
		for _, state := range []string{client.EndpointStateActive, client.EndpointStateDisabled} {
			e, err := f.service.Endpoints(who).Create(t.Context(), owner, &settings)
			require.NoError(t, err)
			f.attempted(owner, e.ID, endpoint.Attempt{Post: "msg_1"})
			if ids[owner+state] = e.ID; state == client.EndpointStateDisabled {
				_, err = f.service.Endpoints(who).Disable(t.Context(), owner, e.ID, "")
				require.NoError(t, err)
			}
		}
	}
	source := client.TemplateSource{TemplateContent: client.TemplateContent{Subject: "Hi", Text: "Hello"}}
	source.Languages = map[string]client.TemplateContent{"de": {Subject: "Hallo"}}
	_, err = f.service.Templates.Create(t.Context(), "local",
		&client.NewTemplate{Name: "welcome", NewTemplateVersion: client.NewTemplateVersion{TemplateSource: source}})
	require.NoError(t, err)
	_, _, err = f.service.Operate.AddBlock(t.Context(), who, models.Block{Domain: "example.org"}, "", service.Repeat{})
	require.NoError(t, err)
	f.listed("blocks", "ann@example.com")
	later := map[string]string{"deliver_at": time.Now().Add(72 * time.Hour).UTC().Format(time.RFC3339)}
	batch := f.batchOf("local", later, service.Recipient{Email: "ann@example.com"})
	require.NoError(t, f.service.Operate.HoldOld(t.Context(), who, "restored"))
	return f, b, strings.NewReplacer(
		"installation/endpoints/{id}/enable", "installation/endpoints/"+ids["installationdisabled"],
		"installation/endpoints/{id}", "installation/endpoints/"+ids["installationactive"],
		"/endpoints/{id}/enable", "/endpoints/"+ids["localdisabled"],
		"/endpoints/{id}", "/endpoints/"+ids["localactive"], "{key}", key.ID, "/users/{id}/keys", "/users/local/keys",
		"/users/{id}", "/users/ann", "/logs/{id}", "/logs/"+batch.Log(1).String(), "{list}", "blocks",
		"/batches/{id}/{do}", "/batches/"+batch.String()+"/stop", "/batches/{id}", "/batches/"+batch.String(),
		"/providers/{id}/{do}", "/providers/sg/offline", "/providers/{id}", "/providers/sg",
		"{email}", "ann@example.com", "{name}", "welcome")
}

// submission is what a button of a form sends.
type submission struct {
	to     string
	fields url.Values
}

// submissions returns what the buttons of the forms of a page send that are sent to a route.
func submissions(t *testing.T, page, of, route string) (out []submission) {
	t.Helper()
	root, err := html.Parse(strings.NewReader(page))
	require.NoError(t, err)
	to := regexp.MustCompile("^" + regexp.MustCompile(`\{\w+\}`).ReplaceAllString(route, `[^/]+`) + "$")
	for form := range root.Descendants() {
		if form.Data != "form" || attribute(form, "method") != "post" {
			continue
		}
		all, buttons := url.Values{}, []*html.Node(nil)
		for n := range form.Descendants() {
			name := attribute(n, "name")
			switch {
			case n.Data == "button":
				buttons = append(buttons, n)
			case name != "" && slices.Contains([]string{"input", "select", "textarea"}, n.Data):
				all[name] = append(all[name], attribute(n, "value"))
			}
		}
		for _, button := range buttons {
			s := submission{cmp.Or(attribute(button, "formaction"), attribute(form, "action"), of), maps.Clone(all)}
			s.to, _, _ = strings.Cut(s.to, "?")
			if name := attribute(button, "name"); name != "" {
				s.fields.Set(name, attribute(button, "value"))
			}
			if to.MatchString(s.to) && attribute(button, "type") != "button" {
				out = append(out, s)
			}
		}
	}
	return out
}

// fieldsOf returns the mistakes that an error lists.
func fieldsOf(err error) []service.FieldError {
	if e := web.Refused(err); e != nil {
		return e.Fields
	}
	return nil
}

// TestFormsAreRequests: every field of a form that carries out an operation is one of its request, and every field of a
// request is in a form, or has its reason. So has every other form. What the buttons send is read, too.
func TestFormsAreRequests(t *testing.T) {
	t.Parallel()
	f, b, names := formRig(t)
	var posts, known []string
	calls := map[string]web.Call{}
	for _, room := range f.board.rooms {
		for _, routes := range []map[string]web.Handler{room.Open, room.Users, room.Operators} {
			posts = slices.AppendSeq(posts, maps.Keys(routes))
		}
		maps.Copy(calls, room.Calls)
		maps.Copy(calls, room.OperatorCalls)
	}
	posts = slices.DeleteFunc(posts, func(route string) bool { return !strings.HasPrefix(route, "POST ") })
	known = slices.AppendSeq(slices.Collect(maps.Keys(calls)), maps.Keys(notCarriedOut))
	require.ElementsMatch(t, known, posts)
	var all []submission
	said := map[string]string{}  // what pages say was done, by the parameter did
	offered := map[string]bool{} // the fields of operations, and whether a form has them
	for route, c := range calls {
		_, did, _ := strings.Cut(c.To, "?did=")
		require.Equal(t, did == "", c.Done == "", "%s: did=%s: %q", route, did, c.Done)
		require.Equal(t, c.Done, cmp.Or(said[did], c.Done), "%s: did=%s is said twice", route, did)
		said[did] = c.Done
		found := []submission{{fields: url.Values{}}}
		if !strings.Contains(route, "/parked/") { // nothing is parked, and the button is all of the form
			to := strings.TrimPrefix(route, "POST ")
			on, _, _ := strings.Cut(b.pageOf(names.Replace(to)), "#")
			page := b.get(on)
			require.Equal(t, http.StatusOK, page.StatusCode, on)
			found = submissions(t, page.text, on, to)
			require.NotEmpty(t, found, "%s has no form for %s", on, route)
		}
		for _, s := range found {
			o := f.board.web.Operations.Of(&c, cmp.Or(s.fields.Get("do"), path.Base(s.to)))
			require.NotNil(t, o, "%s: there is no operation for %v", route, s)
			err := o.ReadForm(o.New(), s.fields, func(string) string { return "" }, append(c.Own, "once")...)
			require.NoError(t, err, "%s: %s: %+v", route, o.Name, fieldsOf(err))
			if s.fields.Has("file") {
				continue // the file has the fields
			}
			if o.Body() != nil {
				for _, field := range operation.Fields(o.Body()) {
					name := o.Name + " " + field.Name
					offered[name] = offered[name] || s.fields.Has(field.Name)
					require.True(t, s.fields.Has(field.Name) || !field.Required,
						"%s: the form lacks %s, which %s must have", route, field.Name, o.Name)
				}
			}
			if s.to != "" {
				all = append(all, s)
			}
		}
	}
	for field := range notOffered {
		require.Contains(t, offered, field, "there is no such field")
	}
	for field, has := range offered {
		reason := notOffered[field]
		assert.NotEqual(t, has, reason != "", "%s: has a form the field? %t; why not: %q", field, has, reason)
	}
	for _, s := range all { // the handlers name the same fields as their own
		a := f.byLink(login.LocalUser()).post(s.to, s.fields) // a form may end all sessions
		require.NotEqual(t, http.StatusUnauthorized, a.StatusCode, s.to)
		require.NotContains(t, a.text, "There is no field with this name.", s.to)
		if did := a.Request.URL.Query().Get("did"); did != "" {
			require.Contains(t, a.text, `<div class="notice info" role="status">`, "%s: the page does not say it", s.to)
		}
	}
	require.Greater(t, len(all), 40)
}

// refusedBy returns the mistakes of a call of the API with a body.
func (f *rig) refusedBy(name, body string, parts map[string]string) []service.FieldError {
	f.Helper()
	list := service.Operations(f.service)
	o := &list[slices.IndexFunc(list, func(o operation.Operation) bool { return o.Name == name })]
	in := o.New()
	require.NoError(f, o.ReadForm(in, nil, func(name string) string { return parts[name] }))
	require.NoError(f, json.Unmarshal([]byte(body), reflect.ValueOf(in).Elem().FieldByName("Body").Addr().Interface()))
	_, _, err := o.Run(f.Context(), service.Caller{User: "local", Operator: true}, in, service.Repeat{})
	return fieldsOf(err)
}

// entered returns what the inputs with a name have: those that are chosen, if they are boxes.
func entered(t *testing.T, page, name string) (out []string) {
	t.Helper()
	root, err := html.Parse(strings.NewReader(page))
	require.NoError(t, err)
	for n := range root.Descendants() {
		checked := slices.ContainsFunc(n.Attr, func(a html.Attribute) bool { return a.Key == "checked" })
		switch {
		case attribute(n, "name") != name || attribute(n, "type") == "checkbox" && !checked:
		case n.Data == "textarea" && n.FirstChild != nil:
			out = append(out, n.FirstChild.Data)
		default:
			out = append(out, attribute(n, "value"))
		}
	}
	return out
}

// TestMistakesStandBesideFields: a form refuses what its call of the API refuses, with the same text. The text is
// beside the field that the pointer names. The input stays.
func TestMistakesStandBesideFields(t *testing.T) {
	t.Parallel()
	f, b, names := formRig(t)
	user, welcome := map[string]string{"id": "local"}, map[string]string{"name": "welcome"}
	at := func(pointer, code string) service.FieldError { return service.FieldError{Pointer: pointer, Code: code} }
	who := service.Caller{User: "local"}
	times := func(times intake.Times) []service.FieldError {
		_, err := f.service.People.SetDefaults(t.Context(), who, "local", times, "")
		return fieldsOf(err)
	}
	in := f.service.NewIntake(t.Context(), who)
	defer in.Close()
	in.Batch = intake.Batch{From: "no-address", Subject: "s", Text: "t"}
	require.NoError(t, in.Read(intake.Of(service.Recipient{Email: "ann@example.com"})))
	_, _, unsent := f.service.Accept(t.Context(), who, in, service.Repeat{})
	past := intake.Times{DeliverAt: "2020-01-01T09:00:00", TimeZone: "UTC"}
	_, _, late := f.service.Commands.Reschedule(t.Context(), who,
		commands.Reschedule{Batch: path.Base(names.Replace("/batches/{id}")), Times: past}, service.Repeat{})
	for name, c := range map[string]struct {
		to    string
		form  url.Values
		field string // that has the mistake
		want  service.FieldError
		by    []service.FieldError // the mistakes of the API
	}{
		"endpoint": {
			"/endpoints", url.Values{"url": {"example.com"}, "rate": {"7"}}, "url", at("/url", "invalid_value"),
			f.refusedBy("createEndpoint", `{"url": "example.com"}`, nil),
		},
		"limit of an endpoint": {
			"/endpoints", url.Values{"url": {"https://x.example"}, "rate": {"1001"}}, "rate", at("/rate", "invalid_value"),
			f.refusedBy("createEndpoint", `{"url": "https://x.example", "rate": 1001}`, nil),
		},
		"element of a list": {
			"/endpoints", url.Values{"url": {"https://x.example"}, "events": {"nothing", "log.failed"}}, "events",
			at("/events/0", "invalid_value"),
			f.refusedBy("createEndpoint", `{"url": "https://x.example", "events": ["nothing", "log.failed"]}`, nil),
		},
		"key": {
			"/settings/keys", url.Values{"scopes": {"send"}, "networks": {"192.0.2.1 nowhere"}}, "networks",
			at("/networks/1", "invalid_value"),
			f.refusedBy("createKey", `{"scopes": ["send"], "networks": ["192.0.2.1", "nowhere"]}`, user),
		},
		"suppression": {
			"/suppressions", url.Values{"email": {"none"}}, "email", at("/email", "invalid_address"),
			f.refusedBy("addSuppression", `{"email": "none"}`, nil),
		},
		"block rule": {
			"/operations/blocks", url.Values{"domain": {"no domain"}}, "domain", at("/domain", "invalid_value"),
			f.refusedBy("addBlock", `{"domain": "no domain"}`, nil),
		},
		"senders": {
			"/operations/users", url.Values{"do": {"senders"}, "id": {"local"}, "senders": {"@a.example no-address"}},
			"senders",
			at("/senders/1", "invalid_sender"), f.refusedBy("setSenders", `{"senders": ["@a.example", "no-address"]}`, user),
		},
		"reason": {
			"/operations/users", url.Values{"do": {"pause"}, "id": {"local"}, "why": {strings.Repeat("x", 501)}}, "why",
			at("/why", "too_long"), f.refusedBy("pauseUser", `{"why": "`+strings.Repeat("x", 501)+`"}`, user),
		},
		"limits": {
			"/operations/users/local/limits", url.Values{"recipients_per_hour": {"-1"}}, "recipients_per_hour",
			at("/recipients_per_hour", "invalid_value"),
			f.refusedBy("setUserLimits", `{"recipients_per_hour": -1}`, user),
		},
		"template": {
			"/templates/welcome", url.Values{"subject": {"s"}, "html": {"a\n{% if %}"}}, "html",
			at("/html", "invalid_template"),
			f.refusedBy("addTemplateVersion", `{"subject": "s", "html": "a\n{% if %}"}`, welcome),
		},
		"language of a template": {
			"/templates/welcome", url.Values{"subject": {"s"}, "text": {"t"}, "languages/de/text": {"{% if %}"}},
			"languages/de/text", at("/languages/de/text", "invalid_template"),
			f.refusedBy("addTemplateVersion", `{"subject": "s", "text": "t", "languages": {"de": {"text": "{% if %}"}}}`,
				welcome),
		},
		"sending hours": {
			"/settings/times", url.Values{"send_window/from": {"9"}, "send_window/to": {"17:00"}, "time_zone": {"UTC"}},
			"send_window/from", at("/send_window/from", "invalid_value"),
			times(intake.Times{TimeZone: "UTC", Window: &intake.Window{From: "9", To: "17:00"}}),
		},
		"time zone": {
			"/settings/times", url.Values{"time_zone": {"Mars"}}, "time_zone", at("/time_zone", "invalid_value"),
			times(intake.Times{TimeZone: "Mars"}),
		},
		"message": {
			"/compose", url.Values{
				"from": {"no-address"}, "subject": {"s"}, "text": {"t"}, "to": {"ann@example.com"}, "do": {"send"},
			}, "from", at("/from", "invalid_address"), fieldsOf(unsent),
		},
		"time of a batch": {
			"/batches/{id}/reschedule", url.Values{"deliver_at": {past.DeliverAt}, "time_zone": {"UTC"}}, "deliver_at",
			at("/deliver_at", "invalid_value"), fieldsOf(late),
		},
	} {
		require.NotEmpty(t, c.by, name)
		i := slices.IndexFunc(c.by, func(m service.FieldError) bool {
			return m.Pointer == c.want.Pointer && m.Code == c.want.Code
		})
		require.GreaterOrEqual(t, i, 0, "%s: %+v", name, c.by)
		a := b.post(names.Replace(c.to), c.form)
		require.Equal(t, http.StatusUnprocessableEntity, a.StatusCode, name)
		beside := regexp.MustCompile(`id="` + c.field + `-wrong">([^<]*)<`).FindStringSubmatch(a.text)
		require.NotNil(t, beside, "%s: nothing stands beside %s", name, c.field)
		require.Equal(t, c.by[i].Detail, html.UnescapeString(beside[1]), name)
		for field, typed := range c.form {
			if field != "do" {
				require.Subset(t, entered(t, a.text, field), typed[len(typed)-1:], "%s: %s", name, field)
			}
		}
	}
}
