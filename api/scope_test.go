package api

import (
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

// key creates a key of the first user with options.
func (f *fixture) key(o models.KeyOptions) string {
	f.Helper()
	k, secret := models.NewKey(f.user, "with options", time.Now())
	k.KeyOptions = o
	require.NoError(f, f.store.CreateKey(f.Context(), k))
	return secret
}

// operator returns the fixture with a key that may do everything.
func (f *fixture) operator() *fixture {
	g := *f
	g.secret = f.key(models.KeyOptions{Scopes: []models.Scope{models.ScopeSend, models.ScopeRead, models.ScopeOperate}})
	return &g
}

// partsOfPath are the parts of a path that a request names.
var partsOfPath = regexp.MustCompile(`{\w+}`)

// TestScopes: each route refuses keys without its scope.
func TestScopes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.four()
	send := []string{
		"POST /v1/batches",
		"PUT /v1/messages",
		"POST /v1/suppressions/import",
		"PATCH /v1/batches/%s",
		"POST /v1/batches/%s/stop",
		"POST /v1/batches/%s/resume",
		"POST /v1/batches/%s/cancel",
		"POST /v1/batches/%s/try",
		"POST /v1/batches/%s/retry",
		"POST /v1/batches/%s/release",
		"POST /v1/logs/%l/release",
		"POST /v1/release",
	}
	read := []string{
		"GET /v1/suppressions/export",
	}
	operate := []string{
		"POST /v1/users/bob/pause",
		"POST /v1/users/bob/resume",
		"GET /v1/users/bob/defaults",
		"PUT /v1/users/bob/defaults",
		"POST /v1/users/bob/end-sessions",
	}
	ofInstallation := 0 // operations that may be about the endpoints of the installation
	lists := map[models.Scope]*[]string{models.ScopeSend: &send, models.ScopeRead: &read, models.ScopeOperate: &operate}
	for _, o := range service.Operations(f.server.svc) {
		if o.Scope != "" { // otherwise its function checks, and the route is above
			*lists[o.Scope] = append(*lists[o.Scope], partsOfPath.ReplaceAllString(o.Route, "x"))
		}
		for _, p := range o.Parameters() {
			if p.Name == "installation" {
				ofInstallation++
			}
		}
	}
	require.Len(t, f.server.engine.Routes(), len(send)+len(read)+len(operate)+3)
	try := func(secret string, routes []string, refused bool) {
		t.Helper()
		for _, route := range routes {
			method, path := fill(route, b.ID)
			body := `{}`
			if route == "POST /v1/release" {
				body = `{"from": "2026-01-01T00:00:00Z", "to": "2026-01-01T00:00:00Z"}`
			}
			r := f.do(method, path, "application/json", strings.NewReader(body), "Authorization", "Bearer "+secret)
			if refused {
				require.Equal(t, http.StatusForbidden, r.Status, route)
				require.Equal(t, "scope_missing", r.problem(t).Code)
				continue
			}
			require.NotEqual(t, http.StatusForbidden, r.Status, "%s: %s", route, r.Body)
		}
	}
	try(f.secret, operate, true)
	reader := f.key(models.KeyOptions{Scopes: []models.Scope{models.ScopeRead}})
	try(reader, append(send, operate...), true)
	try(reader, read, false)
	sender := f.key(models.KeyOptions{Scopes: []models.Scope{models.ScopeSend}})
	try(sender, append(read, operate...), true)
	require.Empty(t, f.commands())
	try(sender, send, false)
	operator := f.key(models.KeyOptions{Scopes: []models.Scope{models.ScopeOperate}})
	try(operator, operate, false)
	var installation []string
	for _, route := range append(send, read...) {
		if strings.Contains(route, "/endpoints") {
			installation = append(installation, route+"?installation=true")
		}
	}
	require.Len(t, installation, ofInstallation, "the routes with the parameter installation")
	try(f.secret, installation, true)
	try(operator, installation, false)
}

// TestKeyOptions: a key is refused after its expiry and outside its networks.
func TestKeyOptions(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for name, c := range map[string]struct {
		o      models.KeyOptions
		status int
		code   string
	}{
		"expires later":   {models.KeyOptions{Expires: time.Now().Add(time.Hour)}, 200, ""},
		"expired":         {models.KeyOptions{Expires: time.Now().Add(-time.Second)}, 401, "expired_key"},
		"this network":    {models.KeyOptions{Networks: []string{"192.0.2.0/24", "127.0.0.0/8"}}, 200, ""},
		"another network": {models.KeyOptions{Networks: []string{"192.0.2.0/24"}}, 403, "address_not_allowed"},
	} {
		r := f.get("/v1/batches", "Authorization", "Bearer "+f.key(c.o))
		require.Equal(t, c.status, r.Status, name)
		if c.code != "" {
			require.Equal(t, c.code, r.problem(t).Code, name)
		}
	}
}

// TestControlOfOthersMail: only an operator can read and control the batches of other users.
func TestControlOfOthersMail(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	g := *f
	g.secret = f.foreign
	b := g.four()
	for _, verb := range []string{"stop", "resume", "cancel", "try", "retry", "release"} {
		require.Equal(t, http.StatusNotFound, f.do(http.MethodPost, batchPath(b.ID)+"/"+verb, "", nil).Status)
	}
	logPath := "/v1/logs/" + b.ID.Log(1).String()
	require.Equal(t, http.StatusNotFound, f.do(http.MethodPost, logPath+"/release", "", nil).Status)
	require.Empty(t, f.commands())
	require.Equal(t, http.StatusNotFound, f.get(batchPath(b.ID)).Status)
	read := f.operator().get(batchPath(b.ID))
	require.Equal(t, http.StatusOK, read.Status)
	require.Contains(t, string(read.Body), `"user":"`+b.User+`"`, "an operator can read it")
	require.True(t, control(f.operator(), batchPath(b.ID)+"/stop", ``).Changed)
}

// TestOperateKeyNeedsOperator: a key with the scope operate works only while its owner is an
// operator, and expires by default.
func TestOperateKeyNeedsOperator(t *testing.T) {
	t.Parallel()
	var removed atomic.Bool
	f := newFixture(t, func(s *setup) { s.service.Operator = func(models.User) bool { return !removed.Load() } })
	g := *f
	g.secret = f.key(models.KeyOptions{Scopes: []models.Scope{models.ScopeOperate}})
	require.Equal(t, http.StatusOK, g.get("/v1/audit").Status)
	removed.Store(true)
	r := g.get("/v1/audit")
	require.Equal(t, http.StatusForbidden, r.Status)
	require.Equal(t, "owner_not_operator", r.problem(t).Code)
	require.Equal(t, http.StatusOK, f.get("/v1/batches").Status, "other keys work on")

	svc := service.New(f.deps)
	t.Cleanup(svc.Close)
	who := service.Caller{User: "ann", Operator: true}
	for scope, expires := range map[models.Scope]bool{models.ScopeOperate: true, models.ScopeSend: false} {
		k, _, err := svc.People.CreateKey(t.Context(), who, "k", models.KeyOptions{Scopes: []models.Scope{scope}})
		require.NoError(t, err)
		require.Equal(t, expires, !k.Expires.IsZero(), scope)
	}
}
