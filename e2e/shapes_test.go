//go:build full

package e2e

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/lab/receiver"
)

// posted is a post as an application gets it.
type posted struct {
	Shape  string            `json:"shape"`
	Header map[string]string `json:"header"`
	Body   string            `json:"body"`
}

// TestShapes sends mail with django-anymail by the API of each service. Its webhook views, and the libraries of the
// services, read the posts in the shape of that service, verify them, and find the ids, tags and metadata of the mail.
func TestShapes(t *testing.T) {
	f := newForeign(t, "mailgun,sendgrid,postmark,resend", "SAFEDELIVR_ENDPOINT_NETWORKS="+receiver.Network)
	var mu sync.Mutex
	var posts []posted
	arrived := make(chan struct{}, 1)
	app := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		p := posted{Shape: strings.Trim(r.URL.Path, "/"), Header: map[string]string{}, Body: string(body)}
		for name := range r.Header {
			p.Header[name] = r.Header.Get(name)
		}
		mu.Lock()
		defer mu.Unlock()
		posts = append(posts, p)
		select {
		case arrived <- struct{}{}:
		default:
		}
	}))
	t.Cleanup(app.Close)
	keys := map[string]string{}
	for _, shape := range []string{client.ShapeMailgun, client.ShapeSendGrid, client.ShapePostmark, client.ShapeResend} {
		e, err := f.client.CreateEndpoint(t.Context(), client.EndpointSettings{
			URL: app.URL + "/" + shape, Shape: shape, Events: []string{"all"},
			Headers: map[string]string{"Authorization": "Basic YW55bWFpbDpzZWNyZXQ="},
		})
		require.NoError(t, err)
		keys[shape] = e.Secret + e.PublicKey
	}
	raw, err := json.Marshal(keys)
	require.NoError(t, err)
	f.env = append(f.env, "KEYS="+string(raw))
	sent := f.python("anymail_webhooks.py", "django-anymail==15.2", "Django==5.2.19", "svix==2.9.1", "cryptography")

	// What each outcome is in the words of anymail. Resend has no word for unsubscribing.
	want := map[string][]string{
		"click": {"delivered None", "opened None", "clicked None"}, "hardbounce": {"bounced bounced"},
		"mailboxfull": {"bounced bounced"}, "defer-then-deliver": {"deferred None", "delivered None"},
		"complain": {"complained spam"}, "unsubscribe": {"unsubscribed unsubscribed"},
	}
	const spam, unsubscribed = "complained spam", "unsubscribed unsubscribed"
	words := map[string]map[string]string{
		"mailgun":  {"deferred None": "deferred other", spam: "complained None", unsubscribed: "unsubscribed None"},
		"sendgrid": {spam: "complained None", unsubscribed: "unsubscribed None", "bounced bounced": "bounced None"},
		"resend":   {spam: "complained None", unsubscribed: ""},
	}
	var lines []string
	for _, m := range regexp.MustCompile(`(?m)^sent (\S+) (\S+) (\S+)$`).FindAllStringSubmatch(sent, -1) {
		for _, is := range want[m[2]] {
			if word, ok := words[m[1]][is]; ok {
				is = word
			}
			if is != "" {
				lines = append(lines, "event "+m[1]+" "+m[2]+" "+is+" "+m[3]+" ['größe 2'] {'order': '7'} True True")
			}
		}
	}
	require.Len(t, lines, 4*9-1, sent)
	deadline, read := time.After(2*time.Minute), ""
	for len(lines) > 0 {
		select {
		case <-arrived:
		case <-deadline:
			t.Fatalf("missing %s\nin %s", strings.Join(lines, "\n"), read)
		}
		mu.Lock()
		raw, err := json.Marshal(posts)
		mu.Unlock()
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(f.folder, "posts.json"), raw, 0o600))
		read = f.do(filepath.Join(f.folder, "venv", "bin", "python"), "anymail_webhooks.py", "read")
		require.NotContains(t, read, "forged")
		var missing []string
		for _, line := range lines {
			if !strings.Contains(read, line+"\n") {
				missing = append(missing, line)
			}
		}
		lines = missing
	}
	out := f.node("webhooks.mjs", "resend@6.38.0", "svix@2.5.0", "@sendgrid/eventwebhook@8.0.0")
	require.NotContains(t, out, "forged")
	for _, shape := range []string{"resend", "sendgrid"} {
		require.Equal(t, strings.Count(read, "read "+shape+"\n"), strings.Count(out, shape+" "), "all are verified")
	}
	requireLines(t, out, `resend email\.clicked$`, `resend email\.bounced$`, `sendgrid unsubscribe$`)
}
