package api

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/audit"
	"github.com/safedelivr/safedelivr/service/mail"
)

// TestPauseOwnUser: users may pause and resume only themselves, and cannot end a pause that an
// operator commanded or confirmed.
func TestPauseOwnUser(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	op := f.operator()
	post := func(path string) *reply {
		return f.do(http.MethodPost, path, "application/json", strings.NewReader(`{}`), "Authorization", "Bearer "+f.foreign)
	}
	changed := func(r *reply) bool {
		require.Equal(t, http.StatusOK, r.Status, "%s", r.Body)
		var v client.ControlResult
		require.NoError(t, json.Unmarshal(r.Body, &v))
		return v.Changed
	}
	require.False(t, changed(post("/v1/users/bob/resume")), "the user is not paused")
	require.True(t, changed(post("/v1/users/bob/pause")))
	require.False(t, changed(post("/v1/users/"+f.other+"/pause")))
	require.True(t, changed(post("/v1/users/bob/resume")))
	require.True(t, changed(post("/v1/users/bob/pause")))

	confirmed := postCommand[client.ControlResult](op, "/v1/users/bob/pause", `{"why": "spam"}`)
	require.True(t, confirmed.Changed, "an operator confirms the pause")
	require.False(t, changed(post("/v1/users/bob/pause")))
	require.Equal(t, "paused_by_operator", post("/v1/users/bob/resume").problem(t).Code)
	require.True(t, postCommand[client.ControlResult](op, "/v1/users/bob/resume", ``).Changed)
	for _, path := range []string{"/v1/users/ann/pause", "/v1/users/" + f.user + "/resume", "/v1/users/eve/pause"} {
		require.Equal(t, "scope_missing", post(path).problem(t).Code, "the answer does not reveal whether the user exists")
	}
}

// refused gives a command that is refused and returns the problem.
func (f *fixture) refused(path, body string) problemDetails {
	f.Helper()
	return f.do(http.MethodPost, path, "application/json", strings.NewReader(body)).problem(f)
}

// TestOperatorCommands: commands about users and providers take effect once and are in the
// audit trail.
func TestOperatorCommands(t *testing.T) {
	t.Parallel()
	f := newFixture(t).operator()
	require.Equal(
		t,
		client.ControlResult{Name: "bob", Command: string(models.PauseUser), Changed: true},
		postCommand[client.ControlResult](f, "/v1/users/bob/pause", `{"why": "spam"}`),
	)
	require.False(t, postCommand[client.ControlResult](f, "/v1/users/"+f.other+"/pause", ``).Changed)
	require.True(t, postCommand[client.ControlResult](f, "/v1/users/bob/resume", ``).Changed)
	require.Equal(t, "not_found", f.do(http.MethodPost, "/v1/users/eve/pause", "", nil).problem(t).Code)
	require.True(t, postCommand[client.ControlResult](f, "/v1/providers/sg/offline", ``).Changed)
	require.False(t, postCommand[client.ControlResult](f, "/v1/providers/sg/offline", ``).Changed)
	require.Equal(t, "provider_offline", f.do(http.MethodPost, "/v1/providers/sg/probe", "", nil).problem(t).Code)
	require.True(t, postCommand[client.ControlResult](f, "/v1/providers/sg/drain", ``).Changed)
	require.True(t, postCommand[client.ControlResult](f, "/v1/providers/sg/online", ``).Changed)
	require.False(t, postCommand[client.ControlResult](f, "/v1/providers/mg/online", ``).Changed, "already online")
	require.Equal(t, "not_found", f.do(http.MethodPost, "/v1/providers/xx/offline", "", nil).problem(t).Code)
	require.Equal(
		t,
		client.ControlResult{Name: "sg", Command: string(models.ProviderProbe), Changed: true},
		postCommand[client.ControlResult](f, "/v1/providers/sg/probe", `{"why": "new key"}`),
	)
	again := postCommand[client.ControlResult](f, "/v1/providers/sg/probe", ``)
	require.True(t, again.Changed, "a probe always has an effect")
	require.Equal(t, "not_found", f.do(http.MethodPost, "/v1/providers/xx/probe", "", nil).problem(t).Code)

	want := []string{
		"user.pause spam",
		"user.resume",
		"provider.offline",
		"provider.drain",
		"provider.online",
		"provider.probe new key",
		"provider.probe",
	}
	require.Equal(t, want, f.commands())
	var got []string
	for cursor := ""; ; {
		page := read[audit.Page](f, "/v1/audit?limit=3"+after(cursor))
		for _, e := range page.Commands {
			got = append([]string{strings.TrimSpace(string(e.Command) + " " + e.Why)}, got...)
		}
		if cursor = page.Next; cursor == "" {
			break
		}
		require.Len(t, page.Commands, 3)
	}
	require.Equal(t, want, got, "pages are in order, newest first")
	p := f.refused("/v1/users/bob/pause", `{"why": "`+strings.Repeat("x", 501)+`"}`)
	require.Equal(t, []string{"/why too_long"}, p.pointers())
}

// TestBlockRules: a block rule is checked, added once and removed once.
func TestBlockRules(t *testing.T) {
	t.Parallel()
	f := newFixture(t).operator()
	p := f.refused("/v1/blocks", `{"provider": "xx", "user": "eve", "sender": "x", "domain": "a b"}`)
	require.Equal(
		t,
		[]string{"/provider unknown_provider", "/user invalid_value", "/sender invalid_address", "/domain invalid_value"},
		p.pointers(),
	)
	p = f.refused("/v1/blocks", `{"fail": true}`)
	require.Equal(t, []string{" required"}, p.pointers())
	one := postCommand[models.Block](
		f,
		"/v1/blocks",
		`{"user": "bob", "sender": "@Bücher.example", "domain": "EXAMPLE.com", "fail": true, "why": "phishing"}`,
	)
	require.Equal(
		t,
		[]any{f.other, "@xn--bcher-kva.example", "example.com", true, "phishing", f.user},
		[]any{one.User, one.Sender, one.Domain, one.Fail, one.Why, one.By},
	)
	require.Equal(
		t,
		one,
		postCommand[models.Block](
			f,
			"/v1/blocks",
			`{"user": "bob", "sender": "@bücher.example", "domain": "example.com", "fail": true}`,
		),
		"the rule exists",
	)
	type list struct{ Blocks []models.Block }
	require.Equal(t, []models.Block{one}, read[list](f, "/v1/blocks").Blocks)
	require.Equal(t, http.StatusOK, f.do(http.MethodDelete, "/v1/blocks/"+one.ID+"?why=over", "", nil).Status)
	require.Equal(
		t,
		http.StatusOK,
		f.do(http.MethodDelete, "/v1/blocks/"+one.ID, "", nil).Status,
		"removed before",
	)
	require.Equal(t, http.StatusNotFound, f.do(http.MethodDelete, "/v1/blocks/nothing", "", nil).Status)
	require.Empty(t, read[list](f, "/v1/blocks").Blocks)
	require.Equal(t, []string{"block.add phishing", "block.remove over"}, f.commands())
}

// TestHolds: the hold after a restore is listed until it is lifted.
func TestHolds(t *testing.T) {
	t.Parallel()
	f := newFixture(t).operator()
	type holds struct{ Holds []client.RestoreHold }
	require.Contains(t, string(f.get("/v1/holds").Body), `"holds":[]`)
	b := f.four()
	require.NoError(t, f.serve(Config{}).Operate.HoldOld(t.Context(), service.Caller{By: "cli:zoe", Operator: true},
		"restored"))
	list := read[holds](f, "/v1/holds").Holds
	require.Len(t, list, 1)
	require.Equal(t, []any{"cli:zoe", "restored"}, []any{list[0].By, list[0].Why})
	require.True(t, list[0].Before.After(b.Created()))
	require.Equal(t, models.WaitRestore, read[mail.BatchView](f, batchPath(b.ID)).Waits.Code)
	require.Equal(
		t,
		client.LiftResult{Command: string(models.LiftHolds), Changed: true},
		postCommand[client.LiftResult](f, "/v1/holds/lift", `{"why": "looked at"}`),
	)
	require.False(t, postCommand[client.LiftResult](f, "/v1/holds/lift", ``).Changed, "nothing is held")
	require.Empty(t, read[holds](f, "/v1/holds").Holds)
	require.Equal(t, []string{"hold.add restored", "hold.lift looked at"}, f.commands())
}
