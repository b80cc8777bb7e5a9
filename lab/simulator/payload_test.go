package simulator_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator"
)

// TestPayloads compares whole webhook bodies byte by byte: framing, signature block
// and order of members.
func TestPayloads(t *testing.T) {
	t.Parallel()
	for kind, name := range map[string]string{simulator.SendGrid: "sg-post.txt", simulator.Mailgun: "mg-post.txt"} {
		w := &wire{status: func(int, []byte) int { return 200 }}
		in(t, kind, simulator.Options{WebhookWorkers: 1}, w, func(t *testing.T, s *simulator.Simulator, send sendFunc) {
			time.Sleep(27 * 365 * 24 * time.Hour) // the bubble begins in 2000, when Unix times had nine digits
			send("a@example.com", "blocked-x+1@sim.test")
			if err := s.Settle(t.Context()); err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			for _, p := range w.all() {
				fmt.Fprintf(&out, "%s\n%s\n", p.Header.Get("User-Agent"), p.Body)
			}
			golden(t, name, out.Bytes())
		})
	}
}
