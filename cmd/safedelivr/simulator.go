package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/lab/simulated"
	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/providers"
)

func simulatorCommand(c *cli) *cobra.Command {
	var listen string
	var specs []string
	var o simulator.Options
	var latency, delay time.Duration
	cmd := &cobra.Command{
		Use:   "simulator",
		Short: "Simulate the providers' HTTP APIs",
		Long: `Simulate ` + strings.Join(titles(), ", ") + ` and mail servers,
with faults and webhooks. Each provider has its own path: base_url http://HOST/<provider>. The control API is under
/control/.

  --provider name=sg,kind=sendgrid,key=K,webhook=http://127.0.0.1:8080/webhooks/sg
  --provider name=mg,kind=mailgun,key=K,domain=mail.example.com,signing=S,webhook=http://127.0.0.1:8080/webhooks/mg

A mail server listens at an address of its own: --provider name=relay,kind=smtp,key=K,listen=127.0.0.1:2525

Make a provider misbehave, and end that again:

  curl http://127.0.0.1:8025/control/faults -d '{"account": "sg", "mode": "status:503"}'
  curl -X DELETE 'http://127.0.0.1:8025/control/faults?account=sg'

The modes (docs/simulator.md has the other members of a fault):

` + modesHelp(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.RecipientKey, o.Latency, o.EventDelay = simulated.RecipientKey, latency, delay
			return simulate(cmd.Context(), c, listen, specs, o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&listen, "listen", "127.0.0.1:8025",
		"address to listen on; there is no access control, so keep it on loopback")
	f.StringArrayVar(&specs, "provider", nil, "a provider; may be given several times")
	f.Float64Var(&o.TimeScale, "time-scale", 60, "how much faster than real retries and delays run")
	f.DurationVar(&latency, "latency", 0, "answer time of every call")
	f.DurationVar(&delay, "event-delay", 200*time.Millisecond, "time from a call to its events")
	f.Uint64Var(&o.Seed, "seed", 0, "seed of everything random; 0: a new one")
	f.BoolVar(&o.KeepContent, "keep-content", false, "keep subject and bodies of all mail in memory")
	return cmd
}

// titles returns the titles of the kinds of provider with an API.
func titles() (out []string) {
	for _, k := range providers.Kinds() {
		if !k.Server {
			out = append(out, k.Title)
		}
	}
	return out
}

// modesHelp returns a line for each mode of a fault.
func modesHelp() string {
	var b strings.Builder
	for _, m := range simulator.Modes() {
		fmt.Fprintf(&b, "  %-18s %s\n", m.Example, strings.ReplaceAll(m.Effect, "`", ""))
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func simulate(ctx context.Context, c *cli, listen string, specs []string, o simulator.Options) error {
	sim := simulator.New(o)
	defer sim.Close()
	var mistakes []error
	servers := map[string]string{} // where accounts listen that take mail by SMTP or LMTP
	for _, spec := range specs {
		a, at, err := parseSimulated(spec)
		if err == nil && at != "" && a.Kind != simulator.SMTP && a.Kind != simulator.LMTP {
			err = errors.New("only smtp and lmtp have an address of their own")
		}
		if err == nil {
			servers[a.Name], err = at, sim.AddAccount(a)
		}
		if err != nil {
			mistakes = append(mistakes, fmt.Errorf("--provider %s: %w", spec, err))
		}
	}
	if err := errors.Join(mistakes...); err != nil {
		return err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
	if err != nil {
		return err
	}
	fmt.Fprintf(c.out, "simulator on http://%s\n", l.Addr())
	for _, a := range sim.Accounts() {
		line := fmt.Sprintf("  %s (%s): base_url http://%s/%s", a.Name, a.Kind, l.Addr(), a.Name)
		if a.Kind == simulator.SMTP || a.Kind == simulator.LMTP {
			at, err := simulated.ServeSMTP(ctx, sim, a.Name, servers[a.Name])
			if err != nil {
				return err
			}
			line = fmt.Sprintf("  %s (%s): host %s port %d", a.Name, a.Kind, at.IP, at.Port)
		}
		if key := sim.PublicKey(a.Name); key != "" {
			line += " webhook_key " + key
		}
		fmt.Fprintln(c.out, line)
	}
	return simulated.Serve(ctx, l, sim, sim.Close)
}

// parseSimulated reads name=…,kind=…,key=…,domain=…,signing=…,webhook=…,listen=… and returns the last one apart.
func parseSimulated(spec string) (a simulator.Account, listen string, err error) {
	fields := map[string]*string{
		"name":    &a.Name,
		"kind":    &a.Kind,
		"key":     &a.Key,
		"domain":  &a.Domain,
		"signing": &a.SigningKey,
		"webhook": &a.WebhookURL,
		"listen":  &listen,
	}
	for part := range strings.SplitSeq(spec, ",") {
		k, v, _ := strings.Cut(part, "=")
		if fields[k] == nil {
			return a, "", fmt.Errorf("%q is none of name, kind, key, domain, signing, webhook, listen", k)
		}
		*fields[k] = v
	}
	if a.Kind == simulator.SendGrid && a.SigningKey == "" {
		a.SigningKey = simulated.SendGridKey
	}
	return a, listen, nil
}
