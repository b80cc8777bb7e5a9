package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models/condition"
)

// healthTime is how long a server may take to answer.
const healthTime = 4 * time.Second

// healthCommand is the health check of container images, which contain no other HTTP client.
func healthCommand(c *cli) *cobra.Command {
	var live bool
	cmd := &cobra.Command{
		Use:   "health [URL]",
		Short: "Check whether a running Safedelivr is ready; the exit code is 0 if it is",
		Long: `Ask the Safedelivr at URL, or at the configured listen address, whether it accepts batches.
Exit with 0 if it does, with 1 if it does not, and with 4 if it does not answer. It also prints what else is wrong:
refused webhooks, a full disk, no provider that accepts mail. With --live ask only whether the process answers: it
does while store and broker are away, and a restart would not help it.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			base, caller, err := healthServer(c, args)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), healthTime)
			defer cancel()
			server := client.New(base, "", client.HTTPClient(caller))
			if live {
				err := server.Health(ctx)
				var wrong *client.Error
				if errors.As(err, &wrong) {
					return fmt.Errorf("not alive: %s", http.StatusText(wrong.Status))
				}
				if err == nil {
					fmt.Fprintln(c.out, "alive")
				}
				return exitWith(exitUnreachable, err)
			}
			r, err := server.Readiness(ctx)
			if err != nil {
				return exitWith(exitUnreachable, err)
			}
			if c.json {
				err = json.NewEncoder(c.out).Encode(r)
				if err == nil && !r.Ready() {
					err = exitFailed
				}
				return err
			}
			if !r.Ready() {
				return fmt.Errorf("not ready: %s", missing(&r))
			}
			fmt.Fprintln(c.out, "ready")
			for _, kind := range condition.Kinds { // it accepts batches all the same, or says in each answer why not
				if word := r.Checks[string(kind)]; word != "" {
					fmt.Fprintln(c.out, word)
				}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&live, "live", false, "check only whether the process answers")
	return c.withJSON(cmd, jsonObject)
}

// healthServer returns the URL of the server that is checked, and how it is called.
func healthServer(c *cli, args []string) (base string, caller *http.Client, err error) {
	if len(args) > 0 {
		return strings.TrimSuffix(args[0], "/"), http.DefaultClient, nil
	}
	cfg, err := c.load()
	if err != nil {
		return "", nil, err
	}
	address := reachable(cfg.Listen)
	if cfg.TLS.Cert == "" {
		return "http://" + address, http.DefaultClient, nil
	}
	// The certificate is for the public name. A check sends no secret.
	t := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // see above
	return "https://" + address, &http.Client{Transport: t}, nil
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
