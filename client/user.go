package client

import (
	"context"
	"iter"
	"net/url"
	"time"
)

// User is a user as operators see it.
type User struct {
	ID      string    `json:"id"`
	Name    string    `json:"name"`
	Created time.Time `json:"created"`
	// Paused reports whether none of the user's mail goes out.
	Paused bool `json:"paused"`
	// Disabled reports whether the user can use neither keys nor pages.
	Disabled bool `json:"disabled"`
	// DisabledBy is a user's id, or "cli:" and a name.
	DisabledBy  string    `json:"disabled_by,omitempty"`
	DisabledAt  time.Time `json:"disabled_at,omitzero"`
	DisabledWhy string    `json:"disabled_why,omitempty"`
	// AnySender reports whether the user may use any sender, because no operator has set them.
	AnySender bool `json:"any_sender"`
	// Senders are addresses, or @domain for all of a domain.
	Senders []string `json:"senders"`
}

// Users returns all users, oldest first. It needs the scope operate.
func (c *Client) Users(ctx context.Context, o ListOptions) iter.Seq2[User, error] {
	return list[User](ctx, c, listing{path: route("users"), name: "users"}, o)
}

// DisableUser refuses all keys of a user, ends all sessions and keeps the user from logging in until EnableUser. Mail
// that was accepted goes on; PauseUser withholds it. The user is an id or a name. It needs the scope operate.
func (c *Client) DisableUser(ctx context.Context, user, why string, options ...CallOption) (ControlResult, error) {
	return c.control(ctx, route("users", user, "disable"), why, options)
}

// EnableUser ends DisableUser. Ended sessions do not come back. It needs the scope operate.
func (c *Client) EnableUser(ctx context.Context, user, why string, options ...CallOption) (ControlResult, error) {
	return c.control(ctx, route("users", user, "enable"), why, options)
}

// EndSessions ends all sessions of a user on the dashboard. Another user than the caller needs the scope operate.
func (c *Client) EndSessions(ctx context.Context, user, why string, options ...CallOption) (ControlResult, error) {
	return c.control(ctx, route("users", user, "end-sessions"), why, options)
}

// Defaults are what a batch of a user has if it names nothing else.
type Defaults struct {
	// User is an id.
	User string `json:"user"`
	// TimeZone is an IANA name, of times without an offset; empty: none.
	TimeZone string `json:"time_zone,omitempty"`
	// SendWindow is when mail may leave; nil: at any time.
	SendWindow *SendWindow `json:"send_window,omitempty"`
}

// SetDefaults are the defaults to set, in place of all others.
type SetDefaults struct {
	TimeZone   string      `json:"time_zone,omitempty"`
	SendWindow *SendWindow `json:"send_window,omitempty"`
	Why        string      `json:"why,omitempty"`
}

// UserDefaults returns the defaults of a user, which is an id or a name. Another user than the caller needs the scope
// operate.
func (c *Client) UserDefaults(ctx context.Context, user string, options ...CallOption) (out Defaults, err error) {
	return out, c.get(ctx, route("users", user, "defaults"), nil, &out, options)
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
	// Prefix is how the secret begins.
	Prefix string `json:"prefix"`
	// User is the id of the owner.
	User     string    `json:"user"`
	UserName string    `json:"user_name"`
	Name     string    `json:"name"`
	Created  time.Time `json:"created"`
	// Expires is zero if the key never expires, and Revoked if it is not revoked.
	Expires time.Time `json:"expires,omitzero"`
	Revoked time.Time `json:"revoked,omitzero"`
	// LastUsed is the time of the last use, to a minute; zero if the key was not used in the last 400 days.
	LastUsed time.Time `json:"last_used,omitzero"`
	Scopes   []string  `json:"scopes"`
	// Networks are those that the key may be used from; empty: from anywhere.
	Networks []string `json:"networks,omitempty"`
}

// Keys returns the API keys of all users, revoked ones too. It needs the scope operate.
func (c *Client) Keys(ctx context.Context, o ListOptions) iter.Seq2[Key, error] {
	return list[Key](ctx, c, listing{path: route("keys"), name: "keys"}, o)
}

// KeysOf returns the API keys of a user, revoked ones too. The user is an id or a name. It needs the scope operate.
func (c *Client) KeysOf(ctx context.Context, user string, options ...CallOption) ([]Key, error) {
	var out struct {
		Keys []Key `json:"keys"`
	}
	err := c.get(ctx, route("users", user, "keys"), nil, &out, options)
	return out.Keys, err
}

// RevokeKey revokes an API key of a user, given by its id, within a second. It needs the scope operate.
func (c *Client) RevokeKey(ctx context.Context, user, key, why string, options ...CallOption) error {
	return c.remove(ctx, route("users", user, "keys", key), why, options)
}

// AccessEntry is a login, or a refused login or key. Equal events of an hour are one entry.
type AccessEntry struct {
	ID string `json:"id"`
	// At is the first time and LastAt the last one, within an hour.
	At     time.Time `json:"at"`
	LastAt time.Time `json:"last_at"`
	Count  int64     `json:"count"`
	// Kind is login, login.failed or key.failed.
	Kind string `json:"kind"`
	// Reason is the code of the error of a refused key, a word for a refused login, or how the user logged in.
	Reason      string `json:"reason"`
	User        string `json:"user,omitempty"`
	GitHubLogin string `json:"github_login,omitempty"`
	// Key is the id of an API key.
	Key string `json:"key,omitempty"`
	// Address is that of the client, or a network of IPv6; empty if the entry is about many clients.
	Address string `json:"address,omitempty"`
}

// AccessLog returns the entries of a kind, newest first; an empty kind selects all. It needs the scope operate.
func (c *Client) AccessLog(ctx context.Context, kind string, o ListOptions) iter.Seq2[AccessEntry, error] {
	l := listing{path: route("audit", "access"), name: "entries"}
	if kind != "" {
		l.query = url.Values{"kind": {kind}}
	}
	return list[AccessEntry](ctx, c, l, o)
}
