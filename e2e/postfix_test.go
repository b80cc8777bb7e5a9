//go:build full

package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/internal/testkit"
)

// mainCF configures a Postfix that takes mail from this machine, beside the settings of docs/switch.md. Debian's users
// stand in for those of its package, which is not installed. Its master process needs root.
const mainCF = `
compatibility_level = 3.6
mail_owner = mail
setgid_group = daemon
daemon_directory = %[1]s/usr/lib/postfix/sbin
command_directory = %[1]s/usr/sbin
shlib_directory = %[1]s/usr/lib/postfix
meta_directory = %[1]s/etc/postfix
queue_directory = %[2]s/spool
data_directory = %[2]s/data
import_environment = MAIL_CONFIG MAIL_LOGTAG LD_LIBRARY_PATH SASL_PATH
export_environment = MAIL_CONFIG LD_LIBRARY_PATH SASL_PATH
maillog_file = %[2]s/log
maillog_file_prefixes = %[2]s
myhostname = relay.test
mydestination =
alias_maps =
local_recipient_maps =
inet_interfaces = 127.0.0.1
inet_protocols = ipv4
queue_run_delay = 1s
minimal_backoff_time = 1s
maximal_backoff_time = 2s
notify_classes =
smtp_tls_CAfile = %[2]s/ca.pem
smtp_tls_secure_cert_match = test
`

const masterCF = `
%s inet n - n - - smtpd
cleanup unix n - n - 0 cleanup
qmgr unix n - n 300 1 qmgr
tlsmgr unix - - n 1000? 1 tlsmgr
rewrite unix - - n - - trivial-rewrite
proxymap unix - - n - - proxymap
bounce unix - - n - 0 bounce
defer unix - - n - 0 bounce
trace unix - - n - 0 bounce
smtp unix - - n - - smtp
error unix - - n - - error
retry unix - - n - - error
anvil unix - - n - 1 anvil
scache unix - - n - 1 scache
postlog unix-dgram n - n - 1 postlogd
`

// postfix starts a Postfix whose relay is the product. It returns its address and its log.
func (f *foreign) postfix(s *submission) (addr, log string) {
	f.t.Helper()
	debian, env := packages(f.t, f.env, "postfix", "libsasl2-2", "libsasl2-modules", "libnsl2", "libtirpc3", "libicu72")
	folder, err := os.MkdirTemp("/tmp", "postfix") // Postfix has a user of its own, and the folder of a test may be private
	require.NoError(f.t, err)
	f.t.Cleanup(func() { _ = os.RemoveAll(folder) })
	require.NoError(f.t, os.Chmod(folder, 0o755)) //nolint:gosec // as above
	ca, err := os.ReadFile(s.ca.File)
	require.NoError(f.t, err)
	addr = freeAddr(f.t)
	settings, password, found := strings.Cut(f.recipe("Postfix", ""), "\n[")
	require.True(f.t, found)
	settings = strings.ReplaceAll(settings, "hash:/etc/postfix/", "texthash:"+folder+"/")
	for name, content := range map[string]string{
		"main.cf":   fmt.Sprintf(mainCF, debian, folder) + settings + "\n",
		"master.cf": fmt.Sprintf(masterCF, addr),
		"password":  "[" + strings.ReplaceAll(password, "KEY", s.key),
		"ca.pem":    string(ca),
	} {
		require.NoError(f.t, os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600))
	}
	for i, v := range env {
		if strings.HasPrefix(v, "LD_LIBRARY_PATH=") {
			sasl, err := filepath.Glob(filepath.Join(debian, "usr/lib/*-linux-gnu/sasl2"))
			require.NoError(f.t, err)
			require.Len(f.t, sasl, 1)
			env[i] = v + ":" + filepath.Join(debian, "usr/lib/postfix")
			env = append(env, "SASL_PATH="+sasl[0])
			break
		}
	}
	run := func(args ...string) {
		cmd := exec.Command(filepath.Join(debian, "usr/sbin/postfix"), append([]string{"-c", folder}, args...)...)
		cmd.Env = env
		out, err := cmd.CombinedOutput()
		require.NoError(f.t, err, "%s", out)
	}
	for _, name := range []string{"spool", "data"} {
		require.NoError(f.t, os.Mkdir(filepath.Join(folder, name), 0o755)) //nolint:gosec // as above
	}
	f.do("chown", "mail", filepath.Join(folder, "data"))
	run("start")
	f.t.Cleanup(func() { run("stop") })
	return addr, filepath.Join(folder, "log")
}

// TestPostfix has an application send the corpus to a Postfix on its machine that relays all mail, before the product
// runs. Postfix keeps the mail and repeats it. A mail to more addresses than Postfix puts into a transaction reaches
// each of them once. A mail that is refused comes back to its sender.
func TestPostfix(t *testing.T) {
	f, s := newMailer(t)
	letters := corpus()
	f.writeCorpus(letters)
	addr, log := f.postfix(s)
	_, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	f.env = append(f.env, "PORT="+port)
	f.do("python3", "relay.py")
	has := func(n int, text string) {
		t.Helper()
		require.Eventually(t, func() bool {
			raw, err := os.ReadFile(log)
			return err == nil && strings.Count(string(raw), text) >= n
		}, testkit.Patience, 50*time.Millisecond, text)
	}
	has(len(letters), "status=deferred")
	s.start(s.addr, nil, "serve")
	has(1, "status=bounced (host 127.0.0.1[127.0.0.1] said: 554 5.6.0 ")
	const bounce = "Undelivered Mail Returned to Sender" // Postfix relays it, too
	has(len(letters)+3+120+1, "status=sent")
	f.arrived(letters, "many", bounce)
	raw, err := os.ReadFile(log)
	require.NoError(t, err)
	stored := map[string]bool{}
	for _, m := range regexp.MustCompile(`status=sent \(250 (Ok: queued as .+)\)`).FindAllSubmatch(raw, -1) {
		stored[queuedAs.ReplaceAllString(string(m[1]), "$1-$2-$3-$4-$5")] = true
	}
	for b, err := range f.client.Batches(t.Context(), client.ListOptions{}) {
		require.NoError(t, err)
		require.True(t, stored[b.ID], "%s is in the log of Postfix", b.ID)
	}
	many, copies := map[string]int{}, f.sent(1)
	require.Contains(t, copies[bounce][0].Text, "said: 554 5.6.0")
	for _, c := range copies["many"] {
		require.Empty(t, c.Visible)
		many[c.Address]++
	}
	require.Len(t, many, 120)
}
