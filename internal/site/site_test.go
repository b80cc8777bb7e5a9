package main

import (
	"context"
	"fmt"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/lab/simulator"
)

// TestMain runs the tests where the documents are.
func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// TestConfigurationPage: the page has each variable of the code with its values and its default.
func TestConfigurationPage(t *testing.T) {
	raw, err := os.ReadFile(configurationPage)
	require.NoError(t, err)
	want, err := withTables(string(raw))
	require.NoError(t, err)
	require.Equal(t, want, string(raw), "write it with: go run ./internal/site -write")
	for _, row := range []string{
		"| `SAFEDELIVR_LIMITS_RETRIES` | retries per recipient. Mail that all its providers refuse for a temporary reason " +
			"waits beyond that, until it expires | 0 to 1,000 attempts | `10` |",
		"| `SAFEDELIVR_TIMES_EXPIRE_AFTER` | mail that is not sent within this time after acceptance fails as `expired` | " +
			"duration, more than 0 | `168h` |",
		"| more than 0 bytes | `5242880` (5 MiB) |",
		"| `SAFEDELIVR_LOG` | lowest level of the lines of the log | `debug`, `info`, `warn`, `error` | `info` |",
	} {
		require.Contains(t, want, row)
	}
	_, err = withTables(strings.Replace(string(raw), "<!-- settings of times -->", "", 1))
	require.ErrorContains(t, err, "no place for the settings of times")
}

// TestSite: the pages can be built twice into one folder, and their links lead to pages that exist.
func TestSite(t *testing.T) {
	out := t.TempDir()
	for range 2 {
		require.NoError(t, run(out, false))
	}
	s, err := build(".")
	require.NoError(t, err)
	for _, p := range s.pages {
		require.FileExists(t, filepath.Join(out, p.Path))
	}
	index, err := os.ReadFile(filepath.Join(out, "index.html"))
	require.NoError(t, err)
	require.Contains(t, string(index), `href="docs/configuration.html"`)
	require.NotContains(t, string(index), `src="http`, "the pages need no network")
	words, err := os.ReadFile(filepath.Join(out, "index.js"))
	require.NoError(t, err)
	for _, p := range s.pages {
		require.Contains(t, string(words), `"path":"`+p.Path+`"`, "the search finds all pages")
	}
	for _, g := range groups {
		for _, source := range g.pages {
			require.True(t, slices.ContainsFunc(s.pages, func(p *page) bool { return p.Source == source }), source)
		}
	}
}

// TestContentsOfPages: a page with more than two sections begins with links to them all, in their order.
func TestContentsOfPages(t *testing.T) {
	out := t.TempDir()
	require.NoError(t, run(out, false))
	s, err := build(".")
	require.NoError(t, err)
	section := regexp.MustCompile(`<h2 id="([^"]+)">`)
	link := regexp.MustCompile(`<li><a href="#([^"]+)">[^<]+</a></li>`)
	ids := func(re *regexp.Regexp, in string) (out []string) {
		for _, m := range re.FindAllStringSubmatch(in, -1) {
			out = append(out, m[1])
		}
		return out
	}
	long := 0
	for _, p := range s.pages {
		raw, err := os.ReadFile(filepath.Join(out, p.Path))
		require.NoError(t, err)
		_, main, ok := strings.Cut(string(raw), `<main id="main">`)
		require.True(t, ok)
		head, text, ok := strings.Cut(main, "<h1")
		require.True(t, ok, "%s has a title", p.Path)
		sections := ids(section, text)
		if len(sections) <= 2 {
			require.NotContains(t, head, "On this page", p.Path)
			continue
		}
		long++
		require.Contains(t, head, "On this page", p.Path)
		require.Equal(t, sections, ids(link, head), p.Path)
	}
	require.Greater(t, long, 15)
}

// TestBrokenLinks: links to files, pages and headings that do not exist are found.
func TestBrokenLinks(t *testing.T) {
	root := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(root, "docs"), 0o700))
	for name, text := range map[string]string{
		"README.md": "# One\n[a](docs/two.md#part) [b](docs/two.md#none) [c](none.md) [d](#one) [e](http:/x) " +
			"![f](none.png)",
		"docs/two.md": "# Two\n## Part\n[a](../README.md) [b](https://example.com/x)",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(root, name), []byte(text), 0o600))
	}
	s, err := build(root)
	require.NoError(t, err)
	var got []string
	for _, err := range s.broken() {
		got = append(got, err.Error())
	}
	require.Equal(t, []string{
		"README.md: there is no heading #none in docs/two.md",
		"README.md: there is no file none.md",
		`README.md: "http:/x" is no address`,
		"README.md: there is no file none.png",
	}, got)
}

// documents returns the documents with commands.
func documents(t *testing.T) []string {
	t.Helper()
	out := []string{"README.md"}
	for _, pattern := range []string{"docs/*.md", "docs/recipes/*.md"} {
		found, err := filepath.Glob(pattern)
		require.NoError(t, err)
		out = append(out, found...)
	}
	return out
}

// TestCommandsOfDocuments runs the commands of each document, as printed, in bash and in zsh: those of the quick start
// first, unless the document has commands of its own for that. Blocks that are not run say why in the text, and must
// have no mistake in their syntax.
func TestCommandsOfDocuments(t *testing.T) {
	bin := product(t)
	start, err := blocks("README.md")
	require.NoError(t, err)
	ran := 0
	for _, source := range documents(t) {
		all, err := blocks(source)
		require.NoError(t, err)
		for _, b := range all {
			for line := range strings.Lines(b.Text) {
				require.NotRegexp(t, `(^|\s)#`, line, "%s:%d: a zsh that is typed into knows no comments", source, b.Line)
			}
		}
		var script []block
		if source != "README.md" {
			script = append(script, start...)
		}
		script = append(script, all...)
		for _, shell := range []string{"bash", "zsh"} {
			syntax(t, shell, source, all)
			if !hasCommands(all) {
				continue
			}
			ran++
			t.Run(shell+" "+source, func(t *testing.T) {
				t.Parallel()
				runBlocks(t, shell, bin, script, false)
			})
		}
	}
	require.GreaterOrEqual(t, ran, 10)
}

// product builds the program and returns its folder.
func product(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"bash", "zsh", "curl", "openssl"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skip("needs " + name + ": apt-get install " + name)
		}
	}
	bin := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(bin, "product"), "./cmd/safedelivr")
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	return bin
}

func hasCommands(all []block) bool {
	for _, b := range all {
		if b.NotRun == "" {
			return true
		}
	}
	return false
}

// syntax checks blocks without running them.
func syntax(t *testing.T, shell, source string, all []block) {
	t.Helper()
	for _, b := range all {
		cmd := exec.CommandContext(t.Context(), shell, "-n")
		cmd.Stdin = strings.NewReader(b.Text)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s:%d in %s: %s", source, b.Line, shell, out)
	}
}

// runBlocks runs blocks in one shell, which ends at the first command that fails. A block for another terminal
// runs beside, in place of the one before.
//
// If timed is set, the shell is bash, and the file trace has when each command began.
//
// There are stand-ins for things that cannot be reached. The simulator replaces SendGrid, with its key and one domain.
// The program that was built here replaces the one that go install builds, with the key that a person types. Free ports
// replace 8080.
func runBlocks(t *testing.T, shell, bin string, script []block, timed bool) (sim *simulator.Simulator, home string) {
	t.Helper()
	sim = simulator.New(simulator.Options{KeepContent: true})
	t.Cleanup(sim.Close)
	api := httptest.NewServer(sim)
	t.Cleanup(api.Close)
	account := simulator.Account{Name: "sg", Kind: "sendgrid", Key: "SG.your-key", Domain: "example.com"}
	require.NoError(t, sim.AddAccount(account))
	home = t.TempDir()
	port := freePort(t)
	path := filepath.Join(home, "bin")
	require.NoError(t, os.MkdirAll(path, 0o700))
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(home, name), []byte(text), 0o700))
	}
	product := filepath.Join(bin, "product")
	simPort := freePort(t)
	write("bin/safedelivr", "#!/bin/sh\n"+ports(port, simPort)+
		"if [ \"$1\" = init ]; then shift; set -- init --base-url "+api.URL+"/sg \"$@\"\n"+
		"case $* in *--key-file*) ;; *) exec "+product+" \"$@\" <"+home+"/typed ;; esac; fi\n"+
		"exec "+product+" \"$@\"\n")
	write("typed", account.Key+"\n")
	goTool, err := exec.LookPath("go")
	require.NoError(t, err)
	write("bin/go", "#!/bin/sh\ncase \"$1 $2\" in 'install ./cmd/safedelivr') exit 0 ;; esac\nexec "+goTool+" \"$@\"\n")
	write(".curlrc", fmt.Sprintf("connect-to = 127.0.0.1:8080:127.0.0.1:%s\nconnect-to = "+
		"127.0.0.1:8025:127.0.0.1:%s\nfail\n",
		port, simPort))
	env := []string{
		"PATH=" + path + ":" + os.Getenv("PATH"), "HOME=" + home, "CURL_HOME=" + home, "TMPDIR=" + home,
		"SAFEDELIVR_LISTEN=127.0.0.1:" + port, "SAFEDELIVR_METRICS_LISTEN=off",
	}
	var text strings.Builder
	text.WriteString("set -e\ncd " + home + "\n" +
		"stop() { [ -z \"$SERVER\" ] || { kill $SERVER; wait $SERVER || true; }; }\nSERVER=\nSIM=\n" +
		"trap 'stop; [ -z \"$SIM\" ] || kill $SIM' EXIT\n")
	trace, untrace := "", ""
	if timed {
		text.WriteString("exec 9>trace\nBASH_XTRACEFD=9\nPS4='+$EPOCHREALTIME '\n")
		trace, untrace = "set -x\n", endOfTrace+"\n"
	}
	for i, b := range script {
		switch {
		case b.NotRun != "":
		case b.Serves:
			name := fmt.Sprintf("terminal-%d", i)
			program := b.Text[:strings.LastIndex(strings.TrimSpace(b.Text), "\n")+1] +
				"exec " + strings.TrimSpace(lastLine(b.Text)) + "\n"
			before, variable, awaited := "stop\n", "SERVER", port
			if strings.HasPrefix(b.Text, "safedelivr simulator") {
				before, variable, awaited, program = "", "SIM", simPort, "exec "+b.Text
			}
			write(name, program)
			if timed {
				fmt.Fprintf(&text, "printf '+%%s %%s\n' \"$EPOCHREALTIME\" %s >&9\n", quoted([]string{strings.TrimSpace(b.Text)}))
			}
			fmt.Fprintf(&text, "%senv -i %s %s %s/%s >>%[4]s/server.log 2>&1 &\n%[6]s=$!\n%[7]s\n",
				before, quoted(env), shell, home, name, variable, awaitServer(awaited))
		default:
			fmt.Fprintf(&text, "printf '== line %d\\n' >&2\n%s%s%s", b.Line, trace, b.Text, untrace)
		}
	}
	write("script", text.String())
	ctx, cancel := context.WithTimeout(t.Context(), 3*testkit.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, shell, filepath.Join(home, "script"))
	if setsid, err := exec.LookPath("setsid"); shell == "zsh" && err == nil {
		// scripts/stress stops the group of the test. zsh takes a command that was stopped for one that failed, so it has a
		// session of its own.
		cmd = exec.CommandContext(ctx, setsid, shell, filepath.Join(home, "script"))
	}
	cmd.Env, cmd.Dir, cmd.WaitDelay = env, home, 10*time.Second
	out, err := cmd.CombinedOutput()
	log, _ := os.ReadFile(filepath.Join(home, "server.log"))
	require.NoError(t, err, "%s\n%s", out, log)
	return sim, home
}

// endOfTrace is the command after the traced ones.
const endOfTrace = "set +x"

// TestQuickStart: a stranger with an empty home gets from the first line of the quick start to mail at the provider,
// each line as printed. It reports how long each took.
func TestQuickStart(t *testing.T) {
	bin := product(t)
	all, err := blocks("README.md")
	require.NoError(t, err)
	all = slices.DeleteFunc(all, func(b block) bool { return b.Part != "Quick start with one provider" })
	require.GreaterOrEqual(t, len(all), 5)
	sim, home := runBlocks(t, "bash", bin, all, true)
	subjects := map[string]int{}
	sim.EachCopy(func(id string, _ map[string]int) {
		for _, c := range sim.Copies(id) {
			subjects[c.Subject]++
		}
	})
	require.Equal(t, map[string]int{"Your order, Ann": 1, "It works": 1}, subjects, "the mails of the quick start")

	raw, err := os.ReadFile(filepath.Join(home, "trace"))
	require.NoError(t, err)
	traced := regexp.MustCompile(`(?m)^\++(\d+\.\d+) (.*)$`).FindAllStringSubmatch(string(raw), -1)
	total := 0.0
	for i, m := range traced[:len(traced)-1] {
		began, err := strconv.ParseFloat(m[1], 64)
		require.NoError(t, err)
		ended, err := strconv.ParseFloat(traced[i+1][1], 64)
		require.NoError(t, err)
		if m[2] == endOfTrace {
			continue
		}
		total += ended - began
		switch command, _, assigns := strings.Cut(m[2], "="); {
		case assigns && strings.HasPrefix(command, "export "):
			t.Logf("%8.3f s  %s=…", ended-began, command) // the value may be a key
		case !assigns || strings.Contains(command, " "): // the rest of an export
			t.Logf("%8.3f s  %.60s", ended-began, m[2])
		}
	}
	t.Logf("%8.3f s  in all", total)
	require.Less(t, total, 180.0, "README says three minutes")
}

// ports returns commands that replace the ports of the documents by free ones, in arguments and in the configuration.
func ports(server, simulator string) string {
	replace := "sed 's/127.0.0.1:8080/127.0.0.1:" + server + "/g; s/127.0.0.1:8025/127.0.0.1:" + simulator + "/g'"
	return "if [ -f safedelivr.yaml ]; then " + replace + " safedelivr.yaml >.yaml && cat .yaml >safedelivr.yaml; fi\n" +
		"if [ \"$1\" = simulator ]; then set -- \"$@\" --listen 127.0.0.1:" + simulator + "; fi\n" +
		"for word; do shift; set -- \"$@\" \"$(printf %s \"$word\" | " + replace + ")\"; done\n"
}

// lastLine returns the last line of a block, which is the program that the terminal runs.
func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	line := lines[len(lines)-1]
	if assigned, command, ok := strings.Cut(line, " safedelivr"); ok && strings.Contains(assigned, "=") {
		return "env " + assigned + " safedelivr" + command // exec takes no assignments
	}
	return line
}

// awaitServer returns commands that wait until a server answers.
func awaitServer(port string) string {
	return "n=0; until curl -q -sk -o /dev/null http://127.0.0.1:" + port + "/healthz || " +
		"curl -q -sk -o /dev/null https://127.0.0.1:" + port + "/healthz; do n=$((n + 1)); [ $n -lt 2400 ]; sleep 0.1; done"
}

// quoted returns words of a shell.
func quoted(words []string) string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = "'" + w + "'"
	}
	return strings.Join(out, " ")
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	return port
}
