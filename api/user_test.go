package api

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/mail"
	"github.com/safedelivr/safedelivr/service/people"
)

// TestDisableUser: a key of a disabled user is refused with a code that says so, until the
// user is enabled. Its accepted mail goes on.
func TestDisableUser(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	op := f.operator()
	theirs := *f
	theirs.secret = f.foreign
	b := theirs.four()

	r := postCommand[client.ControlResult](op, "/v1/users/bob/disable", `{"why": "left"}`)
	require.Equal(t, client.ControlResult{Name: "bob", Command: string(models.DisableUser), Changed: true}, r)
	require.False(t, postCommand[client.ControlResult](op, "/v1/users/"+f.other+"/disable", ``).Changed)
	for _, path := range []string{"/v1/batches", batchPath(b.ID), "/v1/stats"} {
		answer := theirs.get(path)
		require.Equal(t, http.StatusForbidden, answer.Status)
		require.Equal(t, "user_disabled", answer.problem(t).Code)
	}
	require.Equal(t, http.StatusForbidden, theirs.do(http.MethodPost, "/v1/batches", "application/json", nil).Status)
	require.Equal(t, models.WaitTurn, read[mail.BatchView](op, batchPath(b.ID)).Waits.Code, "accepted mail goes on")
	users := read[client.UserPage](op, "/v1/users").Users
	require.Len(t, users, 2)
	bob := slices.IndexFunc(users, func(u client.User) bool { return u.Name == "bob" })
	require.Equal(t, []any{true, "left", f.user},
		[]any{users[bob].Disabled, users[bob].DisabledWhy, users[bob].DisabledBy})
	require.Equal(t, "own_user", op.refused("/v1/users/ann/disable", ``).Code)

	require.True(t, postCommand[client.ControlResult](op, "/v1/users/bob/enable", ``).Changed)
	require.Equal(t, http.StatusOK, theirs.get("/v1/batches").Status)
	require.Equal(t, []string{"user.disable left", "user.enable"}, f.commands())
}

// TestAddedUsersAreRecorded: the audit trail names who added a user, and who created the user's keys. A key gives no
// scope that it lacks.
func TestAddedUsersAreRecorded(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	op := f.operator()
	post := func(path, body string) int {
		return op.do(http.MethodPost, path, "application/json", strings.NewReader(body)).Status
	}
	require.Equal(t, http.StatusCreated, post("/v1/users", `{"name": "shop"}`))
	require.Equal(t, http.StatusConflict, post("/v1/users", `{"name": "shop"}`))
	require.Equal(t, http.StatusCreated, post("/v1/users/shop/keys", `{"name": "k", "scopes": ["read"]}`))
	require.NotEqual(t, http.StatusCreated, post("/v1/users/shop/keys", `{"name": "k", "scopes": ["operate"]}`))
	require.Equal(t, []string{"user.add", "key.create"}, f.commands())
}

// TestKeysOfOthers: an operator lists the keys of all users and revokes one, which is refused
// then and is in the access log.
func TestKeysOfOthers(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	op := f.operator()
	type list struct{ Keys []client.Key }
	all := read[client.KeyPage](op, "/v1/keys").Keys
	require.Len(t, all, 3)
	theirs := read[list](op, "/v1/users/bob/keys").Keys
	require.Len(t, theirs, 1)
	require.Contains(t, all, theirs[0])
	raw := string(op.get("/v1/keys").Body)
	require.NotContains(t, raw, "hash")
	require.NotContains(t, raw, models.HashSecret(f.foreign))

	path := "/v1/users/bob/keys/" + theirs[0].ID
	require.Equal(t, http.StatusNotFound, op.do(http.MethodDelete, "/v1/users/ann/keys/"+theirs[0].ID, "", nil).Status)
	for range 2 {
		require.Equal(t, http.StatusNoContent, op.do(http.MethodDelete, path+"?why=leaked", "", nil).Status)
	}
	require.Equal(t, []string{"key.revoke leaked"}, f.commands(), "it is recorded once")
	g := *f
	g.secret = f.foreign
	require.Equal(t, "revoked_key", g.get("/v1/batches").problem(t).Code)
	log := read[client.AccessPage](op, "/v1/audit/access?kind=key.failed").Entries
	require.Len(t, log, 1)
	require.Equal(t, []string{"revoked_key", f.other, theirs[0].ID, "127.0.0.1"},
		[]string{log[0].Reason, log[0].User, log[0].Key, log[0].Address})
}

// TestEndOwnSessions: a user may end its own sessions with the scope send, and an operator
// those of all users.
func TestEndOwnSessions(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	require.False(t, postCommand[client.ControlResult](f, "/v1/users/ann/end-sessions", ``).Changed, "there is none")
	require.NoError(t, f.store.PutTransient(t.Context(), people.SessionUseKind(f.other), "s", []byte("x"), 1e12))
	require.Equal(t, "scope_missing", f.do(http.MethodPost, "/v1/users/bob/end-sessions", "", nil).problem(t).Code)
	r := postCommand[client.ControlResult](f.operator(), "/v1/users/bob/end-sessions", `{"why": "lost"}`)
	require.Equal(t, client.ControlResult{Name: "bob", Command: string(models.EndSessions), Changed: true}, r)
	require.Equal(t, []string{"user.end_sessions lost"}, f.commands())
}
