package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/api"
	"github.com/safedelivr/safedelivr/config"
	"github.com/safedelivr/safedelivr/inproc/inproctest"
	"github.com/safedelivr/safedelivr/internal/app"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/store/memory"
)

// desk runs commands on the API over a store and a broker of its own.
type desk struct {
	*testing.T
	service *service.Service
	api     http.Handler
	store   models.Store
	broker  models.Broker
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	store, broker := memory.Open(t), inproctest.New(t, "sg")
	svc := service.New(service.Deps{Store: store, Broker: broker, Providers: []models.Provider{{Name: "sg"}},
		Lists:  map[string]models.ProviderLists{"sg": &fakeLists{}},
		Config: service.Config{SpoolDir: t.TempDir(), Sole: true}})
	t.Cleanup(svc.Close)
	require.NoError(t, store.CreateUser(t.Context(), models.User{ID: "aaaa", Name: "ada", Created: time.Now().UTC()}))
	return &desk{T: t, service: svc, api: api.New(svc, api.Config{}).Local(), store: store, broker: broker}
}

// run runs a command, which must succeed.
func (d *desk) run(line string) (out, errs string) {
	d.Helper()
	var o, e strings.Builder
	c := &cli{streams: streams{out: &o, err: &e}, args: strings.Fields(line), handler: d.api, by: "zoe"}
	require.Zero(d, c.run(d.Context()), "%s: %s", line, e.String())
	return o.String(), e.String()
}

// fails runs a command, which must fail, and returns what it says.
func (d *desk) fails(line string) string {
	d.Helper()
	var out, errs strings.Builder
	c := &cli{streams: streams{out: &out, err: &errs}, args: strings.Fields(line), handler: d.api, by: "zoe"}
	require.NotZero(d, c.run(d.Context()), line)
	return errs.String()
}

// batch accepts a batch of one mail. fields are names of further fields, each followed by its value.
func (d *desk) batch(fields ...string) models.ID {
	d.Helper()
	in := d.service.NewIntake(d.Context(), service.Caller{User: "aaaa"})
	defer in.Close()
	in.Batch = intake.Batch{From: "a@one.example", Subject: "s", Text: "t"}
	for i := 0; i+1 < len(fields); i += 2 {
		field, _ := in.Batch.Field(fields[i])
		*field.(*string) = fields[i+1]
	}
	require.NoError(d, in.Read(intake.Of(service.Recipient{Email: "x@y.example"})))
	a, _, err := d.service.Accept(d.Context(), service.Caller{User: "aaaa"}, in, service.Repeat{})
	require.NoError(d, err)
	return a.ID
}

// heldBatch accepts a batch of one mail with an unknown outcome.
func (d *desk) heldBatch() models.ID {
	d.Helper()
	id := d.batch()
	require.NoError(d, d.store.Append(d.Context(), id, models.Entry{
		Number:     1,
		Token:      models.NewToken(),
		Kind:       models.Ending,
		At:         time.Now(),
		Recipients: models.SetOf(1),
		Reason:     models.OutcomeUnknown,
	}))
	reasons := map[models.Reason]int64{models.OutcomeUnknown: 1}
	require.NoError(d, d.store.PutSummaries(d.Context(), models.ChunkSummary{
		User:    "aaaa",
		Chunk:   id,
		Summary: models.Summary{Version: 1, Accepted: 1, Failed: 1, Reasons: reasons},
	}))
	return id
}

// TestReleaseWarns requires that every release says that mail may arrive twice, and what it waits for.
func TestReleaseWarns(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	out, errs := d.run("release --from 1h")
	require.Equal(t, "released: 0 recipients of 0 batches\n", out)
	require.Empty(t, errs, "nothing may arrive twice")
	id := d.heldBatch().String()
	out, _ = d.run("release --from 1h --dry-run")
	require.Equal(t, "dry run, nothing was done; to be released: 1 recipient of 1 batch\n", out)
	out, _ = d.run("batch release --dry-run " + id)
	require.Contains(t, out, "dry run, nothing was done; recipients: 1; in flight: 0")
	out, _ = d.run("batch retry --dry-run " + id)
	require.Contains(t, out, "dry run, it would change nothing; recipients: 0")
	out, errs = d.run("release --from 1h")
	require.Equal(t, "released: 1 recipient of 1 batch\n", out)
	require.Contains(t, errs, "may arrive twice")
	out, _ = d.run("batch release " + id)
	require.Contains(t, out, "nothing changed; recipients: 0", "it is released already")
	d.run("batch stop " + id)
	held := d.heldBatch().String()
	for _, line := range []string{"log release " + d.heldBatch().Log(1).String(), "batch release " + held} {
		out, errs = d.run(line)
		require.Contains(t, out, "done; recipients: 1")
		require.Contains(t, errs, "may arrive twice", line)
	}
	d.run("batch stop " + d.heldBatch().String())
	_, errs = d.run("release --from 1h")
	require.Contains(t, errs, "may arrive twice")
	require.Contains(t, errs, "Of 1 of the batches nothing goes out yet")
	_, errs = d.run("batch retry " + id)
	require.Contains(t, errs, "when the batch is resumed")
}

// TestCommandsAreIdempotent requires that a command that is already in effect succeeds and says so.
func TestCommandsAreIdempotent(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	block, _ := d.run("block add --domain example.com")
	m := models.Message{Kind: models.BatchMessage, ID: models.NewBatchID(time.Now()), Lane: models.Bulk}
	require.NoError(t, d.broker.Publish(t.Context(), m, m))
	ctx, cancel := context.WithCancel(t.Context())
	taken := 0
	queue := models.Queue{Kind: models.BatchMessage, Lane: models.Bulk}
	require.NoError(t, d.broker.Subscribe(ctx, queue, 1, func(context.Context, models.Message) models.Disposition {
		if taken++; taken == 2 {
			cancel()
		}
		return models.Park("cannot be read")
	}))
	list, _ := d.run("parked list")
	require.Regexp(t, `(?m)^1 .* cannot be read$`, list)
	for line, want := range map[string]string{
		"block remove " + block: "rule " + strings.TrimSpace(block) + " is removed: mail that waited for it is sent",
		"parked requeue 1":      "message 1 is published again",
		"parked discard 2":      "message 2 is dropped",
	} {
		out, _ := d.run(line)
		require.Equal(t, want+"\n", out)
		out, _ = d.run(line)
		require.Equal(t, want+" (it was so before)\n", out)
	}
	audit, _ := d.run("audit")
	require.Equal(t, 1, strings.Count(audit, "block.remove"))
	require.Equal(t, 1, strings.Count(audit, "parked.requeue"))
}

// TestMissingIsNamed requires that a command names what is missing: an argument, a user, or a key.
func TestMissingIsNamed(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	for line, want := range map[string]string{
		"key revoke":              "USER and KEY missing; usage: safedelivr key revoke USER KEY",
		"key revoke ada":          "KEY missing; usage: safedelivr key revoke USER KEY",
		"key revoke ada k more":   `unexpected argument "more"; usage: safedelivr key revoke USER KEY`,
		"key revoke bob k":        "there is no user bob",
		"key revoke ada k":        "there is no key of ada with the id k",
		"batch stop":              "ID missing; usage: safedelivr batch stop ID",
		"batch stop x --dry-run":  "there is no batch x",
		"log release x --dry-run": "there is no log x",
	} {
		require.Contains(t, d.fails(line), want, line)
	}
}

// TestAuditAll requires that the whole trail can be read, and that a part of it says that there is more.
func TestAuditAll(t *testing.T) {
	t.Parallel()
	const all = 1203
	d := newDesk(t)
	for n := range all {
		require.NoError(t, d.store.AppendCommand(t.Context(), models.Command{
			Number:  n + 1,
			Token:   models.NewToken(),
			At:      time.Now(),
			By:      "cli:zoe",
			Kind:    models.RevokedKey,
			Subject: fmt.Sprintf("key-%d-", n),
		}))
	}
	for line, want := range map[string]int{
		"audit":              50,
		"audit --limit 3":    3,
		"audit --limit 700":  700,
		"audit --limit 5000": all,
		"audit --all":        all,
	} {
		out, errs := d.run(line)
		require.Equal(t, want, strings.Count(out, "key.revoke"), line)
		require.Equal(t, want < all, strings.Contains(errs, "There are more"), line)
		for n := all - want; n < all; n++ {
			require.Contains(t, out, fmt.Sprintf("key-%d-", n))
		}
	}
}

// TestHoldCommands requires that a hold says since when, by whom and why, and is lifted once.
func TestHoldCommands(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	ann := service.Caller{By: "cli:ann", Operator: true}
	require.NoError(t, d.service.Operate.HoldOld(t.Context(), ann, "restored from a backup"))
	out, _ := d.run("hold list")
	require.Regexp(t, `(?m)^20\S+Z +20\S+Z +cli:ann +restored from a backup$`, out)
	out, _ = d.run("hold lift --why checked")
	require.Contains(t, out, "lifted")
	out, _ = d.run("hold lift")
	require.Contains(t, out, "nothing is held")
}

// TestLimitCommands requires that limits are shown, set one by one, and taken back.
func TestLimitCommands(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	out, _ := d.run("user limits ada")
	require.Regexp(t, `requests_per_second +none +default +0 +-\n`, out)
	d.run("user limits ada requests_per_second=7 urgent_recipients_per_hour=5 --why trial")
	out, _ = d.run("user limits ada recipients_per_day=0")
	require.Regexp(t, `requests_per_second +7 +set`, out)
	require.Regexp(t, `urgent_recipients_per_hour +5 +set +0 +20`, out)
	require.Regexp(t, `recipients_per_day +none +set`, out)
	out, _ = d.run("user limits ada --default batches_per_day=9")
	require.Regexp(t, `requests_per_second +none +default`, out)
	require.Regexp(t, `batches_per_day +9 +set +0 +20`, out)
	k, _ := models.NewKey("aaaa", "shop", time.Now())
	require.NoError(t, d.store.CreateKey(t.Context(), k))
	key := " --key " + k.ID
	out, _ = d.run("user limits ada requests_per_second=3" + key)
	require.Regexp(t, `requests_per_second +3 +set`, out)
	require.Regexp(t, `batches_per_day +none +default`, out)
	out, _ = d.run("user limits ada")
	require.Regexp(t, `requests_per_second +none +default`, out, "those of the user stay")
	out, _ = d.run("user limits ada --default" + key)
	require.NotContains(t, out, " set ")
}

// TestUsage requires that a wrong command line says what is wrong, and ends with the code for what is missing or for
// wrong usage.
func TestUsage(t *testing.T) {
	t.Parallel()
	env := testEnv(t)
	for line, want := range map[string]string{
		"help batch":              "",
		"completion bash":         "",
		"batch":                   "",
		"batch frobnicate x":      `unknown command "frobnicate" for "safedelivr batch"; see`,
		"batch shwo x":            `unknown command "shwo" for "safedelivr batch" (did you mean "show"?)`,
		"provider offlin sg":      `(did you mean "offline"?)`,
		"sned":                    `unknown command "sned" for "safedelivr" (did you mean "send"?)`,
		"-c x usr add":            `unknown command`,
		"batch stop x --dryrun":   `unknown flag: --dryrun (did you mean "--dry-run"?)`,
		"batch list --nosuchflag": `unknown flag: --nosuchflag; see safedelivr batch list --help`,
		"batch list --limit 0":    "--limit 0: at least 1",
		"batch list --user eve":   "there is no user eve",
		"batch list":              "",
		"provider list":           "",
		"provider check xx":       "there is no provider xx",
		"log show x":              "there is no log x",
		"send":                    "--from, --to and --subject are needed",
		"send --from a --to b@c.example --subject s": "there is no user: see safedelivr user add",
		"frobnicate":                                `unknown command "frobnicate"`,
		"batch stop":                                "usage: safedelivr batch stop ID",
		"batch stop x":                              "there is no batch x",
		"batch show x":                              "there is no batch x",
		"log release x y":                           "usage: safedelivr log release ID",
		"log release x":                             "there is no log x",
		"user pause eve":                            "there is no user eve",
		"user disable eve":                          "there is no user eve",
		"audit access --kind x":                     "kind must be login, login.failed or key.failed.",
		"user senders eve":                          "there is no user eve",
		"user senders eve --none a@example.com":     "--none takes no addresses",
		"user limits eve":                           "there is no user eve",
		"key list eve":                              "there is no user eve",
		"provider offline xx":                       "there is no provider xx",
		"block remove x":                            "there is no block rule x",
		"block add":                                 "Give at least one of provider, user, sender and domain.",
		"block add --user eve":                      `--user: There is no user "eve".`,
		"parked discard x":                          "there is no parked message x",
		"parked requeue x":                          "there is no parked message x",
		"release":                                   "--from is missing",
		"release --from soon":                       `--from: "soon" is no time`,
		"release --from 24h --to soon":              `--to: "soon" is no time`,
		"release --from 24h --provider xx":          `--provider: No provider is called "xx".`,
		"release --from 24h":                        "",
		"release --from 2026-01-01 --to 2026-01-02": "",
		"audit --limit 0":                           "--limit 0: at least 1",
		"audit --all --limit 3":                     "none of the others can be",
		"audit --all":                               "",
		"parked list --limit 1000":                  "",
		"check --since soon":                        `--since: "soon" is no time`,
	} {
		var out, errs strings.Builder
		code := run(t.Context(), strings.Fields(line), streams{out: &out, err: &errs}, env)
		if want == "" {
			require.Zero(t, code, "%s: %s", line, errs.String())
			continue
		}
		wantCode := exitUsage
		if strings.HasPrefix(want, "there is no ") {
			wantCode = exitMissing
		}
		require.Equal(t, int(wantCode), code, "%s: %s", line, errs.String())
		require.Contains(t, errs.String(), want, line)
		require.NotContains(t, errs.String(), "see errors", line)
		require.Empty(t, out.String(), line)
	}
}

// TestNoDataFolder requires that a command in the wrong folder says so and creates nothing there.
func TestNoDataFolder(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "elsewhere")
	for _, line := range []string{"batch stop x", "audit", "check", "hold list", "user list", "login", "user add ann",
		"key add ann", "migrate", "send --from a@b.example --to c@d.example --subject s"} {
		var out, errs strings.Builder
		env := []string{"SAFEDELIVR_DATA_DIR=" + dir}
		code := run(t.Context(), strings.Fields(line), streams{out: &out, err: &errs}, env)
		require.Equal(t, int(exitUnreachable), code, line)
		require.Contains(
			t,
			errs.String(),
			"there is no data folder "+dir+". To use an installation elsewhere, run this in its "+
				"folder, name its configuration with -c FILE, or its data folder with SAFEDELIVR_DATA_DIR.",
			line,
		)
		require.NoDirExists(t, dir)
	}
}

// TestThroughSocket requires that the audit trail has a command of a server under the name of the person who ran it. A
// login link leads to where the server listens.
func TestThroughSocket(t *testing.T) {
	t.Parallel()
	env := []string{"SAFEDELIVR_DATA_DIR=" + t.TempDir(), "SAFEDELIVR_LISTEN=127.0.0.1:0"}
	cfg, err := config.Load("", env)
	require.NoError(t, err)
	a, err := app.New(t.Context(), &cfg, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- a.Serve(ctx) }()
	command := func(line string) string {
		t.Helper()
		var out strings.Builder
		c := &cli{streams: streams{out: &out, err: io.Discard}, environ: env, args: strings.Fields(line), by: "zoe"}
		require.Zero(t, c.run(t.Context()), line)
		return out.String()
	}
	command("user add ann")
	command("user pause ann --why holidays")
	require.Regexp(t, `cli:zoe +user.pause .*holidays`, command("audit"))
	require.Contains(t, command("login"), "http://"+a.Addr()+"/login/link?secret=")
	require.Contains(t, command("user disable ann --why left"), "ann is disabled: all keys and sessions are refused")
	require.Regexp(t, `(?m)^ann .* disabled,paused +left$`, command("user list"))
	require.Contains(t, command("user enable ann"), "ann is enabled")
	require.Contains(t, command("user end-sessions ann"), "ann has no sessions any more (it was so before)")
	command("key add ann --name shop")
	require.Regexp(t, `(?m) ann +shop .* send,read +never +anywhere$`, command("key list"))
	require.Equal(t, command("key list"), command("key list ann"))
	require.Contains(t, command("audit access"), "ADDRESS")
	stop()
	require.NoError(t, <-served)
}

// TestLoginLinkIsPublic requires that a login link leads to the public address if there is one.
func TestLoginLinkIsPublic(t *testing.T) {
	t.Parallel()
	env := append(testEnv(t), "SAFEDELIVR_PUBLIC_URL=https://mail.example.com")
	var out, errs strings.Builder
	require.Zero(t, run(t.Context(), []string{"login"}, streams{out: &out, err: &errs}, env), errs.String())
	require.Regexp(t, `^https://mail\.example\.com/login/link\?secret=[\w-]{43}\n$`, out.String())
}

// TestBatchShow: the command shows the counts of a batch, and what it waits for until when.
func TestBatchShow(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	id := d.batch()
	out, _ := d.run("batch show " + id.String())
	require.Contains(t, out, ": queued; accepted: 1; queued: 1; sent: 0; delivered: 0; failed: 0; cancelled: 0\n")
	require.Contains(t, out, "waits: waiting to be handed to a provider; no worker is running (no_worker)\n")
	d.run("batch stop " + id.String() + " --why typo")
	out, _ = d.run("batch show " + id.String())
	require.Regexp(t, `waits: stopped by cli:zoe \(batch_stopped\), since 20\S+: "typo"\n`, out)
	d.run("batch resume " + id.String())
	at := time.Now().UTC().Truncate(time.Second)
	require.NoError(t, d.store.Append(t.Context(), id, models.Entry{
		Number:     1,
		Token:      models.NewToken(),
		Kind:       models.Attempt,
		At:         at,
		Recipients: models.SetOf(1),
		Provider:   "sg",
		CallEnds:   at.Add(time.Minute),
	}))
	out, _ = d.run("batch show " + id.String())
	until := at.Add(16 * time.Minute).Format(time.RFC3339)
	require.Contains(t, out, "waits: the outcome at sg is not known yet (evidence), until "+until+"\n")
	out, _ = d.run("batch show " + d.heldBatch().String())
	require.NotContains(t, out, "waits")
}
