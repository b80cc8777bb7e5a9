package main

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/lab/drill"
)

// TestRehearse requires that the command rehearses what it is asked for, prints the results as JSON and leaves nothing
// behind.
func TestRehearse(t *testing.T) {
	t.Setenv(childMark, "1") // the servers are this program
	rehearse(t, testkit.Embedded())
}

func rehearse(t *testing.T, b testkit.Backend) {
	env := b.Env(t)
	t.Setenv("TMPDIR", t.TempDir())
	var out, said strings.Builder
	args := []string{"rehearse", "--json", "--seed", "7", "--recipients", "400",
		"--only", "provider-down", "--only", "store-gone"}
	code := run(context.Background(), args, streams{out: &out, err: &said}, env)
	require.Zero(t, code, "%s%s", out.String(), said.String())
	require.Contains(t, said.String(), "SendGrid answers 503")
	var r drill.Report
	require.NoError(t, json.Unmarshal([]byte(out.String()), &r))
	require.True(t, r.Good)
	require.EqualValues(t, 7, r.Seed)
	require.Len(t, r.Results, 2)
	down := r.Results[0]
	require.Equal(t, "provider-down", down.Name)
	require.GreaterOrEqual(t, down.Accepted, 400)
	require.Equal(t, down.Accepted, down.Delivered+down.Failed+down.Held)
	require.Positive(t, down.FirstMail)
	require.Positive(t, down.Normal)
	require.Equal(t, b.Real, r.Results[1].NA == "", "the embedded store cannot be gone")
	left, err := os.ReadDir(os.TempDir())
	require.NoError(t, err)
	require.Empty(t, left)
}

// interrupting collects what is printed, and cancels once that has a text.
type interrupting struct {
	testkit.Output
	at     string
	cancel func()
}

func (i *interrupting) Write(p []byte) (int, error) {
	n, err := i.Output.Write(p)
	if strings.Contains(i.String(), i.at) {
		i.cancel()
	}
	return n, err
}

// TestRehearseInterrupted requires that an interrupted drill ends soon with an error and also removes everything.
func TestRehearseInterrupted(t *testing.T) {
	t.Setenv(childMark, "1")
	t.Setenv("TMPDIR", t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	said := &interrupting{at: "✗", cancel: cancel}
	require.NotZero(t, run(ctx, []string{"rehearse", "--only", "black-hole"}, streams{out: said, err: said}, []string{}))
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
	args := []string{"rehearse", "--only", "store-gone"}
	require.NotZero(t, run(t.Context(), args, streams{out: &none, err: &none}, []string{}))
	require.Contains(t, none.String(), "nothing was rehearsed")
	var out strings.Builder
	require.Zero(t, run(t.Context(), []string{"rehearse", "--list"}, streams{out: &out, err: &out}, []string{}))
	want := drill.List(drill.Options{}).Scenarios
	require.Equal(t, len(want), strings.Count(out.String(), "\n"))
	require.Contains(t, out.String(), "n/a here: the store is part of the process")
	require.Regexp(t, `(?m)^ *endpoint-down `, out.String())
	require.Regexp(t, `(?m)^ *scheduled-through-outage `, out.String())
	var printed strings.Builder
	args = []string{"rehearse", "--list", "--json"}
	require.Zero(t, run(t.Context(), args, streams{out: &printed, err: &printed}, []string{}))
	var list drill.Listing
	require.NoError(t, json.Unmarshal([]byte(printed.String()), &list))
	require.Equal(t, "sqlite", list.Store)
	require.Equal(t, want, list.Scenarios)
	for _, s := range list.Scenarios {
		require.Equal(t, s.Name == "store-gone" || s.Name == "broker-gone", s.NA != "", s.Name)
	}
}
