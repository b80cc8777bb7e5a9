package main

import (
	"bufio"
	"context"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/lab/simulator"
)

// TestSimulatedServer: a simulated mail server listens at its own address, and greets.
func TestSimulatedServer(t *testing.T) {
	t.Parallel()
	ctx, end := context.WithCancel(t.Context())
	out, w := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- simulate(ctx, &cli{streams: streams{out: w}}, "127.0.0.1:0", []string{"name=relay,kind=smtp,key=K,listen=127.0.0.1:0"},
			simulator.Options{})
	}()
	lines := bufio.NewScanner(out)
	require.True(t, lines.Scan(), "the address of the simulator")
	require.True(t, lines.Scan(), "the address of the server")
	require.Regexp(t, `^  relay \(smtp\): host 127\.0\.0\.1 port [0-9]+$`, lines.Text())
	words := strings.Fields(lines.Text())
	c, err := net.Dial("tcp", "127.0.0.1:"+words[len(words)-1])
	require.NoError(t, err)
	greeting, err := bufio.NewReader(c).ReadString('\n')
	require.NoError(t, err)
	require.Regexp(t, "^220 ", greeting)
	require.NoError(t, c.Close())
	end()
	require.NoError(t, <-ended)
	for spec, want := range map[string]string{
		"port=1":                                    `"port" is none of name, kind, key, domain, signing, webhook, listen`,
		"name=sg,kind=sendgrid,key=K,listen=:1":     "only smtp and lmtp have an address",
		"name=relay,kind=smtp,key=K,listen=nowhere": "address nowhere: missing port",
	} {
		o := simulator.Options{}
		err := simulate(t.Context(), &cli{streams: streams{out: io.Discard}}, "127.0.0.1:0", []string{spec}, o)
		require.ErrorContains(t, err, want)
	}
}
