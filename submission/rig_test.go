package submission

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/inproc/inproctest"
	"github.com/safedelivr/safedelivr/internal/priority"
	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/store/memory"
)

func TestMain(m *testing.M) { testkit.VerifyNoLeaks(m) }

// store is a store whose writes of batches may fail or wait.
type store struct {
	models.Store

	mu  sync.Mutex
	put func(ctx context.Context) error // called before a batch is written
}

// Schedule implements models.Store. It is the first write of a batch with attachments.
func (s *store) Schedule(ctx context.Context, es ...models.AgendaEntry) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	return s.Store.Schedule(ctx, es...)
}

// PutBatch implements models.Store. It is the first write of a batch whose agenda entry comes with it.
func (s *store) PutBatch(ctx context.Context, b models.Batch, first models.Chunk, es ...models.AgendaEntry) error {
	if len(es) > 0 {
		if err := s.begin(ctx); err != nil {
			return err
		}
	}
	return s.Store.PutBatch(ctx, b, first, es...)
}

func (s *store) begin(ctx context.Context) error {
	s.mu.Lock()
	put := s.put
	s.mu.Unlock()
	if put == nil {
		return nil
	}
	return put(ctx)
}

func (s *store) before(put func(ctx context.Context) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put = put
}

// setup is what a test changes of a rig.
type setup struct {
	plain   bool   // there is no certificate
	address string // of the clients
	size    int64  // of a message; 0: the usual one
	context func(context.Context, net.Conn) context.Context
	service service.Config
}

// rig is a server over a service with a store in memory and a user.
type rig struct {
	testing.TB
	store         *store
	svc           *service.Service
	server        *Server
	net           *testkit.Network
	plain, secure net.Listener
	trust         *tls.Config
	log           *testkit.Output
	refused       atomic.Int32 // messages over a limit
	user, secret  string
	served        sync.WaitGroup
}

// newRig returns a rig that may be used in a bubble of testing/synctest.
func newRig(t testing.TB, change ...func(*setup)) *rig {
	t.Helper()
	st := setup{address: "127.0.0.1:9", service: service.Config{SpoolDir: t.TempDir(), Sole: true}}
	for _, c := range change {
		c(&st)
	}
	r := &rig{TB: t, store: &store{Store: memory.Open(t)}, net: testkit.NewNetwork(t), log: &testkit.Output{}}
	st.service.Priority = priority.New()
	r.svc = service.New(service.Deps{Store: r.store, Broker: inproctest.New(t, "sg"), Config: st.service,
		Providers: []models.Provider{{
			Name: "sg", Kind: "sendgrid", Weight: 1, Concurrency: 4, ChunkLimit: 1000, Events: models.EventsWebhook,
			Carries: models.Capabilities{Attachments: true, Inline: true, Copies: true, Names: true, Variables: true,
				Headers: true, MessageID: true, Tags: 10},
		}}})
	t.Cleanup(r.svc.Close)
	u := models.User{ID: models.NewUserID(), Name: "ann", Created: time.Now()}
	require.NoError(t, r.store.CreateUser(t.Context(), u))
	r.user, r.secret = u.ID, r.newKey(models.ScopeSend)
	c := Config{Name: "mail.example.com", Size: st.size, Context: st.context}
	c.Refused = func() { r.refused.Add(1) }
	c.Logger = slog.New(slog.NewTextHandler(r.log, nil))
	if !st.plain {
		ca, dir := testkit.NewAuthority(t.(*testing.T)), t.TempDir()
		cert, key := filepath.Join(dir, "cert"), filepath.Join(dir, "key")
		ca.Certificate(t.(*testing.T), cert, key, "mail.example.com", time.Hour)
		pair, err := tls.LoadX509KeyPair(cert, key)
		require.NoError(t, err)
		c.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
		r.trust = &tls.Config{RootCAs: ca.Pool, ServerName: "mail.example.com", MinVersion: tls.VersionTLS12}
	}
	r.server = New(r.svc, c)
	r.plain, r.secure = r.net.Listen(), r.net.Listen()
	from := func(l net.Listener) net.Listener { return &remote{l, st.address} }
	r.served.Go(func() { _ = r.server.Serve(from(r.plain)) })
	if c.TLS != nil {
		r.served.Go(func() { _ = r.server.ServeTLS(from(r.secure)) })
	}
	t.Cleanup(r.stop)
	return r
}

// stop breaks all connections.
func (r *rig) stop() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	r.server.Stop(ctx)
	r.served.Wait()
}

// remote gives connections the address of a client.
type remote struct {
	net.Listener
	address string
}

func (r *remote) Accept() (net.Conn, error) {
	c, err := r.Listener.Accept()
	return &remoteConn{c, r.address}, err
}

type remoteConn struct {
	net.Conn
	address string
}

func (r *remoteConn) RemoteAddr() net.Addr {
	a, _ := net.ResolveTCPAddr("tcp", r.address)
	return a
}

// newKey returns the secret of a new key of the user.
func (r *rig) newKey(scopes ...models.Scope) string {
	r.Helper()
	users, err := r.store.Users(r.Context())
	require.NoError(r, err)
	who := service.Caller{User: users[0].ID}
	_, secret, err := r.svc.People.CreateKey(r.Context(), who, "", models.KeyOptions{Scopes: scopes})
	require.NoError(r, err)
	return secret
}

// batches returns the accepted batches, oldest first.
func (r *rig) batches() (out []models.Batch) {
	r.Helper()
	found, err := r.store.Batches(r.Context(), r.user, models.ID{}, 100)
	require.NoError(r, err)
	for _, b := range found {
		whole, err := r.store.Batch(r.Context(), b.ID)
		require.NoError(r, err)
		out = append([]models.Batch{whole}, out...)
	}
	return out
}

// batchOf returns the batch with an id as a reply has it.
func (r *rig) batchOf(id string) models.Batch {
	r.Helper()
	raw, err := hex.DecodeString(id)
	require.NoError(r, err)
	b, err := r.store.Batch(r.Context(), models.ID(raw))
	require.NoError(r, err)
	return b
}

// batch returns the only batch.
func (r *rig) batch() models.Batch {
	r.Helper()
	all := r.batches()
	require.Len(r, all, 1)
	return all[0]
}

// recipients returns the addresses of a batch.
func (r *rig) recipients(b *models.Batch) (out []string) {
	r.Helper()
	rs, err := r.store.Recipients(r.Context(), b.ID.Chunk(0))
	require.NoError(r, err)
	for _, to := range rs {
		out = append(out, to.Email)
	}
	return out
}

// peer is a client that writes without waiting, as a kernel lets it.
type peer struct {
	testing.TB
	net.Conn
	in  *bufio.Reader
	out chan string
}

func newPeer(t testing.TB, c net.Conn) *peer {
	p := &peer{TB: t, Conn: c, in: bufio.NewReader(c), out: make(chan string, 1000)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for text := range p.out {
			if _, err := c.Write([]byte(text)); err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = c.Close()
		close(p.out)
		<-done
	})
	return p
}

// dial connects without TLS, and reads the greeting.
func (r *rig) dial() *peer {
	r.Helper()
	c, err := r.net.Dial(r.Context(), "tcp", r.plain.Addr().String())
	require.NoError(r, err)
	p := newPeer(r, c)
	require.Equal(r, "220 mail.example.com ESMTP Service Ready", p.reply())
	return p
}

// dialTLS connects with TLS from the first byte.
func (r *rig) dialTLS() *peer {
	r.Helper()
	c, err := r.net.Dial(r.Context(), "tcp", r.secure.Addr().String())
	require.NoError(r, err)
	p := newPeer(r, tls.Client(c, r.trust))
	require.Equal(r, "220 mail.example.com ESMTP Service Ready", p.reply())
	return p
}

// startTLS begins TLS on the connection of a peer, and greets again.
func (r *rig) startTLS(p *peer) *peer {
	r.Helper()
	require.Equal(r, "220 2.0.0 Ready to start TLS", p.do("STARTTLS"))
	c := tls.Client(p.Conn, r.trust)
	require.NoError(r, c.HandshakeContext(r.Context()))
	p = newPeer(r, c)
	p.ok("EHLO app.example.com")
	return p
}

// login connects and logs in.
func (r *rig) login() *peer {
	r.Helper()
	p := r.dial()
	p.ok("EHLO app.example.com")
	if r.trust != nil {
		p = r.startTLS(p)
	}
	require.Equal(r, "235 2.0.0 Authentication succeeded", p.do("AUTH PLAIN "+plainSecret(r.secret)))
	return p
}

func plainSecret(secret string) string { return encoded("\x00apikey\x00" + secret) }

func encoded(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

// send sends bytes.
func (p *peer) send(text string) { p.out <- text }

// reply returns the next reply, with \n between its lines.
func (p *peer) reply() string {
	p.Helper()
	text, err := p.next()
	require.NoError(p, err)
	return text
}

func (p *peer) next() (text string, err error) {
	for {
		line, err := p.in.ReadString('\n')
		if err != nil {
			return "", err
		}
		text += line
		if len(line) < 4 || line[3] != '-' {
			return strings.TrimSpace(strings.ReplaceAll(text, "\r\n", "\n")), nil
		}
	}
}

// do sends commands, and returns the replies to all of them.
func (p *peer) do(commands ...string) string {
	p.Helper()
	p.send(strings.Join(commands, "\r\n") + "\r\n")
	var out []string
	for range commands {
		out = append(out, p.reply())
	}
	return strings.Join(out, "\n")
}

// ok sends commands that must succeed.
func (p *peer) ok(commands ...string) {
	p.Helper()
	for _, c := range commands {
		require.Regexp(p, "^[23]", p.do(c), c)
	}
}

// closed requires that the server closes the connection, after a reply if it is not empty.
func (p *peer) closed(last string) {
	p.Helper()
	if last != "" {
		require.Equal(p, last, p.reply())
	}
	text, err := p.next()
	require.Error(p, err, text)
}

// data sends the commands before a message.
func (p *peer) data(to ...string) {
	p.Helper()
	p.ok("MAIL FROM:<ann@example.com>")
	for _, a := range to {
		p.ok("RCPT TO:<" + a + ">")
	}
	p.ok("DATA")
}

// mail sends a message, whose lines end with \n, to addresses. It returns the reply.
func (p *peer) mail(message string, to ...string) string {
	p.Helper()
	p.data(to...)
	p.send(strings.ReplaceAll(message, "\n", "\r\n") + ".\r\n")
	return p.reply()
}

// letter returns a message with header fields.
func letter(fields ...string) string {
	return "From: Ann <ann@example.com>\nTo: bob@example.com\nSubject: Hi\n" +
		strings.Join(append(fields, "\nHello Bob\n"), "\n")
}

var queued = regexp.MustCompile(`^250 Ok: queued as [0-9a-f]{32}$`)

// id returns the ID in a reply.
func id(t testing.TB, reply string) string {
	t.Helper()
	require.Regexp(t, queued, reply)
	return reply[len("250 Ok: queued as "):]
}

// idOf returns the ID of a batch as replies have it.
func idOf(b *models.Batch) string { return fmt.Sprintf("%x", b.ID[:]) }
