package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/safedelivr/safedelivr/config"
	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/internal/app"
	"github.com/safedelivr/safedelivr/internal/setup"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/settings"
	"github.com/safedelivr/safedelivr/providers"
	"github.com/safedelivr/safedelivr/service"
)

// initFlags are the flags of init. init asks for those that are missing.
type initFlags struct {
	setup.Options
	keyFile, secretKeyFile, webhookKeyFile string

	user    string
	noCheck bool
}

// dialects is the setting of the configuration that has what --dialects says.
var dialects, _ = reflect.TypeFor[config.Config]().FieldByName("Dialects")

func initCommand(c *cli) *cobra.Command {
	var o initFlags
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Set up a first installation: a provider, the configuration, a user and a key",
		Long: `Ask for a provider and its API key, or take them from the flags; ask the provider whether the key may
send; write safedelivr.yaml and the folder safedelivr-data, with the key in a file that only you can read; add a
user, and print an API key of that user on stdout. The rest goes to stderr, so that KEY=$(safedelivr init)
works. It replaces nothing.

Without --webhook-key-file the provider reports no events (events: none): mail that it accepted counts as delivered.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return setUp(cmd.Context(), c, &o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.Provider.Kind, "provider", "", "kind of provider: "+strings.Join(providers.Names(), ", "))
	f.StringVar(&o.Provider.Name, "name", "", "name of the provider (default: like sg, short for its kind)")
	f.StringVar(&o.keyFile, "key-file", "", "file with the API key of the provider, with the password, or with the "+
		"secret of an access key (default: ask)")
	f.StringVar(&o.secretKeyFile, "secret-key-file", "",
		"file with the second part of an API key that has two (default: ask)")
	o.addServer(f)
	o.addRegion(f)
	f.StringVar(&o.Provider.Domain, "domain", "", "sending domain, for kinds that need one")
	f.StringVar(
		&o.Provider.BaseURL,
		"base-url",
		"",
		"API of another region, like https://api.eu.mailgun.net, or a simulator",
	)
	f.StringVar(
		&o.webhookKeyFile,
		"webhook-key-file",
		"",
		"file with the key that verifies webhooks (default: no webhooks)",
	)
	f.StringVar(&o.PublicURL, "public-url", "", "URL at which browsers and the provider reach this server")
	f.StringSliceVar(&o.Dialects, "dialects", nil,
		"APIs of other services that your applications speak, of "+dialects.Tag.Get("oneof")+" (default: none)")
	f.StringVar(&o.SMTP, "smtp", "", "address at which applications hand over mail by SMTP, like :587 (default: no SMTP)")
	f.StringVar(&o.user, "user", "me", "name of the user")
	f.StringVar(&o.Folder, "folder", ".", "folder in which everything is made")
	f.BoolVar(&o.noCheck, "no-check", false, "do not ask the provider")
	return cmd
}

// addServer adds the flags of a mail server.
func (o *initFlags) addServer(f *pflag.FlagSet) {
	f.StringVar(&o.Provider.Host, "host", "", "name of the mail server (SMTP, LMTP)")
	f.IntVar(&o.Provider.Port, "port", 0, "port of the mail server (default: 587, with --tls tls 465)")
	f.StringVar(&o.Provider.TLS, "tls", "", "encryption of the connection: starttls, tls or none (default: starttls)")
	f.StringVar(&o.Provider.User, "mail-user", "", "user at the mail server (default: none)")
}

// addRegion adds the flags of a provider that is a region of Amazon SES.
func (o *initFlags) addRegion(f *pflag.FlagSet) {
	f.StringVar(&o.Provider.Region, "region", "", "region of Amazon SES, like eu-central-1")
	f.StringVar(&o.Provider.AccessKeyID, "access-key-id", "", "ID of the access key at Amazon")
	f.StringVar(&o.Provider.ConfigurationSet, "configuration-set", "",
		"configuration set of Amazon SES that reports events")
	f.StringSliceVar(&o.Provider.Topics, "topics", nil,
		"ARNs of the Amazon SNS topics of its events (default: no webhooks)")
}

func setUp(ctx context.Context, c *cli, o *initFlags) error {
	if err := setup.Check(o.Folder); err != nil {
		return fmt.Errorf("%w: init makes a first installation and replaces nothing; see --folder", err)
	}
	if !userNames.MatchString(o.user) {
		return badUserName(o.user)
	}
	if err := settings.Check(dialects, o.Dialects); err != nil {
		return wrongUsage("--dialects: %v", err)
	}
	if err := askFor(c, o); err != nil {
		return err
	}
	if err := checkKey(ctx, c, o); err != nil {
		return err
	}
	files, err := setup.Write(o.Options)
	if err != nil {
		return err
	}
	c.configFile = files.Config
	fmt.Fprintf(c.err, "wrote %s\n", files.Config)
	for _, path := range files.Secrets {
		fmt.Fprintf(c.err, "wrote %s (only you can read it)\n", path)
	}
	return firstKey(ctx, c, o)
}

// firstKey adds the first user with a key, and prints what to do next.
func firstKey(ctx context.Context, c *cli, o *initFlags) error {
	cfg, err := c.load()
	if err != nil {
		return err
	}
	a, err := app.Open(ctx, &cfg, c.logger(&cfg))
	if err != nil {
		return exitWith(exitUnreachable, err)
	}
	defer a.Close()
	u := login.LocalUser() // so that the link that serve prints shows this user's mail
	u.Name, u.Created = o.user, time.Now().UTC()
	if err := a.Store().CreateUser(ctx, u); err != nil {
		return err
	}
	who := service.Caller{By: "cli:" + c.person(), User: u.ID, Operator: true}
	_, secret, err := a.Service().People.CreateKey(ctx, who, "init", models.KeyOptions{})
	if err != nil {
		return err
	}
	fmt.Fprintf(c.err, "added the user %s; this is an API key, which is not shown again:\n", u.Name)
	fmt.Fprintln(c.out, secret)
	from := "you@" + cmp.Or(o.Provider.Domain, "example.com")
	fmt.Fprintf(c.err, `
Next, in this folder:
  safedelivr serve     in another terminal; it prints a link to the dashboard
  safedelivr send --from %s --to you@example.com --subject 'It works'
  safedelivr provider check
`, from)
	if len(o.Dialects) == 0 && o.SMTP == "" {
		fmt.Fprint(c.err, `
Applications that speak SMTP, or the API of Mailgun, SendGrid, Resend or Postmark, change a host name:
docs/switch.md. The flags --smtp and --dialects of init turn that on, and so do settings later.
`)
	}
	return nil
}

// askFor asks for what the flags do not say, and reads the files that they name.
func askFor(c *cli, o *initFlags) error {
	in := bufio.NewReader(c.stdin())
	p := &o.Provider
	for asked := p.Kind == ""; asked; { // again after a typo
		var err error
		if p.Kind, err = c.ask(in, "Provider ("+strings.Join(providers.Names(), ", ")+"): "); err != nil {
			return err
		}
		if _, known := providers.Find(p.Kind); known {
			break
		}
		fmt.Fprintf(c.err, "There is no provider %q%s.\n", p.Kind, didYouMean(p.Kind, providers.Names()))
	}
	kind, ok := providers.Find(p.Kind)
	if !ok {
		return wrongUsage("--provider: %q must be one of %s", p.Kind, strings.Join(providers.Names(), ", "))
	}
	p.Name = cmp.Or(p.Name, kind.Short)
	for _, q := range []struct {
		need     bool
		value    *string
		question string
	}{
		{kind.Domain, &p.Domain, "Sending domain: "},
		{kind.Server, &p.Host, "Mail server: "},
		{kind.Server && p.Host == "", &p.User, "User (empty: none): "}, // not if flags say where the server is
		{kind.Region, &p.Region, "Region: "},
		{kind.Region, &p.AccessKeyID, "Access key ID: "},
	} {
		if q.need && *q.value == "" {
			var err error
			if *q.value, err = c.ask(in, q.question); err != nil {
				return err
			}
		}
	}
	if err := askForKeys(c, in, o, &kind); err != nil {
		return err
	}
	if p.Events = models.EventsNone; p.Verifiable() {
		p.Events = models.EventsWebhook
	}
	var wrong []error
	for _, err := range providers.Check(*p) {
		var m providers.Mistake
		if errors.As(err, &m) {
			m.Setting = cmp.Or(otherFlags[m.Setting], m.Setting)
			err = fmt.Errorf("--%s: %s", strings.ReplaceAll(m.Setting, "_", "-"), m.Text)
		}
		wrong = append(wrong, err)
	}
	return exitWith(exitUsage, errors.Join(wrong...))
}

// otherFlags are the flags of settings that have another name.
var otherFlags = map[string]string{"user": "mail-user", "secret_access_key": "key-file"}

// askForKeys reads the secrets of a provider from files, or asks for the key, or for what its kind has in place of one.
func askForKeys(c *cli, in *bufio.Reader, o *initFlags, kind *providers.Kind) (err error) {
	p := &o.Provider
	for _, q := range []struct {
		need, ask  bool
		secret     *string
		what, file string
	}{
		{!kind.Server && !kind.Region, true, &p.APIKey, "API key", o.keyFile},
		{kind.Pair, true, &p.SecretKey, "Secret key", o.secretKeyFile},
		{kind.Region, true, &p.SecretAccessKey, "Secret access key", o.keyFile},
		{kind.Server, p.User != "", &p.Password, "Password", o.keyFile},
	} {
		switch {
		case !q.need || err != nil:
		case q.file != "":
			*q.secret, err = readLine(q.file)
		case q.ask:
			*q.secret, err = c.askSecret(in, q.what+": ")
		}
	}
	if err == nil && o.webhookKeyFile != "" {
		p.WebhookKey, err = readLine(o.webhookKeyFile)
	}
	return err
}

// checkKey asks the provider whether the key may send. It goes on if the provider cannot be asked.
func checkKey(ctx context.Context, c *cli, o *initFlags) error {
	if o.noCheck {
		return nil
	}
	p := o.Provider
	p.Timeout = 15 * time.Second
	adapter, err := providers.New(p)
	if err != nil {
		return err
	}
	defer adapter.Close()
	account, err := providers.Inspect(ctx, adapter, "")
	if err != nil {
		fmt.Fprintf(c.err, "The key was not checked: %v\n", err)
		return nil
	}
	c.printFindings(c.err, account.Findings)
	for _, f := range account.Findings {
		if f.State == providers.Wrong && f.About != "domains" {
			return errors.New("nothing was written: see above, or use --no-check")
		}
	}
	return nil
}

// ask asks for a line.
func (c *cli) ask(in *bufio.Reader, question string) (string, error) {
	fmt.Fprint(c.err, question)
	line, err := in.ReadString('\n')
	if _, ok := c.terminal(); !ok {
		fmt.Fprintln(c.err) // a terminal shows the end of the line that was typed
	}
	if line = strings.TrimSpace(line); line == "" {
		return "", errors.Join(fmt.Errorf("no answer to: %s", strings.TrimSpace(question)), err)
	}
	return line, nil
}

// askSecret asks for a line that a terminal does not show.
func (c *cli) askSecret(in *bufio.Reader, question string) (string, error) {
	fd, ok := c.terminal()
	if !ok || in.Buffered() > 0 {
		return c.ask(in, question)
	}
	fmt.Fprint(c.err, question)
	line, err := term.ReadPassword(fd)
	fmt.Fprintln(c.err)
	return strings.TrimSpace(string(line)), err
}

// terminal returns the descriptor of stdin if that is a terminal.
func (c *cli) terminal() (fd int, ok bool) {
	f, ok := c.stdin().(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return 0, false
	}
	return int(f.Fd()), true
}

// readLine returns the content of a file with a secret.
func readLine(path string) (string, error) {
	raw, err := os.ReadFile(path)
	return strings.TrimSpace(string(raw)), err
}
