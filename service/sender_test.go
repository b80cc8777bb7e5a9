package service

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/inproc/inproctest"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/people"
	"github.com/safedelivr/safedelivr/store/memory"
)

// TestSenders: a user can use only the allowed senders, from the next batch on.
func TestSenders(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	store, broker := memory.Open(t), inproctest.New(t, "sg")
	s := New(
		Deps{Store: store, Broker: broker, Providers: []models.Provider{{Name: "sg"}}, Config: Config{SpoolDir: t.TempDir()}},
	)
	t.Cleanup(s.Close)
	for _, u := range []models.User{{ID: "aaaa", Name: "ada"}, {ID: "gh7", Name: "octo"}} {
		u.Created = time.Now().UTC()
		require.NoError(t, store.CreateUser(ctx, u))
	}
	post := func(user, from string) string {
		in := s.NewIntake(ctx, Caller{User: user})
		defer in.Close()
		in.Batch = intake.Batch{From: from, Subject: "s", Text: "t"}
		require.NoError(t, in.Read(intake.Of(Recipient{Email: "x@y.example"})))
		_, _, err := s.Accept(ctx, Caller{User: user}, in, Repeat{})
		var e *Error
		if errors.As(err, &e) {
			return e.Fields[0].Pointer + " " + e.Fields[0].Code
		}
		require.NoError(t, err)
		return ""
	}
	require.Empty(t, post("aaaa", "any@one.example"))
	require.Equal(t, "/from sender_not_allowed", post("gh7", "any@one.example"), "everyone can log in through GitHub")

	_, _, err := s.People.SetSenders(ctx, Caller{User: "aaaa"}, "octo", []string{"@one.example"}, "", Repeat{})
	require.Error(t, err, "operators only")
	_, _, err = s.People.SetSenders(ctx, operator, "octo", []string{"one.example", "a b@c"}, "", Repeat{})
	var e *Error
	require.ErrorAs(t, err, &e)
	require.Len(t, e.Fields, 2)

	v, _, err := s.People.SetSenders(
		ctx,
		operator,
		"octo",
		[]string{"@One.example", "me@two.example", "@one.example"},
		"asked",
		Repeat{},
	)
	require.NoError(t, err)
	require.Equal(
		t,
		people.AllowedSenders{User: "gh7", Set: true, Senders: []string{"@one.example", "me@two.example"}, Changed: true},
		v,
	)
	require.Empty(t, post("gh7", "Any@ONE.example"))
	require.Empty(t, post("gh7", "me@two.example"))
	require.NotEmpty(t, post("gh7", "you@two.example"))
	require.NotEmpty(t, post("gh7", "me@evilone.example"))

	v, _, err = s.People.SetSenders(
		ctx,
		operator,
		"octo",
		[]string{"@Bücher.example", "<ann@two.example>", "ann@two.example", "me@bücher.example"},
		"",
		Repeat{},
	)
	require.NoError(t, err)
	require.Equal(t, []string{"@xn--bcher-kva.example", "ann@two.example", "me@xn--bcher-kva.example"}, v.Senders)
	require.Empty(t, post("gh7", "shop@bücher.example"), "compared in punycode")
	require.Empty(t, post("gh7", "Ann <ann@two.example>"))
	for _, bad := range []string{"@", "", "@x <ann@two.example>", "Ann <ann@two.example>", "one.example"} {
		_, _, err = s.People.SetSenders(ctx, operator, "octo", []string{bad}, "", Repeat{})
		require.Error(t, err, bad)
	}

	_, _, err = s.People.SetSenders(ctx, operator, "ada", nil, "", Repeat{})
	require.NoError(t, err)
	require.NotEmpty(t, post("aaaa", "any@one.example"), "no sender is allowed")
	got, err := s.People.AllowedSendersOf(ctx, operator, "ada")
	require.NoError(t, err)
	require.True(t, got.Set)
	require.False(t, got.Anyone)
}
