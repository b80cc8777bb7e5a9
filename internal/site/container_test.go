package main

import (
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/lab/simulator"
)

// standIn is a docker that knows the options of README's lines, and no others. It runs the program without a container:
// the folder $VOLUME is the volume, which is at $DATA in the container, and $PORT is the published port.
const standIn = `#!/bin/sh
set -e
fail() { echo "docker: $*" >&2; exit 125; }
here() { sed "s|$DATA|$VOLUME|g"; }
what=$1; shift
env=
case $what in
build) [ "$*" = "-t safedelivr ." ] || fail "build $*"; exit 0 ;;
exec) [ "$1" = mail ] || fail "no container $1"; shift; env=$(cat "$HOME/container.env") ;;
run)
	detach= name=
	ps() { [ -s "$HOME/container.pid" ] && kill -0 "$(cat "$HOME/container.pid")" 2>/dev/null; }
	while [ "$1" != safedelivr ]; do
		case $1 in
		-d) detach=yes ;;
		-i | --rm) ;;
		--name) name=$2; ! ps || fail "the name $name is in use"; shift ;;
		--restart) [ "$2" = unless-stopped ] || fail "$2"; shift ;;
		-v) [ "$2" = "mail:$DATA" ] || fail "volume $2"; shift ;;
		-p) [ "$2" = "127.0.0.1:8080:$EXPOSED" ] || fail "port $2"; shift ;;
		-e) env="$env $(echo "$2" | here)"; shift ;;
		*) fail "unknown option $1" ;;
		esac
		shift
	done
	;;
*) fail "unknown command $what" ;;
esac
shift # the image, or the program, which is the entry point
[ $# -gt 0 ] || set -- $COMMAND
if [ "$1" = init ]; then shift; set -- init --base-url "$API" "$@"; fi
set -- $(echo "$*" | here)
if [ "$what" = run ]; then env="$env $(echo "$IMAGE_ENV" | here | sed "s|:$EXPOSED|127.0.0.1:$PORT|")"; fi
if [ -z "$detach" ]; then exec env -i $env "$PRODUCT" "$@"; fi
echo "$env" >"$HOME/container.env"
env -i $env "$PRODUCT" "$@" >"$HOME/$name.log" 2>&1 &
echo $! >"$HOME/container.pid"
`

// dockerfile returns the words behind an instruction of the last stage of the Dockerfile, without brackets and quotes.
func dockerfile(t *testing.T, instruction string) (words []string) {
	t.Helper()
	raw, err := os.ReadFile("Dockerfile")
	require.NoError(t, err)
	_, last, found := strings.Cut(string(raw), "\nFROM scratch\n")
	require.True(t, found)
	for _, m := range regexp.MustCompile(`(?m)^`+instruction+` (.+)$`).FindAllStringSubmatch(last, -1) {
		words = append(words, strings.FieldsFunc(m[1], func(r rune) bool { return strings.ContainsRune(` ,"[]`, r) })...)
	}
	require.NotEmpty(t, words, instruction)
	return words
}

// TestImage: the image has a user that is not root, whom the folder of the volume belongs to, and the program where it
// is started and found.
func TestImage(t *testing.T) {
	t.Parallel()
	copies := dockerfile(t, "COPY")
	user, volume := dockerfile(t, "USER")[0], dockerfile(t, "VOLUME")[0]
	require.Regexp(t, `^[1-9]\d*:[1-9]\d*$`, user)
	at := func(path string) int {
		for i, word := range copies {
			if word == path {
				return i
			}
		}
		t.Fatalf("%s is not copied into the image", path)
		return 0
	}
	require.Equal(t, "--chown="+user, copies[at(volume)-2])
	entry := dockerfile(t, "ENTRYPOINT")[0]
	require.Equal(t, "/out/safedelivr", copies[at(entry)-1])
	env := dockerfile(t, "ENV")
	require.Contains(t, env, "SAFEDELIVR_DATA_DIR="+volume)
	require.Contains(t, env, "SAFEDELIVR_LISTEN=:"+dockerfile(t, "EXPOSE")[0])
	require.Contains(t, env, "PATH="+filepath.Dir(entry), "docker exec finds it")
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	require.Contains(t, string(readme), "chown "+user+" FOLDER")
}

// TestContainer runs the lines of README for a container, with a stand-in for docker. With a wrong key of the provider
// no container is started. Once the key is right, the same lines work. The key that they print sends a mail, and the
// link that they print opens the dashboard.
func TestContainer(t *testing.T) {
	bin := product(t)
	all, err := blocks("README.md")
	require.NoError(t, err)
	script, send := "", ""
	for _, b := range all {
		switch {
		case strings.HasPrefix(b.Text, "docker "):
			script = b.Text
		case strings.HasPrefix(b.Text, "curl "):
			send = b.Text
		}
	}
	require.NotEmpty(t, script)
	require.NotEmpty(t, send)

	sim := simulator.New(simulator.Options{KeepContent: true})
	t.Cleanup(sim.Close)
	api := httptest.NewServer(sim)
	t.Cleanup(api.Close)
	account := simulator.Account{Name: "sg", Kind: "sendgrid", Key: "SG.your-key", Domain: "example.com"}
	require.NoError(t, sim.AddAccount(account))
	home, port := t.TempDir(), freePort(t)
	for name, text := range map[string]string{
		"docker":       standIn,
		".curlrc":      fmt.Sprintf("connect-to = 127.0.0.1:8080:127.0.0.1:%s\nfail\n", port),
		"sendgrid.key": "SG.wrong\n",
		"script": "cd " + home + "\ntrap '[ ! -s container.pid ] || kill $(cat container.pid)' EXIT\n" + script +
			"[ ! -e container.pid ] || { echo 'a container runs without a key'; exit 1; }\n" +
			"set -e\necho " + account.Key + " > sendgrid.key\n" +
			strings.Replace(script, "docker exec", awaitServer(port)+"\ndocker exec", 1) + send,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(home, name), []byte(text), 0o700))
	}
	volume := filepath.Join(home, "volume")
	require.NoError(t, os.Mkdir(volume, 0o700))
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "script")
	cmd.Dir, cmd.WaitDelay = home, 10*time.Second
	cmd.Env = []string{
		"PATH=" + home + ":" + os.Getenv("PATH"), "HOME=" + home, "CURL_HOME=" + home, "TMPDIR=" + home,
		"VOLUME=" + volume, "PORT=" + port, "API=" + api.URL + "/sg", "PRODUCT=" + filepath.Join(bin, "product"),
		"DATA=" + dockerfile(t, "VOLUME")[0], "EXPOSED=" + dockerfile(t, "EXPOSE")[0],
		"COMMAND=" + strings.Join(dockerfile(t, "CMD"), " "), "IMAGE_ENV=" + strings.Join(dockerfile(t, "ENV"), " "),
	}
	out, err := cmd.CombinedOutput()
	log, _ := os.ReadFile(filepath.Join(home, "mail.log"))
	require.NoError(t, err, "%s\n%s", out, log)
	require.Regexp(t, `http://127\.0\.0\.1:8080/login/link\S+`, string(out))
	require.Contains(t, string(out), `"id":`, "202")
}
