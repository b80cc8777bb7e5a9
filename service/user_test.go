package service

import (
	"context"
	"net/netip"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/accesslog"
	"github.com/safedelivr/safedelivr/service/audit"
	"github.com/safedelivr/safedelivr/service/people"
)

var here = netip.MustParseAddr("192.0.2.1")

// otherProcess returns a service over the same store.
func (f *commandRig) otherProcess() *Service {
	s := New(Deps{Store: f.store, Config: Config{SpoolDir: f.TempDir()}})
	f.Cleanup(s.Close)
	return s
}

// code returns the code of an error.
func code(t *testing.T, err error) string {
	t.Helper()
	var e *Error
	require.ErrorAs(t, err, &e)
	return e.Code
}

// TestDisabledUserIsOut: when the command is answered, no process accepts a key or a session
// of the user, and accepted mail goes on. The sessions stay ended.
func TestDisabledUserIsOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newCommandRig(t)
		other := f.otherProcess()
		_, secret, err := f.People.CreateKey(t.Context(), f.who, "shop", models.KeyOptions{})
		require.NoError(t, err)
		batch := f.batch()
		_, err = other.People.Authenticate(t.Context(), secret, here) // it is cached
		require.NoError(t, err)
		session, err := other.People.AdmitSession(t.Context(), "aaaa")
		require.NoError(t, err)

		for _, changed := range []bool{true, false} {
			r, _, err := f.People.Switch(t.Context(), operator, models.DisableUser, "ada", "left", Repeat{})
			require.NoError(t, err)
			require.Equal(t, client.ControlResult{Name: "ada", Command: string(models.DisableUser), Changed: changed}, r)
		}
		_, err = other.People.Authenticate(t.Context(), secret, here)
		require.Equal(t, "user_disabled", code(t, err))
		ended, err := other.People.SessionEnded(t.Context(), "aaaa", session)
		require.NoError(t, err)
		require.True(t, ended)
		_, err = other.People.AdmitSession(t.Context(), "aaaa")
		require.Equal(t, "user_disabled", code(t, err))
		require.NoError(t, f.worker.Sync(t.Context()))
		require.Empty(t, f.worker.Rules().Batch(&models.Batch{ID: batch, User: "aaaa"}).Waits, "accepted mail goes on")
		v, err := f.People.UserView(t.Context(), operator, "aaaa")
		require.NoError(t, err)
		require.Equal(t, []any{true, "boss", "left", false}, []any{v.Disabled, v.DisabledBy, v.DisabledWhy, v.Paused})

		_, _, err = f.People.Switch(t.Context(), operator, models.EnableUser, "ada", "", Repeat{})
		require.NoError(t, err)
		require.NoError(t, other.Audit.Follower.Sync(t.Context()))
		_, err = other.People.Authenticate(t.Context(), secret, here)
		require.NoError(t, err)
		ended, err = other.People.SessionEnded(t.Context(), "aaaa", session)
		require.NoError(t, err)
		require.True(t, ended, "a session does not come back")
		session, err = other.People.AdmitSession(t.Context(), "aaaa")
		require.NoError(t, err)
		ended, err = other.People.SessionEnded(t.Context(), "aaaa", session)
		require.NoError(t, err)
		require.False(t, ended)
	})
}

// TestSwitchUserNeedsOperator: only operators disable users, and not themselves.
func TestSwitchUserNeedsOperator(t *testing.T) {
	t.Parallel()
	f := newCommandRig(t)
	_, _, err := f.People.Switch(t.Context(), f.who, models.DisableUser, "ada", "", Repeat{})
	require.Equal(t, "scope_missing", code(t, err))
	_, _, err = f.People.Switch(t.Context(), Caller{User: "aaaa", Operator: true}, models.DisableUser, "ada", "", Repeat{})
	require.Equal(t, "own_user", code(t, err))
	_, _, err = f.People.Switch(t.Context(), operator, models.DisableUser, "eve", "", Repeat{})
	require.Equal(t, "not_found", code(t, err))
	require.Zero(t, f.Audit.Follower.Rules().UpTo())
}

// TestEndSessions: all sessions of a user end in every process. Without a session nothing is
// recorded. Users may end only their own.
func TestEndSessions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newCommandRig(t)
		other := f.otherProcess()
		r, _, err := f.People.EndSessions(t.Context(), operator, "ada", "", Repeat{})
		require.NoError(t, err)
		require.False(t, r.Changed)
		require.Zero(t, f.Audit.Follower.Rules().UpTo(), "it would change nothing")

		for _, who := range []Caller{f.who, operator} {
			session, err := other.People.AdmitSession(t.Context(), "aaaa")
			require.NoError(t, err)
			for _, kind := range []string{people.SessionKind("aaaa"), people.SessionUseKind("aaaa")} {
				require.NoError(t, f.store.PutTransient(t.Context(), kind, "hash", []byte("x"), time.Hour))
			}
			ended, err := other.People.SessionEnded(t.Context(), "aaaa", session)
			require.NoError(t, err)
			require.False(t, ended)
			r, _, err = f.People.EndSessions(t.Context(), who, "ada", "lost laptop", Repeat{})
			require.NoError(t, err)
			require.True(t, r.Changed)
			ended, err = other.People.SessionEnded(t.Context(), "aaaa", session)
			require.NoError(t, err)
			require.True(t, ended)
			open, err := f.store.Transients(t.Context(), people.SessionKind("aaaa"))
			require.NoError(t, err)
			require.Empty(t, open)
		}
		page, err := f.Audit.Find(t.Context(), operator, audit.Filter{}, Page{})
		require.NoError(t, err)
		require.Len(t, page.Commands, 2)
		require.Equal(t, []any{models.EndSessions, "boss", "lost laptop"},
			[]any{page.Commands[0].Command, page.Commands[0].By, page.Commands[0].Why})

		_, _, err = f.People.EndSessions(t.Context(), Caller{User: "bbbb"}, "ada", "", Repeat{})
		require.Equal(t, "scope_missing", code(t, err))
	})
}

// TestKeysOfAll: operators list and revoke the keys of all users, page by page.
func TestKeysOfAll(t *testing.T) {
	t.Parallel()
	f := newCommandRig(t)
	want := []string{}
	for i := range 4 {
		created := time.Now().UTC().Add(time.Duration(i+1) * time.Second)
		u := models.User{ID: strconv.Itoa(i), Name: "u" + strconv.Itoa(i), Created: created}
		require.NoError(t, f.store.CreateUser(t.Context(), u))
		for range i {
			k, _, err := f.People.CreateKey(t.Context(), Caller{User: u.ID}, "k", models.KeyOptions{})
			require.NoError(t, err)
			want = append(want, u.Name+" "+k.ID)
		}
	}
	for limit := 1; limit <= 7; limit++ {
		got, p := []string{}, Page{Limit: limit}
		for {
			page, err := f.People.AllKeys(t.Context(), operator, p)
			require.NoError(t, err)
			for i := range page.Keys {
				got = append(got, page.Keys[i].UserName+" "+page.Keys[i].ID)
			}
			if p.Cursor = page.Next; p.Cursor == "" {
				break
			}
		}
		require.ElementsMatch(t, want, got)
		names, p := []string{}, Page{Limit: limit}
		for {
			page, err := f.People.ListUsers(t.Context(), operator, p)
			require.NoError(t, err)
			for i := range page.Users {
				names = append(names, page.Users[i].Name)
			}
			if p.Cursor = page.Next; p.Cursor == "" {
				break
			}
		}
		require.Equal(t, []string{"ada", "u0", "u1", "u2", "u3"}, names)
	}
	keys, err := f.People.KeysOf(t.Context(), operator, "u3")
	require.NoError(t, err)
	require.Len(t, keys, 3)
	require.NoError(t, f.People.RevokeKey(t.Context(), operator, "u3", keys[1].ID, "leaked"))
	keys, err = f.People.KeysOf(t.Context(), operator, "3")
	require.NoError(t, err)
	require.False(t, keys[1].Revoked.IsZero())
	page, err := f.Audit.Find(t.Context(), operator, audit.Filter{}, Page{Limit: 1})
	require.NoError(t, err)
	c := page.Commands[0]
	require.Equal(t, []any{models.RevokedKey, "boss", "3", keys[1].ID, "leaked"},
		[]any{c.Command, c.By, c.User, c.Subject, c.Why})

	_, err = f.People.AllKeys(t.Context(), f.who, Page{})
	require.Equal(t, "scope_missing", code(t, err))
	_, err = f.People.KeysOf(t.Context(), f.who, "u3")
	require.Equal(t, "scope_missing", code(t, err))
	require.Equal(t, "scope_missing", code(t, f.People.RevokeKey(t.Context(), f.who, "u3", keys[0].ID, "")))
}

// TestRefusedKeysAreRecorded: each reason is in the access log, without any secret.
func TestRefusedKeysAreRecorded(t *testing.T) {
	t.Parallel()
	f := newCommandRig(t)
	f.People.Operator = func(models.User) bool { return false }
	key := func(o models.KeyOptions) (models.Key, string) {
		k, secret := models.NewKey("aaaa", "k", time.Now())
		k.KeyOptions = o
		require.NoError(t, f.store.CreateKey(t.Context(), k))
		return k, secret
	}
	revoked, revokedSecret := key(models.KeyOptions{})
	require.NoError(t, f.People.RevokeKey(t.Context(), f.who, f.who.User, revoked.ID, ""))
	expired, expiredSecret := key(models.KeyOptions{Expires: time.Now().Add(-time.Hour)})
	elsewhere, elsewhereSecret := key(models.KeyOptions{Networks: []string{"10.0.0.0/8"}})
	former, formerSecret := key(models.KeyOptions{Scopes: []models.Scope{models.ScopeOperate}})
	good, goodSecret := key(models.KeyOptions{})
	_, unknownSecret := models.NewKey("aaaa", "k", time.Now())
	use := func(secret string) { _, _ = f.People.Authenticate(context.Background(), secret, here) }
	secrets := []string{revokedSecret, expiredSecret, elsewhereSecret, formerSecret, unknownSecret, "nonsense", goodSecret}
	for _, secret := range secrets {
		use(secret)
	}
	_, _, err := f.People.Switch(t.Context(), operator, models.DisableUser, "ada", "", Repeat{})
	require.NoError(t, err)
	use(goodSecret)

	page, err := f.People.AccessLog(t.Context(), operator, accesslog.FailedKey, Page{})
	require.NoError(t, err)
	got := map[string]string{}
	for i := range page.Entries {
		e := &page.Entries[i]
		require.Equal(t, "192.0.2.1", e.Address)
		got[e.Reason] = e.User + " " + e.Key + " " + strconv.Itoa(e.Count)
	}
	require.Equal(t, map[string]string{
		"wrong_key":           "  2",
		"revoked_key":         "aaaa " + revoked.ID + " 1",
		"expired_key":         "aaaa " + expired.ID + " 1",
		"address_not_allowed": "aaaa " + elsewhere.ID + " 1",
		"owner_not_operator":  "aaaa " + former.ID + " 1",
		"user_disabled":       "aaaa " + good.ID + " 1",
	}, got)
	raw, err := f.store.Transients(t.Context(), "access."+time.Now().UTC().Format(time.DateOnly))
	require.NoError(t, err)
	for _, entry := range raw {
		for _, secret := range secrets {
			require.NotContains(t, string(entry), secret)
		}
	}
	_, err = f.People.AccessLog(t.Context(), f.who, "", Page{})
	require.Equal(t, "scope_missing", code(t, err))
	_, err = f.People.AccessLog(t.Context(), operator, "x", Page{})
	require.Equal(t, "invalid_query", code(t, err))
}
