package endpoints

import (
	"fmt"
	"maps"
	"net/http"
	"net/mail"
	"slices"
	"strings"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/internal/outbound"
	"github.com/safedelivr/safedelivr/models/endpoint"
	"github.com/safedelivr/safedelivr/models/feed"
	"github.com/safedelivr/safedelivr/models/shape"
	"github.com/safedelivr/safedelivr/service/operation"
	"github.com/safedelivr/safedelivr/service/problem"
)

// reserved are header fields that belong to a post.
var reserved = map[string]bool{
	"Content-Type": true, "Content-Length": true, "Host": true, "User-Agent": true, "Connection": true,
	"Transfer-Encoding": true, "Trailer": true, "Te": true, "Upgrade": true,
	"Webhook-Id": true, "Webhook-Timestamp": true, "Webhook-Signature": true,
	"Svix-Id": true, "Svix-Timestamp": true, "Svix-Signature": true,
	"X-Twilio-Email-Event-Webhook-Timestamp": true, "X-Twilio-Email-Event-Webhook-Signature": true,
}

// check returns the mistakes in the settings of an endpoint of a user, or of the installation.
func check(n *client.EndpointSettings, owner string) error {
	var f problem.Form
	operation.Check(n, &f)
	if n.Everyone && owner != feed.Installation {
		f.Wrong("/everyone", "invalid_value", "Only endpoints of the installation get the updates of everyone.")
	}
	if n.Everyone && n.Format != "" {
		f.Wrong("/format", "invalid_value", "Only notices are posted with the format %s.", n.Format)
	}
	feeds := owner
	if n.Everyone {
		feeds = ""
	}
	if bad := outbound.BadURL(n.URL); bad != "" && !f.At("/url") && n.Format != client.FormatMail {
		f.Wrong("/url", "invalid_value", "%s", bad)
	}
	if i := slices.IndexFunc(n.Events, func(t string) bool { return !feed.Type(t).Known(feeds) }); i >= 0 {
		f.Wrong(fmt.Sprintf("/events/%d", i), "invalid_value", "events has the names %s.", feed.Names(feeds))
	}
	for name, list := range map[string][]string{"tags": n.Tags, "categories": n.Categories} {
		if len(list) > 0 && feeds == feed.Installation {
			f.Wrong("/"+name, "invalid_value", "What happens to the installation has no %s.", name)
		}
	}
	if n.Ordered && n.AtOnce > 1 {
		f.Wrong("/at_once", "invalid_value", "With ordered there is one post at a time.")
	}
	checkFormat(n, owner, &f)
	checkShape(n, owner, &f)
	checkHeaders(n, &f)
	return f.Err()
}

func checkFormat(n *client.EndpointSettings, owner string, f *problem.Form) {
	signed := n.Format == ""
	switch {
	case n.Signature != "" && !signed:
		f.Wrong("/signature", "invalid_value", "With the format %s posts are not signed.", n.Format)
	case !signed && owner != feed.Installation:
		f.Wrong("/format", "invalid_value", "Only endpoints of the installation have the format %s.", n.Format)
	case !signed && n.Batch:
		f.Wrong("/batch", "invalid_value", "With the format %s each post has one update.", n.Format)
	}
	if n.Format == client.FormatMail {
		checkMail(n, f)
		return
	}
	for name, value := range map[string]string{"user": n.User, "sender": n.Sender} {
		if value != "" {
			f.Wrong("/"+name, "invalid_value", "Only endpoints with the format mail have a %s.", name)
		}
	}
}

// checkShape finds settings that contradict the shape of another service.
func checkShape(n *client.EndpointSettings, owner string, f *problem.Form) {
	name := shape.Name(n.Shape)
	if !name.Foreign() || f.At("/shape") {
		return
	}
	signature := name == shape.Mailgun || name == shape.Resend
	switch {
	case n.Format != "":
		f.Wrong("/shape", "invalid_value", "With the format %s there is no other shape.", n.Format)
	case owner == feed.Installation && !n.Everyone:
		f.Wrong("/shape", "invalid_value", "Notices have no shape of another service.")
	case n.Batch && name != shape.SendGrid:
		f.Wrong("/batch", "invalid_value", "In the shape of %s each post has one update.", name)
	case n.Signature == client.SignatureEd25519 && signature:
		f.Wrong("/signature", "invalid_value", "Posts in the shape of %s are signed with a secret (v1).", name)
	case n.Signature != "" && !signature:
		f.Wrong("/signature", "invalid_value", "The shape of %s says how posts are signed.", name)
	}
	for i, t := range n.Events {
		if t := feed.Type(t); t != feed.All && t.Known("") && name.Word(t) == "" {
			f.Wrong(fmt.Sprintf("/events/%d", i), "invalid_value", "The shape of %s has no event for %s.", name, t)
		}
	}
}

func checkMail(n *client.EndpointSettings, f *problem.Form) {
	if to := endpoint.Addresses(n.URL); len(to) == 0 || len(to) > maxAddresses {
		f.Wrong("/url", "invalid_value",
			"With the format mail it is mailto: and up to %d addresses, separated by commas.", maxAddresses)
	}
	if n.User == "" {
		f.Wrong("/user", "required", "Name the user whose mail the notices are.")
	}
	if _, err := mail.ParseAddress(n.Sender); err != nil {
		f.Wrong("/sender", "invalid_address", "sender must be an address from which the user may send.")
	}
	if len(n.Headers) > 0 {
		f.Wrong("/headers", "invalid_value", "With the format mail there are no header fields.")
	}
}

func checkHeaders(n *client.EndpointSettings, f *problem.Form) {
	for _, name := range slices.Sorted(maps.Keys(n.Headers)) {
		at := "/headers" + problem.Pointer(name)
		canonical := http.CanonicalHeaderKey(name)
		switch {
		case !token(name):
			f.Wrong(at, "invalid_name", "The name of a header field is a token (RFC 9110).")
		case reserved[canonical]:
			f.Wrong(at, "reserved_header", "%s is set by Safedelivr.", canonical)
		}
	}
}

// token reports whether s is a token of RFC 9110, 5.6.2.
func token(s string) bool {
	for i := range len(s) {
		c := s[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return s != "" && len(s) <= 126
}
