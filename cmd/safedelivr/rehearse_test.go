package main

import (
	"context"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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

// TestFate tells mail that was sent twice from mail that one provider took and could
// not deliver, so that another tried.
func TestFate(t *testing.T) {
	for outcomes, doubled := range map[string]bool{
		"": false, "deliver": false, "blocked deliver": false, "async deliver": false, "async async": false, "blocked hardbounce": false,
		"deliver deliver": true, "deliver silent": true, "deliver blocked open": true, "hardbounce hardbounce": true, "hardbounce deliver": true,
	} {
		var f fate
		for o := range strings.FieldsSeq(outcomes) {
			f.add(simulator.Copy{Outcome: o})
		}
		require.Equal(t, doubled, f.doubled(), outcomes)
	}
	var f fate
	f.add(simulator.Copy{Outcome: "deliver", Swallowed: true})
	require.True(t, f.lost())
	f.add(simulator.Copy{Outcome: "deliver"})
	require.True(t, f.doubled(), "nobody knew that the first was swallowed")
	require.False(t, f.lost())
}
