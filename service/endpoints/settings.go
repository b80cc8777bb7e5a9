package endpoints

import (
	"fmt"
	"maps"
	"net/http"
	"net/mail"
	"slices"
	"strings"

	"github.com/safedelivr/safedelivr/internal/outbound"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/endpoint"
	"github.com/safedelivr/safedelivr/models/feed"
	"github.com/safedelivr/safedelivr/service/problem"
)

// Settings are what a user may choose.
type Settings struct {
	URL         string            `json:"url"`
	Description string            `json:"description,omitempty"`
	Events      []feed.Type       `json:"events,omitempty"`     // empty: all changes of the state
	Tags        []string          `json:"tags,omitempty"`       // only mail with one of them; empty: all
	Categories  []string          `json:"categories,omitempty"` // only mail of one of them; empty: all
	Batch       bool              `json:"batch"`
	Ordered     bool              `json:"ordered"`
	Rate        int               `json:"rate,omitempty"`     // posts per second at most; 0: any
	AtOnce      int               `json:"at_once,omitempty"`  // posts at once at most; 0: endpoint.DefaultAtOnce
	Format      endpoint.Format   `json:"format,omitempty"`   // only of the installation
	User        string            `json:"user,omitempty"`     // of endpoint.Mail: ID or name
	Sender      string            `json:"sender,omitempty"`   // of endpoint.Mail: an address
	Everyone    bool              `json:"everyone,omitempty"` // of the installation: updates of all users, no notices
	Headers     map[string]string `json:"-"`
	// Signature is how posts are signed; empty: as before, or of a new endpoint endpoint.HMAC.
	Signature endpoint.Signature `json:"signature,omitempty"`
}

// apply sets the settings of an endpoint.
func (n *Settings) apply(e *endpoint.Endpoint) {
	e.URL, e.Description, e.Types, e.Tags, e.Categories = n.URL, n.Description, n.Events, n.Tags, n.Categories
	e.Batch, e.Ordered, e.Headers, e.Format = n.Batch, n.Ordered, n.Headers, n.Format
	e.Rate, e.AtOnce = n.Rate, n.AtOnce
	if e.Sender = nil; n.Format == endpoint.Mail {
		e.Sender = &endpoint.Sender{User: n.User, From: n.Sender}
	}
}

// reserved are header fields that belong to a post.
var reserved = map[string]bool{
	"Content-Type": true, "Content-Length": true, "Host": true, "User-Agent": true, "Connection": true,
	"Transfer-Encoding": true, "Trailer": true, "Te": true, "Upgrade": true,
	"Webhook-Id": true, "Webhook-Timestamp": true, "Webhook-Signature": true,
}

// check returns the mistakes in the settings of an endpoint of a user, or of the installation.
func (n *Settings) check(owner string) error {
	var f problem.Form
	if n.Everyone && owner != feed.Installation {
		f.Wrong("/everyone", "invalid_value", "Only endpoints of the installation get the updates of everyone.")
	}
	if n.Everyone && n.Format != endpoint.Signed {
		f.Wrong("/format", "invalid_value", "Only notices are posted with the format %s.", n.Format)
	}
	feeds := owner
	if n.Everyone {
		feeds = ""
	}
	if n.URL == "" {
		f.Wrong("/url", "required", "Add the address that updates are posted to.")
	} else if bad := outbound.BadURL(n.URL); bad != "" && n.Format != endpoint.Mail {
		f.Wrong("/url", "invalid_value", "%s", bad)
	}
	if len(n.Description) > maxDescription || strings.ContainsFunc(n.Description, models.BreaksLine) {
		f.Wrong("/description", "invalid_value", "description is one line of at most %d bytes.", maxDescription)
	}
	for i, t := range n.Events {
		if !t.Known(feeds) {
			f.Wrong(fmt.Sprintf("/events/%d", i), "invalid_value", "events has the names %s.", feed.Names(feeds))
			break
		}
	}
	for name, list := range map[string][]string{"tags": n.Tags, "categories": n.Categories} {
		if len(list) > maxList || slices.ContainsFunc(list, func(s string) bool { return s == "" || len(s) > 64 }) {
			f.Wrong("/"+name, "invalid_value", "%s has at most %d words of up to 64 bytes.", name, maxList)
		}
		if len(list) > 0 && feeds == feed.Installation {
			f.Wrong("/"+name, "invalid_value", "What happens to the installation has no %s.", name)
		}
	}
	n.checkLimits(&f)
	n.checkFormat(owner, &f)
	n.checkHeaders(&f)
	return f.Err()
}

func (n *Settings) checkLimits(f *problem.Form) {
	if n.Rate < 0 || n.Rate > endpoint.MaxRate {
		f.Wrong("/rate", "invalid_value",
			"rate is a number of posts per second, up to %d, or left out.", endpoint.MaxRate)
	}
	if n.AtOnce < 0 || n.AtOnce > endpoint.MaxAtOnce {
		f.Wrong("/at_once", "invalid_value", "at_once is a number of posts, up to %d, or left out.", endpoint.MaxAtOnce)
	} else if n.Ordered && n.AtOnce > 1 {
		f.Wrong("/at_once", "invalid_value", "With ordered there is one post at a time.")
	}
}

func (n *Settings) checkFormat(owner string, f *problem.Form) {
	signed := n.Format == endpoint.Signed
	switch {
	case n.Signature != "" && n.Signature != endpoint.HMAC && n.Signature != endpoint.Ed25519:
		f.Wrong("/signature", "invalid_value", "signature is v1 or v1a, or left out.")
	case n.Signature != "" && !signed:
		f.Wrong("/signature", "invalid_value", "With the format %s posts are not signed.", n.Format)
	case !signed && n.Format != endpoint.Slack && n.Format != endpoint.Mail:
		f.Wrong("/format", "invalid_value", "format is slack or mail, or left out.")
	case !signed && owner != feed.Installation:
		f.Wrong("/format", "invalid_value", "Only endpoints of the installation have the format %s.", n.Format)
	case !signed && n.Batch:
		f.Wrong("/batch", "invalid_value", "With the format %s each post has one update.", n.Format)
	}
	if n.Format == endpoint.Mail {
		n.checkMail(f)
		return
	}
	for name, value := range map[string]string{"user": n.User, "sender": n.Sender} {
		if value != "" {
			f.Wrong("/"+name, "invalid_value", "Only endpoints with the format mail have a %s.", name)
		}
	}
}

func (n *Settings) checkMail(f *problem.Form) {
	if to := endpoint.Addresses(n.URL); len(to) == 0 || len(to) > maxList {
		f.Wrong("/url", "invalid_value",
			"With the format mail it is mailto: and up to %d addresses, separated by commas.", maxList)
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

func (n *Settings) checkHeaders(f *problem.Form) {
	if len(n.Headers) > maxList {
		f.Wrong("/headers", "too_many", "An endpoint has at most %d header fields.", maxList)
		return
	}
	for _, name := range slices.Sorted(maps.Keys(n.Headers)) {
		at := "/headers" + problem.Pointer(name)
		canonical := http.CanonicalHeaderKey(name)
		switch value := n.Headers[name]; {
		case !token(name):
			f.Wrong(at, "invalid_name", "The name of a header field is a token (RFC 9110).")
		case reserved[canonical]:
			f.Wrong(at, "reserved_header", "%s is set by Safedelivr.", canonical)
		case len(value) > maxHeader || strings.ContainsFunc(value, models.BreaksLine):
			f.Wrong(at, "invalid_header", "The value must be one line of at most %d bytes.", maxHeader)
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
