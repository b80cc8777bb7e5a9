package dnscheck

import (
	"fmt"
	"io"
	"net/mail"
	"slices"
	"strings"

	"github.com/safedelivr/safedelivr/providers"
)

// oneClick lists the header fields that a DKIM signature must cover, so that receivers offer to unsubscribe with one
// click (RFC 8058, 4).
var oneClick = []string{"List-Unsubscribe", "List-Unsubscribe-Post"}

// Received checks the one-click unsubscribing of a mail as it was received: whether it has the header fields, and
// whether a DKIM signature names both. It does not verify the signature.
func Received(raw io.Reader) ([]providers.Finding, error) {
	m, err := mail.ReadMessage(raw)
	if err != nil {
		return nil, fmt.Errorf("this is no mail with its header: %w", err)
	}
	var out []providers.Finding
	for _, name := range oneClick {
		if m.Header.Get(name) == "" {
			out = append(out, providers.Finding{
				State: providers.Wrong, About: name, Text: "the mail has no such field",
				ToDo: "Look at a mail of a batch with a category and with unsubscribe.",
			})
		}
	}
	signatures := m.Header["Dkim-Signature"]
	f := providers.Finding{
		State: providers.Wrong, About: "DKIM", Text: "the mail has no signature",
		ToDo: "Ask the provider to sign " + strings.Join(oneClick, " and ") + ": receivers otherwise offer no button.",
	}
	var said []string
	for _, s := range signatures {
		domain, left := signed(s)
		if len(left) == 0 {
			f = providers.Finding{
				State: providers.OK, About: "DKIM",
				Text: "the signature of " + domain + " covers " + strings.Join(oneClick, " and "),
			}
			return append(out, f), nil
		}
		said = append(said, "the signature of "+domain+" does not cover "+strings.Join(left, " and "))
	}
	if len(said) > 0 {
		f.Text = strings.Join(said, "; ")
	}
	return append(out, f), nil
}

// signed returns the domain of a DKIM signature, and which fields of oneClick it does not cover.
func signed(signature string) (domain string, left []string) {
	tags := map[string]string{}
	for tag := range strings.SplitSeq(strings.Join(strings.Fields(signature), ""), ";") {
		name, value, _ := strings.Cut(tag, "=")
		tags[name] = value
	}
	fields := strings.Split(strings.ToLower(tags["h"]), ":")
	for _, name := range oneClick {
		if !slices.Contains(fields, strings.ToLower(name)) {
			left = append(left, name)
		}
	}
	return tags["d"], left
}
