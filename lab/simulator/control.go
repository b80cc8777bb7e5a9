package simulator

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

// controlName is the path of the control API. No account can have this name.
//
//	GET    /control/accounts               accounts, with public keys
//	POST   /control/accounts               add one: an Account
//	GET    /control/faults                 faults in force
//	POST   /control/faults                 inject one: a Fault; answers {"id":"f1"}
//	DELETE /control/faults/{id}            clear one
//	DELETE /control/faults?account=sg      clear those of an account; without account all
//	GET    /control/stats?account=sg       Stats; without account those of all together
//	GET    /control/calls?account=sg       the call log
//	GET    /control/copies?id=x            the copies of an id or address
//	GET    /control/copies?min=2           one line of JSON per id with that many copies or more (default 1)
//	GET    /control/settings               Settings of all accounts
//	POST   /control/settings               change some: Settings
//	POST   /control/flush?timeout=30s      see Simulator.Flush; with settle=true Simulator.Settle
//	POST   /control/reset                  see Simulator.Reset
//
// Durations are strings like "1m30s". Errors are {"error":"..."}.
const controlName = "control"

const maxControlBody = 1 << 20

// Settings are what can be changed of an account while it is in use. A nil field is
// left unchanged.
type Settings struct {
	Account    string    `json:"account,omitempty"` // empty = all accounts
	WebhookURL *string   `json:"webhook_url,omitempty"`
	Latency    *Duration `json:"latency,omitempty"`
	EventDelay *Duration `json:"event_delay,omitempty"` // of the whole simulator
}

// CopyCount is a line of the list of copies: how many an id has at each account.
type CopyCount struct {
	ID       string         `json:"id"`
	Accounts map[string]int `json:"accounts"`
}

// A badRequest is a mistake of the caller. Its text is shown.
type badRequest struct{ error }

// errNoRoute is the result for a path or method that the control API does not have.
var errNoRoute = errors.New("no such path or method")

// control answers a request to the control API. The path begins after its name.
func (s *Simulator) control(w http.ResponseWriter, r *http.Request, path []string) {
	r.Body = http.MaxBytesReader(w, r.Body, maxControlBody)
	path = append(path, "", "") // the name, and the rest
	query := r.URL.Query()
	if account := query.Get("account"); account != "" && s.account(account) == nil {
		reply(w, http.StatusNotFound, nil, fmt.Errorf("%w: %q", errNoAccount, account))
		return
	}
	if r.Method == http.MethodGet && path[0] == "copies" && !query.Has("id") {
		s.streamCopies(w, query.Get("min"))
		return
	}
	v, err := s.controlResult(r, path[0], path[1])
	status := http.StatusOK
	switch {
	case errors.Is(err, errNoRoute):
		status = http.StatusNotFound
		err = fmt.Errorf("no %s /%s/%s", r.Method, controlName, path[0])
	case errors.As(err, new(badRequest)):
		status = http.StatusBadRequest
	case errors.Is(err, context.DeadlineExceeded):
		status = http.StatusGatewayTimeout
	case err != nil:
		status = http.StatusServiceUnavailable
	}
	reply(w, status, v, err)
}

// controlResult carries out a request to the control API and returns what is answered.
func (s *Simulator) controlResult(r *http.Request, name, rest string) (any, error) {
	query := r.URL.Query()
	account := query.Get("account")
	switch r.Method + " " + name {
	case "GET accounts":
		return s.Accounts(), nil
	case "POST accounts":
		var a Account
		if err := decode(r.Body, &a); err != nil {
			return nil, err
		}
		if err := s.AddAccount(a); err != nil {
			return nil, badRequest{err}
		}
		a.PublicKey = s.PublicKey(a.Name)
		return a, nil
	case "GET faults":
		return s.Faults(), nil
	case "POST faults":
		var f Fault
		if err := decode(r.Body, &f); err != nil {
			return nil, err
		}
		id, err := s.inject(f)
		if err != nil {
			return nil, badRequest{err}
		}
		return map[string]string{"id": id}, nil
	case "DELETE faults":
		n := s.clear(func(f *fault) bool {
			return (rest == "" || f.ID == rest) && (account == "" || f.Account == account)
		})
		return map[string]int{"cleared": n}, nil
	case "GET stats":
		return s.Stats(account), nil
	case "GET calls":
		return append([]Call{}, s.CallLog(account)...), nil
	case "GET copies":
		return append([]Copy{}, s.Copies(query.Get("id"))...), nil
	case "GET settings":
		return s.settings(), nil
	case "POST settings":
		var c Settings
		if err := decode(r.Body, &c); err != nil {
			return nil, err
		}
		return nil, s.change(c)
	case "POST flush":
		return nil, s.controlFlush(r.Context(), query.Get("timeout"), query.Get("settle"))
	case "POST reset":
		s.Reset()
		return nil, nil
	}
	return nil, errNoRoute
}

func reply(w http.ResponseWriter, status int, v any, err error) {
	if err != nil {
		v = map[string]string{"error": err.Error()}
	} else if v == nil {
		v = struct{}{}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(v)
}

func decode(body io.Reader, v any) error {
	d := json.NewDecoder(body)
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return badRequest{err}
	}
	return nil
}

func (s *Simulator) settings() []Settings {
	list := []Settings{}
	delay := Duration(s.eventDelay.Load())
	for _, a := range s.accountList() {
		url, latency := a.provider.Webhooks.URL(), Duration(a.latency.Load())
		list = append(list, Settings{a.name, &url, &latency, &delay})
	}
	return list
}

func (s *Simulator) change(c Settings) error {
	if c.Account != "" && s.account(c.Account) == nil {
		return badRequest{fmt.Errorf("%w: %q", errNoAccount, c.Account)}
	}
	for _, a := range s.accountList() {
		if c.WebhookURL != nil && (c.Account == "" || c.Account == a.name) {
			if err := provider.CheckURL(*c.WebhookURL); err != nil {
				return badRequest{err}
			}
			a.provider.Webhooks.SetURL(*c.WebhookURL)
		}
	}
	if c.Latency != nil {
		s.SetLatency(c.Account, time.Duration(*c.Latency))
	}
	if c.EventDelay != nil {
		s.SetEventDelay(time.Duration(*c.EventDelay))
	}
	return nil
}

func (s *Simulator) controlFlush(ctx context.Context, timeout, settle string) error {
	d, err := time.ParseDuration(cmp.Or(timeout, "30s"))
	if err != nil {
		return badRequest{err}
	}
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	if settle == "true" {
		return s.Settle(ctx)
	}
	return s.Flush(ctx)
}

// streamCopies writes a line for each id with at least the given number of copies. It
// does not hold them in memory.
func (s *Simulator) streamCopies(w http.ResponseWriter, minimum string) {
	floor, err := strconv.Atoi(cmp.Or(minimum, "1"))
	if err != nil {
		reply(w, 400, nil, fmt.Errorf("min: %w", err))
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	out := bufio.NewWriterSize(w, 64<<10)
	defer out.Flush()
	enc := json.NewEncoder(out)
	s.EachCopy(func(id string, per map[string]int) {
		n := 0
		for _, count := range per {
			n += count
		}
		if n >= floor {
			_ = enc.Encode(CopyCount{id, per}) // the caller may be gone
		}
	})
}

// A Duration is a time.Duration that is a string like "1m30s" in JSON. A number is
// read as nanoseconds.
type Duration time.Duration

// MarshalJSON implements json.Marshaler.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

// UnmarshalJSON implements json.Unmarshaler.
func (d *Duration) UnmarshalJSON(b []byte) error {
	text := strings.Trim(string(b), `"`)
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		*d = Duration(n)
		return nil
	}
	parsed, err := time.ParseDuration(text)
	*d = Duration(parsed)
	return err
}

type plainFault Fault

// MarshalJSON writes durations as text.
func (f Fault) MarshalJSON() ([]byte, error) {
	text := func(d time.Duration) string {
		if d == 0 {
			return ""
		}
		return d.String()
	}
	return json.Marshal(struct {
		plainFault
		Delay      string `json:"delay,omitempty"`
		RetryAfter string `json:"retry_after,omitempty"`
	}{plainFault(f), text(f.Delay), text(f.RetryAfter)})
}

// UnmarshalJSON reads durations as text. It refuses unknown members: a misspelt one
// would make a fault that does nothing.
func (f *Fault) UnmarshalJSON(b []byte) error {
	var v struct {
		*plainFault
		Delay      Duration `json:"delay"`
		RetryAfter Duration `json:"retry_after"`
	}
	v.plainFault = (*plainFault)(f)
	if err := decode(strings.NewReader(string(b)), &v); err != nil {
		return err
	}
	f.Delay, f.RetryAfter = time.Duration(v.Delay), time.Duration(v.RetryAfter)
	return nil
}
