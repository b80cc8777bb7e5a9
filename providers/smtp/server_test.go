package smtp

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// server speaks SMTP or LMTP as a test says. Replies are found by the command: EHLO, MAIL, "RCPT <address>", RCPT,
// DATA, "." for the end of the content, RSET, AUTH, STARTTLS, and "" for the greeting. "drop" closes the connection
// instead, "hang" never answers, "after " before a reply drops the connection after it, and "slow " is a reply after 36
// s.
type server struct {
	address string
	replies map[string]string
	caps    []string

	mu       sync.Mutex
	mails    []taken  // whose final dot arrived
	commands []string // of all connections
	conns    int
	cut      chan string   // has what arrived of the content of a mail without its final dot
	hung     chan struct{} // has a value for each command that hangs
	ended    chan struct{} // closed to end those that hang
	all      sync.WaitGroup
}

// taken is a mail that arrived whole.
type taken struct {
	from string
	to   []string
	body string
}

func newServer(t *testing.T, replies map[string]string, caps ...string) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return serveOn(t, l, replies, caps...)
}

// serveOn starts a server that accepts the connections of l.
func serveOn(t *testing.T, l net.Listener, replies map[string]string, caps ...string) *server {
	t.Helper()
	s := &server{address: l.Addr().String(), replies: replies, caps: caps, cut: make(chan string, 10),
		hung: make(chan struct{}, 10), ended: make(chan struct{})}
	s.all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns++
			s.mu.Unlock()
			s.all.Go(func() { s.serve(c) })
		}
	})
	t.Cleanup(func() {
		close(s.ended)
		_ = l.Close()
		s.all.Wait()
	})
	return s
}

// reply returns the reply to a command: that of the test, or the usual one.
func (s *server) reply(command, usual string) string {
	reply, ok := s.replies[command]
	if verb, _, cut := strings.Cut(command, " "); !ok && cut {
		reply, ok = s.replies[verb]
	}
	if !ok {
		reply = usual
	}
	return reply
}

// say writes a reply. It reports whether the connection goes on.
func (s *server) say(c net.Conn, command, usual string) bool {
	reply, slow := strings.CutPrefix(s.reply(command, usual), "slow ")
	if slow {
		select {
		case <-s.ended:
		case <-time.After(36 * time.Second):
		}
	}
	reply, last := strings.CutPrefix(reply, "after ")
	switch reply {
	case "drop":
		return false
	case "hang":
		s.hung <- struct{}{}
		<-s.ended
		return false
	}
	_, err := fmt.Fprintf(c, "%s\r\n", reply)
	return err == nil && !last
}

func (s *server) serve(c net.Conn) {
	defer func() { _ = c.Close() }()
	go func() { // a client that waits for the end of a test must not
		<-s.ended
		_ = c.Close()
	}()
	r := bufio.NewReader(c)
	if !s.say(c, "", "220 test.example ESMTP") {
		return
	}
	var m taken
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		line = strings.TrimRight(line, "\r\n")
		s.mu.Lock()
		s.commands = append(s.commands, line)
		s.mu.Unlock()
		verb, rest, _ := strings.Cut(line, " ")
		var goes bool
		switch verb {
		case "EHLO", "LHLO":
			usual := "250-test.example"
			for _, cap := range append([]string{"SIZE 1000000", "8BITMIME"}, s.caps...) {
				usual += "\r\n250-" + cap
			}
			goes = s.say(c, "EHLO", usual+"\r\n250 HELP")
		case "MAIL":
			m = taken{}
			if strings.HasPrefix(s.reply("MAIL", "250"), "250") {
				m.from = between(rest)
			}
			goes = s.say(c, "MAIL", "250 ok")
		case "RCPT":
			command, usual := "RCPT "+between(rest), "250 ok"
			if m.from == "" {
				usual = "503 5.5.1 no sender"
			}
			if strings.HasPrefix(s.reply(command, usual), "25") {
				m.to = append(m.to, between(rest))
			}
			goes = s.say(c, command, usual)
		case "DATA":
			usual := "354 go on"
			if len(m.to) == 0 {
				usual = "554 5.5.1 no valid recipients"
			}
			if goes = s.say(c, "DATA", usual); !goes || !strings.HasPrefix(s.reply("DATA", usual), "354") {
				break
			}
			if m.body, err = readContent(r); err != nil {
				s.cut <- m.body
				return
			}
			s.mu.Lock()
			s.mails = append(s.mails, m)
			s.mu.Unlock()
			goes = s.say(c, ".", "250 2.0.0 queued as Q1")
		default:
			goes = s.say(c, verb, "250 ok")
		}
		if !goes {
			return
		}
	}
}

// between returns the address between < and >.
func between(s string) string {
	_, s, _ = strings.Cut(s, "<")
	s, _, _ = strings.Cut(s, ">")
	return s
}

// readContent reads to the final dot.
func readContent(r *bufio.Reader) (string, error) {
	var b strings.Builder
	for {
		line, err := r.ReadString('\n')
		if err == nil && line == ".\r\n" {
			return b.String(), nil
		}
		b.WriteString(strings.TrimPrefix(line, "."))
		if err != nil {
			return b.String(), err
		}
	}
}

func (s *server) taken() []taken {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]taken(nil), s.mails...)
}
