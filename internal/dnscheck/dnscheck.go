// Package dnscheck compares the DNS of a sender's domain with what receivers ask for: SPF, DKIM and DMARC.
package dnscheck

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"golang.org/x/net/publicsuffix"

	"github.com/safedelivr/safedelivr/providers"
)

// A Resolver looks up TXT records, following CNAME records. It is implemented by net.Resolver.
type Resolver interface {
	LookupTXT(ctx context.Context, name string) ([]string, error)
}

// Domain returns findings about the DNS of a domain, with the records that the provider wants for it.
func Domain(ctx context.Context, r Resolver, d providers.Domain) []providers.Finding {
	var out []providers.Finding
	for _, want := range d.Records {
		switch {
		case strings.Contains(want.Name, "._domainkey."):
			out = append(out, dkim(ctx, r, want))
		case want.Type == "TXT" && isSPF(want.Value):
			out = append(out, spf(ctx, r, want, includes(want.Value)))
		case want.Type == "CNAME" && strings.HasSuffix(want.Name, "."+d.Name):
			// The envelope sender is below this name, so that its SPF record counts.
			out = append(out, spf(ctx, r, want, ""))
		}
	}
	return append(out, dmarc(ctx, r, d.Name))
}

// publish says which record is missing.
func publish(want providers.Record) string {
	return fmt.Sprintf("Publish %s %s with the value %s", want.Type, want.Name, want.Value)
}

func dkim(ctx context.Context, r Resolver, want providers.Record) providers.Finding {
	txt, err := lookUp(ctx, r, want.Name)
	f := providers.Finding{State: providers.Wrong, About: "DKIM", ToDo: publish(want)}
	switch {
	case err != nil:
		return unknown("DKIM", want.Name, err)
	case len(txt) == 0:
		f.Text = "no key at " + want.Name
	default:
		f.Text = "the record at " + want.Name + " has no key (p=)"
		for _, t := range txt {
			if _, key, ok := strings.Cut(strings.ReplaceAll(t, " ", ""), "p="); ok && key != "" && key[0] != ';' {
				return providers.Finding{State: providers.OK, About: "DKIM", Text: "key at " + want.Name}
			}
		}
	}
	return f
}

func isSPF(txt string) bool { return txt == "v=spf1" || strings.HasPrefix(txt, "v=spf1 ") }

// includes returns the name that an SPF record includes.
func includes(record string) string {
	for _, term := range strings.Fields(record) {
		if name, ok := strings.CutPrefix(term, "include:"); ok {
			return name
		}
	}
	return ""
}

func spf(ctx context.Context, r Resolver, want providers.Record, include string) providers.Finding {
	txt, err := lookUp(ctx, r, want.Name)
	if err != nil {
		return unknown("SPF", want.Name, err)
	}
	var found []string
	for _, t := range txt {
		if isSPF(t) {
			found = append(found, t)
		}
	}
	f := providers.Finding{State: providers.Wrong, About: "SPF"}
	switch {
	case len(found) == 0:
		f.Text, f.ToDo = "no record at "+want.Name, publish(want)
	case len(found) > 1:
		f.Text = fmt.Sprintf("%d records at %s: receivers then accept none (RFC 7208, 4.5)", len(found), want.Name)
		f.ToDo = "Join them into one record."
	case include != "" && !strings.Contains(found[0], "include:"+include):
		f.Text = "the record at " + want.Name + " does not include " + include
		f.ToDo = "Add include:" + include + " to the record: " + found[0]
	default:
		f.State, f.Text = providers.OK, "record at "+want.Name
	}
	return f
}

// dmarc looks for the policy of a domain, or else of the domain that was registered (RFC 7489, 6.6.3).
func dmarc(ctx context.Context, r Resolver, domain string) providers.Finding {
	names := []string{domain}
	if registered, err := publicsuffix.EffectiveTLDPlusOne(domain); err == nil && registered != domain {
		names = append(names, registered)
	}
	for _, name := range names {
		txt, err := lookUp(ctx, r, "_dmarc."+name)
		if err != nil {
			return unknown("DMARC", "_dmarc."+name, err)
		}
		for _, t := range txt {
			if strings.HasPrefix(t, "v=DMARC1") {
				return providers.Finding{State: providers.OK, About: "DMARC", Text: "policy at _dmarc." + name}
			}
		}
	}
	return providers.Finding{
		State: providers.Wrong,
		About: "DMARC",
		Text:  "no policy at _dmarc." + domain + "; Gmail and Yahoo ask bulk senders for one",
		ToDo:  `Publish TXT _dmarc.` + domain + ` with the value "v=DMARC1; p=none; rua=mailto:postmaster@` + domain + `"`,
	}
}

func unknown(about, name string, err error) providers.Finding {
	return providers.Finding{
		State: providers.Unknown,
		About: about,
		Text:  "cannot look up " + name + ": " + err.Error(),
		ToDo:  "Look at it from a machine with DNS: dig TXT " + name,
	}
}

// lookUp returns the TXT records of a name; none if there are none.
func lookUp(ctx context.Context, r Resolver, name string) ([]string, error) {
	txt, err := r.LookupTXT(ctx, name)
	var e *net.DNSError
	if errors.As(err, &e) && e.IsNotFound {
		return nil, nil
	}
	return txt, err
}
