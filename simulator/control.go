package simulator

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/simulator/internal/provider"
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

// AccountInfo is an Account as the control API shows it.
type AccountInfo struct {
	Account
	PublicKey string `json:"public_key,omitempty"` // see Simulator.PublicKey
}

// CopyCount is a line of the list of copies: how many an id has at each account.
type CopyCount struct {
	ID       string         `json:"id"`
	Accounts map[string]int `json:"accounts"`
}

// A badRequest is a mistake of the caller. Its text is shown.
type badRequest struct{ error }

func (s *Simulator) control(w http.ResponseWriter, r *http.Request, path []string) {
	r.Body = http.MaxBytesReader(w, r.Body, maxControlBody)
	name, rest := "", ""
	if len(path) > 0 {
		name = path[0]
	}
	if len(path) > 1 {
		rest = path[1]
	}
	query := r.URL.Query()
	account := query.Get("account")
	if account != "" && s.account(account) == nil {
		reply(w, 404, nil, fmt.Errorf("%w: %q", errNoAccount, account))
		return
	}
	var v any
	var err error
	switch r.Method + " " + name {
	case "GET accounts":
		v = s.infos()
	case "POST accounts":
		v, err = s.controlAdd(r.Body)
	case "GET faults":
		v = s.Faults()
	case "POST faults":
		v, err = s.controlInject(r.Body)
	case "DELETE faults":
		v = map[string]int{"cleared": s.clear(func(f *fault) bool {
			return (rest == "" || f.ID == rest) && (account == "" || f.Account == account)
		})}
	case "GET stats":
		v = s.Stats(account)
	case "GET calls":
		v = nonNil(s.CallLog(account))
	case "GET copies":
		if id := query.Get("id"); id != "" {
			v = nonNil(s.Copies(id))
			break
		}
		s.streamCopies(w, query.Get("min"))
		return
	case "GET settings":
		v = s.settings()
	case "POST settings":
		var c Settings
		if err = decode(r.Body, &c); err == nil {
			err = s.change(c)
		}
	case "POST flush":
		err = s.controlFlush(r.Context(), query.Get("timeout"), query.Get("settle"))
	case "POST reset":
		s.Reset()
	default:
		reply(w, 404, nil, fmt.Errorf("no %s /%s/%s", r.Method, controlName, name))
		return
	}
	status := 200
	switch {
	case errors.As(err, new(badRequest)):
		status = 400
	case errors.Is(err, context.DeadlineExceeded):
		status = 504
	case err != nil:
		status = 503
	}
	reply(w, status, v, err)
}

func nonNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
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

func (s *Simulator) infos() []AccountInfo {
	list := []AccountInfo{}
	for _, a := range s.Accounts() {
		list = append(list, AccountInfo{a, s.PublicKey(a.Name)})
	}
	return list
}

func (s *Simulator) controlAdd(body io.Reader) (any, error) {
	var a Account
	if err := decode(body, &a); err != nil {
		return nil, err
	}
	if err := s.AddAccount(a); err != nil {
		return nil, badRequest{err}
	}
	return AccountInfo{a, s.PublicKey(a.Name)}, nil
}

func (s *Simulator) controlInject(body io.Reader) (any, error) {
	var f Fault
	if err := decode(body, &f); err != nil {
		return nil, err
	}
	id, err := s.inject(f)
	if err != nil {
		return nil, badRequest{err}
	}
	return map[string]string{"id": id}, nil
}

func (s *Simulator) settings() []Settings {
	list := []Settings{}
	delay := Duration(s.eventDelay.Load())
	for _, a := range s.accountList() {
		url, latency := a.webhooks.URL(), Duration(a.latency.Load())
		list = append(list, Settings{a.name, &url, &latency, &delay})
	}
	return list
}

func (s *Simulator) change(c Settings) error {
	if c.Account != "" && s.account(c.Account) == nil {
		return badRequest{fmt.Errorf("%w: %q", errNoAccount, c.Account)}
	}
	if c.WebhookURL != nil {
		if err := provider.CheckURL(*c.WebhookURL); err != nil {
			return badRequest{err}
		}
		for _, name := range s.names() {
			if c.Account == "" || c.Account == name {
				s.SetWebhookURL(name, *c.WebhookURL)
			}
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
	d := 30 * time.Second
	if timeout != "" {
		var err error
		if d, err = time.ParseDuration(timeout); err != nil {
			return badRequest{err}
		}
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
	floor := 1
	if minimum != "" {
		var err error
		if floor, err = strconv.Atoi(minimum); err != nil {
			reply(w, 400, nil, fmt.Errorf("min: %w", err))
			return
		}
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	out := bufio.NewWriterSize(w, 64<<10)
	defer out.Flush()
	enc := json.NewEncoder(out)
	s.eachCopy(func(id string, per map[string]int) bool {
		n := 0
		for _, count := range per {
			n += count
		}
		return n < floor || enc.Encode(CopyCount{id, per}) == nil
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
