//go:build full

package ses

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/providertest"
)

// signedFor adds a signature to requests. Moto finds in it which service is asked, and does not check it.
type signedFor struct{ next http.RoundTripper }

func (s signedFor) RoundTrip(req *http.Request) (*http.Response, error) {
	r := req.Clone(req.Context())
	r.Header.Set(
		"Authorization",
		"AWS4-HMAC-SHA256 Credential=x/20261121/us-east-1/sns/aws4_request, SignedHeaders=host, Signature=x",
	)
	return s.next.RoundTrip(r)
}

// get returns the answer of a server.
func get(t *testing.T, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	require.NoError(t, err)
	client := &http.Client{Transport: signedFor{&http.Transport{DisableKeepAlives: true}}}
	resp, err := client.Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", body)
	return string(body)
}

// TestOutsideServer sends to a server that others wrote as a stand-in for Amazon SES, which fills in templates with
// Handlebars. It shows that braces of a text are no tags there, and that each recipient gets the own values.
func TestOutsideServer(t *testing.T) {
	folder := t.TempDir()
	bin := testkit.InstallNode(t, folder, "aws-ses-v2-local@2.10.2")
	base := "http://" + testkit.StartServer(t, folder, filepath.Join(bin, "aws-ses-v2-local"), "--port", "%s")
	p := adapter(t, base)
	defer p.Close()
	text := `{{order}}}{{{order}}} \{{order}} {{#x}} {{{{/y}}}} a{b}c {{{{name}}}} {`
	sent := func(r *models.Recipient) string {
		return models.Rewrite(text, func(name string) string { v, _ := r.Value(name); return v })
	}
	for _, n := range []int{1, 3, 50} {
		c := providertest.SampleCall(n)
		for i := range c.Recipients { // it takes no names of recipients
			r := &c.Recipients[i]
			r.Vars["name"], r.Name = r.Name, ""
		}
		c.Content.Text, c.Content.HTML = text, "<p>{{name}} & {{order}}</p>"
		c.Content.Headers = []models.Header{{Name: "X-Order", Value: "order of {{name}}"}}
		for _, part := range p.Send(t.Context(), c) {
			require.Equal(t, models.Accepted, part.Class, "%+v", part)
			require.NotEmpty(t, part.MessageID)
		}
		var store struct {
			Emails []struct {
				Subject     string
				Body        struct{ Text, HTML string }
				Destination struct{ To []string }
			}
		}
		require.NoError(t, json.Unmarshal([]byte(get(t, base+"/store")), &store))
		require.GreaterOrEqual(t, len(store.Emails), n)
		store.Emails = store.Emails[len(store.Emails)-n:]
		for i, m := range store.Emails {
			r := &c.Recipients[i].Recipient
			require.Equal(t, []string{address(r.Name, r.Email)}, m.Destination.To)
			require.Equal(t, "Order "+models.OneLine(r.Vars["order"])+" for "+r.Vars["name"], m.Subject)
			require.Equal(t, sent(r), m.Body.Text)
			require.Equal(
				t,
				"<p>"+models.EscapeHTML("", r.Vars["name"])+" & "+models.EscapeHTML("", r.Vars["order"])+"</p>",
				m.Body.HTML,
			)
		}
	}
}

// TestOutsideSignatures verifies posts that others sign as Amazon SNS does, with a certificate of their own.
func TestOutsideSignatures(t *testing.T) {
	folder := t.TempDir()
	bin := testkit.InstallPython(t, folder, "moto[server,sns]==5.2.5")
	base := "http://" + testkit.StartServer(t, folder, filepath.Join(bin, "moto_server"), "-p", "%s")
	posts := make(chan *models.Webhook, 1)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		posts <- &models.Webhook{Method: r.Method, Header: r.Header, Body: body, At: time.Now()}
	}))
	defer receiver.Close()
	call := func(form url.Values) string {
		form.Set("Version", "2010-03-31")
		return get(t, base+"/?"+form.Encode())
	}
	topic := "arn:aws:sns:us-east-1:123456789012:mail"
	require.Contains(t, call(url.Values{"Action": {"CreateTopic"}, "Name": {"mail"}}), topic)
	call(url.Values{"Action": {"Subscribe"}, "TopicArn": {topic}, "Protocol": {"http"}, "Endpoint": {receiver.URL + "/"}})
	event := `{"eventType":"Delivery","mail":{"messageId":"m","destination":["a@b.test"],"tags":{"sd_log":["` +
		models.NewBatchID(time.Now()).
			Log(1).
			String() +
		`"],"sd_attempt":["1"]}},"delivery":{"recipients":["a@b.test"],"timestamp":"` +
		time.Now().UTC().Format(time.RFC3339) + `"}}`
	call(url.Values{"Action": {"Publish"}, "TopicArn": {topic}, "Message": {event + "\n"}})
	w := <-posts
	w.Header.Set("X-Amz-Sns-Topic-Arn", topic) // which it leaves out
	s := testSettings(base)
	s.Topics = []string{topic}
	p, err := New(s)
	require.NoError(t, err)
	defer p.Close()
	p.posts.Client.Transport = signedFor{p.posts.Client.Transport}
	v, err := p.Verify(t.Context(), w)
	require.NoError(t, err, "%v %s", w.Header, w.Body)
	require.NotEmpty(t, v.Replay)
	require.Len(t, p.Parse(w.Body).Events, 1)
	w.Body = []byte(strings.Replace(string(w.Body), "Delivery", "Complaint", 1))
	_, err = p.Verify(t.Context(), w)
	require.ErrorContains(t, err, "does not fit")
}
