package esmtp

import (
	"encoding/base64"
	"errors"
	"slices"
	"strings"

	"github.com/wneessen/go-mail/smtp"

	"github.com/safedelivr/safedelivr/providers/internal/oauth"
)

// ErrNoLogin says that the server offers no known way to log in.
var ErrNoLogin = errors.New("the server offers no way to log in that is known here, like PLAIN, LOGIN or SCRAM-SHA-256")

// mechanisms are the ways to log in with a password, the first that a server offers.
var mechanisms = []struct {
	name string
	auth func(user, password, host string) smtp.Auth
}{
	{"PLAIN", func(user, password, host string) smtp.Auth { return smtp.PlainAuth("", user, password, host, true) }},
	{"LOGIN", func(user, password, host string) smtp.Auth { return smtp.LoginAuth(user, password, host, true) }},
	{"SCRAM-SHA-256", func(user, password, _ string) smtp.Auth { return smtp.ScramSHA256Auth(user, password) }},
	{"CRAM-MD5", func(user, password, _ string) smtp.Auth { return smtp.CRAMMD5Auth(user, password) }},
}

// LogIn logs in at a host with a password, which may be an access token. The caller has decided whether the connection
// must be encrypted.
func (c *Client) LogIn(user, password, host string) error {
	for _, m := range mechanisms {
		if !c.offersLogin(m.name) {
			continue
		}
		a := m.auth(user, password, host)
		name, first, err := a.Start(&smtp.ServerInfo{Name: host, TLS: true})
		if err != nil {
			return err
		}
		return c.auth(name, first, func(challenge []byte) ([]byte, error) { return a.Next(challenge, true) })
	}
	return c.LogInWithToken(user, password)
}

// LogInWithToken logs in with an access token.
func (c *Client) LogInWithToken(user, token string) error {
	if !c.offersLogin(oauth.Mechanism) {
		return ErrNoLogin
	}
	a := oauth.Client(user, token)
	name, first, err := a.Start()
	if err != nil {
		return err
	}
	return c.auth(name, first, a.Next)
}

// offersLogin reports whether the server offers a mechanism.
func (c *Client) offersLogin(mechanism string) bool {
	return slices.Contains(strings.Fields(c.offers["AUTH"]), mechanism)
}

// auth logs in with a mechanism (RFC 4954): with its first answer, and with those to the challenges of the server.
func (c *Client) auth(mechanism string, answer []byte, next func(challenge []byte) ([]byte, error)) error {
	encoding := base64.StdEncoding
	command := strings.TrimSpace("AUTH " + mechanism + " " + encoding.EncodeToString(answer))
	for {
		text, err := c.ask(235, command)
		if Code(err) != 334 {
			return err
		}
		challenge, err := encoding.DecodeString(text)
		if err != nil {
			return err
		}
		if answer, err = next(challenge); err != nil {
			return err
		}
		command = encoding.EncodeToString(answer)
	}
}
