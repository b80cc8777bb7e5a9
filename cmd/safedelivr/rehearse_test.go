package main

import (
	"context"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/simulator"
)

// The command rehearses what it is asked for, tells the results as JSON, and
// leaves nothing behind.
func TestRehearse(t *testing.T) {
	t.Setenv(childMark, "1")
	onBackends(t, func(t *testing.T, b backend) {
		env := b.env(t)
		t.Setenv("TMPDIR", t.TempDir())
		var out, said strings.Builder
		code := run(context.Background(), []string{"rehearse", "--json", "--seed", "7", "--recipients", "400", "--only", "provider-down", "--only", "store-gone"},
			streams{out: &out, err: &said}, env)
		require.Zero(t, code, "%s%s", out.String(), said.String())
		require.Contains(t, said.String(), "SendGrid answers 503")
		var r rehearsed
		decode(t, []byte(out.String()), &r)
		require.True(t, r.Good)
		require.EqualValues(t, 7, r.Seed)
		require.Len(t, r.Results, 2)
		down := r.Results[0]
		require.Equal(t, "provider-down", down.Name)
		require.GreaterOrEqual(t, down.Accepted, 400)
		require.Equal(t, down.Accepted, down.Delivered+down.Failed+down.Held)
		require.Positive(t, down.FirstMail)
		require.Positive(t, down.Normal)
		require.Equal(t, b.real, r.Results[1].NA == "", "the embedded store cannot be gone")
		left, err := os.ReadDir(os.TempDir())
		require.NoError(t, err)
		require.Empty(t, left)
	})
}

// Interrupted, it ends soon, not with success, and takes everything away too.
func TestRehearseInterrupted(t *testing.T) {
	t.Setenv(childMark, "1")
	t.Setenv("TMPDIR", t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	said := &output{}
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{"rehearse", "--only", "black-hole"}, streams{out: said, err: said}, []string{})
	}()
	require.Eventually(t, func() bool { return strings.Contains(said.String(), "✗") }, patience, 10*time.Millisecond)
	cancel()
	require.NotZero(t, <-ended)
	require.Contains(t, said.String(), "context canceled")
	left, err := os.ReadDir(os.TempDir())
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestRehearseMistakes(t *testing.T) {
	for _, args := range [][]string{{"--only", "nonsense"}, {"--recipients", "1"}, {"--parallel", "0"}} {
		var out strings.Builder
		require.NotZero(t, run(t.Context(), append([]string{"rehearse"}, args...), streams{out: &out, err: &out}, []string{}))
		require.Contains(t, out.String(), args[0])
	}
	var none strings.Builder
	require.NotZero(t, run(t.Context(), []string{"rehearse", "--only", "store-gone"}, streams{out: &none, err: &none}, []string{}))
	require.Contains(t, none.String(), "nothing was rehearsed")
	var out strings.Builder
	require.Zero(t, run(t.Context(), []string{"rehearse", "--list"}, streams{out: &out, err: &out}, []string{}))
	require.Equal(t, len(scenarios), strings.Count(out.String(), "\n"))
	require.Contains(t, out.String(), "n/a here: the store is part of the process")
	var told strings.Builder
	require.Zero(t, run(t.Context(), []string{"rehearse", "--list", "--json"}, streams{out: &told, err: &told}, []string{}))
	var list listed
	decode(t, []byte(told.String()), &list)
	require.Equal(t, "sqlite", list.Store)
	require.Len(t, list.Scenarios, len(scenarios))
	for i, s := range list.Scenarios {
		require.Equal(t, scenarios[i].name, s.Name)
		require.Equal(t, scenarios[i].story, s.Story)
		require.Equal(t, s.Name == "store-gone" || s.Name == "broker-gone", s.NA != "", s.Name)
	}
}

// Drills run side by side, and none gets an address that another was given, though
// nobody listens there at the moment.
func TestAddressesAreGivenOnce(t *testing.T) {
	a := &addresses{given: map[string]bool{}}
	for range 300 {
		addr, err := a.next(t.Context())
		require.NoError(t, err)
		l, err := net.Listen("tcp", addr)
		require.NoError(t, err)
		require.NoError(t, l.Close())
	}
	require.Len(t, a.given, 300)
}

// copiesOf reads copies in the order in which they are told, each as
// outcome@provider, with ! if it was swallowed and ? if its webhooks are kept back.
func copiesOf(text string) (out []simulator.Copy) {
	begin := time.Now()
	for word := range strings.FieldsSeq(text) {
		outcome, provider, _ := strings.Cut(strings.TrimRight(word, "!?"), "@")
		out = append(out, simulator.Copy{Outcome: outcome, Account: provider, At: begin.Add(time.Duration(len(out)) * time.Second),
			Swallowed: strings.HasSuffix(word, "!"), Muted: strings.HasSuffix(word, "?")})
	}
	return out
}

// TestFate tells mail that was sent twice from mail that one provider took and is
// known not to have delivered, so that another tried.
func TestFate(t *testing.T) {
	for _, c := range []struct {
		copies        string
		doubled, lost bool
	}{
		{"", false, true},
		{"deliver@sg", false, false},
		{"blocked@sg deliver@mg", false, false},
		{"blocked@sg blocked@mg", false, true},
		{"blocked@sg hardbounce@mg", false, true},
		{"expire@sg open@mg", false, false},
		{"suppressed-bounce@sg deliver@mg", false, false},
		{"blocked@mg? deliver@sg", false, false}, // Mailgun was asked

		{"deliver@sg deliver@mg", true, false},
		{"deliver@sg silent@mg", true, false},
		{"deliver@sg blocked@mg", true, false}, // delivered, and sent again all the same
		{"deliver@sg hardbounce@mg", true, false},
		{"deliver@sg! deliver@mg", true, false}, // nobody knew that the first was swallowed
		{"blocked@sg! deliver@mg", true, false},
		{"blocked@sg? deliver@mg", true, false},
		{"async@sg deliver@mg", true, false},
		{"async@mg async@sg", true, false},
		{"async@sg blocked@mg", true, false},
		{"hardbounce@sg hardbounce@mg", true, true},
		{"hardbounce@sg deliver@mg", true, false},
		{"invalid@sg deliver@mg", true, false},
		{"suppressed-unsub@sg deliver@mg", true, false},
		{"mailboxfull@sg deliver@mg", true, false},
		{"blocked@sg deliver@sg", true, false}, // the same provider again
		{"blocked@sg blocked@mg deliver@sg", true, false},
		{"blocked@sg deliver@mg open@sg", true, false},
	} {
		copies := copiesOf(c.copies)
		for range 2 {
			var f fate
			for _, copy := range copies {
				f.add(copy)
			}
			require.Equal(t, c.doubled, f.doubled(), c.copies)
			require.Equal(t, c.lost, f.lost(), c.copies)
			slices.Reverse(copies) // in whichever order they are counted
		}
	}
}

// TestKnowable tells copies of which it can be known to us what became of them from
// those that a fault hides.
func TestKnowable(t *testing.T) {
	for copies, want := range map[string][2]int{ // final, hidden
		"deliver@sg": {1, 0}, "hardbounce@mg": {1, 0}, "async@mg": {1, 0}, "deliver@sg!": {0, 1}, "deliver@mg!": {0, 1}, "deliver@sg?": {0, 1},
		"deliver@mg?": {1, 0}, "silent@sg": {0, 1}, "silent@mg": {1, 0}, "blocked@sg": {0, 0}, "blocked@sg deliver@mg?": {1, 0},
	} {
		var f fate
		for _, c := range copiesOf(copies) {
			f.add(c)
		}
		require.Equal(t, want, [2]int{f.final, f.hidden}, copies)
	}
}

// TestInDoubt: a log may be held only where what was done in the drill keeps from
// everybody what came of its call.
func TestInDoubt(t *testing.T) {
	answer := func(class models.Class, status int, reason models.Reason) *models.Moment {
		return &models.Moment{What: "answer", Class: class, Status: status, Reason: reason}
	}
	hung, failed := answer(models.Unknown, 0, models.OutcomeUnknown), answer(models.Unknown, http.StatusInternalServerError, models.OutcomeUnknown)
	down, late := answer(models.Unknown, http.StatusServiceUnavailable, models.OutcomeUnknown), answer(models.Unavailable, 0, models.StartByPassed)
	for _, c := range []struct {
		holds  doubts
		in     string
		answer *models.Moment
		want   bool
	}{
		{answersWithheld, "met", hung, true},
		{answersWithheld, "met", failed, true},
		{answersWithheld, "met", down, false}, // 503 says that nothing was taken
		{answersWithheld, "met", answer(models.Accepted, http.StatusAccepted, ""), false},
		{answersWithheld, "", hung, false}, // it was not for a fault of the provider
		{answersWithheld, "killed", nil, false},
		{callsCutOff, "killed", nil, true},
		{callsCutOff, "frozen", hung, true},
		{callsCutOff, "frozen", late, true},
		{callsCutOff, "frozen", nil, false},
		{callsCutOff, "", nil, false},
		{callsCutOff, "", hung, false},
		{callsCutOff, "killed", failed, false},
		{appendsLost, "", nil, true},
		{appendsLost, "", late, true},
		{appendsLost, "", hung, false},
		{eventsWithheld, "killed", nil, false},
	} {
		d := &drill{scenario: &scenario{holds: c.holds}}
		switch c.in {
		case "killed":
			d.killed++
		case "frozen":
			d.woken = append(d.woken, time.Now())
		}
		require.Equal(t, c.want, d.inDoubt(c.answer, c.in == "met"), "%b %s %+v", c.holds, c.in, c.answer)
	}
}
