package dashboard

import (
	"bytes"
	"context"
	"fmt"
	"html"
	"mime/multipart"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/drift"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/suppressions"
)

// TestSuppressionsPage adds addresses by the form and by a file, finds them and removes one.
func TestSuppressionsPage(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	require.Contains(t, b.get("/suppressions").text, "No address is suppressed.")

	bad := b.post("/suppressions", url.Values{"email": {"none"}, "reason": {"manual"}, "why": {"asked by phone"}})
	require.Equal(t, http.StatusUnprocessableEntity, bad.StatusCode)
	require.Contains(t, bad.text, `id="email-wrong"`)
	require.Contains(t, bad.text, `value="asked by phone"`)

	odd := "a%2fb?c@example.com"
	for email, reason := range map[string]string{"Ann@example.com": "complaint", odd: "manual"} {
		a := b.post("/suppressions", url.Values{"email": {email}, "reason": {reason}, "category": {"news"}})
		require.Contains(t, a.text, "The address was added.", email)
	}
	of, err := f.service.Suppressions.Of(t.Context(), service.Caller{User: "local"}, "ann@example.com")
	require.NoError(t, err)
	require.Equal(t, "page", of[0].Origin)
	require.Contains(t, b.get("/suppressions").text, "via page, by local<")
	found := b.get("/suppressions?q=ANN").text
	require.Contains(t, found, `ann<wbr>@example.com`)
	require.NotContains(t, found, `>a%2fb`)
	require.Contains(t, b.get("/suppressions?reason=hard_bounce").text, "No suppressed address fits.")

	var form bytes.Buffer
	parts := multipart.NewWriter(&form)
	file, err := parts.CreateFormFile("file", "list.csv")
	require.NoError(t, err)
	_, err = file.Write([]byte("email,reason\nbob@example.com,unsubscribe\nnone,manual\n"))
	require.NoError(t, err)
	require.NoError(t, parts.Close())
	a := b.send(http.MethodPost, "/suppressions", &form, "Content-Type", parts.FormDataContentType())
	require.Contains(t, a.text, "2 rows read, 1 added, 1 left out because of mistakes.")
	require.Contains(t, a.text, "Row 2/email:")

	ask := "/suppressions/" + url.PathEscape(odd) + "/remove"
	require.Contains(t, b.get("/suppressions").text, `href="`+ask+`"`)
	q := b.get(ask).text
	require.Contains(t, q, "Send mail to "+odd+" again?")
	require.Contains(t, q, `action="`+ask+`"`)
	require.Contains(t, b.post(ask, url.Values{"why": {""}}).text, "The address was removed.")
	refused := b.post("/suppressions/ann@example.com/remove", nil)
	require.Equal(t, http.StatusBadRequest, refused.StatusCode, "a complaint was removed without a reason")
	require.Contains(t, b.post("/suppressions/ann@example.com/remove", url.Values{"why": {"a mistake"}}).text,
		"The address was removed.")
	list, err := f.service.Suppressions.List(t.Context(), service.Caller{User: "local"}, suppressions.Filter{},
		service.Page{})
	require.NoError(t, err)
	require.Len(t, list.Suppressions, 1)
	require.Equal(t, "bob@example.com", list.Suppressions[0].Email)
}

// TestSuppressSelected suppresses the recipients of selected messages after a question.
func TestSuppressSelected(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	id := f.mixed("local", 12)
	require.Contains(t, b.get("/batches/"+id.String()).text, "Suppress selected")
	form := url.Values{"id": {id.Log(2).String(), id.Log(5).String()}}
	ask := b.post("/selected/suppress", form)
	require.Contains(t, ask.text, "Suppress the recipients of 2 messages?")
	require.Contains(t, b.get("/suppressions").text, "No address is suppressed.", "it was done without a confirmation")
	form.Set("once", onceField.FindStringSubmatch(ask.text)[1])
	form.Set("back", "/suppressions")
	form.Set("why", "asked by phone")
	for range 2 {
		list := b.post("/selected/suppress", form).text
		require.Equal(t, 2, strings.Count(list, "asked by phone"))
		require.Contains(t, list, `href="/logs/`+id.Log(5).String()+`"`)
	}
	require.Equal(t, http.StatusNotFound, b.post("/selected/suppress", url.Values{"id": {"x"}}).StatusCode)
}

// fakeLists are the suppression lists of a provider, which remove every address.
type fakeLists struct {
	models.ProviderLists
	cleared []string
}

func (*fakeLists) Lists() []models.ProviderList {
	return []models.ProviderList{{Name: "bounces", Reason: models.HardBounce}, {Name: "blocks"}}
}

func (l *fakeLists) Unlist(_ context.Context, list, address string) error {
	l.cleared = append(l.cleared, list+" "+address)
	return nil
}

// listed stores addresses that sg suppresses and we do not.
func (f *rig) listed(list string, emails ...string) {
	f.Helper()
	for _, email := range emails {
		e := drift.Entry{Email: email, Provider: "sg", List: list, Text: "550 <b>no</b>", At: time.Now().UTC()}
		require.NoError(f, drift.Note(f.Context(), f.store, &e))
	}
}

// TestListedAtProvider: an operator sees what a provider suppresses and we do not, and clears it there after a
// question; others do not. The page of the providers says how the lists are read.
func TestListedAtProvider(t *testing.T) {
	t.Parallel()
	f := newRig(t, &login.GitHub{Operators: []string{"bob"}, Logins: []string{"ann"}}, ann, bob)
	b := f.browser()
	b.byGitHub("bob")
	f.board.providers.Sample(t.Context(), time.Now())
	require.Contains(t, b.get("/providers").text,
		`<dt>Suppression lists</dt><dd>not read yet · <a href="/providers/sg/suppressions">`)
	require.Contains(t, b.get("/providers/sg/suppressions").text, "suppresses no address that is not suppressed here")

	odd := "a%2fb?c@example.com"
	f.listed("blocks", "ann@example.com", odd)
	st := drift.State{Read: time.Now(), Error: "list blocks: it answered 500",
		Lists: map[string]*drift.Cover{"bounces": {Refused: true}}}
	require.NoError(t, drift.PutState(t.Context(), f.store, "sg", &st, 1))
	f.board.providers.Sample(t.Context(), time.Now())
	text := b.get("/providers").text
	require.Contains(t, text, "list blocks: it answered 500")
	require.Contains(t, text, "the key may not read bounces")
	text = b.get("/providers/sg/suppressions").text
	require.Contains(t, text, "The key may not read bounces.")
	require.Contains(t, text, "550 &lt;b&gt;no&lt;/b&gt;")
	ask := "/providers/sg/suppressions/blocks/" + url.PathEscape(odd) + "/clear"
	require.Contains(t, text, `href="`+ask+`"`)
	require.Contains(t, b.get(ask).text, "Clear "+odd+" at SendGrid")
	require.Contains(t, b.post(ask, url.Values{"why": {"asked"}}).text, "was removed from the provider")
	require.Equal(t, []string{"blocks " + odd}, f.lists.cleared)
	require.NotContains(t, b.get("/providers/sg/suppressions").text, odd)
	require.Contains(t, b.get("/operations/audit").text, "removed an address from the suppression lists of a provider")
	require.Equal(t, http.StatusNotFound, b.get("/providers/none/suppressions").StatusCode)
	require.Equal(t, http.StatusConflict, b.get("/providers/mg/suppressions").StatusCode)

	other := f.browser()
	other.byGitHub("Ann")
	require.NotContains(t, other.get("/providers").text, "/providers/sg/suppressions")
	for _, path := range []string{"/providers/sg/suppressions", ask} {
		require.Equal(t, http.StatusNotFound, other.get(path).StatusCode)
	}
	require.NotEqual(t, http.StatusOK, other.post(ask, nil).StatusCode)
	require.Len(t, f.lists.cleared, 1)
}

// TestSuppressionsAreSorted: the page has the newest entries first, counts them by reason, and exports the list.
func TestSuppressionsAreSorted(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	for i := range 52 {
		for began := time.Now().UnixMilli(); time.Now().UnixMilli() == began; { //nolint:revive // each has a time of its own
		}
		b.post("/suppressions", url.Values{"email": {fmt.Sprintf("r%02d@example.com", i)}, "reason": {"manual"}})
	}
	b.post("/suppressions", url.Values{"email": {"kim@example.com"}, "reason": {"complaint"}})
	text := b.get("/suppressions").text
	require.Contains(t, text, `All <span class="count">53</span>`)
	require.Contains(t, text, `Added manually <span class="count">52</span>`)
	require.Less(t, strings.Index(text, "r51<wbr>"), strings.Index(text, "r50<wbr>"))
	require.NotContains(t, text, "r02<wbr>")
	next := regexp.MustCompile(`href="([^"]+)" rel="next"`).FindStringSubmatch(text)
	require.NotEmpty(t, next)
	rest := b.get(html.UnescapeString(next[1])).text
	require.Contains(t, rest, "r02<wbr>")
	require.NotContains(t, rest, `rel="next"`)
	text = b.get("/suppressions?reason=complaint").text
	require.Contains(t, text, "kim<wbr>")
	require.NotContains(t, text, "r51<wbr>")
	a := b.get("/suppressions/export.csv")
	require.Equal(t, "text/csv; charset=utf-8", a.Header.Get("Content-Type"))
	require.Equal(t, 54, strings.Count(a.text, "\n"))
}
