package client

import (
	"context"
	"time"
)

// User is a user as operators see it.
type User struct {
	ID      string    `json:"id"`
	Name    string    `json:"name"`
	Created time.Time `json:"created"`
	// None of the user's mail goes out.
	Paused bool `json:"paused"`
	// The user can use neither keys nor pages.
	Disabled bool `json:"disabled"`
	// Who disabled the user: the ID of a user, or `cli:` and a name.
	DisabledBy string    `json:"disabled_by,omitempty"`
	DisabledAt time.Time `json:"disabled_at,omitzero"`
	// The reason given.
	DisabledWhy string `json:"disabled_why,omitempty"`
	// The user may use any sender, because no operator has set them.
	AnySender bool `json:"any_sender"`
	// Senders that the user may use: addresses, or @domain.
	Senders []string `json:"senders"`
}

// NewUser is a user to add.
type NewUser struct {
	// a-z, 0-9, dot, dash and underscore.
	Name string `json:"name" required:"true" pattern:"^[a-z0-9][a-z0-9._-]{0,63}$"`
}

// Senders are the senders that a user may use.
type Senders struct {
	// ID of the user.
	User string `json:"user"`
	// `false` if no operator has set the senders.
	Set bool `json:"set"`
	// The user may use any sender.
	Anyone bool `json:"anyone"`
	// Addresses, or @domain for all of a domain.
	Senders []string `json:"senders"`
	// Whether the request changed the senders.
	Changed bool `json:"changed,omitempty"`
}

// SetSenders are the senders to set, in place of all others.
type SetSenders struct {
	// Addresses, or @domain for all of a domain. Empty: the user may not send.
	Senders []string `json:"senders"`
	// Reason for the audit trail.
	Why string `json:"why,omitempty" max:"500"`
}

// UserPage is a page of users.
type UserPage struct {
	Users []User `json:"users"`
	// Empty on the last page.
	Next string `json:"next_cursor"`
}

// Defaults are what a batch of a user has if it names nothing else.
type Defaults struct {
	// ID of the user.
	User string `json:"user"`
	// An IANA name, of times without an offset. Absent if there is none.
	TimeZone string `json:"time_zone,omitempty"`
	// When mail may leave. Absent: at any time.
	SendWindow *SendWindow `json:"send_window,omitempty" schema:"SendWindow"`
}

// SetDefaults are the defaults to set, in place of all others.
type SetDefaults struct {
	// IANA name of a time zone, like `Europe/Vienna`: of times without an offset in requests that name none. Default:
	// none.
	TimeZone string `json:"time_zone,omitempty"`
	// When mail may leave whose batch names no window. Default: at any time.
	SendWindow *SendWindow `json:"send_window,omitempty" schema:"WindowOrNone"`
	Why        string      `json:"why,omitempty" max:"500"` // Reason for the audit trail.
}

// SetUserDefaults replaces the defaults of a user. Batches that were accepted keep theirs.
func (c *Client) SetUserDefaults(
	ctx context.Context, user string, to SetDefaults, options ...CallOption,
) (out Defaults, err error) {
	return out, c.put(ctx, route("users", user, "defaults"), to, &out, options)
}

// Key is an API key without its secret.
type Key struct {
	ID string `json:"id"`
	// How the secret begins: `sd_`, the ID and `_`.
	Prefix string `json:"prefix"`
	// ID of the owner.
	User     string `json:"user"`
	UserName string `json:"user_name"`
	// What the key is for.
	Name    string    `json:"name"`
	Created time.Time `json:"created"`
	// Missing if the key never expires.
	Expires time.Time `json:"expires,omitzero"`
	// Missing if the key is not revoked.
	Revoked time.Time `json:"revoked,omitzero"`
	// To a minute. Missing if the key was not used in the last 400 days.
	LastUsed time.Time `json:"last_used,omitzero"`
	Scopes   []string  `json:"scopes" enum:"send,read,operate,pass_unsubscribes"`
	// Networks that the key may be used from. Missing if it may be used from anywhere.
	Networks []string `json:"networks,omitempty"`
}

// NewKey is an API key to create.
type NewKey struct {
	// What the key is for.
	Name string `json:"name,omitempty"`
	// What it may do: `send`, `read`, `operate`, `pass_unsubscribes`. Default: `send` and `read`.
	Scopes []string `json:"scopes,omitempty"`
	// Until when it may be used. Default: for ever, and with the scope `operate` for 90 days.
	Expires time.Time `json:"expires,omitzero"`
	// Networks from which it may be used, like 192.0.2.0/24. Default: anywhere.
	Networks []string `json:"networks,omitempty"`
}

// CreatedKey is a new API key.
type CreatedKey struct {
	Key
	// What requests send. No later answer has it.
	Secret string `json:"secret"`
}

// KeyPage is a page of API keys.
type KeyPage struct {
	Keys []Key `json:"keys"`
	// Empty on the last page.
	Next string `json:"next_cursor"`
}

// KeyList has the API keys of a user.
type KeyList struct {
	Keys []Key `json:"keys"`
}

// AccessEntry is a login, or a refused login or key. Equal events of an hour are one entry.
type AccessEntry struct {
	ID string `json:"id"`
	// The first time.
	At time.Time `json:"at"`
	// The last time, within the same hour.
	LastAt time.Time `json:"last_at"`
	Count  int       `json:"count"`
	Kind   string    `json:"kind" schema:"AccessKind"`
	// Of a login: `link` or `github`. Of a refused key: the `code` of the error. Of a refused login: a word like
	// `link_invalid`.
	Reason string `json:"reason"`
	// ID of the user, if it is known.
	User        string `json:"user,omitempty"`
	GitHubLogin string `json:"github_login,omitempty"`
	// ID of the API key, if it is known.
	Key string `json:"key,omitempty"`
	// Address of the client; for refusals of IPv6 clients, the network. Missing if the entry is about many clients.
	Address string `json:"address,omitempty"`
}

// AccessPage is a page of logins, and of refused logins and keys.
type AccessPage struct {
	Entries []AccessEntry `json:"entries"`
	// Empty on the last page.
	Next string `json:"next_cursor"`
}
