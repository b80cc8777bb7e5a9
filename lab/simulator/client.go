package simulator

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// A Client controls a Simulator in another process through its control API. It is
// safe for concurrent use. Errors hold the simulator's own error text.
type Client struct {
	URL  string       // base URL of the simulator, http://host:port
	HTTP *http.Client // nil = http.DefaultClient
}

// Call makes a request to the control API, whose paths are at controlName, and decodes
// the answer into out. in and out may be nil. An answer other than 200 is an error.
func (c *Client) Call(ctx context.Context, method, path string, in, out any) error {
	fail := func(err error) error { return fmt.Errorf("simulator: %s %s: %w", method, path, err) }
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return fail(err)
		}
		body = bytes.NewReader(text)
	}
	target := strings.TrimSuffix(c.URL, "/") + "/" + controlName + path
	r, err := http.NewRequestWithContext(ctx, method, target, body)
	if err != nil {
		return fail(err)
	}
	hc := c.HTTP
	if hc == nil {
		hc = http.DefaultClient
	}
	resp, err := hc.Do(r)
	if err != nil {
		return fail(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		var problem struct{ Error string }
		json.NewDecoder(io.LimitReader(resp.Body, maxControlBody)).Decode(&problem)
		return fail(fmt.Errorf("%s: %s", resp.Status, problem.Error))
	}
	if out == nil {
		out = &struct{}{}
	}
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return fail(err)
	}
	return nil
}

// Accounts returns the accounts with their public keys.
func (c *Client) Accounts(ctx context.Context) (list []Account, err error) {
	err = c.Call(ctx, http.MethodGet, "/accounts", nil, &list)
	return list, err
}

// Inject calls Simulator.Inject; a fault that is not valid is an error.
func (c *Client) Inject(ctx context.Context, f Fault) (id string, err error) {
	var out struct{ ID string }
	err = c.Call(ctx, http.MethodPost, "/faults", f, &out)
	return out.ID, err
}

// Stats calls Simulator.Stats; an unknown account is an error.
func (c *Client) Stats(ctx context.Context, account string) (st Stats, err error) {
	err = c.Call(ctx, http.MethodGet, "/stats?account="+url.QueryEscape(account), nil, &st)
	return st, err
}

// Copies calls Simulator.Copies.
func (c *Client) Copies(ctx context.Context, id string) (list []Copy, err error) {
	err = c.Call(ctx, http.MethodGet, "/copies?id="+url.QueryEscape(id), nil, &list)
	return list, err
}
