package mailbox

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/emersion/go-imap/v2"
	"github.com/emersion/go-imap/v2/imapserver"
	"github.com/emersion/go-imap/v2/imapserver/imapmemserver"
	"github.com/emersion/go-sasl"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/models/settings"
	"github.com/safedelivr/safedelivr/providers/internal/oauth"
	"github.com/safedelivr/safedelivr/providers/internal/oauth/oauthtest"
)

// fixture is a mailbox into which a test can put mails.
type fixture struct {
	Mailbox
	put func(t *testing.T, text string)
}

// takeAll takes up to limit mails and removes those that have a word. It returns them in order.
func takeAll(t *testing.T, m Mailbox, limit int) (all []string) {
	t.Helper()
	require.NoError(t, m.Each(t.Context(), limit, 100, func(group []Mail) error {
		require.LessOrEqual(t, len(group), groupSize)
		for i := range group {
			all = append(all, string(group[i].Raw))
			group[i].Remove = strings.Contains(all[len(all)-1], "remove")
		}
		return nil
	}))
	slices.Sort(all)
	return all
}

// behaves tests what each mailbox does. It is empty, and left gets the mails in it.
func behaves(t *testing.T, box fixture, left func(t *testing.T) int) {
	t.Helper()
	require.NoError(t, box.Check(t.Context()))
	require.Empty(t, takeAll(t, box, 10), "nothing is there")

	for i := range 3 {
		box.put(t, fmt.Sprintf("Subject: remove %d\r\n\r\n%s", i, strings.Repeat("x", 200)))
	}
	box.put(t, "Subject: stay\r\n\r\nx")
	failed := errors.New("the store is down")
	require.ErrorIs(t, box.Each(t.Context(), 10, 100, func([]Mail) error { return failed }), failed)
	require.Equal(t, 4, left(t), "what was not stored stays")

	got := takeAll(t, box, 10)
	require.Len(t, got, 4)
	require.Len(t, got[0], 100, "only the beginning is read")
	require.Equal(t, "Subject: stay\r\n\r\nx", got[3])
	require.Equal(t, 1, left(t))
	require.Empty(t, takeAll(t, box, 10), "it is marked as read")

	for i := range 5 * groupSize {
		box.put(t, fmt.Sprintf("Subject: remove %02d\r\n\r\nx", i))
	}
	first := takeAll(t, box, 2*groupSize)
	require.Len(t, first, 2*groupSize, "a round ends at its limit")
	rest := takeAll(t, box, 1000)
	require.Len(t, rest, 3*groupSize)
	all := slices.Compact(slices.Sorted(slices.Values(append(first, rest...))))
	require.Len(t, all, 5*groupSize, "each is taken once")
	require.Equal(t, 1, left(t))

	ended, end := context.WithCancel(t.Context())
	end()
	require.Error(t, box.Each(ended, 10, 100, func([]Mail) error { return nil }))
}

// newMaildir returns an empty Maildir.
func newMaildir(t *testing.T) (Maildir, fixture) {
	t.Helper()
	dir := Maildir(t.TempDir())
	for _, name := range []string{"tmp", unread, seen} {
		require.NoError(t, os.Mkdir(filepath.Join(string(dir), name), 0o700))
	}
	n := 0
	return dir, fixture{dir, func(t *testing.T, text string) {
		n++
		at := filepath.Join(string(dir), unread, fmt.Sprintf("%d.host", n))
		require.NoError(t, os.WriteFile(at, []byte(text), 0o600))
	}}
}

func TestMaildir(t *testing.T) {
	t.Parallel()
	dir, box := newMaildir(t)
	behaves(t, box, func(t *testing.T) (n int) {
		for _, name := range []string{unread, seen} {
			files, err := os.ReadDir(filepath.Join(string(dir), name))
			require.NoError(t, err)
			n += len(files)
		}
		return n
	})
	files, err := os.ReadDir(filepath.Join(string(dir), seen))
	require.NoError(t, err)
	require.True(t, strings.HasSuffix(files[0].Name(), ":2,S"), files[0].Name())
}

// TestUnreadableFiles: what is no mail, or cannot be read, keeps no mail from being taken.
func TestUnreadableFiles(t *testing.T) {
	t.Parallel()
	dir, box := newMaildir(t)
	for i := range 3 * groupSize {
		at := filepath.Join(string(dir), unread, fmt.Sprintf("a%d", i))
		switch i % 3 {
		case 0:
			require.NoError(t, os.Mkdir(at, 0o700))
		case 1:
			require.NoError(t, os.Symlink("/etc/passwd", at))
		case 2:
			at = filepath.Join(filepath.Dir(at), fmt.Sprintf(".hidden%d", i))
			require.NoError(t, os.WriteFile(at, []byte("x"), 0o600))
		}
	}
	box.put(t, "Subject: remove\r\n\r\n")
	require.Len(t, takeAll(t, box, 1), 1)
	require.Error(t, Maildir(filepath.Join(t.TempDir(), "none")).Check(t.Context()))
	require.Error(t, Maildir("none").Each(t.Context(), 1, 1, nil))
}

// TestGoneMeanwhile: another reader has taken the same mails.
func TestGoneMeanwhile(t *testing.T) {
	t.Parallel()
	dir, box := newMaildir(t)
	for range 4 {
		box.put(t, "Subject: remove\r\n\r\n")
	}
	require.NoError(t, dir.Each(t.Context(), 10, 100, func([]Mail) error {
		require.Len(t, takeAll(t, dir, 10), 4)
		return nil
	}))
}

// secure returns settings of a server and of its clients.
func secure(t *testing.T) (server, client *tls.Config) {
	t.Helper()
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	a := testkit.NewAuthority(t)
	a.Certificate(t, cert, key, "127.0.0.1", time.Hour)
	pair, err := tls.LoadX509KeyPair(cert, key)
	require.NoError(t, err)
	return &tls.Config{Certificates: []tls.Certificate{pair}}, &tls.Config{RootCAs: a.Pool, ServerName: "127.0.0.1"}
}

// TestIMAP: an inbox behaves as a Maildir does, with each encryption, and with a server that knows UIDPLUS or not.
func TestIMAP(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		security string
		caps     imap.CapSet
	}{
		"tls":               {settings.TLS, imap.CapSet{imap.CapIMAP4rev1: {}, imap.CapUIDPlus: {}}},
		"starttls":          {settings.StartTLS, imap.CapSet{imap.CapIMAP4rev1: {}, imap.CapUIDPlus: {}}},
		"none":              {settings.NoTLS, imap.CapSet{imap.CapIMAP4rev1: {}, imap.CapUIDPlus: {}}},
		"a server of today": {settings.NoTLS, imap.CapSet{imap.CapIMAP4rev1: {}, imap.CapIMAP4rev2: {}}},
		"without UIDPLUS":   {settings.NoTLS, imap.CapSet{imap.CapIMAP4rev1: {}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			user := imapmemserver.NewUser("ann", "s3cret")
			require.NoError(t, user.Create("INBOX", nil))
			memory := imapmemserver.New()
			memory.AddUser(user)
			forServer, forClient := secure(t)
			o := &imapserver.Options{Caps: c.caps, NewSession: func(*imapserver.Conn) (imapserver.Session,
				*imapserver.GreetingData, error) {
				return memory.NewSession(), nil, nil
			}}
			address := serve(t, o, c.security, forServer)
			box := &IMAP{Address: address, Security: c.security, TLS: forClient, User: "ann", Password: "s3cret"}
			behaves(t, fixture{box, func(t *testing.T, text string) {
				_, err := user.Append("INBOX", literal{strings.NewReader(text)}, &imap.AppendOptions{})
				require.NoError(t, err)
			}}, func(t *testing.T) int {
				status, err := user.Status("INBOX", &imap.StatusOptions{NumMessages: true, NumDeleted: true})
				require.NoError(t, err)
				return int(*status.NumMessages - *status.NumDeleted)
			})
			wrong := *box
			wrong.Password = "wrong"
			require.Error(t, wrong.Check(t.Context()))
			require.Error(t, wrong.Each(t.Context(), 1, 1, nil))
			if c.security != settings.NoTLS {
				wrong = *box
				wrong.TLS = &tls.Config{ServerName: "127.0.0.1"}
				require.Error(t, wrong.Check(t.Context()), "the authority of its certificate is not known")
			}
		})
	}
}

// serve runs an IMAP server and returns where it listens.
func serve(t *testing.T, o *imapserver.Options, security string, secure *tls.Config) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := l.Addr().String()
	o.InsecureAuth = true
	switch security {
	case settings.StartTLS:
		o.TLSConfig = secure
	case settings.TLS:
		l = tls.NewListener(l, secure)
	}
	server := imapserver.New(o)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(l)
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-ended
	})
	return address
}

// byToken is a session of a user who logs in with an access token.
type byToken struct {
	*imapmemserver.UserSession
	tokens *oauthtest.Server
}

// AuthenticateMechanisms implements imapserver.SessionSASL.
func (byToken) AuthenticateMechanisms() []string { return []string{oauth.Mechanism} }

// Authenticate implements imapserver.SessionSASL.
func (s byToken) Authenticate(string) (sasl.Server, error) {
	return &tokenServer{tokens: s.tokens}, nil
}

// Login implements imapserver.Session.
func (byToken) Login(string, string) error { return imapserver.ErrAuthFailed }

// tokenServer implements sasl.Server. It says why a token is refused before it refuses it, as services do.
type tokenServer struct {
	tokens  *oauthtest.Server
	refused bool
}

// Next implements sasl.Server.
func (s *tokenServer) Next(answer []byte) (challenge []byte, done bool, err error) {
	switch {
	case answer == nil:
		return []byte{}, false, nil
	case s.refused:
		return nil, false, imapserver.ErrAuthFailed
	case !s.tokens.Valid("ann", string(answer)):
		s.refused = true
		return []byte(`{"status":"400"}`), false, nil
	}
	return nil, true, nil
}

// TestIMAPWithTokens: an access token takes the place of the password, and a new one that of a token that was revoked.
func TestIMAPWithTokens(t *testing.T) {
	t.Parallel()
	user, tokens := imapmemserver.NewUser("ann", "s3cret"), oauthtest.New(t, "r3fresh")
	require.NoError(t, user.Create("INBOX", nil))
	for _, caps := range []imap.CapSet{
		{imap.CapIMAP4rev1: {}, imap.CapUIDPlus: {}},
		{imap.CapIMAP4rev1: {}, imap.CapUIDPlus: {}, imap.CapSASLIR: {}},
	} {
		address := serve(t, &imapserver.Options{Caps: caps, NewSession: func(*imapserver.Conn) (imapserver.Session,
			*imapserver.GreetingData, error) {
			return byToken{imapmemserver.NewUserSession(user), tokens}, nil, nil
		}}, settings.NoTLS, nil)
		source := oauth.New(&tokens.OAuth)
		box := &IMAP{Address: address, Security: settings.NoTLS, User: "ann", Tokens: source}
		require.NoError(t, box.Check(t.Context()))
		_, err := user.Append("INBOX", literal{strings.NewReader("Subject: remove\r\n\r\n")}, &imap.AppendOptions{})
		require.NoError(t, err)
		require.Len(t, takeAll(t, box, 10), 1)
		tokens.Revoke()
		require.NoError(t, box.Check(t.Context()))
		other := *box
		other.User = "bo"
		require.Error(t, other.Check(t.Context()), "the token is not for that user")
		require.NoError(t, box.Check(t.Context()))
	}
}

// TestNew: a password of the mailbox comes before access tokens.
func TestNew(t *testing.T) {
	t.Parallel()
	tokens := oauth.New(&settings.OAuth{TokenURL: "https://x.test/"})
	b := &settings.Bounces{BounceHost: "imap.x.test", BounceUser: "ann"}
	require.Same(t, tokens, New(b, "", tokens, nil).(*IMAP).Tokens)
	require.Nil(t, New(b, "s3cret", tokens, nil).(*IMAP).Tokens)
	require.Equal(t, "imap.x.test:993", New(b, "", tokens, nil).(*IMAP).Address)
	b.BounceTLS = settings.StartTLS
	require.Equal(t, "imap.x.test:143", New(b, "", tokens, nil).(*IMAP).Address)
	b.BounceMaildir = "/var/mail"
	require.Equal(t, Maildir("/var/mail"), New(b, "", tokens, nil))
}

// literal implements imap.LiteralReader.
type literal struct{ *strings.Reader }

func (l literal) Size() int64 { return l.Reader.Size() }

// TestIMAPServerIsSilent: a server that does not answer costs no more than the time of a round.
func TestIMAPServerIsSilent(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	ctx, end := context.WithCancel(t.Context())
	go func() {
		if c, err := l.Accept(); err == nil {
			end()
			_, _ = c.Read(make([]byte, 1))
			_ = c.Close()
		}
	}()
	require.Error(t, (&IMAP{Address: l.Addr().String(), Security: settings.NoTLS}).Each(ctx, 1, 1, nil))
}
