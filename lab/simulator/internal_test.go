package simulator

import (
	"encoding/json"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
)

func TestModesAreValidAndKeepTheirTimes(t *testing.T) {
	t.Parallel()
	for _, m := range modes {
		f := Fault{Mode: m.name, Status: 500}
		if m.name == ModeOutcome {
			f.Mode += m.value
		}
		if err := f.Validate(); err != nil {
			t.Error(err)
		}
		text, err := json.Marshal(Fault{Mode: f.Mode, Delay: time.Second, RetryAfter: time.Minute, Status: 500})
		var back Fault
		if err == nil {
			err = json.Unmarshal(text, &back)
		}
		if err != nil || back.Delay != time.Second || back.RetryAfter != time.Minute || back.Mode != f.Mode {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestManyCopiesOfOneIDStayFast(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	defer s.Close()
	if err := s.AddAccount(Account{Name: "x", Kind: SendGrid, Key: "k"}); err != nil {
		t.Fatal(err)
	}
	a := s.account("x")
	const n = 50_000
	for range n {
		b := &stored{Batch: message.Batch{Copies: []message.Copy{{Address: "Same@example.com"}}}, account: a}
		b.Identify("")
		s.store.Load().add(b, a.tallies())
	}
	if st := s.Stats("x"); st.Copies != n || st.Distinct != 1 || st.Doubled != 1 {
		t.Errorf("stats %+v", st)
	}
	if list := s.Copies("same@example.com"); len(list) != n || list[0].Address != "Same@example.com" {
		t.Errorf("%d copies", len(list))
	}
	if list := s.Copies("SAME@example.com"); len(list) != n {
		t.Errorf("%d copies", len(list))
	}
}

// TestLeavingClientIsNoticed: a transaction ends with its client, also while it waits for a reply.
func TestLeavingClientIsNoticed(t *testing.T) {
	t.Parallel()
	server, client := net.Pipe()
	left := make(chan struct{})
	c := &content{in: strings.NewReader("mail"), conn: server, left: func() { close(left) }}
	if raw, err := io.ReadAll(c); err != nil || string(raw) != "mail" {
		t.Fatalf("%q %v", raw, err)
	}
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	<-left
	c.end()
}
