package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/config"
)

// process is a server as a process of its own, so that it can be killed and
// frozen like one.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer // it ends with this one, however this one ends
	addr  string
	env   []string
	args  []string
	out   *tail
	gone  chan struct{}
}

// rehearsedCommand is serve for as long as its standard input stays open.
func (c *cli) rehearsedCommand() *cobra.Command {
	serve := c.serveCommand()
	run := serve.RunE
	serve.Use, serve.Hidden = "rehearsed", true
	serve.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, cancel := context.WithCancel(cmd.Context())
		defer cancel()
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			cancel()
		}()
		cmd.SetContext(ctx)
		return run(cmd, args)
	}
	return serve
}

// startProcess starts a server and returns when it answers that it is ready.
func startProcess(ctx context.Context, addr string, env []string, args ...string) (*process, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return startProgram(ctx, exe, addr, env, args...)
}

// startProgram is startProcess with a program that need not be this one.
func startProgram(ctx context.Context, exe, addr string, env []string, args ...string) (*process, error) {
	p := &process{cmd: exec.Command(exe, append([]string{"rehearsed"}, args...)...), addr: addr, env: env, args: args, out: &tail{}, gone: make(chan struct{})} //nolint:gosec,noctx // it is this program, and outlives ctx by a soft stop
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, config.Prefix) || strings.HasPrefix(v, config.Prefix+"TEST_") {
			p.cmd.Env = append(p.cmd.Env, v) // none of the user's settings but those in env
		}
	}
	p.cmd.Env = append(append(p.cmd.Env, env...), "SAFEDELIVR_LISTEN="+addr)
	p.cmd.Stderr = p.out
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = p.cmd.Wait() // how it ended does not matter
		close(p.gone)
	}()
	if err := p.ready(ctx); err != nil {
		p.kill()
		return nil, fmt.Errorf("%w; it printed:\n%s", err, p.out)
	}
	return p, nil
}

// ready waits until the server can do its work.
func (p *process) ready(ctx context.Context) error {
	return poll(ctx, time.Minute, "the server is ready", func() (bool, error) {
		select {
		case <-p.gone:
			return false, errors.New("the server ended")
		default:
		}
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.addr+"/readyz", nil)
		if err != nil {
			return false, err
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			return false, nil //nolint:nilerr // not yet
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK, nil
	})
}

// kill ends the process at once, as kill -9 does.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.gone
}

// again starts what p was, which has ended.
func (p *process) again(ctx context.Context) (*process, error) {
	return startProgram(ctx, p.cmd.Path, p.addr, p.env, p.args...)
}

// stop ends it softly, and at once after a while.
func (p *process) stop() {
	_ = p.stdin.Close()
	select {
	case <-p.gone:
	case <-time.After(20 * time.Second):
		p.kill()
	}
}

// tail keeps the end of what is written to it.
type tail struct {
	mu sync.Mutex
	b  []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if len(t.b) > 1<<16 {
		t.b = append([]byte(nil), t.b[len(t.b)-1<<15:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.b))
}

// poll asks again and again until f says that a state is reached, more seldom the
// longer it takes: a twentieth of the wait until now, between pollLeast and pollMost.
func poll(ctx context.Context, limit time.Duration, what string, f func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	began := time.Now()
	for {
		ok, err := f()
		if ok || err != nil {
			return err
		}
		select {
		case <-time.After(min(max(time.Since(began)/20, pollLeast), pollMost)):
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return fmt.Errorf("it did not happen within %s that %s", limit, what)
			}
			return ctx.Err()
		}
	}
}

const (
	pollLeast = 10 * time.Millisecond
	pollMost  = 100 * time.Millisecond
)

// addresses gives each address out once: its server may not have begun yet, or
// be killed just now, and another drill must not take its place.
type addresses struct {
	mu    sync.Mutex
	given map[string]bool
}

func (a *addresses) next(ctx context.Context) (string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for {
		addr, err := quietAddr(ctx)
		if err != nil || ctx.Err() != nil {
			return "", cmp.Or(err, ctx.Err())
		}
		if !a.given[addr] {
			a.given[addr] = true
			return addr, nil
		}
	}
}

// quietAddr finds a port for a server that is killed and started again. It lies
// below those that systems hand out for outgoing connections, one of which could
// take it meanwhile.
func quietAddr(ctx context.Context) (string, error) {
	var err error
	for range 100 {
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(20_000+rand.IntN(12_000))) //nolint:gosec // any free one will do
		var l net.Listener
		if l, err = (&net.ListenConfig{}).Listen(ctx, "tcp", addr); err == nil {
			return addr, l.Close()
		}
	}
	return "", err
}
