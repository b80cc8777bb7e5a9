//go:build full

package mailbox

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/settings"
	"github.com/safedelivr/safedelivr/providers/internal/oauth"
	"github.com/safedelivr/safedelivr/providers/internal/oauth/oauthtest"
)

// dovecot are the settings of a Dovecot 2.3 that keeps the mail of each user in DIR/mail.
const dovecot = `
base_dir = DIR/run
log_path = DIR/log
protocols = imap
listen = 127.0.0.1
ssl = required
ssl_cert = <DIR/cert.pem
ssl_key = <DIR/key.pem
first_valid_uid = 1
first_valid_gid = 1
mail_location = maildir:DIR/mail
default_internal_user = INTERNAL
default_internal_group = GROUP
default_login_user = LOGIN
auth_mechanisms = plain xoauth2
passdb {
  driver = oauth2
  mechanisms = xoauth2
  args = DIR/oauth2.conf
}
passdb {
  driver = static
  mechanisms = plain
  args = password=s3cret
}
userdb {
  driver = static
  args = uid=UID gid=GID home=DIR
}
service imap-login {
  chroot =
  inet_listener imap {
    port = PORT0
  }
  inet_listener imaps {
    port = PORT1
  }
}
service anvil {
  chroot =
}
`

// introspection has Dovecot ask about access tokens.
const introspection = `
introspection_mode = get
introspection_url = URL?token=
username_attribute = username
active_attribute = active
active_value = true
`

// TestDovecot: an inbox of Dovecot behaves as a Maildir does, with each encryption, and so does the Maildir below it.
func TestDovecot(t *testing.T) {
	// The folder of a test may be private, and its path is too long for a socket.
	dir, err := os.MkdirTemp("/tmp", "dovecot")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	a := testkit.NewAuthority(t)
	a.Certificate(t, filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), "127.0.0.1", time.Hour)
	me, err := user.Current()
	require.NoError(t, err)
	group, err := user.LookupGroupId(me.Gid)
	require.NoError(t, err)
	internal, login, uid, gid, inGroup := me.Username, me.Username, me.Uid, me.Gid, group.Name
	if me.Uid == "0" { // it runs nothing as root
		mailUser, err := user.Lookup("mail")
		require.NoError(t, err)
		internal, login, inGroup, uid, gid = "dovecot", "dovenull", "dovecot", mailUser.Uid, mailUser.Gid
	}
	n, err := strconv.Atoi(uid)
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755))
	var ports [2]string
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		_, ports[i], _ = net.SplitHostPort(l.Addr().String())
		require.NoError(t, l.Close())
	}
	file := filepath.Join(dir, "dovecot.conf")
	require.NoError(t, os.WriteFile(file, []byte(strings.NewReplacer("DIR", dir, "INTERNAL", internal, "LOGIN", login,
		"GROUP", inGroup, "UID", uid, "GID", gid, "PORT0", ports[0], "PORT1", ports[1]).Replace(dovecot)), 0o600))
	tokens := oauthtest.New(t, "")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "oauth2.conf"),
		[]byte(strings.ReplaceAll(introspection, "URL", tokens.About("ann"))), 0o644))
	for _, name := range []string{"mail", "mail/tmp", "mail/new", "mail/cur"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o700))
		require.NoError(t, os.Chown(filepath.Join(dir, name), n, -1))
	}
	require.NoError(t, os.Chown(dir, n, -1))
	cmd := exec.Command("dovecot", "-F", "-c", file)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
		if said, err := os.ReadFile(filepath.Join(dir, "log")); err == nil && t.Failed() {
			t.Logf("%s", said)
		}
	})
	for begun := time.Now(); ; models.Pause(t.Context(), 20*time.Millisecond) {
		if c, err := net.Dial("tcp", "127.0.0.1:"+ports[1]); err == nil {
			_ = c.Close()
			break
		}
		require.Less(t, time.Since(begun), time.Minute, "dovecot does not listen")
	}
	_, client := secure(t)
	client.RootCAs = a.Pool
	number := 0
	put := func(t *testing.T, text string) {
		number++
		at := filepath.Join(dir, "mail/tmp", fmt.Sprintf("%d.%d.host", time.Now().Unix(), number))
		require.NoError(t, os.WriteFile(at, []byte(strings.ReplaceAll(text, "\r\n", "\n")), 0o600))
		require.NoError(t, os.Chown(at, n, -1))
		require.NoError(t, os.Rename(at, filepath.Join(dir, "mail/new", filepath.Base(at))))
	}
	left := func(t *testing.T) (n int) {
		for _, name := range []string{"new", "cur"} {
			files, err := os.ReadDir(filepath.Join(dir, "mail", name))
			require.NoError(t, err)
			n += len(files)
		}
		return n
	}
	for i, security := range []string{settings.StartTLS, settings.TLS} {
		box := &IMAP{Address: "127.0.0.1:" + ports[i], Security: security, TLS: client, User: "ann", Password: "s3cret"}
		behaves(t, fixture{box, put}, left)
		require.NoError(t, os.RemoveAll(filepath.Join(dir, "mail/cur")))
		require.NoError(t, os.Mkdir(filepath.Join(dir, "mail/cur"), 0o700))
		require.NoError(t, os.Chown(filepath.Join(dir, "mail/cur"), n, -1))
		wrong := *box
		wrong.Password = "wrong"
		require.Error(t, wrong.Check(t.Context()))
		source := oauth.New(&tokens.OAuth)
		byToken := &IMAP{Address: box.Address, Security: security, TLS: client, User: "ann", Tokens: source}
		require.NoError(t, byToken.Check(t.Context()))
		tokens.Revoke()
		require.NoError(t, byToken.Check(t.Context()), "it gets a new token")
		byToken.User = "bo"
		require.Error(t, byToken.Check(t.Context()), "the token is not for that user")
	}
}
