package main

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/client"
)

// healthTime is how long a server may take to answer.
const healthTime = 4 * time.Second

// healthCommand is the health check of container images, which contain no other HTTP client.
func (c *cli) healthCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "health [URL]",
		Short: "Check whether a running Safedelivr is ready; the exit code is 0 if it is",
		Args:  cobra.MaximumNArgs(1),
		Long: `Ask the Safedelivr at URL, or at the configured listen address, whether it accepts batches.
Exit with 0 if it does and with 1 if it does not.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			var base string
			if len(args) > 0 {
				base = args[0]
			} else {
				cfg, err := c.load()
				if err != nil {
					return err
				}
				base = "http://" + reachable(cfg.Listen)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), healthTime)
			defer cancel()
			r, err := client.New(base, "").Readiness(ctx)
			if err != nil {
				return err
			}
			if !r.Ready() {
				return fmt.Errorf("not ready: %s", missing(&r))
			}
			fmt.Fprintln(c.out, "ready")
			return nil
		},
	}
}

// missing lists the parts that a server lacks, and why.
func missing(r *client.Readiness) string {
	var out []string
	for _, part := range r.Missing {
		out = append(out, part+": "+r.Checks[part])
	}
	return strings.Join(out, "; ")
}

// reachable turns an address to listen on into one to call: all addresses of this machine become loopback.
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
