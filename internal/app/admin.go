package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/safedelivr/safedelivr/dashboard/login"
)

// The embedded store belongs to one process. While that process serves, the command line calls the API through a socket
// in the data folder, which only the folder's owner can open.

// AdminSocket is the name of the socket in the data folder.
const AdminSocket = "admin.sock"

// serveAdmin serves the API to the command line until ctx ends.
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
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: a.admin()}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		a.log.Warn("admin socket closed", "err", err)
	}
}

// LoginPath is the path at which only the command line gets a link that logs in as an operator.
const LoginPath = "/local/login-link"

// LoginLink is the answer at LoginPath.
type LoginLink struct {
	URL string `json:"url"`
}

// admin returns what the command line calls: the API for operators, and what is not for operators elsewhere.
func (a *App) admin() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", answerEarly(a.api.Local()))
	mux.HandleFunc("POST "+LoginPath, func(w http.ResponseWriter, r *http.Request) {
		url := a.cfg.PublicURL
		if url == "" {
			cfg := *a.cfg
			if a.listener != nil {
				cfg = a.Config()
			}
			url = LocalURL(&cfg)
		}
		link, err := login.NewLink(r.Context(), a.store, url, login.LocalUser())
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_ = json.NewEncoder(w).Encode(LoginLink{link}) // the client may be gone
	})
	return mux
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

// DialAdmin connects to the process that holds a data folder.
func DialAdmin(ctx context.Context, dataDir string) (net.Conn, error) {
	path, done, err := socketPath(filepath.Join(dataDir, AdminSocket))
	if err != nil {
		return nil, err
	}
	defer done()
	conn, err := dialAdmin(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("the data folder %s is in use by a process that does not answer: %w", dataDir, err)
	}
	return conn, nil
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
