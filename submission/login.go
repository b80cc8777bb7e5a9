package submission

import "bytes"

// plainLogin is the mechanism PLAIN (RFC 4616): the user name does not count, and the password is the key.
type plainLogin struct{ check func(password string) error }

// Next implements sasl.Server.
func (p *plainLogin) Next(response []byte) (challenge []byte, done bool, err error) {
	if response == nil {
		return nil, false, nil
	}
	password := ""
	if parts := bytes.Split(response, []byte{0}); len(parts) == 3 {
		password = string(parts[2])
	}
	return nil, true, p.check(password)
}

// login is the mechanism LOGIN. The user name may come with the command.
type login struct {
	check func(password string) error
	named bool // the next response is the password
	asked bool // for the user name
}

// Next implements sasl.Server. Some clients know only these words for what they are asked.
func (l *login) Next(response []byte) (challenge []byte, done bool, err error) {
	switch {
	case l.named:
		return nil, true, l.check(string(response))
	case response == nil && !l.asked:
		l.asked = true
		return []byte("Username:"), false, nil
	}
	l.named = true
	return []byte("Password:"), false, nil
}
