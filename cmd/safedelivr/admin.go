package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/config"
)

// The embedded store belongs to one process. While that serves, commands are
// handed to it through a socket in the data folder, which
// only the folder's owner can open.

const adminSocket = "admin.sock"

// remoteCommands are the commands that may be handed over.
var remoteCommands = []string{"user", "key", "login", "batch", "log", "release", "pause-user", "resume-user", "provider", "block", "queues", "parked",
	"workers", "audit", "check", "replay", "hold"}

type adminRequest struct {
	Args  []string `json:"args"`
	RanBy string   `json:"ran_by"` // who the owner of the socket says ran it
}

// adminPart is a part of what a handed-over command printed. The answer is a row of
// them, sent as the command goes on, so that neither end keeps all of a long list;
// the last one has the exit code.
type adminPart struct {
	Out  []byte `json:"out,omitempty"` // bytes: a part may end within a character
	Err  []byte `json:"err,omitempty"`
	Code *int   `json:"code,omitempty"`
}

// serveAdmin answers handed-over commands until ctx ends.
func (a *app) serveAdmin(ctx context.Context) {
	if storeName(a.cfg) != "sqlite" {
		return // every process reaches Cassandra itself
	}
	path := filepath.Join(a.cfg.DataDir, adminSocket)
	_ = os.Remove(path) // of a process that was killed: the folder's lock is ours
	short, done, err := socketPath(path)
	if err != nil {
		a.log.Warn("commands need the server stopped: no socket", "err", err)
		return
	}
	defer done()
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", short)
	if err == nil {
		err = os.Chmod(path, 0o600)
	}
	if err != nil {
		a.log.Warn("commands need the server stopped: no socket", "err", err)
		return
	}
	server := &http.Server{ReadHeaderTimeout: 5 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var q adminRequest
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16)).Decode(&q); err != nil || len(q.Args) == 0 || !slices.Contains(remoteCommands, q.Args[0]) {
			http.Error(w, "not a command for here", http.StatusBadRequest)
			return
		}
		t := newTeller(w)
		c := &cli{streams: streams{out: t.out, err: t}, args: q.Args, app: a, ranBy: q.RanBy}
		code := c.run(r.Context())
		t.tell(adminPart{Code: &code})
	})}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		a.log.Warn("admin socket closed", "err", err)
	}
}

// teller sends what a command prints to who handed it over: what goes to its out
// when that has gathered or something else is to be sent, and what is written to
// the teller itself, as errors and progress, at once.
type teller struct {
	out   *bufio.Writer
	parts *json.Encoder
	flush func() error
}

// tellAtOnce is how much output is gathered, in bytes.
const tellAtOnce = 16 << 10

func newTeller(w http.ResponseWriter) *teller {
	t := &teller{parts: json.NewEncoder(w), flush: http.NewResponseController(w).Flush}
	t.out = bufio.NewWriterSize(outTeller{t}, tellAtOnce)
	return t
}

// outTeller takes what out has gathered.
type outTeller struct{ *teller }

func (t outTeller) Write(p []byte) (int, error) { return len(p), t.send(adminPart{Out: p}) }

// Write implements io.Writer, for the command's stderr.
func (t *teller) Write(p []byte) (int, error) {
	t.tell(adminPart{Err: p})
	return len(p), nil
}

// tell sends a part behind all output that came before it.
func (t *teller) tell(p adminPart) {
	_ = t.out.Flush() // who handed it over may be gone
	_ = t.send(p)     // same
}

func (t *teller) send(p adminPart) error {
	if err := t.parts.Encode(p); err != nil {
		return err
	}
	return t.flush()
}

// maxSocketPath is how long a socket's path may be on every system.
const maxSocketPath = 103

// socketPath is a path that leads to path and is short enough for a socket: where
// it is too long, through its open folder, until done is called. Linux has such
// paths; elsewhere it stays too long, and its use fails.
func socketPath(path string) (short string, done func(), err error) {
	if len(path) <= maxSocketPath {
		return path, func() {}, nil
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path)), func() { _ = dir.Close() }, nil
}

// handOver has the process that holds the data folder run the command.
func (c *cli) handOver(ctx context.Context, cfg *config.Config) error {
	path, done, err := socketPath(filepath.Join(cfg.DataDir, adminSocket))
	if err != nil {
		return err
	}
	defer done()
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return dialAdmin(ctx, path)
	}}}
	defer client.CloseIdleConnections()
	body, err := json.Marshal(adminRequest{Args: withoutConfig(c.args), RanBy: c.person()})
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://admin/", bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := client.Do(r)
	if err != nil {
		return fmt.Errorf("the data folder %s is in use by a process that does not answer: %w", cfg.DataDir, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the process that holds the data folder answered %s: is it of another version?", resp.Status)
	}
	return c.retell(resp.Body)
}

// retell prints what a handed-over command prints, and ends as that does.
func (c *cli) retell(answer io.Reader) error {
	parts := json.NewDecoder(answer)
	for {
		var p adminPart
		if err := parts.Decode(&p); err != nil {
			return fmt.Errorf("the answer of the process that holds the data folder broke off, and the command may have been carried out: %w", err)
		}
		if _, err := c.out.Write(p.Out); err != nil {
			return err
		}
		if _, err := c.err.Write(p.Err); err != nil {
			return err
		}
		switch {
		case p.Code == nil:
		case *p.Code == 0:
			return nil
		default:
			return exitCode(*p.Code)
		}
	}
}

// dialAdmin waits a moment for a process that has only begun.
func dialAdmin(ctx context.Context, path string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	for {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "unix", path)
		if err == nil {
			return conn, nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// withoutConfig drops the flag that names the configuration: the process that
// runs the command has read its own.
func withoutConfig(args []string) []string {
	var out []string
	for i := 0; i < len(args); i++ {
		switch a := args[i]; {
		case a == "-c" || a == "--config":
			i++
		case strings.HasPrefix(a, "--config=") || strings.HasPrefix(a, "-c="):
		default:
			out = append(out, a)
		}
	}
	return out
}
