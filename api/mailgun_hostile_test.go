package api

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	mailgungo "github.com/mailgun/mailgun-go/v4"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/feed"
)

// mailgunForm are the fields of a valid message.
var mailgunForm = []string{"from", "shop@mail.example.com", "to", "ann@example.com", "subject", "s", "text", "t"}

// message posts a valid message with more fields.
func (f *fixture) message(pairs ...string) *reply {
	f.Helper()
	return f.multiform("/v3/"+domain+"/messages", append(append([]string{}, mailgunForm...), pairs...)...)
}

// TestMailgunRepeatWhileStored: the client of a request leaves while the request is stored, and repeats it at once. The
// repeats get an error that makes clients repeat, then the answer of the first. The form comes in chunks: the last one
// is not needed to read it, but to notice that the client leaves.
func TestMailgunRepeatWhileStored(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := mailgunFixture(t, inBubble)
		var form bytes.Buffer
		w := multipart.NewWriter(&form)
		for i := 0; i < len(mailgunForm); i += 2 {
			require.NoError(t, w.WriteField(mailgunForm[i], mailgunForm[i+1]))
		}
		require.NoError(t, w.Close())
		post := func(ctx context.Context) (int, error) {
			body := io.MultiReader(bytes.NewReader(form.Bytes())) // of unknown length
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url+"/v3/"+domain+"/messages", body)
			require.NoError(t, err)
			req.SetBasicAuth("api", f.secret)
			req.Header.Set("Content-Type", w.FormDataContentType())
			answer, err := f.client.Do(req)
			if err != nil {
				return 0, err
			}
			return answer.StatusCode, answer.Body.Close()
		}
		ctx, leave := context.WithCancel(t.Context())
		stored := make(chan struct{})
		release := sync.OnceFunc(func() { close(stored) })
		defer release()
		f.store.failing("PutBatch", func(n int) error {
			if n == 1 {
				leave()
				<-stored
			}
			return nil
		})
		_, err := post(ctx)
		require.ErrorIs(t, err, context.Canceled)
		synctest.Wait()
		for range 2 {
			status, err := post(t.Context())
			require.NoError(t, err)
			require.Equal(t, http.StatusServiceUnavailable, status)
		}
		release()
		synctest.Wait()
		for n := range 3 {
			status, err := post(t.Context())
			require.NoError(t, err)
			require.Equal(t, http.StatusOK, status)
			bs, _ := f.batches()
			require.Len(t, bs, n+1, "the first of them is a repeat, and the others are not")
		}
	})
}

// TestMailgunPages: a page of events or of a list is empty only at the end, however many others lie between.
func TestMailgunPages(t *testing.T) {
	t.Parallel()
	f := mailgunFixture(t)
	ctx := t.Context()
	var to []string
	for i := range 30 {
		to = append(to, "to", fmt.Sprintf("r%d@example.com", i))
	}
	f.queued(f.message(append(to, "recipient-variables", `{"x": {"y": 1}}`, "o:tag", "other")...))
	f.queued(f.message("o:tag", "wanted"))
	bs, _ := f.batches()
	fed := &fed{fixture: f, Writer: feed.NewWriter(f.store)}
	for n := range 31 {
		fed.end(bs[0].ID, 31, n+1)
	}
	fed.end(bs[1].ID, 1, 1)
	page := f.get("/v3/" + domain + "/events?tags=wanted&limit=1&begin=1").object(t)
	require.Len(t, page["items"], 1)

	mg := mailgungo.NewMailgun(domain, f.secret)
	mg.SetAPIBase(f.url + "/v3")
	for i := range 20 {
		require.NoError(t, mg.CreateUnsubscribe(ctx, fmt.Sprintf("u%d@example.com", i), "*"))
		if i%5 == 0 {
			require.NoError(t, mg.AddBounce(ctx, fmt.Sprintf("b%d@example.com", i), "550", "no such user"))
		}
	}
	list, got := mg.ListBounces(&mailgungo.ListOptions{Limit: 1}), map[string]int{}
	var some []mailgungo.Bounce
	for range 10 {
		if !list.Next(ctx, &some) {
			break
		}
		got[some[0].Address]++
	}
	require.Len(t, got, 4)
	for address, n := range got {
		require.Equal(t, 1, n, address)
	}
	require.NoError(t, list.Err())
}

// TestMailgunOtherSender: an application sends from the domain of its site, with another domain in the path, as at
// Mailgun. It reads the events with that of the path.
func TestMailgunOtherSender(t *testing.T) {
	t.Parallel()
	f := mailgunFixture(t)
	f.queued(f.multiform("/v3/mg.example.com/messages", mailgunForm...))
	bs, _ := f.batches()
	fed := &fed{fixture: f, Writer: feed.NewWriter(f.store)}
	fed.end(bs[0].ID, 1, 1)
	for of, want := range map[string]int{"mg.example.com": 1, domain: 1, "other.example.com": 0} {
		require.Len(t, f.get("/v3/" + of + "/events?begin=1").object(t)["items"], want, of)
	}
}

// TestMailgunKeys: keys need the scope of each call, and pages belong to their user. An address that was erased is in
// no event.
func TestMailgunKeys(t *testing.T) {
	t.Parallel()
	f := mailgunFixture(t).operator()
	f.queued(f.message("o:tag", "x"))
	bs, _ := f.batches()
	fed := &fed{fixture: f, Writer: feed.NewWriter(f.store)}
	fed.end(bs[0].ID, 1, 1)
	events := f.get("/v3/" + domain + "/events?begin=1")
	require.Contains(t, string(events.Body), "ann@example.com")
	next := events.object(t)["paging"].(map[string]any)["next"].(string)
	f.erase("ann@example.com")
	require.NotContains(t, string(f.get("/v3/"+domain+"/events?begin=1").Body), "ann@example.com")

	sends := "Bearer " + f.key(models.KeyOptions{Scopes: []models.Scope{models.ScopeSend}})
	reads := "Bearer " + f.key(models.KeyOptions{Scopes: []models.Scope{models.ScopeRead}})
	for _, c := range [][3]string{
		{reads, http.MethodPost, "messages"}, {reads, http.MethodPost, "messages.mime"}, {reads, http.MethodPost, "bounces"},
		{reads, http.MethodDelete, "bounces/a@b.de"}, {sends, http.MethodGet, "events"}, {sends, http.MethodGet, "bounces"},
		{sends, http.MethodGet, "bounces/a@b.de"}, {"Basic !", http.MethodGet, "events"}, {"Basic YTpi", http.MethodGet, "x"},
	} {
		r := f.do(c[1], "/v3/"+domain+"/"+c[2], "", nil, "Authorization", c[0])
		want := http.StatusUnauthorized
		if c[2] == "x" { // there is nothing to protect
			want = http.StatusNotFound
		}
		require.Equal(t, want, r.Status, c)
		require.NotEmpty(t, r.object(t)["message"])
	}
	stranger := mailgunFixture(t)
	r := stranger.get(strings.TrimPrefix(next, f.url))
	require.Equal(t, http.StatusBadRequest, r.Status, string(r.Body))
}

// TestMailgunHostile: requests that would take much time or memory are refused, each with the reason.
func TestMailgunHostile(t *testing.T) {
	t.Parallel()
	f := mailgunFixture(t)
	x := strings.Repeat
	macros := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "%%recipient.a%d%%", i)
		}
		return b.String()
	}
	for want, pairs := range map[string][]string{
		"different variables":         {"html", macros(20_000)},
		"all other fields except to":  {"html", x("x", 6<<20)},
		"There are too many values":   {"recipient-variables", "{" + x(`"a":{},`, 300_000) + `"a":{}}`},
		"Too many recipients":         {"to", x("a@b.de,", 50_000)},
		"A recipient may have":        {"to", x(`a@b.de,`, 100), "recipient-variables", bigVariables(20), "html", macros(20)},
		"t:variables parameter":       {"template", "x", "t:variables", `{"a": "` + x("x", 70_000) + `"}`},
		"v:x parameter is not valid":  {"v:x", "a\xffb"},
		"subject parameter":           {"subject", "\xff"},
		"h:X-A parameter":             {"h:X-A", "a\xff"},
		"to parameter is not a valid": {"to", "\"a\rb\" <c@d.de>"},
		"to parameter is not":         {"to", "a\r\nX: y@d.de"},
		"from parameter":              {"from", "Shop\r\nX: y <c@d.de>"},
	} {
		r := f.multiform("/v3/"+domain+"/messages", append(append([]string{}, pairs...), mailgunForm...)...)
		require.GreaterOrEqual(t, r.Status, 400, want)
		require.Less(t, r.Status, 500, "%s: %s", want, r.Body)
		require.Contains(t, r.object(t)["message"], want)
	}
	messages := "/v3/" + domain + "/messages"
	r := f.do(http.MethodPost, messages, "application/x-www-form-urlencoded", strings.NewReader(x("a=&", 5000)))
	require.Contains(t, r.object(t)["message"], "more than 4000 parts")

	var bomb bytes.Buffer
	w := gzip.NewWriter(&bomb)
	for range 150 {
		_, _ = io.WriteString(w, x("x\n", 1<<19)) // before the first part
	}
	_, _ = io.WriteString(w, "\r\n--x\r\nContent-Disposition: form-data; name=to\r\n\r\na@b.de\r\n--x--\r\n")
	require.NoError(t, w.Close())
	r = f.do(http.MethodPost, messages, "multipart/form-data; boundary=x", &bomb, "Content-Encoding", "gzip")
	require.Equal(t, http.StatusRequestEntityTooLarge, r.Status, string(r.Body))

	for _, query := range []string{"begin=NaN", "end=Inf", "begin=-1", "tags=" + x("a+OR+", 2000), "limit=0"} {
		r = f.get("/v3/" + domain + "/events?" + query)
		require.Equal(t, http.StatusBadRequest, r.Status, query)
	}
	bs, _ := f.batches()
	require.Empty(t, bs)
}

// bigVariables returns recipient-variables of one address with n values of 60 kB.
func bigVariables(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `, "a%d": "%s"`, i, strings.Repeat("x", 60_000))
	}
	return `{"a@b.de": {` + b.String()[2:] + "}}"
}

// TestMailgunCutOff: a form that ends within a file is the client's mistake.
func TestMailgunCutOff(t *testing.T) {
	t.Parallel()
	f := mailgunFixture(t)
	body := "--x\r\nContent-Disposition: form-data; name=attachment; filename=a.txt\r\n\r\nabc"
	for path, name := range map[string]string{"/messages": "attachment", "/messages.mime": "message"} {
		body := strings.ReplaceAll(body, "attachment", name)
		r := f.do(http.MethodPost, "/v3/"+domain+path, "multipart/form-data; boundary=x", strings.NewReader(body))
		require.Equal(t, http.StatusBadRequest, r.Status, string(r.Body))
		require.Contains(t, r.object(t)["message"], "cannot be read")
	}
	large := f.server.cfg
	large.MaxBody = 1000
	f.serve(large)
	pr, pw := io.Pipe()
	go func() {
		_, _ = io.WriteString(pw, body+strings.Repeat("x", 2000)+"\r\n--x--\r\n")
		_ = pw.Close()
	}()
	r := f.do(http.MethodPost, "/v3/"+domain+"/messages", "multipart/form-data; boundary=x", pr)
	require.Equal(t, http.StatusRequestEntityTooLarge, r.Status, string(r.Body))
}

// TestMailgunFile: a message may have nothing but a file.
func TestMailgunFile(t *testing.T) {
	t.Parallel()
	f := mailgunFixture(t)
	f.deps.Providers[0].Carries = models.Capabilities{Attachments: true, Inline: true}
	f.serve(f.server.cfg)
	form := append(append([]string{}, mailgunForm[:6]...), "attachment|a.pdf|application/pdf", "%PDF")
	f.queued(f.multiform("/v3/"+domain+"/messages", form...))
	f.queued(f.multiform("/v3/"+domain+"/messages.mime", "to", "a@b.de", "message|m|message/rfc822",
		"From: a@mail.example.com\r\nSubject: x\r\nContent-Type: application/pdf\r\n\r\n%PDF"))
}

// TestMailgunOddities: what clients write otherwise than we expect is understood.
func TestMailgunOddities(t *testing.T) {
	t.Parallel()
	f := mailgunFixture(t)
	f.queued(f.message("h:List-Unsubscribe",
		"<%tag_unsubscribe_email%>, <https://x.y/u?a=1,2>,<mailto:%unsubscribe_email%>"))
	bs, _ := f.batches()
	require.Equal(t, "<https://x.y/u?a=1,2>", bs[0].Content.Headers[0].Value)

	f.queued(f.multiform("/v3/"+domain+"/messages.mime", "to", "a@b.de", "recipient-variables", "{}", "message|m|x/y",
		"From: a@mail.example.com\r\nSubject: x\r\nMessage-ID: <old>\r\n\r\ntext"))

	add := f.do(http.MethodPost, "/v3/"+domain+"/bounces", "application/json", strings.NewReader(
		`[{"address": "a+b/c@example.com", "code": 550, "error": "no", "created_at": "2026-01-01"}]`))
	require.Equal(t, http.StatusOK, add.Status, string(add.Body))
	for _, path := range []string{"a+b/c@example.com", "a+b%2Fc@example.com", "a%2Bb%2Fc%40example.com"} {
		require.Equal(t, http.StatusOK, f.get("/v3/"+domain+"/bounces/"+path).Status, path)
	}
	for _, path := range []string{"/v3", "/v3/", "/v3/../v1/batches", "/v3/%2e%2e/v1/batches", "//v3//", "/v1/analytics"} {
		r := f.get(path)
		require.Equal(t, http.StatusNotFound, r.Status, path)
		require.Equal(t, "application/json; charset=utf-8", r.Header.Get("Content-Type"), path)
	}
}

// TestMailgunReaders: a reader has one mail, however the address is written.
func TestMailgunReaders(t *testing.T) {
	t.Parallel()
	f := mailgunFixture(t)
	for _, a := range []string{"a@bücher.example", "A@Bücher.Example", "a@xn--bcher-kva.example",
		`"a"@bücher.example`} {
		f.queued(f.ghost(a))
	}
	bs, _ := f.batches()
	require.Len(t, bs, 1)
	f.queued(f.ghost("a@bücher.example", "b@x.de", "B@x.de"))
	all := f.readers()
	require.Equal(t, map[string]int{"a@xn--bcher-kva.example": 1, "b@x.de": 1}, all)

	var wg sync.WaitGroup
	for range 8 { // each claims some of them
		wg.Go(func() { require.NotEqual(t, 500, f.ghost("c@x.de", "d@x.de", "e@x.de", "f@x.de", "g@x.de").Status) })
	}
	wg.Wait()
	f.queued(f.ghost("g@x.de", "f@x.de", "e@x.de", "d@x.de", "c@x.de"))
	all = f.readers()
	require.Len(t, all, 7)
	for reader, n := range all {
		require.Equal(t, 1, n, reader)
	}
}

// readers returns how many mails each address gets.
func (f *fixture) readers() map[string]int {
	out := map[string]int{}
	bs, to := f.batches()
	for i := range bs {
		entries, facts, err := f.store.Record(f.Context(), bs[i].ID)
		require.NoError(f, err)
		v := models.Resolve(len(to[i]), entries, facts)
		for k := range to[i] {
			if v.Status(k+1).State != models.Cancelled {
				out[strings.ToLower(to[i][k].Email)]++
			}
		}
	}
	return out
}
