package main

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/config"
	"github.com/safedelivr/safedelivr/internal/app"
	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/providers"
)

// simulatedAPI returns the URL of a simulated SendGrid sg and Mailgun mg, whose keys are secret-sg and secret-mg. They
// report no events.
func simulatedAPI(t *testing.T) string {
	t.Helper()
	_, url := simulatedProviders(t, simulator.Options{})
	return url
}

// simulatedProviders returns the providers of simulatedAPI, too.
func simulatedProviders(t *testing.T, o simulator.Options) (sim *simulator.Simulator, url string) {
	t.Helper()
	sim = simulator.New(o)
	t.Cleanup(sim.Close)
	srv := httptest.NewServer(sim)
	t.Cleanup(srv.Close)
	for _, a := range []simulator.Account{
		{Name: "sg", Kind: "sendgrid", Key: "secret-sg", Domain: "example.com"},
		{Name: "mg", Kind: "mailgun", Key: "secret-mg", Domain: "mg.example.com"},
		{Name: "ses", Kind: "ses", Key: "AKIA:secret-ses", Domain: "example.com"},
	} {
		require.NoError(t, sim.AddAccount(a))
	}
	return sim, srv.URL
}

// typed runs a command with input, requires its exit code and returns what it prints.
func typed(t *testing.T, want int, input string, args ...string) (out, errs string) {
	t.Helper()
	var o, e strings.Builder
	c := &cli{
		streams: streams{&o, &e},
		args:    args,
		environ: []string{"SAFEDELIVR_LISTEN=127.0.0.1:0"},
		in:      strings.NewReader(input),
	}
	require.Equal(t, want, c.run(t.Context()), "%v: %s%s", args, o.String(), e.String())
	return o.String(), e.String()
}

// serveFor serves a configuration file until the test ends, and returns where.
func serveFor(t *testing.T, file string) string {
	t.Helper()
	cfg, err := config.Load(file, []string{"SAFEDELIVR_LISTEN=127.0.0.1:0", "SAFEDELIVR_METRICS_LISTEN=off"})
	require.NoError(t, err)
	a, err := app.New(t.Context(), &cfg, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- a.Serve(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-served)
	})
	return "http://" + a.Addr()
}

// TestInitAsks: init asks for what the flags do not say, checks the key, and its files and key can be used. The link
// that serve prints shows the mail of its user.
func TestInitAsks(t *testing.T) {
	t.Parallel()
	folder, api := t.TempDir(), simulatedAPI(t)
	answers := "mialgun\nmailgun\nmg.example.com\nsecret-mg\n" // the first is a typo
	out, errs := typed(t, 0, answers, "init", "--folder", folder, "--base-url", api+"/mg")
	require.Contains(t, errs, `There is no provider "mialgun" (did you mean "mailgun"?).`)
	require.Contains(t, errs, "ok       key: is one of the account")
	require.Contains(t, errs, "ok       domain: mg.example.com is verified")
	require.Contains(t, errs, "Next, in this folder:\n  safedelivr serve")
	require.NotContains(t, out+errs, "secret-mg")
	require.Regexp(t, `^sd_\S+\n$`, out, "only the key is on stdout")
	file := filepath.Join(folder, "safedelivr.yaml")
	base := serveFor(t, file)
	accepted, err := client.New(base, strings.TrimSpace(out)).CreateBatch(t.Context(), client.NewBatch{
		From:    "me@mg.example.com",
		Subject: "s",
		Text:    "t",
		To:      []client.Recipient{{Email: "ann@example.com"}},
	})
	require.NoError(t, err)
	link, _ := typed(t, 0, "", "login", "-c", file)
	require.Contains(t, page(t, strings.TrimSpace(link), "/batches"), accepted.ID)
	_, errs = typed(t, 1, "", "init", "--folder", folder)
	require.Contains(t, errs, "exists already: init makes a first installation and replaces nothing")
}

// page logs in by a link and returns the text of a page.
func page(t *testing.T, link, path string) string {
	t.Helper()
	u, err := url.Parse(link)
	require.NoError(t, err)
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	browser := &http.Client{Jar: jar}
	do := func(method, target string, form url.Values) string {
		r, err := http.NewRequestWithContext(t.Context(), method, target, strings.NewReader(form.Encode()))
		require.NoError(t, err)
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Sec-Fetch-Site", "same-origin")
		resp, err := browser.Do(r)
		require.NoError(t, err)
		defer func() { _ = resp.Body.Close() }()
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, resp.StatusCode, string(text))
		return string(text)
	}
	base := u.Scheme + "://" + u.Host
	do(http.MethodPost, base+"/login/link", u.Query())
	return do(http.MethodGet, base+path, nil)
}

// TestInitRegion: init asks for the region of Amazon SES and both parts of its access key.
func TestInitRegion(t *testing.T) {
	t.Parallel()
	folder, api := t.TempDir(), simulatedAPI(t)
	_, errs := typed(
		t,
		0,
		"us-east-1\nAKIA\nsecret-ses\n",
		"init",
		"--provider",
		"ses",
		"--base-url",
		api+"/ses",
		"--folder",
		folder,
	)
	for _, want := range []string{"Region: ", "Access key ID: ", "Secret access key: ", "may send to everybody",
		"example.com is verified"} {
		require.Contains(t, errs, want)
	}
	raw, err := os.ReadFile(filepath.Join(folder, "safedelivr.yaml"))
	require.NoError(t, err)
	require.Contains(t, string(raw), "region: \"us-east-1\"")
	require.NotContains(t, string(raw), "secret-ses")
	_, errs = typed(t, int(exitUsage), "", "init", "--provider", "ses", "--region", "Frankfurt", "--access-key-id", "AKIA",
		"--topics", "mail", "--key-file", secret(t, "a b"), "--folder", t.TempDir())
	require.Contains(t, errs, "--region: required")
	require.Contains(t, errs, "--topics: must be ARNs")
	require.Contains(t, errs, "--key-file: required")
}

// TestInitRefuses: init writes nothing if the key is refused or the flags are wrong, and goes on if the provider cannot
// be asked.
func TestInitRefuses(t *testing.T) {
	t.Parallel()
	folder, api := t.TempDir(), simulatedAPI(t)
	wrong := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(wrong, []byte("secret\n"), 0o600))
	sg, mg := "init --provider sendgrid ", "init --provider mailgun "
	other := "--domain other.test --base-url " + api + "/mg --key-file " + secret(t, "secret-mg")
	for line, want := range map[string]string{
		"init --provider pigeon": `--provider: "pigeon" must be one of ` +
			strings.Join(providers.Names(), ", "),
		sg + "--base-url " + api + "/sg --key-file " + wrong: "SendGrid refuses the key (401)",
		sg + "--key-file /none":                              "no such file",
		sg + "--user Ann":                                    `"Ann" is not a user name`,
		sg:                                                   "no answer to: API key:",
		sg + "--base-url ftp://x --key-file " + wrong:      "--base-url: must be",
		sg + "--name batch --no-check --key-file " + wrong: "--name",
		mg + "--domain x --key-file " + wrong:              "--domain: must be a name like",
		mg + other:                                         "does not know other.test",
	} {
		code := exitFailed
		if strings.HasPrefix(want, "--") || strings.Contains(want, "user name") {
			code = exitUsage
		}
		_, errs := typed(t, int(code), "", append(strings.Fields(line), "--folder", folder)...)
		require.Contains(t, errs, want, line)
		made, err := os.ReadDir(folder)
		require.NoError(t, err)
		require.Empty(t, made, line)
	}
	_, errs := typed(
		t,
		0,
		"secret-sg\n",
		"init",
		"--provider",
		"sendgrid",
		"--base-url",
		"http://127.0.0.1:1",
		"--folder",
		folder,
	)
	require.Contains(t, errs, "The key was not checked: SendGrid cannot be reached")
}

// TestInitTakesBothKeys: init asks for the second part of a key that has two, or takes it from a file, and writes it to
// a file of its own.
func TestInitTakesBothKeys(t *testing.T) {
	t.Parallel()
	sim, api := simulatedProviders(t, simulator.Options{})
	require.NoError(t, sim.AddAccount(simulator.Account{Name: "mj", Kind: "mailjet", Key: "public:secret-mj"}))
	folder := t.TempDir()
	line := []string{"init", "--provider", "mailjet", "--base-url", api + "/mj", "--folder", folder}
	_, errs := typed(t, 1, "public\nwrong\n", line...)
	require.Contains(t, errs, "Mailjet refuses the key (401)")
	_, errs = typed(t, 2, "public\nse cret\n", line...)
	require.Contains(t, errs, "--secret-key: holds spaces")
	out, errs := typed(t, 0, "public\n", append(line, "--secret-key-file", secret(t, "secret-mj"))...)
	require.Contains(t, errs, "ok       key: may send mail")
	require.NotContains(t, out+errs, "secret-mj")
	text, err := os.ReadFile(filepath.Join(folder, "safedelivr.yaml"))
	require.NoError(t, err)
	require.Regexp(t, `(?m)^    secret_key_file: ".*/mj.secret_key"$`, string(text))
	cfg, err := config.Load(filepath.Join(folder, "safedelivr.yaml"), []string{})
	require.NoError(t, err)
	require.Equal(t, "secret-mj", cfg.Providers["mj"].SecretKey)
}

// secret writes a secret to a file and returns its path.
func secret(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// TestSend: send prints the story of each recipient, step by step with --watch; batch list, batch show and log show
// find it; the shell completes its id.
func TestSend(t *testing.T) {
	t.Parallel()
	folder, api := t.TempDir(), simulatedAPI(t)
	typed(
		t,
		0,
		"secret-sg\n",
		"init",
		"--provider",
		"sendgrid",
		"--base-url",
		api+"/sg",
		"--folder",
		folder,
		"--user",
		"ada",
	)
	file := filepath.Join(folder, "safedelivr.yaml")
	send := strings.Fields(
		"send -c " + file + " --from shop@example.com --to ann@example.com --to bob@example.com --subject Hello",
	)
	out, _ := typed(t, 0, "", send...)
	require.Contains(t, out, "No server is running: the message is stored")
	serveFor(t, file)
	for _, args := range [][]string{send, append(send, "--watch")} {
		out, _ = typed(t, 0, "", args...)
		require.Regexp(t, `^batch \S+ of ada: accepted for 2 recipients\n`, out)
		require.Regexp(
			t,
			`(?s)ann@example.com  delivered.*stored.*attempt 1, through sg.*answered: accepted.*bob@example.com  delivered`,
			out,
		)
	}
	require.Regexp(t, `(?m)^ann@example.com  20\S+Z  accepted and stored$`, out, "--watch shows each step")
	_, errs := typed(t, 2, "", append(send, "--provider", "xx")...)
	require.Contains(t, errs, "xx")
	_, errs = typed(t, 1, "", append(send, "--attach", filepath.Join(folder, "missing.pdf"))...)
	require.Contains(t, errs, "missing.pdf")
	require.NoError(t, os.WriteFile(filepath.Join(folder, "Rechnung März.pdf"), []byte("a file"), 0o600))
	out, _ = typed(t, 0, "", append(send, "--attach", filepath.Join(folder, "Rechnung März.pdf"), "--attach", file)...)
	attached, _ := typed(t, 0, "", "batch", "show", strings.Fields(out)[1], "-c", file)
	require.Contains(t, attached, `attachment: "Rechnung März.pdf"; type: application/pdf; bytes: 6`)
	require.Contains(t, attached, `attachment: "safedelivr.yaml"`)
	people := filepath.Join(folder, "people.csv")
	require.NoError(t, os.WriteFile(people, []byte("Work mail,Town\nann@example.com,Wien\ninvalid,Graz\n"), 0o600))
	rows := []string{"send", "-c", file, "--from", "shop@example.com", "--subject", "From {{city}}", "--file", people,
		"--column", "Work mail=email", "--column", "Town=city"}
	_, errs = typed(t, 2, "", rows...)
	require.Contains(t, errs, `--file: recipient 2: "invalid" is not an email`)
	out, _ = typed(t, 0, "", append(rows, "--permissive")...)
	require.Contains(
		t,
		out,
		"accepted for 1 recipient\n1 recipient left out:\n  row 3, Work mail: \"invalid\" is not an email",
	)
	left, _ := typed(t, 0, "", "batch", "rejected", strings.Fields(out)[1], "-c", file)
	require.Regexp(t, `^index,row,column,pointer,code,detail\n1,3,Work mail,/to/1,invalid_address,`, left)
	left, _ = typed(t, 0, "", "batch", "show", strings.Fields(out)[1], "-c", file)
	require.Contains(t, left, "left out: 1 recipient; see safedelivr batch rejected")
	_, errs = typed(t, 2, "", append(rows, "--column", "None=x")...)
	require.Contains(t, errs, "no column with this heading")

	out, _ = typed(t, 0, "", "send", "-c", file, "--from", "shop@example.com", "--to", "ann@example.com", "--subject", "s",
		"--cc", "Bob <bob@example.com>", "--bcc", "lou@example.com")
	require.Regexp(t, `(?s)accepted for 3 recipients.*ann@example.com \(to\)  delivered.*`+
		`bob@example.com \(cc\)  delivered.*lou@example.com \(bcc\)  delivered`, out)

	plan, _ := typed(t, 0, "", append(send, "--dry-run", "--tag", "spring", "--provider", "sg")...)
	require.Regexp(t, `^nothing was sent; accepted would be 2 recipients, 0 repeated, 0 suppressed; lane urgent, `+
		`expires at 20`, plan)
	require.Contains(t, plan, "\n  2 recipients: sent now: ")

	_, errs = typed(t, 2, "", "send", "-c", file, "--from", "x", "--to", "y", "--subject", "s")
	require.Regexp(t, `(?s)--to: .*--from: `, errs)

	var list string
	require.Eventually(t, func() bool { // sums follow within about a second
		list, _ = typed(t, 0, "", "batch", "list", "-c", file)
		return strings.Count(list, " done ") == 6
	}, time.Minute, 100*time.Millisecond)
	id := strings.Fields(strings.Split(list, "\n")[3])[0]
	require.Regexp(t, id+` +20\S+Z +- +ada +done +2 +0 +0 +2 +0 +0 +Hello`, list)
	show, _ := typed(t, 0, "", "batch", "show", id, "-c", file)
	require.Contains(t, show, `subject: "Hello"; from: shop@example.com; user: ada`)
	require.Regexp(t, `(?m)^\S+ +ann@example.com +delivered +1`, show)
	log := strings.Fields(show[strings.Index(show, "REASON"):])[1]
	story, _ := typed(t, 0, "", "log", "show", log, "-c", file)
	require.Regexp(
		t,
		`(?s)^ann@example.com  delivered.*log `+log+`, subject "Hello"\n.*sg answered: accepted, after \d+ ms`,
		story,
	)
	_, errs = typed(t, 2, "", "batch", "list", "--state", "lost", "-c", file)
	require.Contains(t, errs, "state must be scheduled, queued, sending, sent, done, stopped or cancelled")

	next := time.Now().UTC().AddDate(0, 0, 2).Truncate(time.Second)
	for _, days := range []int{2, 0, 1} {
		at := next.AddDate(0, 0, days).Format(time.RFC3339)
		typed(t, 0, "", "send", "-c", file, "--from", "shop@example.com", "--to", "ann@example.com", "--subject", "at "+at,
			"--deliver-at", at)
	}
	due, _ := typed(t, 0, "", "batch", "list", "--state", "scheduled", "-c", file)
	var want strings.Builder
	for days := range 3 {
		at := next.AddDate(0, 0, days).Format(time.RFC3339)
		want.WriteString(`\n\S+ +\S+ +` + at + ` +ada +scheduled +1 +1 +0 +0 +0 +0 +at ` + at)
	}
	require.Regexp(t, want.String()+`\n$`, due, "next due first")

	for line, want := range map[string]string{
		"batch show ":          id + "\tHello",
		"log show ":            log + "\tann@example.com, Hello",
		"user pause ":          "ada",
		"provider check ":      "sg\tsendgrid",
		"key add ":             "ada",
		"batch list --user ":   "ada",
		"send --provider ":     "sg\tsendgrid",
		"key revoke ada ":      "\tada, init",
		"provider check sg mg": "",
	} {
		out, _ := typed(t, 0, "", append([]string{"__complete", "-c", file}, strings.Split(line, " ")...)...)
		require.Contains(t, out, want, line)
		require.NotContains(t, out, "Error", line)
	}
	typed(t, 0, "", "batch", "stop", id, "-c", file)
	providers, _ := typed(t, 0, "", "provider", "list", "-c", file)
	require.Regexp(t, `(?m)^sg +sendgrid +healthy`, providers)
	typed(t, 0, "", "provider", "offline", "sg", "--why", "maintenance", "-c", file)
	providers, _ = typed(t, 0, "", "provider", "list", "-c", file)
	require.Regexp(t, `(?m)^sg +sendgrid +offline .*maintenance$`, providers)
}

// noRecords is a resolver for domains without records.
type noRecords struct{}

func (noRecords) LookupTXT(_ context.Context, name string) ([]string, error) {
	return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
}

// TestProviderCheck: the check says what is wrong with key, webhooks, domains and DNS, and what to do.
func TestProviderCheck(t *testing.T) {
	t.Parallel()
	url := simulatedAPI(t)
	check := func(want int, more ...string) string {
		t.Helper()
		var out, errs strings.Builder
		c := &cli{
			streams: streams{&out, &errs},
			args:    []string{"provider", "check"},
			environ: append([]string{
				"SAFEDELIVR_PROVIDERS_SG_KIND=sendgrid",
				"SAFEDELIVR_PROVIDERS_SG_API_KEY=secret-sg",
				"SAFEDELIVR_PROVIDERS_SG_EVENTS=none",
				"SAFEDELIVR_PROVIDERS_SG_BASE_URL=" + url + "/sg",
			}, more...),
			resolver: noRecords{},
		}
		require.Equal(t, want, c.run(t.Context()), errs.String())
		require.NotContains(t, out.String(), "secret-sg")
		return out.String()
	}
	out := check(1)
	require.Contains(t, out, "ok       key: may send mail")
	require.Contains(t, out, "ok       domain: example.com is verified")
	require.Contains(t, out, "ok       webhooks: are not used (events: none)")
	require.Contains(t, out, "wrong    SPF: no record at em1.example.com\n           Publish CNAME em1.example.com")
	require.Contains(t, out, "wrong    DKIM: no key at s1._domainkey.example.com")
	require.Contains(t, out, `_dmarc.example.com with the value "v=DMARC1`)
	require.Contains(t, check(1, "SAFEDELIVR_PROVIDERS_SG_API_KEY=x"), "wrong    key: SendGrid refuses the key (401)")
	require.Contains(
		t,
		check(1, "SAFEDELIVR_PROVIDERS_SG_BASE_URL=http://127.0.0.1:1"),
		"unknown  key: SendGrid cannot be reached",
	)
}

// TestHelpIsGrouped: help shows the commands in groups, and none outside of them.
func TestHelpIsGrouped(t *testing.T) {
	t.Parallel()
	out, _ := typed(t, 0, "", "--help")
	require.Regexp(t, `(?s)Run:.*  serve .*Send:.*  send .*Operate:.*  provider .*Repair:.*  check .*`, out)
	require.NotContains(t, out, "Additional Commands")
	require.Contains(t, out, "\n  3  the thing that the command names does not exist\n")
}

// TestVersion: the version comes with commit and platform.
func TestVersion(t *testing.T) {
	t.Parallel()
	out, _ := typed(t, 0, "", "version")
	require.Regexp(t, `^safedelivr \S+ go\S+\ncommit \S+.*\n\w+/\w+\n$`, out)
}

// TestNamesInOutput: lists show names of users in place of their ids.
func TestNamesInOutput(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.run("user pause ada --why holidays")
	d.run("block add --user ada --why trial")
	audit, _ := d.run("audit")
	require.Regexp(t, `user.pause +ada +holidays`, audit)
	require.NotContains(t, audit, "aaaa")
	blocks, _ := d.run("block list")
	require.Regexp(t, ` ada .*trial`, blocks)
	require.NotContains(t, blocks, "aaaa")
}

// TestMistakesAtServe: serve reports all mistakes together, by the names that were typed.
func TestMistakesAtServe(t *testing.T) {
	t.Parallel()
	var out, errs strings.Builder
	c := &cli{streams: streams{&out, &errs}, args: []string{"serve"}, environ: []string{
		"SAFEDELIVR_DATA_DIR=" + t.TempDir(),
		"SAFEDELIVR_LISTEN=127.0.0.1:99999",
		"SAFEDELIVR_PROVIDERS_SG_KIND=sendgrid",
		"SAFEDELIVR_PROVIDERS_SG_APIKEY=k",
	}}
	require.Equal(t, 1, c.run(t.Context()))
	for _, want := range []string{
		"\n  SAFEDELIVR_PROVIDERS_SG_APIKEY: no such setting; did you mean SAFEDELIVR_PROVIDERS_SG_API_KEY?\n",
		"\n  SAFEDELIVR_LISTEN: \"99999\" is not a port: a number from 0 to 65535\n",
		"\n  SAFEDELIVR_PROVIDERS_SG_API_KEY: required",
	} {
		require.Contains(t, errs.String(), want)
	}
}
