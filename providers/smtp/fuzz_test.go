package smtp

import (
	"fmt"
	"net/textproto"
	"strings"
	"testing"

	"github.com/safedelivr/safedelivr/models"
	common "github.com/safedelivr/safedelivr/models/settings"
	"github.com/safedelivr/safedelivr/providers/internal/settings"
)

// FuzzRefused: every reply that refuses a mail has a meaning, and its text has no address. Only a permanent reply about a
// recipient ends a log.
func FuzzRefused(f *testing.F) {
	p, err := New(settings.Settings{Name: "r", Kind: "smtp",
		Server: common.Server{Host: "127.0.0.1", User: "ann", Password: "s3cret"}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(550, 5, 1, 1, "<ann@example.com>: no such user", 2)
	f.Add(451, 0, 0, 0, "later", 3)
	f.Add(421, 4, 3, 2, "s3cret", 1)
	f.Fuzz(func(t *testing.T, code, class, subject, detail int, text string, at int) {
		if code < 400 || code > 599 {
			return // the client takes it for no reply
		}
		where := []stage{connecting, sender, recipient, content}[uint(at)%4]
		reply := &textproto.Error{Code: code, Msg: text}
		if class > 0 {
			reply.Msg = fmt.Sprintf("%d.%d.%d %s", class, subject, detail, text)
		}
		got := p.refused(where, reply, models.SetOf(1))
		switch {
		case !got.Class.Refused(), strings.ContainsAny(got.Text, "@\r\n"), strings.Contains(got.Text, "s3cret"):
			t.Fatalf("%+v", got)
		case got.Class == models.RejectedRecipient && (where < recipient || code < 500 && class != 5):
			t.Fatalf("%+v at stage %d", got, where)
		}
	})
}
