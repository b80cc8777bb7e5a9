package config

import (
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/safedelivr/safedelivr/models"
)

var (
	keyspaces = regexp.MustCompile(`^[a-z][a-z0-9_]{0,47}$`)
	prefixes  = regexp.MustCompile(`^[A-Za-z0-9_-]{1,40}$`)

	currencies = regexp.MustCompile(`^[A-Z]{3}$`)
	prices     = regexp.MustCompile(`^[0-9]{1,9}(\.[0-9]{1,9})?$`)
)

// check returns the mistakes that no setting has for itself. They contain no secrets. Settings in known have another
// mistake already.
func (c *Config) check(known []string) []error {
	var out []error
	wrong := func(key, format string, args ...any) {
		if !slices.Contains(known, key) {
			out = append(out, c.Mistake(key, format, args...))
		}
	}
	checkAddress("listen", c.Listen, wrong)
	if c.Metrics.Listen != "off" {
		checkAddress("metrics.listen", c.Metrics.Listen, wrong)
	}
	if len(c.Roles) == 0 {
		wrong("roles", "must be at least one of api, webhooks, worker")
	}
	if c.PublicURL != "" {
		checkURL("public_url", c.PublicURL, wrong)
	}
	if c.Traces.Endpoint != "" {
		checkURL("traces.endpoint", c.Traces.Endpoint, wrong)
	}
	for _, p := range c.TrustedProxies {
		if _, err := network(p); err != nil {
			wrong("trusted_proxies", "%q is neither a network like 192.0.2.0/24 nor an address", p)
		}
	}
	for _, p := range c.EndpointNetworks {
		if _, err := network(p); err != nil {
			wrong("endpoint_networks", "%q is neither a network like 10.0.0.0/8 nor an address", p)
		}
	}
	c.checkPair("tls.cert", c.TLS.Cert, "tls.key", c.TLS.Key, wrong)
	c.checkSMTP(wrong)
	c.checkGitHub(wrong)
	c.checkServices(wrong)
	c.checkTLS(wrong)
	if c.Times.KeepLogs < c.Times.KeepContent {
		wrong("times.keep_logs", "must be at least %s (%s)", c.Name("times.keep_content"), c.Times.KeepContent)
	}
	if c.Currency != "" && !currencies.MatchString(c.Currency) {
		wrong("currency", "%q is not a currency: three letters like EUR", c.Currency)
	}
	for _, name := range c.ProviderNames() {
		c.checkProvider(name, wrong)
	}
	return out
}

// wrongFunc notes a mistake in a setting.
type wrongFunc func(setting, format string, args ...any)

// checkAddress checks an address to listen on.
func checkAddress(key, address string, wrong wrongFunc) {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		wrong(key, "%q must have the form host:port, like 127.0.0.1:8080", address)
		return
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		wrong(key, "%q is not a port: a number from 0 to 65535", port)
	}
}

// checkPair checks that a certificate and its key are both set or both missing.
func (c *Config) checkPair(certKey, cert, keyKey, key string, wrong wrongFunc) {
	switch {
	case cert == "" && key != "":
		wrong(certKey, "required if %s is set", c.Name(keyKey))
	case cert != "" && key == "":
		wrong(keyKey, "required if %s is set", c.Name(certKey))
	}
}

// checkSMTP checks the settings of SMTP.
func (c *Config) checkSMTP(wrong wrongFunc) {
	for _, address := range c.SMTP.Listen {
		checkAddress("smtp.listen", address, wrong)
	}
	for _, address := range c.SMTPS.Listen {
		checkAddress("smtps.listen", address, wrong)
	}
	c.checkPair("smtp.tls_cert", c.SMTP.TLSCert, "smtp.tls_key", c.SMTP.TLSKey, wrong)
	if c.SMTP.ProxyProtocol && len(c.TrustedProxies) == 0 {
		wrong("smtp.proxy_protocol", "needs the addresses of the proxies: %s", c.Name("trusted_proxies"))
	}
	if len(c.SMTPS.Listen) > 0 && c.SMTP.TLSCert == "" && c.TLS.Cert == "" {
		wrong("smtp.tls_cert", "required if %s is set, unless %s is", c.Name("smtps.listen"), c.Name("tls.cert"))
	}
}

// checkTLS checks the files for TLS with the store and the broker.
func (c *Config) checkTLS(wrong wrongFunc) {
	c.checkPair("cassandra.tls_cert", c.Cassandra.TLSCert, "cassandra.tls_key", c.Cassandra.TLSKey, wrong)
	c.checkPair("amqp.tls_cert", c.AMQP.TLSCert, "amqp.tls_key", c.AMQP.TLSKey, wrong)
	if c.Cassandra.TLSCA == "" && c.Cassandra.TLSCert != "" {
		wrong("cassandra.tls_ca", "required if %s is set", c.Name("cassandra.tls_cert"))
	}
	if c.AMQP.TLSCA+c.AMQP.TLSCert == "" {
		return
	}
	for one := range strings.SplitSeq(c.AMQP.URL, ",") {
		if !strings.HasPrefix(strings.TrimSpace(one), "amqps:") {
			wrong("amqp.url", "must have only amqps:// URLs if %s or %s is set",
				c.Name("amqp.tls_ca"), c.Name("amqp.tls_cert"))
			break
		}
	}
}

// checkServices checks the settings of the store and the broker.
func (c *Config) checkServices(wrong wrongFunc) {
	if len(c.Cassandra.Hosts) > 0 && !keyspaces.MatchString(c.Cassandra.Keyspace) {
		wrong("cassandra.keyspace", "%q is not a keyspace name (a letter, then a-z, 0-9 and _)", c.Cassandra.Keyspace)
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
	c.checkPostgres(wrong)
	embedded := c.Store == "" && (len(c.Cassandra.Hosts) == 0 || c.AMQP.URL == "")
	if embedded && len(c.Roles) > 0 &&
		!(slices.Contains(c.Roles, "api") && slices.Contains(c.Roles, "webhooks") && slices.Contains(c.Roles, "worker")) {
		wrong("roles", "the embedded store and broker work only if one process has all roles; to split the roles, "+
			"set SAFEDELIVR_STORE (PostgreSQL), or SAFEDELIVR_CASSANDRA_HOSTS and SAFEDELIVR_AMQP_URL (RabbitMQ)")
	}
}

// schemas matches names of schemas in PostgreSQL.
var schemas = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,39}$`)

// checkPostgres checks the settings of PostgreSQL.
func (c *Config) checkPostgres(wrong wrongFunc) {
	if c.Store == "" {
		return
	}
	if u, err := url.Parse(c.Store); err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" || u.Host == "" {
		wrong("store", "must be a postgres:// URL, like postgres://user:password@host/database")
	}
	if len(c.Cassandra.Hosts) > 0 {
		wrong("store", "must not be set if %s is set: there is one store", c.Name("cassandra.hosts"))
	}
	if !schemas.MatchString(c.Postgres.Schema) {
		wrong("postgres.schema", "%q must be up to 40 lower-case letters, digits and _", c.Postgres.Schema)
	}
}

// logins matches names of users and organisations at GitHub.
var logins = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9_-]{0,38}|id:[1-9][0-9]{0,18})$`)

// checkGitHub checks the settings of the login through GitHub.
func (c *Config) checkGitHub(wrong wrongFunc) {
	g := &c.GitHub
	if g.ClientID == "" {
		if g.ClientSecret != "" || len(g.Operators)+len(g.Logins)+len(g.Orgs) > 0 {
			wrong("github.client_id", "required if other github settings are set")
		}
		return
	}
	if g.ClientSecret == "" {
		wrong("github.client_secret", "required if %s is set", c.Name("github.client_id"))
	}
	if c.PublicURL == "" {
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

func checkURL(key, value string, wrong wrongFunc) {
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

// checkProvider checks the settings of a provider that are the same for all kinds; see providers.Check for the others.
func (c *Config) checkProvider(name string, wrong wrongFunc) {
	p, key := c.Providers[name], "providers."+name+"."
	if !models.ValidProviderName(name) {
		wrong(key+"kind", "a provider's name has 1 to 32 characters a-z, 0-9 and -, begins with a letter, "+
			"and is not batch, log, event or feed; this one is %q", name)
	}
	if p.Kind == "" {
		wrong(key+"kind", "required")
	}
	switch price := key + "price"; {
	case p.Price != "" && !prices.MatchString(p.Price):
		wrong(price, "%q is not a price: a number like 0.85, without its currency", p.Price)
	case p.Price != "" && c.Currency == "":
		wrong("currency", "required if %s is set", c.Name(price))
	case p.Price == "" && c.Currency != "":
		wrong(price, "required if %s is set, so that no cost is too low; 0 if the provider is free", c.Name("currency"))
	}
	if p.BaseURL == "" {
		for field, value := range map[string]string{
			"api_key":         p.APIKey,
			"webhook_key":     p.WebhookKey,
			"webhook_key_old": p.WebhookKeyOld,
		} {
			if simulatedSecrets[value] {
				wrong(key+field, "is the published key of the simulated provider, which needs %s; "+
					"use your own key for the real provider", c.Name(key+"base_url"))
			}
		}
	}
}

// ProxyNetworks returns the networks of the trusted proxies.
func (c *Config) ProxyNetworks() []netip.Prefix { return networks(c.TrustedProxies) }

// AllowedEndpoints returns the private networks that posts to endpoints may reach.
func (c *Config) AllowedEndpoints() []netip.Prefix { return networks(c.EndpointNetworks) }

func networks(texts []string) (out []netip.Prefix) {
	for _, text := range texts {
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
