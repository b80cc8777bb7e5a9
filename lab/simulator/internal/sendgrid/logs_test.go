package sendgrid_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	sgsdk "github.com/sendgrid/sendgrid-go"

	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/simtest"
)

// ask sends a request to the Email Logs API through SendGrid's SDK.
func ask(t *testing.T, r *simtest.Rig, method, path, body string, out any) (status int, header http.Header) {
	t.Helper()
	req := sgsdk.GetRequest(simtest.SendGridKey, path, r.URL+"/sg")
	req.Method, req.Body = "POST", []byte(body)
	if method == http.MethodGet {
		req.Method, req.Body = "GET", nil
	}
	resp, err := sgsdk.API(req)
	if err != nil {
		t.Fatal(err)
	}
	if out != nil && resp.StatusCode == http.StatusOK {
		if err := json.Unmarshal([]byte(resp.Body), out); err != nil {
			t.Fatal(err)
		}
	}
	return resp.StatusCode, resp.Headers
}

type listed struct {
	Messages []struct {
		ID     string `json:"sg_message_id"`
		To     string `json:"to_email"`
		Status string
	}
}

func TestLogQueries(t *testing.T) {
	t.Parallel()
	r := simtest.New(t, simulator.Options{TimeScale: 1e6})
	begun := time.Now().UTC()
	addrs := []string{"a@example.com", "hardbounce@sim.test", "blocked@sim.test", "o'neill@example.com"}
	r.Send(t, "sg", "r", addrs...)
	r.SettleAll(t)
	at := func(d time.Duration) string { return begun.Add(d).Format(`TIMESTAMP "2006-01-02T15:04:05Z"`) }
	for query, want := range map[string]int{
		``:                                 4,
		`to_email = 'a@example.com'`:       1,
		`to_email = "o'neill@example.com"`: 1,
		`to_email='A@example.com'`:         0,
		`status IN ('bounced', 'blocked')`: 2,
		`status IN ('delivered') AND to_email = "a@example.com"`:                                                1,
		`sg_message_id_created_at >= ` + at(-time.Hour):                                                         4,
		`sg_message_id_created_at > ` + at(time.Hour):                                                           0,
		`sg_message_id_created_at >= ` + at(-time.Hour) + ` AND sg_message_id_created_at < ` + at(-time.Minute): 0,
	} {
		var got listed
		if status, _ := ask(t, r, "POST", "/v3/logs", fmt.Sprintf(`{"query":%q}`, query), &got); status != 200 ||
			len(got.Messages) != want {
			t.Errorf("%s: %d %+v", query, status, got)
		}
	}
	for body, want := range map[string]int{
		`{"query":"to_email IN ('a')"}`:                400,
		`{"query":"from_email = 'a'"}`:                 400,
		`{"query":"(to_email = 'a')"}`:                 400,
		`{"query":"to_email = 'a' OR to_email = 'b'"}`: 400,
		`{"limit":1001}`:                               400,
		`{"limit":0}`:                                  400,
		`{"limit":1000}`:                               200,
		`[]`:                                           400,
	} {
		if status, _ := ask(t, r, "POST", "/v3/logs", body, nil); status != want {
			t.Errorf("%s: %d", body, status)
		}
	}
}

// TestLoggedMessage: the details of a message have its events, the newest first, and the custom
// arguments apart from SendGrid's own fields.
func TestLoggedMessage(t *testing.T) {
	t.Parallel()
	r := simtest.New(t, simulator.Options{TimeScale: 1e6})
	r.Send(t, "sg", "r", "a@example.com", "async@sim.test")
	r.SettleAll(t)
	var list listed
	ask(t, r, "POST", "/v3/logs", `{"query":"to_email = 'async@sim.test'"}`, &list)
	if len(list.Messages) != 1 {
		t.Fatalf("%+v", list)
	}
	type args map[string]string
	var m struct {
		To     string `json:"to_email"`
		Args   args   `json:"custom_args"`
		Events []struct {
			Event     string
			MessageID string `json:"sg_message_id"`
			Args      args   `json:"custom_args"`
		}
	}
	status, _ := ask(t, r, "GET", "/v3/logs/"+list.Messages[0].ID, "", &m)
	if status != 200 || m.To != "async@sim.test" || m.Args[simtest.RecipientKey] != "r1" || len(m.Events) != 3 ||
		m.Events[0].Event != "bounce" || m.Events[0].Args[simtest.RecipientKey] != "r1" ||
		m.Events[0].MessageID != list.Messages[0].ID {
		t.Errorf("%d %+v", status, m)
	}
	for _, id := range []string{"x", list.Messages[0].ID + "0", strings.Replace(list.Messages[0].ID, "-1.0", "-9.0", 1)} {
		if status, _ := ask(t, r, "GET", "/v3/logs/"+id, "", nil); status != 404 {
			t.Errorf("%s: %d", id, status)
		}
	}
}

func TestLogsAreLimited(t *testing.T) {
	t.Parallel()
	r := simtest.New(t, simulator.Options{LookupsPerSecond: 1})
	for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); { // until two of them are in the same second
		if status, header := ask(t, r, "POST", "/v3/logs", `{}`, nil); status == 429 {
			if header["X-Ratelimit-Reset"] == nil {
				t.Error("no X-RateLimit-Reset")
			}
			return
		}
	}
	t.Error("no 429")
}
