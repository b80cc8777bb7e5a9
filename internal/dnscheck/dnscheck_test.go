package dnscheck

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/providers"
)

// zone answers for the names that it has.
type zone map[string][]string

func (z zone) LookupTXT(_ context.Context, name string) ([]string, error) {
	if txt, ok := z[name]; ok {
		if len(txt) == 0 {
			return nil, errors.New("server failure")
		}
		return txt, nil
	}
	return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
}

var (
	mailgun = providers.Domain{Name: "mg.example.com", Records: []providers.Record{
		{Type: "TXT", Name: "mg.example.com", Value: "v=spf1 include:mailgun.org ~all"},
		{Type: "TXT", Name: "mx._domainkey.mg.example.com", Value: "k=rsa; p=MIGf"},
	}}
	sendgrid = providers.Domain{Name: "example.com", Records: []providers.Record{
		{Type: "CNAME", Name: "em1.example.com", Value: "u1.wl.sendgrid.net"},
		{Type: "CNAME", Name: "s1._domainkey.example.com", Value: "s1.domainkey.u1.wl.sendgrid.net"},
	}}
)

// TestDomain: each of SPF, DKIM and DMARC is right, wrong with what to do, or unknown.
func TestDomain(t *testing.T) {
	t.Parallel()
	right := zone{
		"mg.example.com":               {"google-verification=1", "v=spf1 include:mailgun.org ~all"},
		"mx._domainkey.mg.example.com": {"k=rsa; p=MIGf"},
		"_dmarc.example.com":           {"v=DMARC1; p=none"},
		"em1.example.com":              {"v=spf1 ip4:192.0.2.1 -all"},
		"s1._domainkey.example.com":    {"k=rsa; t=s; p=MIGf"},
	}
	with := func(name string, txt ...string) zone {
		z := zone{name: txt}
		for n, t := range right {
			if n != name {
				z[n] = t
			}
		}
		return z
	}
	without := func(name string) zone {
		z := with(name)
		delete(z, name)
		return z
	}
	for name, c := range map[string]struct {
		zone     zone
		domain   providers.Domain
		about    string
		state    providers.State
		contains string
		todo     string
	}{
		"SPF": {
			right, mailgun, "SPF", providers.OK,
			"mg.example.com", "",
		},
		"no SPF": {
			without("mg.example.com"), mailgun, "SPF", providers.Wrong,
			"no record", "include:mailgun.org",
		},
		"other SPF": {
			with("mg.example.com", "v=spf1 mx -all"), mailgun, "SPF", providers.Wrong,
			"does not include", "Add include:mailgun.org",
		},
		"two SPF": {
			with("mg.example.com", "v=spf1 mx", "v=spf1 a"), mailgun, "SPF", providers.Wrong,
			"2 records", "Join",
		},
		"SPF unknown": {
			with("mg.example.com"), mailgun, "SPF", providers.Unknown,
			"server failure", "dig TXT mg.example.com",
		},
		"CNAME SPF": {
			right, sendgrid, "SPF", providers.OK,
			"em1.example.com", "",
		},
		"no CNAME": {
			without("em1.example.com"), sendgrid, "SPF", providers.Wrong,
			"no record", "Publish CNAME em1.example.com with the value u1.wl.sendgrid.net",
		},
		"DKIM": {
			right, mailgun, "DKIM", providers.OK,
			"mx._domainkey.mg.example.com", "",
		},
		"no DKIM": {
			without("mx._domainkey.mg.example.com"), mailgun, "DKIM", providers.Wrong,
			"no key", "Publish TXT mx._domainkey.mg.example.com",
		},
		"revoked DKIM": {
			with("s1._domainkey.example.com", "v=DKIM1; p="), sendgrid, "DKIM", providers.Wrong,
			"has no key", "Publish CNAME",
		},
		"DMARC above": {
			right, mailgun, "DMARC", providers.OK,
			"_dmarc.example.com", "",
		},
		"no DMARC": {
			without("_dmarc.example.com"), mailgun, "DMARC", providers.Wrong,
			"no policy at _dmarc.mg.example.com", "v=DMARC1; p=none",
		},
		"DMARC unknown": {
			with("_dmarc.example.com"), sendgrid, "DMARC", providers.Unknown,
			"server failure", "dig TXT",
		},
	} {
		found := false
		for _, f := range Domain(t.Context(), c.zone, c.domain) {
			if f.About == c.about {
				found = true
				require.Equal(t, c.state, f.State, "%s: %+v", name, f)
				require.Contains(t, f.Text, c.contains, name)
				require.Contains(t, f.ToDo, c.todo, name)
				require.Equal(t, c.state == providers.OK, f.ToDo == "", "%s: what to do is said of what is not right", name)
			}
		}
		require.True(t, found, name)
	}
}
