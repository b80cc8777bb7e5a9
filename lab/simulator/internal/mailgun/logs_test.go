package mailgun_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/simtest"
)

type logsPage struct {
	Items []struct {
		Event     string
		At        time.Time `json:"@timestamp"`
		Variables string    `json:"user-variables"`
	}
	Pagination struct{ Next string }
}

// logs sends a request to the Logs API.
func logs(t *testing.T, r *simtest.Rig, key, body string) (status int, page logsPage) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.URL+"/mg/v1/analytics/logs",
		strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.SetBasicAuth("api", key)
	resp, err := r.HTTP.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		if err := json.NewDecoder(resp.Body).Decode(&page); err != nil {
			t.Fatal(err)
		}
	}
	return resp.StatusCode, page
}

func TestLogsHoldEachEventOnce(t *testing.T) {
	t.Parallel()
	r := simtest.New(t, simulator.Options{TimeScale: 1e6})
	r.Send(t, "mg", "r", simtest.Addresses(25)...)
	r.SettleAll(t)
	total, last, token := 0, time.Time{}, ""
	for {
		status, page := logs(t, r, simtest.MailgunKey, fmt.Sprintf(
			`{"pagination":{"sort":"timestamp:asc","limit":20,"token":%q}}`, token))
		if status != 200 || len(page.Items) > 20 {
			t.Fatal(status, len(page.Items))
		}
		if len(page.Items) == 0 {
			break
		}
		for _, item := range page.Items {
			var vars map[string]string
			if item.At.Before(last) || json.Unmarshal([]byte(item.Variables), &vars) != nil ||
				vars[simtest.RecipientKey] == "" {
				t.Fatalf("%+v", item)
			}
			last = item.At
		}
		total, token = total+len(page.Items), page.Pagination.Next
	}
	if total != 50 {
		t.Errorf("%d events", total)
	}
}

func TestLogFilters(t *testing.T) {
	t.Parallel()
	r := simtest.New(t, simulator.Options{TimeScale: 1e6})
	r.Send(t, "mg", "r", "a@example.com", "hardbounce@sim.test")
	r.SettleAll(t)
	filter := func(attribute, value string) string {
		return fmt.Sprintf(`{"filter":{"AND":[{"attribute":%q,"comparator":"=","values":[{"label":%q,"value":%q}]}]}}`,
			attribute, value, value)
	}
	date := func(d time.Duration) string { return time.Now().Add(d).Format(time.RFC1123Z) }
	for _, test := range []struct {
		body   string
		status int
		want   int
	}{
		{`{}`, 200, 4},
		{filter("domain", simtest.Domain), 200, 4},
		{filter("domain", "other.test"), 200, 0},
		{filter("recipient", "a@example.com"), 200, 2},
		{filter("event", "failed"), 200, 1},
		{filter("user-variables", "r0"), 400, 0},
		{`{"events":["delivered"]}`, 200, 1},
		{`{"start":"` + date(-time.Hour) + `","end":"` + date(time.Hour) + `"}`, 200, 4},
		{`{"start":"` + date(-time.Hour) + `","end":"` + date(-time.Minute) + `"}`, 200, 0},
		{`{"start":"yesterday"}`, 400, 0},
		{`{"pagination":{"limit":301}}`, 400, 0},
		{`{"pagination":{"token":"nonsense"}}`, 400, 0},
		{`[]`, 400, 0},
	} {
		if status, page := logs(t, r, simtest.MailgunKey, test.body); status != test.status || len(page.Items) != test.want {
			t.Errorf("%s: %d, %d events", test.body, status, len(page.Items))
		}
	}
	if status, _ := logs(t, r, "wrong", `{}`); status != 401 {
		t.Error("wrong key", status)
	}
}

func TestLookupsAreLimited(t *testing.T) {
	t.Parallel()
	r := simtest.New(t, simulator.Options{LookupsPerSecond: 1})
	for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); { // until two of them are in the same second
		if status, _ := logs(t, r, simtest.MailgunKey, `{}`); status == 429 {
			return
		}
	}
	t.Error("no 429")
}
