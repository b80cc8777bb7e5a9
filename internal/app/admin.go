package app

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
	"sync"
	"time"
)

// The embedded store belongs to one process. While that process serves, commands are handed over to it through a socket
// in the data folder, which only the folder's owner can open.

// AdminSocket is the name of the socket in the data folder.
const AdminSocket = "admin.sock"

// Commands are the commands that other processes may hand over to this one.
type Commands struct {
	// Names are the first words of commands that may be handed over.
	Names []string
	// Run runs a command of the App and returns its exit code.
	Run func(context.Context, *App, Command) int
}

// Command is a command line that was handed over.
type Command struct {
	Args []string
	// RanBy is who ran it, as the owner of the socket says.
	RanBy string
	// Folder is where it was run: paths of its arguments are relative to it.
	Folder   string
	Out, Err io.Writer
}

type adminRequest struct {
	Args   []string `json:"args"`
	RanBy  string   `json:"ran_by"`
	Folder string   `json:"folder"`
}

// adminPart is a part of what a command printed. The answer is a sequence of them, sent while the command runs, so that
// neither end holds all of a long list. The last part has the exit code.
type adminPart struct {
	Out  []byte `json:"out,omitempty"` // bytes: a part may end within a character
	Err  []byte `json:"err,omitempty"`
	Code *int   `json:"code,omitempty"`
}

// serveAdmin runs handed-over commands until ctx ends.
func (a *App) serveAdmin(ctx context.Context) {
	if StoreName(a.cfg) != "sqlite" {
		return // every process can open the store itself
	}
	path := filepath.Join(a.cfg.DataDir, AdminSocket)
	_ = os.Remove(path) // of a process that was killed: this one has locked the folder
	short, done, err := socketPath(path)
	if err != nil {
		a.log.Warn("commands will not work while this process runs: cannot open the admin socket", "err", err)
		return
	}
	defer done()
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", short)
	if err == nil {
		err = os.Chmod(path, 0o600)
	}
	if err != nil {
		a.log.Warn("commands will not work while this process runs: cannot open the admin socket", "err", err)
		return
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(a.runCommand)}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		a.log.Warn("admin socket closed", "err", err)
	}
}

// maxCommand bounds a command line, in bytes.
const maxCommand = 1 << 16

func (a *App) runCommand(w http.ResponseWriter, r *http.Request) {
	var q adminRequest
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxCommand)).Decode(&q)
	if err != nil || len(q.Args) == 0 || !slices.Contains(a.commands.Names, q.Args[0]) {
		http.Error(w, "this command cannot be handed over", http.StatusBadRequest)
		return
	}
	answer := newAnswer(w)
	defer answer.close()
	code := a.commands.Run(r.Context(), a, Command{
		Args: q.Args, RanBy: q.RanBy, Folder: q.Folder, Out: output{answer}, Err: answer,
	})
	answer.end(code)
}

// answer sends what a command prints. Output is buffered until the buffer is full, something else is sent, or
// outputDelay has passed; errors and progress, which are written to the answer itself, are sent at once.
type answer struct {
	mu     sync.Mutex
	buffer *bufio.Writer
	ended  bool
	parts  *json.Encoder
	flush  func() error
}

const (
	outputBuffer = 16 << 10               // bytes
	outputDelay  = 100 * time.Millisecond // so that who follows what happens sees it
)

func newAnswer(w http.ResponseWriter) *answer {
	a := &answer{parts: json.NewEncoder(w), flush: http.NewResponseController(w).Flush}
	a.buffer = bufio.NewWriterSize(buffered{a}, outputBuffer)
	return a
}

// output is the command's stdout.
type output struct{ *answer }

func (o output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	waits := o.buffer.Buffered() > 0
	n, err := o.buffer.Write(p)
	if !waits && o.buffer.Buffered() > 0 {
		time.AfterFunc(outputDelay, o.sendBuffered)
	}
	return n, err
}

// sendBuffered sends what is in the buffer, unless the answer has ended.
func (a *answer) sendBuffered() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.ended {
		_ = a.buffer.Flush() // the next write returns its error
	}
}

// buffered gets what the buffer has collected.
type buffered struct{ *answer }

func (b buffered) Write(p []byte) (int, error) { return len(p), b.send(adminPart{Out: p}) }

// Write implements io.Writer, for the command's stderr.
func (a *answer) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.write(adminPart{Err: p})
	return len(p), nil
}

// end sends the exit code.
func (a *answer) end(code int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.write(adminPart{Code: &code})
}

// close keeps what is left in the buffer from being sent after the request has ended, as by a panic.
func (a *answer) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended = true
}

// write sends a part after all output that came before it. Errors are ignored: the caller may have gone.
func (a *answer) write(p adminPart) {
	_ = a.buffer.Flush()
	_ = a.send(p)
}

func (a *answer) send(p adminPart) error {
	if err := a.parts.Encode(p); err != nil {
		return err
	}
	return a.flush()
}

// maxSocketPath is how long the path of a socket may be on every system.
const maxSocketPath = 103

// socketPath returns a path that leads to path and is short enough for a socket. A path that is too long leads through
// its open folder until done is called; only Linux has such paths.
func socketPath(path string) (short string, done func(), err error) {
	if len(path) <= maxSocketPath {
		return path, func() {}, nil
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return "", nil, err
	}
	short = fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path))
	return short, func() { _ = dir.Close() }, nil
}

// HandOver has the process that holds the data folder run a command, copies what it prints and returns its exit code.
func HandOver(ctx context.Context, dataDir string, cmd Command) (code int, err error) {
	path, done, err := socketPath(filepath.Join(dataDir, AdminSocket))
	if err != nil {
		return 0, err
	}
	defer done()
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return dialAdmin(ctx, path) }
	client := http.Client{Transport: &http.Transport{DialContext: dial}}
	defer client.CloseIdleConnections()
	body, err := json.Marshal(adminRequest{Args: cmd.Args, RanBy: cmd.RanBy, Folder: cmd.Folder})
	if err != nil {
		return 0, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://admin/", bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	resp, err := client.Do(r)
	if err != nil {
		return 0, fmt.Errorf("the data folder %s is in use by a process that does not answer: %w", dataDir, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("the process that holds the data folder answered %s: is it of another version?", resp.Status)
	}
	return copyAnswer(resp.Body, cmd)
}

// copyAnswer prints what a handed-over command printed and returns its exit code.
func copyAnswer(answer io.Reader, cmd Command) (code int, err error) {
	parts := json.NewDecoder(answer)
	for {
		var p adminPart
		if err := parts.Decode(&p); err != nil {
			return 0, fmt.Errorf("the answer of the process that holds the data folder broke off, "+
				"and the command may have been carried out: %w", err)
		}
		if _, err := cmd.Out.Write(p.Out); err != nil {
			return 0, err
		}
		if _, err := cmd.Err.Write(p.Err); err != nil {
			return 0, err
		}
		if p.Code != nil {
			return *p.Code, nil
		}
	}
}

// dialAdmin tries to connect for ten seconds, in which a process that has only begun opens its store. Tries are counted
// instead of time: if this process stands still, it may still be answered.
const (
	dialTries = 200
	dialPause = 50 * time.Millisecond
)

func dialAdmin(ctx context.Context, path string) (net.Conn, error) {
	for try := 1; ; try++ {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "unix", path)
		if err == nil || try == dialTries {
			return conn, err
		}
		select {
		case <-time.After(dialPause):
		case <-ctx.Done():
			return nil, err
		}
	}
}
