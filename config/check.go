package config

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/safedelivr/safedelivr/models"
)

var (
	allRoles     = []string{"api", "webhooks", "worker"}
	levels       = []string{"debug", "info", "warn", "error"}
	consistency  = []string{"ONE", "LOCAL_ONE", "TWO", "THREE", "QUORUM", "LOCAL_QUORUM", "EACH_QUORUM", "ALL"}
	serialLevels = []string{"SERIAL", "LOCAL_SERIAL"}
	keyspaces    = regexp.MustCompile(`^[a-z][a-z0-9_]{0,47}$`)
	prefixes     = regexp.MustCompile(`^[A-Za-z0-9_-]{1,40}$`)
)

// known reports whether key names a setting.
func known(key string) bool {
	t := reflect.TypeFor[Config]()
	parts := strings.Split(key, ".")
	for i := 0; i < len(parts); i++ {
		f, ok := field(t, parts[i])
		if !ok {
			return false
		}
		t = f
		if t.Kind() == reflect.Map {
			t = t.Elem()
			i++
		}
	}
	return true
}

func field(t reflect.Type, name string) (reflect.Type, bool) {
	if t.Kind() != reflect.Struct {
		return nil, false
	}
	for i := range t.NumField() {
		if f := t.Field(i); f.Tag.Get("koanf") == name {
			return f.Type, true
		}
	}
	return nil, false
}

// check returns all mistakes. They contain no secrets.
func (c *Config) check() []error {
	var out []error
	wrong := func(key, format string, args ...any) {
		out = append(out, fmt.Errorf("%s: %s", key, fmt.Sprintf(format, args...)))
	}
	oneOf := func(key, value string, allowed []string) {
		if !slices.Contains(allowed, value) {
			wrong(key, "%q must be one of %s", value, strings.Join(allowed, ", "))
		}
	}
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		wrong("listen", "%q must have the form host:port", c.Listen)
	}
	if _, _, err := net.SplitHostPort(c.Metrics.Listen); err != nil && c.Metrics.Listen != "off" {
		wrong("metrics.listen", "%q must have the form host:port, or be off", c.Metrics.Listen)
	}
	if len(c.Roles) == 0 {
		wrong("roles", "must be at least one of %s", strings.Join(allRoles, ", "))
	}
	for _, r := range c.Roles {
		oneOf("roles", r, allRoles)
	}
	oneOf("log", c.Log, levels)
	if c.PublicURL != "" {
		checkURL("public_url", c.PublicURL, wrong)
	}
	if c.Traces.Endpoint != "" {
		checkURL("traces.endpoint", c.Traces.Endpoint, wrong)
	}
	if c.Traces.Ratio < 0 || c.Traces.Ratio > 1 {
		wrong("traces.ratio", "must be from 0 to 1")
	}
	for _, p := range c.TrustedProxies {
		if _, err := network(p); err != nil {
			wrong("trusted_proxies", "%q is neither a network like 192.0.2.0/24 nor an address", p)
		}
	}
	checkPair("tls.cert", c.TLS.Cert, "tls.key", c.TLS.Key, wrong)
	c.GitHub.check(c.PublicURL, wrong)
	c.checkServices(wrong, oneOf)
	c.checkTLS(wrong)
	positive := func(key string, ok bool) {
		if !ok {
			wrong(key, "must be more than 0")
		}
	}
	positive("limits.recipients", c.Limits.Recipients > 0)
	positive("limits.content", c.Limits.Content > 0)
	positive("limits.body", c.Limits.Body > 0)
	positive("limits.urgent_up_to", c.Limits.UrgentUpTo > 0)
	positive("limits.connections", c.Limits.Connections > 0)
	positive("limits.address_connections", c.Limits.AddressConnections > 0)
	if c.Limits.DiskReserve < 0 {
		wrong("limits.disk_reserve", "must be 0 or more")
	}
	for l, v := range c.Quotas.Limits() {
		if v < 0 {
			wrong("quotas."+string(l), "must be 0 (no limit) or more")
		}
	}
	if c.Limits.Recipients > models.MaxChunks*models.MaxChunkRecipients {
		wrong("limits.recipients", "must be at most %d", models.MaxChunks*models.MaxChunkRecipients)
	}
	if c.Limits.Retries < 0 || c.Limits.Retries > 1000 {
		wrong("limits.retries", "must be from 0 to 1000")
	}
	times := reflect.ValueOf(c.Times)
	for i := range times.NumField() {
		positive("times."+times.Type().Field(i).Tag.Get("koanf"), times.Field(i).Int() > 0)
	}
	if c.Times.KeepLogs < c.Times.KeepContent {
		wrong("times.keep_logs", "must be at least times.keep_content")
	}
	for name, a := range c.Providers {
		a.check("providers."+name, name, wrong)
	}
	return out
}

// checkPair checks that a certificate and its key are both set or both missing.
func checkPair(certKey, cert, keyKey, key string, wrong func(key, format string, args ...any)) {
	switch {
	case cert == "" && key != "":
		wrong(certKey, "required if %s is set", keyKey)
	case cert != "" && key == "":
		wrong(keyKey, "required if %s is set", certKey)
	}
}

// checkTLS checks the files for TLS with the store and the broker.
func (c *Config) checkTLS(wrong func(key, format string, args ...any)) {
	checkPair("cassandra.tls_cert", c.Cassandra.TLSCert, "cassandra.tls_key", c.Cassandra.TLSKey, wrong)
	checkPair("amqp.tls_cert", c.AMQP.TLSCert, "amqp.tls_key", c.AMQP.TLSKey, wrong)
	if c.Cassandra.TLSCA == "" && c.Cassandra.TLSCert != "" {
		wrong("cassandra.tls_ca", "required if cassandra.tls_cert is set")
	}
	if c.AMQP.TLSCA+c.AMQP.TLSCert == "" {
		return
	}
	for one := range strings.SplitSeq(c.AMQP.URL, ",") {
		if !strings.HasPrefix(strings.TrimSpace(one), "amqps:") {
			wrong("amqp.url", "must have only amqps:// URLs if amqp.tls_ca or amqp.tls_cert is set")
			break
		}
	}
}

// checkServices checks the settings of the store and the broker.
func (c *Config) checkServices(
	wrong func(key, format string, args ...any),
	oneOf func(key, value string, allowed []string),
) {
	if len(c.Cassandra.Hosts) > 0 {
		oneOf("cassandra.consistency", c.Cassandra.Consistency, consistency)
		oneOf("cassandra.serial_consistency", c.Cassandra.Serial, serialLevels)
		if !keyspaces.MatchString(c.Cassandra.Keyspace) {
			wrong("cassandra.keyspace", "%q is not a keyspace name (a letter, then a-z, 0-9 and _)", c.Cassandra.Keyspace)
		}
	}
	if c.AMQP.URL != "" {
		for _, one := range strings.Split(c.AMQP.URL, ",") {
			if u, err := url.Parse(strings.TrimSpace(one)); err != nil || u.Scheme != "amqp" && u.Scheme != "amqps" ||
				u.Host == "" {
				wrong("amqp.url", "must be an amqp:// or amqps:// URL, or several, separated by commas")
				break
			}
		}
		if !prefixes.MatchString(c.AMQP.Prefix) {
			wrong("amqp.prefix", "%q must be 1 to 40 letters, digits, _ and -", c.AMQP.Prefix)
		}
	}
	embedded := len(c.Cassandra.Hosts) == 0 || c.AMQP.URL == ""
	if embedded && len(c.Roles) > 0 &&
		!(slices.Contains(c.Roles, "api") && slices.Contains(c.Roles, "webhooks") && slices.Contains(c.Roles, "worker")) {
		wrong("roles", "the embedded store and broker work only if one process has all roles; to split the roles, "+
			"set SAFEDELIVR_CASSANDRA_HOSTS (Cassandra) and SAFEDELIVR_AMQP_URL (RabbitMQ)")
	}
}

// logins matches names of users and organisations at GitHub.
var logins = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9_-]{0,38}|id:[1-9][0-9]{0,18})$`)

// check reports mistakes in the settings of the login through GitHub.
func (g *GitHub) check(public string, wrong func(key, format string, args ...any)) {
	if g.ClientID == "" {
		if g.ClientSecret != "" || len(g.Operators)+len(g.Logins)+len(g.Orgs) > 0 {
			wrong("github.client_id", "required if other github settings are set")
		}
		return
	}
	if g.ClientSecret == "" {
		wrong("github.client_secret", "required if client_id is set")
	}
	if public == "" {
		wrong("public_url", "required for the login through GitHub, which sends browsers back to it")
	}
	if len(g.Operators)+len(g.Logins)+len(g.Orgs) == 0 {
		wrong("github.operators", "name at least one operator, login or organisation; otherwise no one can log in")
	}
	if g.BaseURL != "" {
		checkURL("github.base_url", g.BaseURL, wrong)
	}
	if g.APIURL != "" {
		checkURL("github.api_url", g.APIURL, wrong)
	}
	for key, names := range map[string][]string{"operators": g.Operators, "logins": g.Logins, "orgs": g.Orgs} {
		for _, n := range names {
			if !logins.MatchString(n) {
				wrong("github."+key, "%q is neither a GitHub name nor id: and a number", n)
			}
		}
	}
}

func checkURL(key, value string, wrong func(key, format string, args ...any)) {
	if u, err := url.Parse(value); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" ||
		u.RawQuery != "" ||
		u.Fragment != "" ||
		u.User != nil {
		wrong(key, "must be an http:// or https:// URL without a query and credentials")
	}
}

// simulatedSecrets are the keys of the simulated providers. Everyone knows them, so that a
// real provider's webhooks could be forged with them.
var simulatedSecrets = map[string]bool{
	"simulated":             true,
	"simulated-key":         true,
	"simulated-signing-key": true,
	"MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEN/TD4gAWZnsl4YmDmRrL8DWLoSdVjTOu" +
		"XDklGpXkomELJxJ91kF4kHRJbn8API2KzUK7MrC9Sr+9eTOsMjC1uw==": true,
}

func (a *Provider) check(key, name string, wrong func(key, format string, args ...any)) {
	if !models.ValidProviderName(name) {
		wrong(key, "a provider's name has 1 to 32 characters a-z, 0-9 and -, begins with a letter, "+
			"and is not batch, log or event")
	}
	if a.Kind == "" {
		wrong(key+".kind", "required")
	}
	if a.BaseURL != "" {
		if u, err := url.Parse(a.BaseURL); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			wrong(key+".base_url", "must be an http:// or https:// URL")
		}
	}
	if a.BaseURL == "" {
		for field, value := range map[string]string{
			"api_key":         a.APIKey,
			"webhook_key":     a.WebhookKey,
			"webhook_key_old": a.WebhookKeyOld,
		} {
			if simulatedSecrets[value] {
				wrong(key+"."+field, "is the published key of the simulated provider, which needs base_url; "+
					"use your own key for the real provider")
			}
		}
	}
	if a.WebhookKeyOld != "" && a.WebhookKey == "" {
		wrong(key+".webhook_key", "required if webhook_key_old is set")
	}
	if e := models.EventSource(a.Events); e != models.EventsWebhook && e != models.EventsNone {
		wrong(key+".events", "%q must be webhook or none", a.Events)
	}
	between := func(field string, v, from, to int) {
		if v < from || v > to {
			wrong(key+"."+field, "must be from %d to %d", from, to)
		}
	}
	between("weight", a.Weight, 1, 1000)
	between("concurrency", a.Concurrency, 1, 1000)
	between("chunk_limit", a.ChunkLimit, 1, models.MaxChunkRecipients)
	if a.Rate < 0 {
		wrong(key+".rate", "must not be negative")
	}
	if a.CallRate < 0 {
		wrong(key+".call_rate", "must not be negative")
	}
	if a.Timeout <= 0 {
		wrong(key+".timeout", "must be more than 0")
	}
	if a.Evidence < 0 {
		wrong(key+".evidence_window", "must not be negative")
	}
}

// ProviderNames returns the sorted names of the providers.
func (c *Config) ProviderNames() []string {
	out := make([]string, 0, len(c.Providers))
	for n := range c.Providers {
		out = append(out, n)
	}
	slices.Sort(out)
	return out
}

// ProxyNetworks returns the networks of the trusted proxies.
func (c *Config) ProxyNetworks() []netip.Prefix {
	var out []netip.Prefix
	for _, text := range c.TrustedProxies {
		if p, err := network(text); err == nil {
			out = append(out, p)
		}
	}
	return out
}

// network parses a network or an address, which is a network of one.
func network(text string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	return p.Masked(), err
}

// Has reports whether the process has a role.
func (c *Config) Has(role string) bool { return slices.Contains(c.Roles, role) }
