package drill

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/config"
)

// process is a server in a process of its own, which can be killed and frozen.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer // the process ends when it is closed, also because this one ends
	addr  string
	env   []string
	args  []string
	out   *tail
	gone  chan struct{}
}

// serveCommand is the command that serves for as long as its standard input stays open.
const serveCommand = "rehearsed"

// start starts a server and returns when it is ready.
func (s *setup) start(ctx context.Context, addr string, env []string, args ...string) (*process, error) {
	return startProgram(ctx, s.program, addr, env, args...)
}

// command runs a command of the program and returns what it printed.
func (s *setup) command(ctx context.Context, env []string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, s.program, args...) //nolint:gosec // it is this program
	cmd.Env = append(cleanEnv(), env...)
	out, err := cmd.CombinedOutput()
	return string(bytes.TrimSpace(out)), err
}

// cleanEnv returns the environment of this process without the user's settings.
func cleanEnv() (out []string) {
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, config.Prefix) || strings.HasPrefix(v, config.Prefix+"TEST_") {
			out = append(out, v)
		}
	}
	return out
}

// startProgram starts a server with a program and returns when it is ready.
func startProgram(ctx context.Context, exe, addr string, env []string, args ...string) (*process, error) {
	p := &process{
		//nolint:gosec,noctx // it is this program, and it outlives ctx until it has stopped
		cmd:  exec.Command(exe, append([]string{serveCommand}, args...)...),
		addr: addr,
		env:  env,
		args: args,
		out:  &tail{},
		gone: make(chan struct{}),
	}
	p.cmd.Env = append(append(cleanEnv(), env...), "SAFEDELIVR_LISTEN="+addr, "SAFEDELIVR_METRICS_LISTEN=off")
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

// ready waits until the server is ready.
func (p *process) ready(ctx context.Context) error {
	c := client.New("http://"+p.addr, "")
	return poll(ctx, 2*patience, "the server is ready", func() (bool, error) {
		select {
		case <-p.gone:
			return false, errors.New("the server ended")
		default:
		}
		r, err := c.Readiness(ctx)
		return err == nil && r.Ready(), nil
	})
}

// kill ends the process at once, as kill -9 does.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.gone
}

// again starts a process like p, which has ended.
func (p *process) again(ctx context.Context) (*process, error) {
	return startProgram(ctx, p.cmd.Path, p.addr, p.env, p.args...)
}

// stopTime is how long a process may take to stop.
const stopTime = 20 * time.Second

// stop stops the process, and kills it if that takes too long.
func (p *process) stop() {
	_ = p.stdin.Close()
	select {
	case <-p.gone:
	case <-time.After(stopTime):
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

// The shortest and the longest wait of poll.
const (
	pollLeast = 10 * time.Millisecond
	pollMost  = 100 * time.Millisecond
)

// poll calls f until it returns true or an error. It waits longer the longer it takes: a twentieth of the time that has
// passed.
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

// addresses gives out each address once: its server may not have begun yet or may just have been killed, and no other
// drill may listen there meanwhile.
type addresses struct {
	mu  sync.Mutex
	all map[string]bool
}

// ownAddresses are those of all drills of this process. Several runs may run at a time.
var ownAddresses addresses

func (a *addresses) next(ctx context.Context) (string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for {
		addr, err := freeAddr(ctx)
		if err != nil || ctx.Err() != nil {
			return "", cmp.Or(err, ctx.Err())
		}
		if a.all == nil {
			a.all = map[string]bool{}
		}
		if !a.all[addr] {
			a.all[addr] = true
			return addr, nil
		}
	}
}

// freeAddr returns an address that is free. Its port is below those that systems give to outgoing connections, which
// could take it while its server is being restarted.
func freeAddr(ctx context.Context) (string, error) {
	var err error
	for range 100 {
		port := 20_000 + rand.IntN(12_000) //nolint:gosec // any free one will do
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		var l net.Listener
		if l, err = (&net.ListenConfig{}).Listen(ctx, "tcp", addr); err == nil {
			return addr, l.Close()
		}
	}
	return "", err
}
