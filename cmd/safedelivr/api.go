package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"

	"github.com/safedelivr/safedelivr/api"
	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/config"
	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/internal/app"
	"github.com/safedelivr/safedelivr/sqlite"
)

// Commands are calls of the API. The process that holds the data folder answers them through a socket. If there is
// none, or the store is shared, this process opens the configured store and answers itself.

// operator calls the API as an operator.
type operator struct {
	*client.Client
	via    http.RoundTripper
	by     string // who gives the commands
	user   string // ID of the user on whose behalf the calls are; empty: no user
	serves bool   // a process serves, so that mail is sent
	names  map[string]string
}

// RoundTrip implements http.RoundTripper. It adds who gives the command, and for whom.
func (o *operator) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set(api.ByHeader, o.by)
	if o.user != "" {
		r.Header.Set(api.UserHeader, o.user)
	}
	return o.via.RoundTrip(r)
}

// as returns an operator whose calls are on behalf of a user, by ID.
func (o *operator) as(user string) *operator {
	out := *o
	out.user = user
	out.Client = client.New("http://safedelivr", "", client.HTTPClient(&http.Client{Transport: &out}))
	return &out
}

// withAPI runs f with the API.
func (c *cli) withAPI(ctx context.Context, f func(context.Context, *operator) error) error {
	o, end, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer end()
	return c.explain(f(ctx, o))
}

// connect returns the API, and a function that closes what it opened.
func (c *cli) connect(ctx context.Context) (*operator, func(), error) {
	o := &operator{by: c.person(), names: map[string]string{"": ""}}
	if c.handler != nil {
		t, end := app.Within(c.handler)
		o.via, o.serves = t, true
		return o.as(""), end, nil
	}
	cfg, err := c.load()
	if err != nil {
		return nil, nil, err
	}
	embedded := app.StoreName(&cfg) == "sqlite"
	if embedded {
		if err := hasDataFolder(&cfg); err != nil {
			return nil, nil, err
		}
	}
	a, err := app.Open(ctx, &cfg, c.logger(&cfg))
	switch {
	case errors.Is(err, sqlite.ErrInUse):
		t := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return app.DialAdmin(ctx, cfg.DataDir)
		}}
		o.via, o.serves = t, true
		return o.as(""), t.CloseIdleConnections, nil
	case err != nil:
		return nil, nil, exitWith(exitUnreachable, err)
	}
	t, end := a.Transport()
	o.via, o.serves = t, !embedded // a server may use the shared store
	return o.as(""), func() {
		end()
		a.Close()
	}, nil
}

// hasDataFolder returns an error if there is no data folder. Only init, serve and demo make one: a command in the wrong
// folder must not begin a second installation.
func hasDataFolder(cfg *config.Config) error {
	folder := cfg.DataDir
	if _, err := os.Stat(folder); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if abs, err := filepath.Abs(folder); err == nil {
		folder = abs
	}
	return exitWith(exitUnreachable, fmt.Errorf("there is no data folder %s. To use an installation elsewhere, run "+
		"this in its folder, name its configuration with -c FILE, or its data folder with SAFEDELIVR_DATA_DIR. To begin "+
		"one here, run safedelivr init or safedelivr serve", folder))
}

// person returns the name of the user who runs the command.
func (c *cli) person() string {
	if c.by != "" {
		return c.by
	}
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return "unknown"
}

// explain turns an error of a call into what a person reads on the command line: a pointer into the request becomes a
// flag.
func (c *cli) explain(err error) error {
	var broken *url.Error
	if errors.As(err, &broken) {
		err = exitWith(exitUnreachable, broken.Err)
		if broken.Op != "Get" {
			err = exitWith(exitUnreachable, fmt.Errorf("%w; the command may have been carried out", broken.Err))
		}
	}
	var e *client.Error
	if !errors.As(err, &e) {
		return err
	}
	text := cmp.Or(e.Detail, e.Error())
	if len(e.Fields) > 0 {
		text = strings.Replace(text, ": see errors.", ":", 1)
	}
	for _, f := range e.Fields {
		text += "\n  " + c.flagOf(f.Pointer) + f.Detail
	}
	return exitWith(codeOfStatus(e.Status), errors.New(text))
}

// flagNames are the flags whose names differ from those of the fields that they set. Without a name it is an argument.
var flagNames = map[string]string{
	"attachments": "attach",
	"columns":     "column",
	"headers":     "header",
	"networks":    "from-network",
	"providers":   "provider",
	"scopes":      "scope",
	"tags":        "tag",
	"senders":     "",
}

// flagOf names the flag that sets what a pointer points to, as the beginning of a sentence. It returns "" for an
// argument and for the whole request.
func (c *cli) flagOf(pointer string) string {
	field, _, _ := strings.Cut(strings.TrimPrefix(pointer, "/"), "/")
	name, ok := c.flags[field]
	if !ok {
		name = flagName(field)
	}
	if name == "" {
		return ""
	}
	return "--" + name + ": "
}

// flagName returns the name of the flag that sets a field.
func flagName(field string) string {
	if name, ok := flagNames[field]; ok {
		return name
	}
	return strings.ReplaceAll(field, "_", "-")
}

// orMissing replaces a "not found" by an error that names what was not found.
func orMissing(err error, what, name string) error {
	var e *client.Error
	if errors.As(err, &e) && e.Status == http.StatusNotFound {
		return isMissing(what, name)
	}
	return err
}

// find returns the user with a name or an ID.
func (o *operator) find(ctx context.Context, name string) (client.User, error) {
	u, err := o.GetUser(ctx, name)
	return u, orMissing(err, "user", name)
}

// sender returns the user of a name; without a name the one that init has added, or the only one.
func (o *operator) sender(ctx context.Context, name string) (client.User, error) {
	if name != "" {
		return o.find(ctx, name)
	}
	var found []client.User
	for u, err := range o.ListUsers(ctx, client.ListOptions{}) {
		if err != nil || u.ID == login.LocalUser().ID {
			return u, err
		}
		found = append(found, u)
	}
	switch len(found) {
	case 0:
		return client.User{}, exitWith(exitMissing, errors.New("there is no user: see safedelivr user add"))
	case 1:
		return found[0], nil
	}
	var names []string
	for i := range found[:min(len(found), 10)] {
		names = append(names, found[i].Name)
	}
	return client.User{}, wrongUsage("--user: name one of %s", strings.Join(names, ", "))
}

// name returns the name of the user with an ID, and anything else as it is.
func (o *operator) name(ctx context.Context, id string) string {
	name, ok := o.names[id]
	if !ok {
		name = id
		if !strings.Contains(id, ":") {
			if u, err := o.GetUser(ctx, id); err == nil {
				name = u.Name
			}
		}
		o.names[id] = name
	}
	return name
}

// readPage reads a page of a list: the items of a member of the answer, and the cursor of the next page.
func readPage[T any](
	ctx context.Context, o *operator, path, member string, query url.Values,
) (items []T, next string, err error) {
	var answer map[string]json.RawMessage
	if err := o.Call(ctx, http.MethodGet, path, query, nil, &answer); err != nil {
		return nil, "", err
	}
	if cursor, ok := answer["next_cursor"]; ok {
		err = json.Unmarshal(cursor, &next)
	}
	return items, next, errors.Join(err, json.Unmarshal(answer[member], &items))
}

// first returns the first items of a list.
func first[T any](list func(func(T, error) bool), n int) (out []T, err error) {
	for v, err := range list {
		if err != nil {
			return nil, err
		}
		if out = append(out, v); len(out) == n {
			break
		}
	}
	return slices.Clip(out), nil
}
