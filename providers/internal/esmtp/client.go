// Package esmtp is a client of SMTP and LMTP. It sends the commands of a mail at once if the server offers PIPELINING
// (RFC 2920), and one after the other if not. It never ends the content of a mail that was refused.
package esmtp

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/textproto"
	"strconv"
	"strings"

	common "github.com/safedelivr/safedelivr/models/settings"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
)

// Options say how a client opens a session.
type Options struct {
	LMTP     bool
	Domain   string // of the client
	Security string // common.NoTLS, common.TLS or common.StartTLS
	TLS      *tls.Config
}

// A Client is a session with a server. Errors that are replies are of the type *textproto.Error. After any other error
// it is of no use. It does not close the connection.
type Client struct {
	options *Options
	conn    net.Conn
	text    *textproto.Conn   // above the encryption
	offers  map[string]string // the extensions of the server with their parameters, in upper case
}

// Open reads the greeting of a server, encrypts the connection, and asks what the server offers.
func Open(ctx context.Context, conn net.Conn, o *Options) (*Client, error) {
	c := &Client{options: o, conn: conn}
	c.use(conn)
	steps := map[string][]func(context.Context) error{
		common.NoTLS:    {c.greeting, c.hello},
		common.TLS:      {c.encrypt, c.greeting, c.hello},
		common.StartTLS: {c.greeting, c.hello, c.startTLS, c.encrypt, c.hello},
	}
	for _, step := range steps[o.Security] {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// use makes the client read and write through a connection. It drops what was read from the one before.
func (c *Client) use(conn net.Conn) { c.text = textproto.NewConn(parse.Spaced(conn)) }

// write buffers a command. The next call of reply sends it.
func (c *Client) write(command string) error {
	if strings.ContainsAny(command, "\r\n") {
		return errors.New("a command has a line break")
	}
	_, err := c.text.W.WriteString(command + "\r\n")
	return err
}

// reply returns the text of the next reply. Its code must begin with want.
func (c *Client) reply(want int) (string, error) {
	if err := c.text.W.Flush(); err != nil {
		return "", err
	}
	_, text, err := c.text.ReadResponse(want)
	return text, err
}

// Code returns the code of the reply that err is; 0: it is none.
func Code(err error) int {
	var reply *textproto.Error
	if errors.As(err, &reply) {
		return reply.Code
	}
	return 0
}

// ask sends a command and returns the text of its reply.
func (c *Client) ask(want int, command string) (string, error) {
	if err := c.write(command); err != nil {
		return "", err
	}
	return c.reply(want)
}

// greeting reads the first reply of the server.
func (c *Client) greeting(context.Context) error {
	_, err := c.reply(220)
	return err
}

// hello names this client, and reads what the server offers.
func (c *Client) hello(context.Context) error {
	verb := "EHLO "
	if c.options.LMTP {
		verb = "LHLO "
	}
	text, err := c.ask(250, verb+c.options.Domain)
	if code := Code(err); code == 500 || code == 502 { // an old server, which offers nothing
		_, err = c.ask(250, "HELO "+c.options.Domain)
		text = ""
	}
	c.offers = map[string]string{}
	for _, line := range strings.Split(strings.ToUpper(text), "\n")[1:] {
		name, parameters, _ := strings.Cut(line, " ")
		c.offers[name] = parameters
	}
	return err
}

// has reports whether the server offers an extension.
func (c *Client) has(extension string) bool {
	_, ok := c.offers[extension]
	return ok
}

// startTLS asks for encryption. Text after the reply is an error: anyone on the way may have written it (RFC 3207, 6).
func (c *Client) startTLS(context.Context) error {
	if !c.has("STARTTLS") {
		return errors.New("the server does not offer STARTTLS")
	}
	_, err := c.ask(220, "STARTTLS")
	if err == nil && c.text.R.Buffered() > 0 {
		return errors.New("the server sent text between STARTTLS and the encryption")
	}
	return err
}

// encrypt encrypts the connection.
func (c *Client) encrypt(ctx context.Context) error {
	conn := tls.Client(c.conn, c.options.TLS)
	c.use(conn)
	return conn.HandshakeContext(ctx)
}

// A Mail is content and its envelope.
type Mail struct {
	From    string
	To      []string
	ID      string // of the envelope, without characters that need an escape (RFC 3461, 4)
	Content []byte
}

// command is one of those before the content.
type command struct {
	line string
	want int // what the code of its reply begins with
}

// commands returns MAIL, a RCPT for each recipient, and DATA.
func (c *Client) commands(m *Mail) []command {
	from, to := "MAIL FROM:<"+m.From+">", ">"
	if c.has("8BITMIME") {
		from += " BODY=8BITMIME"
	}
	if c.has("SIZE") {
		from += " SIZE=" + strconv.Itoa(len(m.Content))
	}
	if c.has("DSN") {
		from += " RET=HDRS ENVID=" + m.ID
		to += " NOTIFY=FAILURE,DELAY"
	}
	out := []command{{from, 250}}
	for _, address := range m.To {
		out = append(out, command{"RCPT TO:<" + address + to, 25})
	}
	return append(out, command{"DATA", 354})
}

// Begin sends the commands before the content of a mail. It returns the number of the first that failed, and why: MAIL
// is 0, the first RCPT is 1. usable then reports whether the server awaits another command. It does not if it accepted
// DATA all the same: it would take what comes next for content.
func (c *Client) Begin(m *Mail) (usable bool, failed int, failure error) {
	commands, sent, pipelining := c.commands(m), 0, c.has("PIPELINING")
	for i := range commands {
		var err error
		for ; err == nil && (sent <= i || pipelining && sent < len(commands)); sent++ {
			err = c.write(commands[sent].line)
		}
		if err == nil {
			_, err = c.reply(commands[i].want)
		}
		if err != nil && failure == nil {
			failed, failure = i, err
		}
		code := Code(err)
		usable = code >= 400 && code != 421
		if err != nil && !(usable && pipelining) {
			break
		}
	}
	return usable, failed, failure
}

// End sends the content of a mail whose begin did not fail, and returns the text of the reply, whose code is 2yz. dot
// reports whether the final dot may have been sent.
func (c *Client) End(m *Mail) (text string, dot bool, err error) {
	w := c.text.DotWriter()
	if _, err = w.Write(m.Content); err != nil {
		return "", false, err
	}
	if err = w.Close(); err == nil {
		text, err = c.reply(2) // only the first digit counts (RFC 5321, 4.2)
	}
	return text, true, err
}

// Reset ends a mail that was refused.
func (c *Client) Reset() error {
	_, err := c.ask(250, "RSET")
	return err
}
