package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/endpoint"
	"github.com/safedelivr/safedelivr/models/feed"
)

// TestEndpointCommands adds, changes and removes an endpoint. The audit trail has each step, with who took it.
func TestEndpointCommands(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	out, _ := d.run("endpoint add https://example.com/hook --user ada --events log.opened,log.failed --batch " +
		"--rate 5 --at-once 2")
	require.Regexp(t, `(?m)^secret, shown only now: whsec_\S+$`, out)
	id := strings.TrimSuffix(strings.Fields(out)[1], ":")
	e, err := endpoint.In(d.store).Get(t.Context(), "aaaa", id)
	require.NoError(t, err)
	require.Equal(t, []string{client.LogOpened, client.LogFailed}, e.Events)
	require.Equal(t, []int{5, 2}, []int{e.Rate, e.AtOnce})
	out, _ = d.run("endpoint add https://example.com/pair --user ada --signature v1a")
	require.Regexp(t, `(?m)^public key: whpk_\S+$`, out)
	require.NotContains(t, out, "secret")
	out, _ = d.run("endpoint add https://example.com/events --user ada --shape sendgrid --batch")
	require.Regexp(t, `(?m)^public key: MFkw\S+$`, out)
	require.Contains(t, d.fails("endpoint add https://example.com/events --user ada --shape resend --batch"), "one update")
	out, _ = d.run("endpoint add http://127.0.0.1:9/hook --user ada")
	near := strings.TrimSuffix(strings.Fields(out)[1], ":")
	require.Regexp(t, "no answer after [0-9]+ ms: .*may not reach", d.fails("endpoint test --user ada "+near))
	d.run("endpoint remove --user ada " + strings.TrimSuffix(strings.Fields(out)[1], ":"))
	state := endpoint.State{Attempts: []endpoint.Attempt{{Post: "msg_1", Part: endpoint.Part{Batch: true}}}}
	require.NoError(t, endpoint.PutState(t.Context(), d.store, &e, &state, 0))
	d.run("endpoint replay --user ada --post msg_1 " + id)
	e, err = endpoint.In(d.store).Get(t.Context(), "aaaa", id)
	require.NoError(t, err)
	require.Equal(t, []endpoint.Part{{Batch: true}}, e.Again)
	for _, do := range []string{"rotate", "disable", "disable", "enable", "replay", "remove"} {
		d.run("endpoint " + do + " --user ada " + id)
	}
	commands, err := d.store.Commands(t.Context(), 0, 100)
	require.NoError(t, err)
	var done []string
	for _, c := range commands {
		if c.Subject != id {
			continue
		}
		require.Equal(t, []string{"cli:zoe", "aaaa", id}, []string{c.By, c.User, c.Subject})
		done = append(done, string(c.Kind))
	}
	require.Equal(t, []string{"endpoint.create", "endpoint.replay", "endpoint.rotate", "endpoint.disable",
		"endpoint.enable", "endpoint.replay", "endpoint.remove"}, done)
}

// TestInstallationWebhook: operators have endpoints of the installation, and read what is published there.
func TestInstallationWebhook(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	out, _ := d.run("endpoint --installation add https://example.com/hook --format slack --events failover.started")
	id := strings.TrimSuffix(strings.Fields(out)[1], ":")
	e, err := endpoint.In(d.store).Get(t.Context(), feed.Installation, id)
	require.NoError(t, err)
	require.Equal(t, client.FormatSlack, e.Format)
	out, _ = d.run("endpoint --installation add https://example.com/all --everyone --events log.failed")
	e, err = endpoint.In(d.store).Get(t.Context(), feed.Installation, strings.TrimSuffix(strings.Fields(out)[1], ":"))
	require.NoError(t, err)
	require.True(t, e.Everyone)
	out, _ = d.run("endpoint --installation add mailto:ops@example.com --format mail --mail-user ada --mail-from " +
		"a@example.com")
	e, err = endpoint.In(d.store).Get(t.Context(), feed.Installation, strings.TrimSuffix(strings.Fields(out)[1], ":"))
	require.NoError(t, err)
	require.Equal(t, []string{"ada", "a@example.com"}, []string{e.User, e.Sender})
	out, _ = d.run("endpoint list --installation")
	require.Contains(t, out, id)
	out, _ = d.run("endpoint list --user ada")
	require.NotContains(t, out, id)

	require.NoError(t, feed.Announce(t.Context(), d.store, func(*feed.Status) []models.Notice {
		return []models.Notice{{Kind: models.CheckDifference, Count: 3}, {Kind: models.QuotaNear}}
	}))
	out, _ = d.run("updates --installation --events check.difference")
	require.Regexp(t, `^20\S+Z  1  check.difference  3 sums differ from their recount. Run safedelivr check.\n$`, out)
	out, _ = d.run("updates --installation --json")
	require.Equal(t, 2, strings.Count(out, `"type":`))
}
