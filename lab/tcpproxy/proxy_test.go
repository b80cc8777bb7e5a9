package tcpproxy

import (
	"bufio"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/testkit"
)

// echo answers every line with itself, and returns its address and what arrives.
func echo(t *testing.T) (string, <-chan string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	arrived := make(chan string, 10)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				for s := bufio.NewScanner(c); s.Scan(); {
					arrived <- s.Text()
					fmt.Fprintln(c, s.Text())
				}
			}()
		}
	}()
	return l.Addr().String(), arrived
}

type peer struct {
	*testing.T
	net.Conn
	lines *bufio.Reader
}

func dial(t *testing.T, p *Proxy) *peer {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return &peer{t, c, bufio.NewReader(c)}
}

func (p *peer) say(text string) { fmt.Fprintln(p.Conn, text) }

// hears reads a line, or returns an error after a while.
func (p *peer) hears(within time.Duration) (string, error) {
	require.NoError(p, p.SetReadDeadline(time.Now().Add(within)))
	text, err := p.lines.ReadString('\n')
	return text, err
}

func TestFaultsOfTheNetwork(t *testing.T) {
	t.Parallel()
	const long, short = testkit.Patience, 50 * time.Millisecond
	server, arrived := echo(t)
	p, err := New(t.Context(), server)
	require.NoError(t, err)
	p.Record()
	c := dial(t, p)
	c.say("one")
	text, err := c.hears(long)
	require.NoError(t, err)
	require.Equal(t, "one\n", text)
	require.Equal(t, "one", <-arrived)

	p.Freeze()
	c.say("two")
	_, err = c.hears(short)
	require.Error(t, err, "a frozen proxy forwards nothing")
	p.Thaw()
	text, err = c.hears(long)
	require.NoError(t, err)
	require.Equal(t, "two\n", text, "nothing was lost")
	require.Equal(t, "two", <-arrived)

	p.Lose(Answers)
	c.say("three")
	require.Equal(t, "three", <-arrived, "the request arrives")
	_, err = c.hears(short)
	require.Error(t, err, "and its answer does not")
	p.Recover()
	_, err = c.hears(long)
	require.Error(t, err, "a connection that lost something is broken")

	c = dial(t, p)
	p.Lose(Everything)
	c.say("four")
	_, err = c.hears(short)
	require.Error(t, err)
	require.Empty(t, arrived)
	p.Recover()

	p.Refuse()
	_, err = dial(t, p).hears(long)
	require.Error(t, err)
	require.Positive(t, p.Refused())
	p.Accept()
	c = dial(t, p)
	c.say("five")
	_, err = c.hears(long)
	require.NoError(t, err)
	p.Cut()
	_, err = c.hears(long)
	require.Error(t, err)
	p.Close()
	require.Contains(t, string(p.Recorded()[0]), "one\ntwo\nthree\n")
}
