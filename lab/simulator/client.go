package simulator

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// A Client controls a Simulator in another process through its control API. It is
// safe for concurrent use. Errors hold the simulator's own error text.
type Client struct {
	URL  string       // base URL of the simulator, http://host:port
	HTTP *http.Client // nil = http.DefaultClient
}

// A request is a request to the control API.
type request struct {
	method, path string
	query        url.Values
	body         any // nil = none
}

// do makes the request. An answer other than 200 is an error.
func (c *Client) do(ctx context.Context, q request) (*http.Response, error) {
	var body io.Reader
	if q.body != nil {
		text, err := json.Marshal(q.body)
		if err != nil {
			return nil, fmt.Errorf("simulator: %w", err)
		}
		body = bytes.NewReader(text)
	}
	target := strings.TrimSuffix(c.URL, "/") + "/" + controlName + q.path
	if len(q.query) > 0 {
		target += "?" + q.query.Encode()
	}
	r, err := http.NewRequestWithContext(ctx, q.method, target, body)
	if err != nil {
		return nil, fmt.Errorf("simulator: %w", err)
	}
	hc := c.HTTP
	if hc == nil {
		hc = http.DefaultClient
	}
	resp, err := hc.Do(r)
	if err != nil {
		return nil, fmt.Errorf("simulator: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		var problem struct{ Error string }
		json.NewDecoder(io.LimitReader(resp.Body, maxControlBody)).Decode(&problem)
		return nil, fmt.Errorf("simulator: %s %s: %s: %s", q.method, q.path, resp.Status, problem.Error)
	}
	return resp, nil
}

// call makes the request and decodes the answer into out unless out is nil.
func (c *Client) call(ctx context.Context, q request, out any) error {
	resp, err := c.do(ctx, q)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		_, err = io.Copy(io.Discard, resp.Body)
	} else {
		err = json.NewDecoder(resp.Body).Decode(out)
	}
	if err != nil {
		return fmt.Errorf("simulator: %s %s: %w", q.method, q.path, err)
	}
	return nil
}

func param(name, value string) url.Values {
	if value == "" {
		return nil
	}
	return url.Values{name: {value}}
}

// Accounts returns the accounts with their public keys.
func (c *Client) Accounts(ctx context.Context) (list []AccountInfo, err error) {
	err = c.call(ctx, request{method: "GET", path: "/accounts"}, &list)
	return list, err
}

// AddAccount calls Simulator.AddAccount. It returns the account with its public
// key.
func (c *Client) AddAccount(ctx context.Context, a Account) (info AccountInfo, err error) {
	err = c.call(ctx, request{method: "POST", path: "/accounts", body: a}, &info)
	return info, err
}

// Faults calls Simulator.Faults.
func (c *Client) Faults(ctx context.Context) (list []Fault, err error) {
	err = c.call(ctx, request{method: "GET", path: "/faults"}, &list)
	return list, err
}

// Inject calls Simulator.Inject; a fault that is not valid is an error.
func (c *Client) Inject(ctx context.Context, f Fault) (id string, err error) {
	var out struct{ ID string }
	err = c.call(ctx, request{method: "POST", path: "/faults", body: f}, &out)
	return out.ID, err
}

// Clear calls Simulator.Clear.
func (c *Client) Clear(ctx context.Context, id string) error {
	return c.call(ctx, request{method: "DELETE", path: "/faults/" + url.PathEscape(id)}, nil)
}

// ClearAll calls Simulator.ClearAll.
func (c *Client) ClearAll(ctx context.Context, account string) error {
	return c.call(ctx, request{method: "DELETE", path: "/faults", query: param("account", account)}, nil)
}

// Stats calls Simulator.Stats; an unknown account is an error.
func (c *Client) Stats(ctx context.Context, account string) (st Stats, err error) {
	err = c.call(ctx, request{method: "GET", path: "/stats", query: param("account", account)}, &st)
	return st, err
}

// CallLog calls Simulator.CallLog; an unknown account is an error.
func (c *Client) CallLog(ctx context.Context, account string) (list []Call, err error) {
	err = c.call(ctx, request{method: "GET", path: "/calls", query: param("account", account)}, &list)
	return list, err
}

// Copies calls Simulator.Copies.
func (c *Client) Copies(ctx context.Context, id string) (list []Copy, err error) {
	if id == "" {
		return nil, nil
	}
	err = c.call(ctx, request{method: "GET", path: "/copies", query: param("id", id)}, &list)
	return list, err
}

// EachCopy calls f like Simulator.EachCopy, for the ids with at least min copies.
// Each call of f gets a new map. The simulator streams the list.
func (c *Client) EachCopy(ctx context.Context, min int, f func(id string, perAccount map[string]int)) error {
	resp, err := c.do(ctx, request{method: "GET", path: "/copies", query: url.Values{"min": {fmt.Sprint(min)}}})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	dec := json.NewDecoder(bufio.NewReaderSize(resp.Body, 64<<10))
	for {
		var line CopyCount
		switch err := dec.Decode(&line); err {
		case nil:
			f(line.ID, line.Accounts)
		case io.EOF:
			return nil
		default:
			return fmt.Errorf("simulator: listing copies: %w", err)
		}
	}
}

// Settings returns the settings of all accounts.
func (c *Client) Settings(ctx context.Context) (list []Settings, err error) {
	err = c.call(ctx, request{method: "GET", path: "/settings"}, &list)
	return list, err
}

// Change changes the settings that are not nil.
func (c *Client) Change(ctx context.Context, set Settings) error {
	return c.call(ctx, request{method: "POST", path: "/settings", body: set}, nil)
}

// SetWebhookURL calls Simulator.SetWebhookURL; an unknown account and a URL that is not
// valid are errors.
func (c *Client) SetWebhookURL(ctx context.Context, account, url string) error {
	return c.Change(ctx, Settings{Account: account, WebhookURL: &url})
}

// SetLatency calls Simulator.SetLatency.
func (c *Client) SetLatency(ctx context.Context, account string, d time.Duration) error {
	latency := Duration(d)
	return c.Change(ctx, Settings{Account: account, Latency: &latency})
}

// Flush calls Simulator.Flush. It waits until ctx is done, at most an hour.
func (c *Client) Flush(ctx context.Context) error {
	return c.call(ctx, request{method: "POST", path: "/flush", query: param("timeout", "1h")}, nil)
}

// Settle calls Simulator.Settle. It waits until ctx is done, at most an hour.
func (c *Client) Settle(ctx context.Context) error {
	query := url.Values{"timeout": {"1h"}, "settle": {"true"}}
	return c.call(ctx, request{method: "POST", path: "/flush", query: query}, nil)
}

// Reset calls Simulator.Reset.
func (c *Client) Reset(ctx context.Context) error {
	return c.call(ctx, request{method: "POST", path: "/reset"}, nil)
}
