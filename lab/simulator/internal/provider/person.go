package provider

import (
	"net/mail"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
)

// A Person is a mailbox in a call of JSON.
type Person struct {
	Email string `json:"email"`
	Name  string `json:"name"`
}

// String returns the mailbox as the mail shows it, or "" if there is none.
func (p *Person) String() string {
	switch {
	case p == nil:
		return ""
	case p.Name == "" || !message.ValidAddress(p.Email):
		return p.Email
	}
	return (&mail.Address{Name: p.Name, Address: p.Email}).String()
}

// Address sets the sender, the reply-to address and the recipients.
func (l *Letter) Address(from, reply *Person, to, cc, bcc []Person) {
	if l.From = from.String(); reply != nil {
		l.ReplyTo = []string{reply.String()}
	}
	for role, list := range [3][]Person{to, cc, bcc} {
		for i := range list {
			l.To[role] = append(l.To[role], list[i].String())
		}
	}
}
