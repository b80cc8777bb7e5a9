package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// healthCommand asks a running process whether it is ready. It is there for
// images that hold nothing else that could ask.
func (c *cli) healthCommand() *cobra.Command {
	return &cobra.Command{
		Use: "health [URL]", Short: "Ask a running Safedelivr whether it is ready; the exit code says", Args: cobra.MaximumNArgs(1),
		Long: "Ask /readyz of the Safedelivr at URL, or at the configured listen address, and exit 0 if it is ready, else 1.",
		RunE: func(cmd *cobra.Command, args []string) error {
			var base string
			if len(args) > 0 {
				base = strings.TrimSuffix(args[0], "/")
			} else {
				cfg, err := c.load()
				if err != nil {
					return err
				}
				base = "http://" + reachable(cfg.Listen)
			}
			r, err := http.NewRequestWithContext(cmd.Context(), http.MethodGet, base+"/readyz", nil)
			if err != nil {
				return err
			}
			resp, err := (&http.Client{Timeout: 4 * time.Second}).Do(r)
			if err != nil {
				return err
			}
			defer func() { _ = resp.Body.Close() }()
			text, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10)) // the status decides
			if resp.StatusCode != http.StatusOK {
				return errors.New(strings.TrimSpace(fmt.Sprintf("not ready (%d): %s", resp.StatusCode, text)))
			}
			fmt.Fprintln(c.out, "ready")
			return nil
		},
	}
}

// reachable turns an address to listen on into one to ask: one that means all
// addresses of this machine becomes loopback.
func reachable(listen string) string {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return listen
	}
	switch ip := net.ParseIP(host); {
	case host == "", ip != nil && ip.To4() != nil && ip.IsUnspecified():
		host = "127.0.0.1"
	case ip != nil && ip.IsUnspecified():
		host = "::1"
	}
	return net.JoinHostPort(host, port)
}
