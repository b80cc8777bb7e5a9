package dashboard

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/mail"
)

func TestCompose(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	form := url.Values{
		"from":    {"Shop <shop@example.com>"},
		"subject": {"Hi {{first}}"},
		"text":    {"Dear {{first}}"},
		"do":      {"send"},
		"to":      {"E-Mail;Name;first\r\nann@example.com;Ann Lee;Ann\r\n\"bob@example.com\";;Bob\r\n"},
		"once":    {onceField.FindStringSubmatch(b.get("/compose").text)[1]},
	}
	t.Run("send", func(t *testing.T) {
		a := b.post("/compose", form)
		require.Equal(t, http.StatusOK, a.StatusCode)
		require.True(t, strings.HasPrefix(a.Request.URL.Path, "/batches/"), a.text)
		id := strings.TrimPrefix(a.Request.URL.Path, "/batches/")
		logs, err := f.service.Mail.Logs(t.Context(), service.Caller{User: "local"}, id, mail.LogFilter{}, service.Page{})
		require.NoError(t, err)
		require.Len(t, logs.Logs, 2)
		require.Equal(t, "Ann Lee", logs.Logs[0].Name)
		again := b.post("/compose", form)
		require.Equal(t, a.Request.URL.Path, again.Request.URL.Path, "a repeated form made a second batch")
	})
	t.Run("test message", func(t *testing.T) {
		form := maps.Clone(form)
		form["do"], form["test"], form["row"] = []string{"test"}, []string{"me@example.com"}, []string{"2"}
		a := b.post("/compose", form)
		require.Equal(t, "/compose", a.Request.URL.Path)
		require.Contains(t, a.text, "Dear {{first}}", "what was written is lost")
		id := regexp.MustCompile(`A test message to me@example.com was accepted. <a href="/batches/([^"]+)"`).
			FindStringSubmatch(a.text)[1]
		logs, err := f.service.Mail.Logs(t.Context(), service.Caller{User: "local"}, id, mail.LogFilter{}, service.Page{})
		require.NoError(t, err, a.text)
		require.Len(t, logs.Logs, 1)
		require.Equal(t, "me@example.com", logs.Logs[0].Email)
	})
	t.Run("preview", func(t *testing.T) {
		form := maps.Clone(form)
		form["row"], form["html"] = []string{"2"}, []string{"<p>{{first}} {{missing}}</p>"}
		a := b.post("/compose/preview", form)
		require.Contains(t, a.text, "Hi Bob")
		require.Contains(t, a.text, "<p>Bob {{missing}}</p>")
		require.Contains(t, a.text, "{{missing}} has no value for this recipient")
		require.True(t, strings.HasPrefix(a.Header.Get("Content-Security-Policy"), "sandbox;"))
	})
	t.Run("curl", func(t *testing.T) {
		form := maps.Clone(form)
		form["do"] = []string{"curl"}
		require.Contains(t, b.post("/compose", form).text, "&#34;email&#34;: &#34;ann@example.com&#34;")
	})
}

// TestComposeTexts checks that the errors of the API stand beside the fields of the form.
func TestComposeTexts(t *testing.T) {
	t.Parallel()
	b := newRig(t, nil).byLink(login.LocalUser())
	form := maps.Clone(oneMessage)
	form["subject"], form["text"] = []string{"Your order {{order}}"}, nil
	a := b.post("/compose", form)
	require.Equal(t, http.StatusUnprocessableEntity, a.StatusCode)
	require.Contains(t, a.text, "No recipient has a value for {{order}}; add it to vars, or as a column of a table.")
	require.Contains(t, a.text, `id="html-wrong">`)

	form["subject"], form["text"] = []string{"s"}, []string{"Dear {{a{{order}}"}
	a = b.post("/compose", form)
	require.Equal(t, http.StatusUnprocessableEntity, a.StatusCode)
	require.Contains(t, a.text, "&#34;{{a{{order}}&#34; in line 1, column 6 is not a placeholder.")
	require.Contains(t, a.text, "Write {{{{ for a literal {{.")
}

// TestComposeErrors checks that a form with errors names them and keeps the input.
func TestComposeErrors(t *testing.T) {
	t.Parallel()
	b := newRig(t, nil).byLink(login.LocalUser())
	bad := url.Values{
		"from":    {"invalid"},
		"subject": {""},
		"text":    {"typed {{first}}"},
		"do":      {"send"},
		"to":      {"ann@example.com\nb@d\n<x>"},
	}
	a := b.post("/compose", bad)
	require.Equal(t, http.StatusUnprocessableEntity, a.StatusCode)
	for _, want := range []string{
		`id="from-wrong"`, `id="subject-wrong"`, `id="to-wrong"`, `value="invalid"`, `aria-invalid="true"`,
		"typed {{first}}", "Line 2:", "Line 3:",
	} {
		require.Contains(t, a.text, want)
	}
}

// composed lists the batches of the local user.
func (f *rig) composed() []models.Batch {
	f.Helper()
	list, err := f.store.Batches(f.Context(), "local", models.ID{}, 100)
	require.NoError(f, err)
	return list
}

// sentBy returns the form with the idempotency key of a page.
func sentBy(t *testing.T, form url.Values, page answer) url.Values {
	t.Helper()
	form = maps.Clone(form)
	found := onceField.FindStringSubmatch(page.text)
	require.NotEmpty(t, found, page.text)
	form.Set("once", found[1])
	return form
}

// oneMessage is the form of a message to one recipient.
var oneMessage = url.Values{
	"from":    {"shop@example.com"},
	"subject": {"s"},
	"text":    {"t"},
	"do":      {"send"},
	"to":      {"ann@example.com"},
}

// TestComposeRepeat checks that the form of an answer that leaves the outcome open sends
// the same batch again, not a second one.
func TestComposeRepeat(t *testing.T) {
	t.Parallel()
	t.Run("acceptance unknown", acceptanceUnknown)
	t.Run("request running", requestRunning)
	t.Run("corrected after an error", correctedAfterError)
	t.Run("test message of another row", testOfAnotherRow)
}

func acceptanceUnknown(t *testing.T) {
	t.Parallel()
	f := newRigOf(t, service.Config{RetryTime: time.Second}, nil)
	b := f.byLink(login.LocalUser())
	unknown := func(put func() error) error {
		_ = put() // it is stored, but the answer is lost
		return models.ErrOutcomeUnknown
	}
	f.store.putBatch.Store(&unknown)
	a := b.post("/compose", sentBy(t, oneMessage, b.get("/compose")))
	require.Equal(t, http.StatusServiceUnavailable, a.StatusCode, a.text)
	there := f.composed()
	require.Len(t, there, 1)
	require.Contains(t, a.text, `href="/batches/`+there[0].ID.String()+`"`)
	f.store.putBatch.Store(nil)
	send := func(form url.Values) answer { // until it is answered: the store has a second, and the machine may pause
		for {
			if a := b.post("/compose", form); a.StatusCode != http.StatusServiceUnavailable {
				return a
			}
		}
	}
	again := send(sentBy(t, oneMessage, a))
	require.Equal(t, "/batches/"+there[0].ID.String(), again.Request.URL.Path)
	require.Len(t, f.composed(), 1)
	send(sentBy(t, oneMessage, b.get("/compose")))
	require.Len(t, f.composed(), 2, "a new form made no new batch")
}

func requestRunning(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	began, end := make(chan struct{}), make(chan struct{})
	slow := func(put func() error) error {
		close(began)
		<-end
		return put()
	}
	f.store.putBatch.Store(&slow)
	once := sentBy(t, oneMessage, b.get("/compose"))
	first := make(chan answer)
	go func() { first <- b.post("/compose", once) }()
	<-began
	a := b.post("/compose", once)
	require.Equal(t, http.StatusConflict, a.StatusCode, a.text)
	f.store.putBatch.Store(nil)
	close(end)
	done := <-first
	again := b.post("/compose", sentBy(t, oneMessage, a))
	require.Equal(t, done.Request.URL.Path, again.Request.URL.Path)
	require.Len(t, f.composed(), 1)
}

func correctedAfterError(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	bad := sentBy(t, oneMessage, b.get("/compose"))
	bad.Set("from", "invalid")
	a := b.post("/compose", bad)
	require.Equal(t, http.StatusUnprocessableEntity, a.StatusCode)
	a = b.post("/compose", sentBy(t, oneMessage, a))
	require.True(t, strings.HasPrefix(a.Request.URL.Path, "/batches/"), a.text)
	require.Len(t, f.composed(), 1)
}

func testOfAnotherRow(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	test := sentBy(t, oneMessage, b.get("/compose"))
	test["do"], test["test"], test["to"] = []string{
		"test",
	}, []string{
		"me@example.com",
	}, []string{
		"email,first\nann@example.com,Ann\nbob@example.com,Bob",
	}
	for _, row := range []string{"1", "2", "2"} {
		test.Set("row", row)
		require.Contains(t, b.post("/compose", test).text, "A test message to me@example.com was accepted.")
	}
	require.Len(t, f.composed(), 2)
}

// TestComposeAsks checks that a form with many recipients is sent after a question, and that the question is about
// what is sent.
func TestComposeAsks(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	many := maps.Clone(oneMessage)
	many.Set("to", "ann@example.com\n"+listOf(11))
	asked := b.post("/compose", sentBy(t, many, b.get("/compose")))
	require.Contains(t, asked.text, "Send to 11 recipients?")
	require.Contains(t, asked.text, "1 line repeats an address.")
	require.Contains(t, asked.text, "11 messages are sent now: ")
	require.Empty(t, f.composed(), "sent before it was confirmed")

	changed := sentBy(t, many, asked)
	changed.Set("sure", sureField.FindStringSubmatch(asked.text)[1])
	changed.Set("subject", "another subject")
	asked = b.post("/compose", changed)
	require.Contains(t, asked.text, "Send to 11 recipients?", "the answer was about another message")
	require.Empty(t, f.composed())

	changed.Set("sure", sureField.FindStringSubmatch(asked.text)[1])
	for range 2 {
		a := b.post("/compose", changed)
		require.True(t, strings.HasPrefix(a.Request.URL.Path, "/batches/"), a.text)
	}
	require.Len(t, f.composed(), 1)
}

var sureField = regexp.MustCompile(`name="sure" value="([^"]+)"`)

// listOf returns a list of n addresses. The first one is that of Ann.
func listOf(n int) string {
	out := "ann@example.com\n"
	for i := 1; i < n; i++ {
		out += fmt.Sprintf("user%d@example.com\n", i)
	}
	return out
}

// TestPreviewIsBounded: a preview lists some of the placeholders without a value and says that
// there are others. It shows what is not a placeholder, and the address as it will be sent.
func TestPreviewIsBounded(t *testing.T) {
	t.Parallel()
	b := newRig(t, nil).byLink(login.LocalUser())
	var text strings.Builder
	for i := range 50_000 {
		_, _ = fmt.Fprintf(&text, "{{v%d}}", i)
	}
	a := b.post("/compose/preview", url.Values{
		"text": {text.String()},
		"html": {"{{a b}} {{email}}"},
		"to":   {"Zoe <zoe@Bücher.example>"},
	})
	require.Equal(t, 20, strings.Count(a.text, "has no value for this recipient"))
	require.Contains(t, a.text, "More placeholders have no value")
	require.Contains(t, a.text, "&#34;{{a b}}&#34; in line 1, column 1 is not a placeholder.")
	require.Contains(t, a.text, "{{a b}} zoe@xn--bcher-kva.example")
}

// TestComposeAsksAboutSuppressed: the question before a form is sent says how many recipients are suppressed, and
// through what the others are sent.
func TestComposeAsksAboutSuppressed(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	require.Equal(t, http.StatusOK, b.post("/suppressions", url.Values{"email": {"r3@example.com"}}).StatusCode)
	to := ""
	for n := range 12 {
		to += fmt.Sprintf("r%d@example.com\n", n)
	}
	page := textOf(b.post("/compose", url.Values{"from": {"shop@example.com"}, "subject": {"s"}, "text": {"t"},
		"do": {"send"}, "to": {to}, "once": {onceField.FindStringSubmatch(b.get("/compose").text)[1]}}).text)
	require.Contains(t, page, "Send to 12 recipients? From shop@example.com Subject s Recipients 12 Leaves now ")
	require.Contains(t, page, "If you send it now 1 message is not sent: "+
		"the address was added to the list manually. "+
		"11 messages are sent now: mg gets 50 %; sg gets 50 %.")
	require.Empty(t, f.composed(), "it was sent without a question")
}

// TestQuoteThatIsNotClosed: a mistake in a table is shown with its line, and nothing is sent.
func TestQuoteThatIsNotClosed(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	a := f.byLink(login.LocalUser()).post("/compose", url.Values{
		"from": {"shop@example.com"}, "subject": {"s"}, "text": {"t"}, "do": {"send"},
		"to": {"email,note\nann@example.com,\"hello\nbob@example.com,x\n"},
	})
	require.Equal(t, http.StatusUnprocessableEntity, a.StatusCode)
	require.Contains(t, a.text, "Line 2 of the table has a quote that is not closed")
	require.Empty(t, f.composed())
}

// TestComposeWithoutScripts: without JavaScript the HTML is a field of the form, and the parts of its editor are
// hidden.
func TestComposeWithoutScripts(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	page := b.get("/compose").text
	require.Regexp(t, `<textarea class="mono" id="html" name="html" [^>]*>`, page)
	for _, part := range []string{"switch", "why", "editor", "link"} {
		require.Regexp(t, `data-rich-`+part+` hidden>`, page)
	}
	require.Regexp(t, `<div data-from-rich hidden>`, page)
	require.Regexp(t, `<script src="/assets/squire\.[0-9a-f]+\.js" defer></script>`, page)
	require.NotContains(t, b.get("/").text, "squire", "only Compose needs it")
}
