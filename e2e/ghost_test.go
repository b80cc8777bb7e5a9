package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/models"
)

// ghost makes the calls that Ghost makes of Mailgun: its newsletter client (mailgun-client.js), its repeats
// (batch-sending-service.js) and its analytics job (fetch-mailgun-events.ts). Ghost itself needs a database, and is not
// run here.
type ghost struct {
	*rig
	key   string
	email string // id of the newsletter
	begin time.Time
	state map[string]string // of each member, by the events
	codes map[string]int    // of mail that failed for good
}

const ghostDomain = "mail.demo.test"

// deliver posts a newsletter to some members. The answer is lost if lose is set.
func (g *ghost) deliver(members []string, lose bool) error {
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	vars := map[string]map[string]string{}
	for _, m := range members {
		require.NoError(g.t, w.WriteField("to", m))
		vars[m] = map[string]string{"name": m, "unsubscribe_url": "https://blog.test/unsubscribe?to=" + m}
	}
	raw, err := json.Marshal(vars)
	require.NoError(g.t, err)
	for _, f := range [][2]string{
		{"from", `"The Blog" <blog@` + ghostDomain + ">"}, {"h:Reply-To", "blog@" + ghostDomain}, {"subject",
			"News {{of}} the week"},
		{"html", `<p>Hi %recipient.name%</p><a href="%recipient.unsubscribe_url%">off</a>`}, {"text", "Hi %recipient.name%"},
		{"recipient-variables", string(raw)}, {"v:email-id", g.email}, {"o:tag", "bulk-email"}, {"o:tag", "ghost-email"},
		{"h:Auto-Submitted", "auto-generated"}, {"h:List-Unsubscribe",
			"<%recipient.unsubscribe_url%>, <%tag_unsubscribe_email%>"},
		{"h:List-Unsubscribe-Post", "List-Unsubscribe=One-Click"}, {"o:tracking-opens", "yes"},
	} {
		require.NoError(g.t, w.WriteField(f[0], f[1]))
	}
	require.NoError(g.t, w.Close())
	req, err := http.NewRequestWithContext(g.t.Context(), http.MethodPost,
		"http://"+g.addr+"/v3/"+ghostDomain+"/messages", &b)
	require.NoError(g.t, err)
	req.Header.Set("Content-Type", w.FormDataContentType())
	var answer struct{ ID, Message string }
	if err := g.do(req, &answer); err != nil {
		return err
	}
	if lose {
		return errors.New("timeout of 60000ms exceeded")
	}
	require.Regexp(g.t, "^<.+@"+ghostDomain+">$", answer.ID)
	return nil
}

// do makes a request and decodes its answer.
func (g *ghost) do(req *http.Request, answer any) error {
	req.SetBasicAuth("api", g.key)
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = r.Body.Close() }()
	raw, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", r.Status, raw)
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, answer)
}

// send sends a newsletter in groups, and repeats each as Ghost does until it is taken.
func (g *ghost) send(members []string, between func(group, try int)) {
	g.t.Helper()
	for group := 0; group*1000 < len(members); group++ {
		some := members[group*1000 : min(len(members), group*1000+1000)]
		err := errors.New("not tried")
		for try := 0; err != nil; try++ {
			require.Less(g.t, try, 7, "%v", err)
			between(group, try)
			err = g.deliver(some, try < 2)
		}
	}
}

// fetch reads the events from the beginning of the newsletter, page by page.
func (g *ghost) fetch() {
	g.t.Helper()
	query := url.Values{"limit": {"300"}, "ascending": {"yes"}, "tags": {"bulk-email AND ghost-email"},
		"event": {"delivered OR opened OR failed OR unsubscribed OR complained"},
		"begin": {fmt.Sprintf("%.3f", float64(g.begin.UnixMilli())/1000)}, "end": {fmt.Sprintf("%.3f",
			float64(time.Now().UnixMilli())/1000)}}
	next, seen := "http://"+g.addr+"/v3/"+ghostDomain+"/events?"+query.Encode(), map[string]bool{}
	for {
		req, err := http.NewRequestWithContext(g.t.Context(), http.MethodGet, next, nil)
		require.NoError(g.t, err)
		var page struct {
			Items []struct {
				ID, Event, Recipient, Severity string
				Variables                      map[string]string  `json:"user-variables"`
				Status                         struct{ Code int } `json:"delivery-status"`
			}
			Paging struct{ Next string }
		}
		require.NoError(g.t, g.do(req, &page))
		if len(page.Items) == 0 {
			return
		}
		for _, e := range page.Items {
			require.False(g.t, seen[e.ID], "an event is there twice")
			seen[e.ID] = true
			if e.Variables["email-id"] != g.email || e.Event == "failed" && e.Severity == "temporary" {
				continue
			}
			g.state[e.Recipient] = e.Event
			if e.Event == "failed" {
				g.codes[e.Recipient] = e.Status.Code
			}
		}
		next = page.Paging.Next
	}
}

// TestGhost: a newsletter of Ghost reaches each member once, although answers are lost, requests are repeated in other
// groups, a provider fails in the middle, and before a release the process is killed. Ghost reads back what happened, and a member who
// complained gets no further mail.
func TestGhost(t *testing.T) {
	testkit.OnBackends(t, func(t *testing.T, b testkit.Backend) {
		n := testkit.Mails(1_200, 5_000)
		r := newRig(t, b, simulator.Options{Latency: 20 * time.Millisecond, EventDelay: 20 * time.Millisecond},
			"SAFEDELIVR_DIALECTS=mailgun", "SAFEDELIVR_PROVIDERS_SG_CHUNK_LIMIT=100", "SAFEDELIVR_PROVIDERS_MG_CHUNK_LIMIT=100")
		p := r.start(r.addr, nil, "serve")
		g := &ghost{rig: r, key: strings.TrimSpace(r.command("key", "add", "tester")), begin: time.Now().Add(-time.Minute)}
		var members []string
		for i := range n {
			members = append(members, fmt.Sprintf("Member.%d+x@reader.test", i))
		}
		members[7], members[n-3] = "complain+7@reader.test", "hardbounce+3@reader.test"
		g.newsletter("65f0c0ffee65f0c0ffee65f0")
		g.send(members, func(group, try int) {
			if group == 1 && try == 0 {
				r.sim.Inject(simulator.Fault{Account: "sg", Mode: simulator.ModeStatus, Status: http.StatusServiceUnavailable})
			}
			if group == 1 && try == 1 && testkit.Full() { // the events that are lost then are looked up later
				p.kill()
				p = r.start(r.addr, nil, "serve")
			}
		})
		g.send(members[500:], func(int, int) {}) // the button
		require.Eventually(t, func() bool {
			g.fetch()
			return len(g.state) == n-g.unknown() && g.state["complain+7@reader.test"] == "complained"
		}, testkit.Patience, 200*time.Millisecond, "events of all members come back")
		require.Equal(t, "failed", g.state["hardbounce+3@reader.test"])
		require.Len(t, g.codes, 1)
		before := g.once()
		require.GreaterOrEqual(t, before, n-g.unknown())

		g.newsletter("65f0c0ffee65f0c0ffee65f1")
		g.send(members[:10], func(int, int) {})
		require.Eventually(t, func() bool { g.fetch(); return len(g.state) == 10 }, testkit.Patience, 200*time.Millisecond)
		require.Equal(t, map[string]int{"complain+7@reader.test": 607}, g.codes)
		require.Equal(t, before+9, g.once())
	})
}

// newsletter begins a newsletter.
func (g *ghost) newsletter(id string) {
	g.email, g.state, g.codes = id, map[string]string{}, map[string]int{}
}

// unknown returns how many mails were in a call that the killed process did not see end, and that nothing was reported of.
func (g *ghost) unknown() (n int) {
	g.t.Helper()
	for b, err := range g.client.Batches(g.t.Context(), client.ListOptions{}) {
		require.NoError(g.t, err)
		n += int(b.Counts.FailedReasons[string(models.OutcomeUnknown)])
	}
	return n
}

// once requires that no mail has two copies, and returns how many mails there are.
func (g *ghost) once() int {
	g.t.Helper()
	all, delivered := g.copies()
	for id, n := range delivered {
		require.LessOrEqual(g.t, n, 1, id)
	}
	return len(all)
}
